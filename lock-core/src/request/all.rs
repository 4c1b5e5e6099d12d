use std::time::Duration;

use super::{LockRequest, none_if_busy};
use crate::{error::Error, guard::LockAllGuard, key::LockKey, leases::Leases, mode::Mode, options::LeaseOptions};

/// A request for several leases, all or none; [`LockManager::lock_all`](crate::LockManager::lock_all) begins it.
pub type LockAllRequest = LockRequest<Vec<(LockKey, Mode)>>;

impl LockAllRequest {
    /// Tries once to acquire all leases. Returns `None` if one of the keys is busy.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), without [`ErrorKind::Busy`](crate::ErrorKind::Busy).
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
    /// let _one = manager.lock("account:7").await?;
    /// assert!(manager.lock_all(["account:3", "account:7"]).try_acquire().await?.is_none());
    /// assert!(!manager.is_locked("account:3").await?);
    /// # Ok(()) }
    /// ```
    pub async fn try_acquire(self) -> Result<Option<LockAllGuard>, Error> {
        none_if_busy(self.wait(Duration::ZERO).acquire().await)
    }

    /// Acquires all leases, runs `work` for as long as all of them are held, and releases them; see
    /// [`LockRequest::run`].
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`ErrorKind::Lost`](crate::ErrorKind::Lost) when one lease was lost while the work ran.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the leases in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let (mut from, mut to) = (100, 0);
    /// manager
    ///     .lock_all(["account:3", "account:7"])
    ///     .run(async |leases| {
    ///         println!("moved under {:?}", leases.fencing_token("account:3"));
    ///         (from, to) = (from - 10, to + 10);
    ///     })
    ///     .await?;
    /// assert_eq!((from, to), (90, 10));
    /// # Ok(()) }
    /// ```
    pub async fn run<F: Future>(self, work: impl FnOnce(Leases) -> F) -> Result<F::Output, Error> {
        let guard = self.acquire().await?;
        let leases = guard.leases().clone();
        guard.protect(work(leases)).await
    }

    /// Tries once, and runs `work` as [`run`](Self::run) does. Returns `None` immediately, without running `work`, if one of the keys
    /// is busy; see [`LockRequest::try_run`].
    ///
    /// # Errors
    /// As [`run`](Self::run), without [`ErrorKind::Busy`](crate::ErrorKind::Busy).
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
    /// let transfer = || manager.lock_all(["account:3", "account:7"]).try_run(async |_| "done");
    /// assert_eq!(transfer().await?, Some("done"));
    ///
    /// let _elsewhere = manager.lock("account:3").await?;
    /// assert_eq!(transfer().await?, None);
    /// # Ok(()) }
    /// ```
    pub async fn try_run<F: Future>(self, work: impl FnOnce(Leases) -> F) -> Result<Option<F::Output>, Error> {
        let Some(guard) = self.try_acquire().await? else { return Ok(None) };
        let leases = guard.leases().clone();
        guard.protect(work(leases)).await.map(Some)
    }

    pub(crate) fn for_key(&self, key: LockKey, mode: Mode) -> LockRequest {
        // All keys are waited for together, and held for `max_hold` together. One of zero is refused.
        let max_hold = self.options.max_hold.filter(Duration::is_zero);
        let options = LeaseOptions { durability: None, max_hold, ..self.options };
        LockRequest { mode, label: self.label, ..LockRequest::new(&self.engine, Ok(key), options, self.since) }
    }
}
