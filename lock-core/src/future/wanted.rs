//! A key that a request acquires past the line of its process.

use std::sync::Arc;

use crate::{
    backend::{
        self, Token,
        cleanup::{Doubt, PendingRelease},
    },
    clock::Moment,
    engine::{
        Engine, KeepAlive,
        tenure::{Acquired, Offer},
        terms::Terms,
    },
    error::{Error, ErrorKind},
    key::LockKey,
};

/// The key, and the token that was drawn for it. While the fate of the token is not known, its drop has it cleaned up.
pub(super) struct Wanted {
    /// Until then the engine stays. Dropped before the engine's handle, whose drop is the last that wakes the task.
    _keep_alive: KeepAlive,
    engine: Arc<Engine>,
    attempt: &'static str,
    pub(super) key: LockKey,
    pub(super) terms: Terms,
    token: Token,
    pub(super) sent: Moment,
    /// `None` once it is known that the token is not set, or is in use.
    pub(super) doubt: Option<Doubt>,
    /// Until when the key stays busy if the lease does not begin.
    keep_until: Moment,
}

impl Wanted {
    /// Draws a token for a request that is registered next.
    pub(super) fn new(
        engine: &Arc<Engine>,
        attempt: &'static str,
        key: LockKey,
        terms: Terms,
        keep_until: Moment,
        now: Moment,
    ) -> Self {
        let token = engine.token().in_mode(terms.mode);
        // The epoch is read, and the engine is kept alive, before the request is registered. So a connection that is replaced meanwhile leaves
        // the token in doubt, and a shutdown that begins meanwhile waits for this future.
        let doubt = Some(Doubt { until: terms.ttl.end(now), unanswered_since: Some(engine.backend.epoch()) });
        let _keep_alive = engine.keep_alive();
        Self { _keep_alive, engine: Arc::clone(engine), attempt, key, terms, token, sent: now, doubt, keep_until }
    }

    pub(super) fn request(&self) -> backend::Acquire {
        backend::Acquire::new(self.key.clone(), self.token, self.terms.ttl.get())
    }

    /// Enters the tenure that an answer grants, and begins its hold. `is_sure` says that no earlier sending of the request may be
    /// executed late.
    pub(super) fn held(
        &mut self,
        (fence, block): (u64, u32),
        passes: bool,
        is_sure: bool,
        now: Moment,
    ) -> Result<Offer, Error> {
        let Self { engine, attempt, key, terms, token, sent, .. } = self;
        // That of the first sending: a release that is answered in a later one does not come after it.
        let unanswered_since = self.doubt.and_then(|doubt| doubt.unanswered_since).filter(|_| !is_sure);
        let doubt = Doubt { until: terms.ttl.end(now), unanswered_since };
        let acquired = Acquired { token: *token, fence, block, sent: *sent, doubt, passes, granted: None };
        let offer = engine.with(|state| {
            // The shutdown may have counted the leases already. The drop cleans the token up.
            if state.shut_down {
                return Err(Error::new(ErrorKind::ShutDown, attempt).on(key));
            }
            Ok(state.queues.enter(key, terms, acquired, now))
        })?;
        self.doubt = None;
        Ok(offer)
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        if let Some(doubt) = self.doubt {
            let until = self.terms.ttl.end(self.engine.now());
            let pending = PendingRelease::at_once(self.key.clone(), self.token);
            self.engine.clean_up(PendingRelease { keep_until: self.keep_until, ..pending }, Doubt { until, ..doubt });
        }
    }
}
