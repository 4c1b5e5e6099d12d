use std::{slice, time::Duration};

use super::LockGuard;
use crate::{
    backend::{Answer, BackendError, Operation, Outcome, Renew, Replied},
    clock::Moment,
    end::End,
    engine::{Engine, hold::Hold, tenure::HoldId},
    error::{Argument, EXTEND, Error, ErrorKind, LossReason},
    metrics,
    ttl::Ttl,
};

impl LockGuard {
    /// Makes the lease last `ttl` from now, which **replaces** the time that is left, also by less. Returns what remains.
    ///
    /// It takes one round trip, and proves that the lease was held when the backend executed it. A shorter lease ends sooner
    /// only for this holder; others still wait until the key is released or expires. Renewal, if it is on, continues and brings
    /// the lease back to at least the ttl that it was acquired with.
    ///
    /// # Errors
    /// * [`ErrorKind::Lost`] if the lease is lost already (then nothing is sent), or if the backend reports the loss.
    /// * [`ErrorKind::Invalid`] for a ttl below 10 ms or above 100 years.
    /// * [`ErrorKind::Backend`] if the backend did not answer: the lease is held as long as before, or for `ttl` if that is shorter.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the lease held for at least the time that was left, or for `ttl` if that is shorter.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    /// use std::time::Duration;
    ///
    /// let manager = LockManager::in_memory();
    /// let mut guard = manager.lock("report").ttl(Duration::from_secs(3)).fixed().await?;
    /// let remaining = guard.extend(Duration::from_secs(30)).await?;
    /// assert!(remaining > Duration::from_secs(29));
    /// let remaining = guard.extend_by(Duration::from_secs(30)).await?;
    /// assert!(remaining > Duration::from_secs(58));
    /// # Ok(()) }
    /// ```
    pub async fn extend(&mut self, ttl: Duration) -> Result<Duration, Error> {
        extend(slice::from_ref(self), |_| Ttl::new(ttl)).await?;
        Ok(self.remaining())
    }

    /// Extends the lease by `more`, in one round trip, and returns what remains.
    ///
    /// # Errors
    /// As [`extend`](Self::extend), whose ttl is then the remaining time and `more`.
    ///
    /// # Cancel safety
    /// As [`extend`](Self::extend).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    /// use std::time::Duration;
    ///
    /// let manager = LockManager::in_memory();
    /// let mut guard = manager.lock("report").ttl(Duration::from_secs(10)).fixed().await?;
    /// let before = guard.remaining();
    /// let after = guard.extend_by(Duration::from_secs(10)).await?;
    /// assert!(after > before + Duration::from_secs(9));
    /// # guard.release().await }
    /// ```
    pub async fn extend_by(&mut self, more: Duration) -> Result<Duration, Error> {
        extend(slice::from_ref(self), |guard| guard.ttl_for(more)).await?;
        Ok(self.remaining())
    }

    /// The ttl that adds `more` to what is left.
    pub(super) fn ttl_for(&self, more: Duration) -> Result<Ttl, String> {
        Ttl::for_validity(self.remaining().saturating_add(more))
    }

    /// Whether the lease is held and the ttl in its range.
    fn check_extension(&self, ttl: Result<Ttl, String>) -> Result<Ttl, Error> {
        self.check(EXTEND)?;
        ttl.map_err(|detail| Error::invalid(Argument::Ttl, EXTEND, detail).on(&self.lease.hold().key))
    }

    /// Makes the request that extends the lease, to be sent now.
    fn begin_extension(&self, ttl: Ttl) -> Result<(Extension<'_>, Renew), Error> {
        let hold = self.lease.hold();
        let ended = |end| hold.error(EXTEND, end);
        let Some((engine, id)) = &self.held else { return Err(ended(End::Released)) };
        let id = *id;
        engine.admit_holder(EXTEND).map_err(|error| error.on(&hold.key))?;
        let sent = engine.now();
        // The local deadline goes down before anything is sent, and up only after the answer.
        let version = hold.lower(ttl.deadline(sent));
        let request = engine.with(|state| state.queues.tenures.extending(id, sent, ttl));
        let Some(request) = request else {
            return Err(ended(hold.finish(End::Lost(LossReason::Taken))));
        };
        Ok((Extension { engine, id, hold, ttl, sent, version }, request))
    }
}

/// Extends the leases of one engine, each by its own ttl, or returns the first error. If a lease is lost already or a ttl is out of
/// range, nothing is sent.
pub(super) async fn extend(guards: &[LockGuard], ttl: impl Fn(&LockGuard) -> Result<Ttl, String>) -> Result<(), Error> {
    let checked = |guard| LockGuard::check_extension(guard, ttl(guard)).map(|ttl| (guard, ttl));
    let wanted = guards.iter().map(checked).collect::<Result<Vec<_>, _>>()?;
    let mut failed = None;
    for wanted in wanted.chunks(AT_ONCE) {
        // One that was lost while those before it were extended keeps no other back.
        let begun: Vec<_> = wanted.iter().map(|(guard, ttl)| guard.begin_extension(*ttl)).collect();
        let batch = begun.iter().flatten().map(|(_, request)| Operation::Renew(request.clone())).collect();
        let answer = match begun.iter().flatten().next() {
            Some((extension, _)) => extension.engine.call(batch).await,
            None => Ok(Answer::new([])),
        };
        let mut outcomes = Answer::each(answer);
        for extension in begun {
            let mut outcome = || outcomes.next().unwrap_or_else(|| Err(BackendError::missing()));
            if let Err(error) = extension.and_then(|(extension, _)| extension.answered(outcome())) {
                failed.get_or_insert(error);
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

/// An extension that was sent.
struct Extension<'a> {
    engine: &'a Engine,
    id: HoldId,
    hold: &'a Hold,
    ttl: Ttl,
    /// The lease clock before sending.
    sent: Moment,
    /// The version of the deadline that the answer may raise.
    version: u32,
}

impl Extension<'_> {
    fn answered(self, result: Replied<Outcome>) -> Result<(), Error> {
        let Self { engine, id, hold, ttl, sent, version } = self;
        let ended = |end| hold.error(EXTEND, end);
        match result {
            Ok(Outcome::Renewed { .. }) => {
                // The new deadline counts from the sending, as everywhere: the server moved the expiry at some moment after that, so
                // the deadline is never later than the expiry, however long the answer took.
                if let Some(slack) = hold.raise(hold.now(), ttl.deadline(sent), version) {
                    metrics::renewed(hold.label, slack);
                }
                engine.with(|state| state.queues.tenures.extended(id, sent, ttl));
                hold.check().map_err(ended)
            }
            Ok(Outcome::Gone) => {
                engine.taken(id);
                Err(ended(hold.finish(End::Lost(LossReason::Taken))))
            }
            Ok(outcome) => Err(Error::backend(EXTEND, Some(&hold.key), BackendError::unexpected(outcome))),
            Err(error) => {
                if error.kind() == ErrorKind::WrongType {
                    engine.taken(id);
                }
                // With the runtime of the engine all leases have ended.
                hold.check().map_err(ended)?;
                Err(Error::backend(EXTEND, Some(&hold.key), error))
            }
        }
    }
}

/// How many leases are extended in one call.
const AT_ONCE: usize = 256;
