//! From an exclusive lease to a shared one, with nobody in between.

use std::sync::Arc;

use super::LockGuard;
use crate::{
    End, Error, ErrorKind, LossReason,
    backend::cleanup::{Doubt, PendingRelease},
    engine::Engine,
    error::{Argument, DOWNGRADE},
    mode::Mode,
    options::LeaseOptions,
    request::LockRequest,
    ttl::{Renewal, Ttl},
};

impl LockGuard {
    /// Turns the exclusive lease into a shared one, in one round trip (and the wait for its replicas) and with nobody in between: shared requests that wait at the
    /// front of the queue may then hold the key, too.
    ///
    /// The shared lease has a fencing token of its own, the [`durability`](crate::LockRequest::durability) of the exclusive one, and what is
    /// left of [`max_hold`](crate::LockRequest::max_hold) and [`at_least`](crate::LockRequest::at_least). A lease that is not renewed lasts
    /// for its ttl again, or for what it was extended by if that is more. Clones of the old lease end with [`End::HandedOver`]. The other way is refused by
    /// design: two holders of a shared lease who both waited for the other to leave would wait forever. Release the shared lease,
    /// acquire the key exclusively, and read again what was read before.
    ///
    /// # Errors
    /// The lease is over then: the guard is gone, and what may be left is released in the background.
    /// * [`ErrorKind::Lost`] if it was lost before.
    /// * [`ErrorKind::Backend`] if the backend did not answer.
    /// * [`ErrorKind::Invalid`] for a lease that is not exclusive.
    /// * [`ErrorKind::NotReplicated`] if it has a `durability` that the shared lease does not reach.
    /// * Others as [`acquire`](crate::LockRequest::acquire).
    ///
    /// # Cancel safety
    /// Dropping the future releases the lease in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let writer = manager.lock("price:1").await?;
    /// // write, and let others read while this one reads, too
    /// let reader = writer.downgrade().await?;
    /// let other = manager.lock("price:1").shared().await?;
    /// # reader.release().await?; other.release().await }
    /// ```
    pub async fn downgrade(mut self) -> Result<Self, Error> {
        self.check(DOWNGRADE)?;
        let hold = Arc::clone(self.lease.hold());
        let ended = |end| hold.error(DOWNGRADE, end);
        let mode = hold.mode;
        if !mode.is_exclusive() {
            let detail = format!("the lease is {mode}, and only an exclusive one can be downgraded; it is released");
            return Err(Error::invalid(Argument::Mode, DOWNGRADE, detail).on(&hold.key));
        }
        let gone = || ended(hold.finish(End::Lost(LossReason::Taken)));
        let (engine, id) = self.held.take().ok_or_else(gone)?;
        let now = engine.now();
        let (latest, remaining) = (hold.latest(), self.lease.remaining());
        // Until the exclusive token is on the list of releases, a shutdown would find nothing to be done.
        let _alive = engine.keep_alive();
        let left = engine.with(|state| state.queues.hand_over(id, now)).ok_or_else(gone)?;
        hold.finish(End::HandedOver);
        let pending = left.pending();
        let mut ttl = left.ttl;
        // One that is renewed gets its ttl again and again. Another may have been extended by more than that.
        if left.renewal == Renewal::Never
            && let Ok(extended) = Ttl::for_validity(remaining)
        {
            ttl = ttl.max(extended);
        }
        let options = LeaseOptions {
            ttl: Some(ttl.get()),
            wait: Some(std::time::Duration::ZERO),
            renewal: Some(left.renewal),
            max_hold: latest.map(|latest| latest.since(now)),
            at_least: Some(pending.keep_until.since(now)),
            on_lost: Some(self.on_lost),
            durability: Some(self.durability),
        };
        let request = LockRequest {
            mode: Mode::Shared,
            from: Some(pending.token),
            label: hold.label,
            ..LockRequest::new(&engine, Ok(pending.key.clone()), options, hold.since)
        };
        let _left = Left { engine, doubt: left.doubt, pending };
        let shared = request.acquire().await.map_err(|error| match error.kind() {
            ErrorKind::NotHeld => ended(End::Lost(LossReason::Taken)),
            // Of a request it would say that nothing was done, and the holder has begun.
            _ => error.attempted(DOWNGRADE),
        })?;
        if let Some(latest) = latest {
            shared.end_by(latest);
        }
        Ok(shared)
    }
}

/// The exclusive token. It is released also if the lease goes on without it: of several nodes, one that was late may have it.
struct Left {
    engine: Arc<Engine>,
    pending: PendingRelease,
    doubt: Doubt,
}

impl Drop for Left {
    fn drop(&mut self) {
        // Nobody else takes it up: a grant to it from now on is released.
        self.engine.state().queues.handed_over.remove(&self.pending.token);
        self.engine.clean_up(self.pending.clone(), self.doubt);
    }
}
