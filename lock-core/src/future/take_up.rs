//! Taking up a lease that was handed over.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use crate::{
    backend::{self, Answer, BackendError, Batch, Operation, Outcome, Token},
    clock::Moment,
    engine::{
        Engine, Owed, Response,
        cleanup::{AT_ONCE, Doubt, Parting},
        tenure::{Acquired, Offer, Terms},
    },
    error::{Error, ErrorKind},
    key::LockKey,
};

/// A request to take a lease up. While its result is not known, its drop has its token cleaned up.
pub(super) struct TakeUp {
    engine: Arc<Engine>,
    key: LockKey,
    terms: Terms,
    token: Token,
    sent: Moment,
    response: Response,
    /// `None` once it is known that the token is not set, or is in use.
    doubt: Option<Doubt>,
    /// Until when the key stays busy if the lease does not go on. A lease that is downgraded has begun already, and one that is
    /// handed over has not.
    keep_until: Moment,
    /// Until then the engine stays.
    _owed: Owed,
}

impl TakeUp {
    /// Sends the request that takes the lease over from `from`.
    pub(super) fn new(engine: &Arc<Engine>, key: LockKey, terms: Terms, from: Token, now: Moment) -> Self {
        let token = engine.token().in_mode(terms.mode);
        let request = backend::Acquire::new(key.clone(), token, terms.ttl.get()).from(from);
        // The epoch is read, and the token is owed, before the request is registered. So a connection that is replaced meanwhile leaves
        // the token in doubt, and a shutdown that begins meanwhile waits for this future.
        let doubt = Some(Doubt { until: terms.ttl.end(now), unanswered_since: Some(engine.backend.epoch()) });
        let is_downgrade = from.mode() != terms.mode && !terms.at_least.is_zero();
        let keep_until = if is_downgrade { now + terms.at_least } else { AT_ONCE };
        let _owed = engine.owe();
        let response = engine.call(Batch::from([Operation::Acquire(request)]));
        Self { engine: Arc::clone(engine), key, terms, token, sent: now, response, doubt, keep_until, _owed }
    }

    /// Waits for the answer; sets `now` when it is there.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, now: &mut Moment) -> Poll<Result<Offer, Error>> {
        let result = ready!(Pin::new(&mut self.response).poll(cx));
        *now = self.engine.now();
        Poll::Ready(self.answered(result, *now))
    }

    fn answered(&mut self, result: Result<Answer, BackendError>, now: Moment) -> Result<Offer, Error> {
        let Self { engine, key, terms, token, sent, doubt, .. } = self;
        let repeated = result.as_ref().is_ok_and(|answer| answer.repeated);
        match result.and_then(Answer::single) {
            Ok(Outcome::Held { fence, block, .. }) if now < terms.ttl.deadline(*sent) => {
                let unanswered_since = repeated.then(|| engine.backend.epoch());
                let doubt_left = Doubt { until: terms.ttl.end(now), unanswered_since };
                let acquired = Acquired {
                    token: *token,
                    fence,
                    block,
                    sent: *sent,
                    doubt: doubt_left,
                    passes: false,
                    granted: None,
                };
                let offer = engine.take_up(key, terms, acquired, now)?;
                *doubt = None;
                Ok(offer)
            }
            Ok(Outcome::Held { .. }) => {
                let detail = "the answer took longer than the lease had left";
                Err(Error::new(ErrorKind::Backend, TAKE_UP).on(key).detail(detail))
            }
            Ok(Outcome::Gone) => {
                *doubt = None;
                Err(Error::new(ErrorKind::NotHeld, TAKE_UP).on(key))
            }
            // The token may stand somewhere, and is cleaned up.
            Ok(Outcome::Split { .. }) => {
                let detail = "too few nodes had the lease that was handed over, or another took it up; it may be lost";
                Err(Error::new(ErrorKind::Backend, TAKE_UP).on(key).detail(detail))
            }
            Ok(outcome) => Err(Error::backend(TAKE_UP, Some(key), BackendError::unexpected(outcome))),
            Err(error) => {
                if !error.may_have_happened() {
                    *doubt = None;
                }
                Err(Error::backend(TAKE_UP, Some(key), error))
            }
        }
    }
}

impl Drop for TakeUp {
    fn drop(&mut self) {
        if let Some(doubt) = self.doubt {
            // Cancelled first: a request that was not sent yet must not be sent after the release of its token.
            self.response.cancel();
            let until = self.terms.ttl.end(self.engine.now());
            let parting = Parting::at_once(self.key.clone(), self.token);
            self.engine.clean_up(Parting { keep_until: self.keep_until, ..parting }, Doubt { until, ..doubt });
        }
    }
}

const TAKE_UP: &str = "take up";
