mod all;
mod check;
mod keys;
mod modes;
mod options;

use std::{panic::Location, sync::Arc, time::Duration};

pub(crate) use self::keys::merge;
pub use self::{
    all::LockAllRequest,
    keys::{KeyInMode, exclusive, permits, shared},
};
use crate::{
    backend::Token,
    engine::Engine,
    error::{Error, ErrorKind},
    guard::LockGuard,
    key::LockKey,
    lease::Lease,
    mode::Mode,
    options::LeaseOptions,
};

/// A request for a lease: its options, and the ways to make it.
///
/// [`LockManager::lock`](crate::LockManager::lock) begins one with the manager's defaults. Awaiting it, or
/// [`acquire`](Self::acquire), waits for the key; [`try_acquire`](Self::try_acquire) does not;
/// [`run`](Self::run) keeps the lease around a piece of work and drops the work when the lease is lost;
/// [`try_run`](Self::try_run) does so only if the key is free.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
/// use lock_core::LockManager;
/// use std::time::Duration;
///
/// let manager = LockManager::in_memory();
/// let guard = manager.lock("goods:1").ttl(Duration::from_secs(3)).wait(Duration::from_secs(1)).await?;
/// // the protected work
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a request does nothing unless it is awaited"]
pub struct LockRequest<K = LockKey> {
    pub(crate) engine: Arc<Engine>,
    /// The key or keys, or what is wrong with them.
    pub(crate) keys: Result<K, Error>,
    pub(crate) mode: Mode,
    /// How many permits it takes, if that was said.
    pub(crate) take: Option<u32>,
    /// Whether it asks both to share the key and for permits.
    pub(crate) clashes: bool,
    pub(crate) options: LeaseOptions,
    /// The token of a lease that is taken up.
    pub(crate) from: Option<Token>,
    /// Where in the user's code the request was begun.
    pub(crate) since: &'static Location<'static>,
    /// Its label in metrics.
    pub(crate) label: &'static str,
}

impl<K> LockRequest<K> {
    pub(crate) fn new(
        engine: &Arc<Engine>,
        keys: Result<K, Error>,
        options: LeaseOptions,
        since: &'static Location<'static>,
    ) -> Self {
        let engine = Arc::clone(engine);
        Self { engine, keys, mode: Mode::Exclusive, take: None, clashes: false, options, from: None, since, label: "" }
    }
}

impl LockRequest {
    /// Tries once to acquire the lease. Returns `None` if the key is busy.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), without [`ErrorKind::Busy`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// if let Some(guard) = manager.lock("goods:1").try_acquire().await? {
    ///     assert!(manager.lock("goods:1").try_acquire().await?.is_none());
    ///     guard.release().await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn try_acquire(self) -> Result<Option<LockGuard>, Error> {
        none_if_busy(self.wait(Duration::ZERO).acquire().await)
    }

    /// Acquires the lease, runs `work` for as long as the lease is held, and releases it.
    ///
    /// `work` is `async |lease| …`, `|lease| async move { … }` or an async function that takes a [`Lease`]. To run a future that needs
    /// no lease, write `async |_| future.await`, or use [`LockGuard::protect`].
    ///
    /// The deadline is checked before every poll of the work. When the lease is lost, the work is *dropped* at its current
    /// `.await` and the error is returned, so the work must be safe to cancel there (a database transaction rolls back). If the work
    /// completes as the lease ends, its result is returned. A release that fails never hides the result; it is retried in the
    /// background and logged. [`on_lost`](Self::on_lost) lets the work finish instead.
    ///
    /// Inside `work`, another request for the same key by the same task is [`ErrorKind::WouldDeadlock`] at once. A
    /// task that `work` spawns is not covered.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`ErrorKind::Lost`] when the lease was lost while the work ran.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lease in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let mut stock = 100;
    /// let fence = manager
    ///     .lock("goods:1")
    ///     .run(async |lease| {
    ///         stock -= 1;
    ///         lease.fencing_token()
    ///     })
    ///     .await?;
    /// assert_eq!(stock, 99);
    /// # let _ = fence; Ok(()) }
    /// ```
    pub async fn run<F: Future>(self, work: impl FnOnce(Lease) -> F) -> Result<F::Output, Error> {
        let guard = self.acquire().await?;
        let lease = guard.lease().clone();
        guard.protect(work(lease)).await
    }

    /// Tries once, and runs `work` as [`run`](Self::run) does. Returns `None` immediately, without running `work`, if the key is
    /// busy.
    ///
    /// # Errors
    /// As [`run`](Self::run), without [`ErrorKind::Busy`].
    ///
    /// # Cancel safety
    /// As [`run`](Self::run).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let nightly = || manager.lock("nightly").try_run(async |_| "cleaned up");
    /// assert_eq!(nightly().await?, Some("cleaned up"));
    ///
    /// let _elsewhere = manager.lock("nightly").await?;
    /// assert_eq!(nightly().await?, None);
    /// # Ok(()) }
    /// ```
    pub async fn try_run<F: Future>(self, work: impl FnOnce(Lease) -> F) -> Result<Option<F::Output>, Error> {
        let Some(guard) = self.try_acquire().await? else { return Ok(None) };
        let lease = guard.lease().clone();
        guard.protect(work(lease)).await.map(Some)
    }
}

fn none_if_busy<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(guard) => Ok(Some(guard)),
        Err(error) if error.kind() == ErrorKind::Busy => Ok(None),
        Err(error) => Err(error),
    }
}
