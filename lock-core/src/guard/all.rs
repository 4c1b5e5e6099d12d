use std::{
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

use super::{LockGuard, extend::extend};
#[cfg(doc)]
use crate::ErrorKind;
use crate::{
    end::End, error::Error, fencing::FencingToken, future::release::ReleaseAll, lease::Lease, leases::Leases, ttl::Ttl,
};

/// Several held leases, acquired by [`lock_all`](crate::LockManager::lock_all) and released when the guard is dropped.
///
/// It counts as lost as soon as one of its leases is lost.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
/// use lock_core::{LockManager, LossReason};
///
/// let manager = LockManager::in_memory();
/// let guard = manager.lock_all(["goods:1", "goods:3"]).await?;
/// manager.force_release("goods:3").await?;
/// assert!(!guard.is_held());
/// let (lost, end) = guard.ended().await;
/// assert_eq!((lost.key(), end.loss()), ("goods:3", Some(LossReason::Forced)));
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "the leases are released as soon as the guard is dropped, which `let _ = …` does at once; write `let _guard = …`"]
#[clippy::has_significant_drop]
pub struct LockAllGuard {
    /// In the order of the keys' bytes.
    pub(crate) guards: Vec<LockGuard>,
    leases: Leases,
    waited: Duration,
}

getters! { guard: LockAllGuard =>
    /// Returns the leases, whose clones can be sent to other tasks.
    leases: &Leases = &guard.leases;

    /// Returns for how long the holder may still rely on all leases: the shortest of their remaining times.
    remaining: Duration = guard.leases.remaining();

    /// Returns when the first lease ends if none is renewed; see [`Lease::deadline`].
    deadline: Instant = guard.leases.deadline();

    /// Returns how long the keys were waited for. The wait for replicas is not included.
    waited: Duration = guard.waited;

    /// Returns the ttl that the leases were acquired with.
    ttl: Duration = guard.leases.ttl();

    /// Returns whether all leases are still held.
    is_held: bool = guard.leases.is_held();
}

impl LockAllGuard {
    pub(crate) fn new(guards: Vec<LockGuard>, waited: Duration) -> Self {
        let leases = Leases::new(guards.iter().map(|guard| guard.lease().clone()).collect());
        Self { guards, leases, waited }
    }

    /// Returns the fencing token of one key, or `None` if the key is not among them.
    #[must_use]
    pub fn fencing_token(&self, key: &str) -> Option<FencingToken> {
        self.leases.fencing_token(key)
    }

    /// Completes when one lease has been lost, and returns which one and how; see [`Leases::ended`].
    ///
    /// # Cancel safety
    /// Cancel safe: a later future completes at once if the lease has ended meanwhile.
    pub fn ended(&self) -> impl Future<Output = (Lease, End)> + use<> {
        self.leases.ended()
    }

    /// Polls for the end of one of the leases, and registers the task to be woken when one ends; see
    /// [`Leases::poll_ended`].
    pub fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<(Lease, End)> {
        self.leases.poll_ended(cx)
    }

    /// Splits it into one guard for each key, in the order of the keys' bytes, to release or hand over one before the others.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock_all(["goods:1", "goods:3"]).await?;
    /// let [first, second] = guard.into_guards().try_into().expect("two keys");
    /// first.release().await?;
    /// assert_eq!(second.key(), "goods:3");
    /// assert!(second.is_held());
    /// # Ok(()) }
    /// ```
    #[must_use = "the leases are released as soon as the guards are dropped"]
    pub fn into_guards(self) -> Vec<LockGuard> {
        self.guards
    }

    /// Makes every lease last `ttl` from now, in one round trip, and returns the shortest of the remaining times. See
    /// [`LockGuard::extend`].
    ///
    /// # Errors
    /// As [`LockGuard::extend`], for the first key that fails; the other leases are extended. If a lease was lost already, or the
    /// ttl is out of range, nothing is sent.
    ///
    /// # Cancel safety
    /// As [`LockGuard::extend`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    /// use std::time::Duration;
    ///
    /// let manager = LockManager::in_memory();
    /// let mut guard = manager.lock_all(["goods:1", "goods:3"]).fixed().await?;
    /// let remaining = guard.extend(Duration::from_secs(60)).await?;
    /// assert!(remaining > Duration::from_secs(58));
    /// # guard.release().await }
    /// ```
    pub async fn extend(&mut self, ttl: Duration) -> Result<Duration, Error> {
        extend(&self.guards, |_| Ttl::new(ttl)).await?;
        Ok(self.remaining())
    }

    /// Extends every lease by `more`, in one round trip, and returns the shortest of the remaining times. See
    /// [`LockGuard::extend_by`].
    ///
    /// # Errors
    /// As [`extend`](Self::extend).
    ///
    /// # Cancel safety
    /// As [`LockGuard::extend`].
    pub async fn extend_by(&mut self, more: Duration) -> Result<Duration, Error> {
        extend(&self.guards, |guard| guard.ttl_for(more)).await?;
        Ok(self.remaining())
    }

    /// Releases all leases at once and waits for the answers; see [`LockGuard::release`].
    ///
    /// # Errors
    /// As [`LockGuard::release`], for the first key that fails; the others are released.
    ///
    /// # Cancel safety
    /// Dropping the future releases the leases in the background.
    pub fn release(self) -> ReleaseAll {
        ReleaseAll::new(self.guards.into_iter().map(LockGuard::release))
    }
}
