mod all;
mod check;
mod keys;
mod modes;
mod options;

use std::{
    future::{Future, IntoFuture},
    panic::Location,
    sync::Arc,
    time::Duration,
};

pub(crate) use self::options::{Options, Wait};
pub use self::{
    all::LockAllRequest,
    keys::{KeyInMode, exclusive, permits, shared},
};
use crate::{
    backend::Token,
    engine::Engine,
    error::{Error, ErrorKind},
    future::{Acquire, protected::OnLost},
    guard::LockGuard,
    key::LockKey,
    lease::Lease,
    mode::Mode,
    replicas::Replicas,
    ttl::Renewal,
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
    pub(crate) options: Options,
    /// The token of a lease that is taken up.
    pub(crate) from: Option<Token>,
    /// Where in the user's code the request was begun.
    pub(crate) since: &'static Location<'static>,
    /// Its label in metrics.
    pub(crate) label: &'static str,
}

impl<K> LockRequest<K> {
    /// Sets how long a holder that has fallen silent blocks others: 10 ms to 100 years, in whole milliseconds (rounded
    /// down). Default: the manager's, which is 10 s unless it was changed.
    ///
    /// The lease is renewed while the guard lives, so the ttl need not cover the work. It should cover a pause of the process or
    /// of the network that the lease has to survive. A shorter ttl frees the key sooner after a crash.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    /// use std::time::Duration;
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock("goods:1").ttl(Duration::from_secs(3)).await?;
    /// assert!(guard.remaining() <= Duration::from_secs(3));
    /// # Ok(()) }
    /// ```
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// Sets how long to wait for a busy key; zero means one try. Default: the manager's, which is 10 s.
    ///
    /// A request fails with [`ErrorKind::Backend`] if it does not learn within
    /// [`command_timeout`](crate::LockManagerBuilder::command_timeout) whether the key is busy, and immediately while the
    /// server is known to be down. A request that knows the key to be busy stays in line for the whole wait, through
    /// outages and restarts of the server.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    /// use std::time::Duration;
    ///
    /// let manager = LockManager::in_memory();
    /// let _guard = manager.lock("goods:1").await?;
    /// let error = manager.lock("goods:1").wait(Duration::from_millis(20)).await.expect_err("the guard holds the key");
    /// assert!(error.is_busy());
    /// # Ok(()) }
    /// ```
    pub fn wait(mut self, wait: Duration) -> Self {
        self.options.wait = Wait::Atmost(wait);
        self
    }

    /// Waits for as long as the key is busy, through outages and restarts of the server. Default: the manager's, which waits
    /// for 10 s. See [`wait`](Self::wait) for a server that does not answer the first request.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock("goods:1").await?;
    /// let next = tokio::spawn(manager.lock("goods:1").wait_forever().acquire());
    /// guard.release().await?;
    /// assert!(next.await.expect("no panic")?.is_held());
    /// # Ok(()) }
    /// ```
    pub fn wait_forever(mut self) -> Self {
        self.options.wait = Wait::Forever;
        self
    }

    /// Switches renewal off: the lease ends with its ttl unless it is extended. Default: renewed, unless the manager says
    /// otherwise.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::{LockManager, LossReason};
    /// use std::time::Duration;
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock("report").ttl(Duration::from_millis(20)).fixed().await?;
    /// assert_eq!(guard.ended().await.loss(), Some(LossReason::Expired));
    /// # Ok(()) }
    /// ```
    pub fn fixed(mut self) -> Self {
        self.options.renewal = Renewal::Never;
        self
    }

    /// Renews every `interval`: at least 10 ms, and at most half of the ttl, so that a renewal that fails leaves time for
    /// another. Default: the manager's, which is a third of the ttl.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    /// use std::time::Duration;
    ///
    /// let manager = LockManager::in_memory();
    /// let request = manager.lock("report").ttl(Duration::from_secs(30)).renew_every(Duration::from_secs(2));
    /// request.await?.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.options.renewal = Renewal::Every(interval);
        self
    }

    /// Ends the lease after `max_hold` (above zero), as a bound for work that is stuck. [`Duration::MAX`] removes the bound.
    /// Default: the manager's, which has no bound.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::{ErrorKind, LockManager, LossReason};
    /// use std::time::Duration;
    ///
    /// let manager = LockManager::in_memory();
    /// let stuck = manager.lock("report").max_hold(Duration::from_millis(20)).run(async |_| std::future::pending::<()>().await);
    /// assert_eq!(stuck.await.unwrap_err().kind(), ErrorKind::Lost(LossReason::MaxHold));
    /// # Ok(()) }
    /// ```
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.max_hold = Some(max_hold);
        self
    }

    /// Keeps the key busy for at least this long from the moment it was acquired, even if the holder finishes sooner. Use it for
    /// a job that several machines start at about the same time, and that has to run once. At most 100 years. Default:
    /// the manager's, which is zero.
    ///
    /// It counts from the acquire, which may be executed up to a
    /// [`command_timeout`](crate::LockManagerBuilder::command_timeout) after the request. For a scheduled job, choose less than the
    /// interval minus the command timeout, or the next run may find the key busy and be skipped. Choose more than the difference of
    /// the machines' clocks plus the command timeout, or one run may happen twice.
    ///
    /// A holder that finishes sooner still releases the lease: the key is then left to expire at that time, even if the process
    /// ends. A lease that was lost or handed over does not keep the key busy.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    /// use std::time::Duration;
    ///
    /// let manager = LockManager::in_memory();
    /// let nightly = || manager.lock("nightly").at_least(Duration::from_secs(60)).wait(Duration::ZERO);
    /// nightly().run(async |_| println!("cleaning up")).await?;
    /// assert!(nightly().try_acquire().await?.is_none()); // another machine, a second later
    /// # Ok(()) }
    /// ```
    pub fn at_least(mut self, at_least: Duration) -> Self {
        self.options.at_least = at_least;
        self
    }

    /// Sets what happens to scoped work ([`run`](Self::run), [`try_run`](Self::try_run), [`protect`](LockGuard::protect)) when its
    /// lease is lost. Default: the manager's, which is [`OnLost::Cancel`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::{ErrorKind, LockManager, LossReason, OnLost};
    ///
    /// let manager = LockManager::in_memory();
    /// let mut paid = false;
    /// let request = manager.lock("payout").on_lost(OnLost::Finish);
    /// let result = request
    ///     .run(async |_| {
    ///         manager.force_release("payout").await?;
    ///         tokio::task::yield_now().await;
    ///         paid = true; // not reached with `OnLost::Cancel`
    ///         Ok::<_, lock_core::Error>(())
    ///     })
    ///     .await;
    /// assert_eq!(result.unwrap_err().kind(), ErrorKind::Lost(LossReason::Forced));
    /// assert!(paid);
    /// # Ok(()) }
    /// ```
    pub fn on_lost(mut self, policy: OnLost) -> Self {
        self.options.on_lost = policy;
        self
    }

    /// Requires that so many [`Replicas`] have the lease in time; otherwise the lease is released, and the error is
    /// [`ErrorKind::NotReplicated`]. `None` removes the manager's default. Default: the manager's, which is the primary
    /// alone, at no cost.
    ///
    /// Use it for a lease that has to outlive its primary: a replica that has the lease still keeps others out after its promotion.
    /// The wait for replicas begins when the key is acquired, in addition to [`wait`](Self::wait). It takes at most the timeout,
    /// and up to a second more (or up to another request's timeout, if that is less) while the manager waits for the
    /// replicas of other requests. A lease that follows inside the process on one that the replicas have does not wait. The keys of
    /// one request are waited for together.
    ///
    /// Redis supports it, a cluster included. A store in memory ignores it, so that code which requires replicas can be tested
    /// there: the store ends with its holders, and no failover can lose a lease. A quorum refuses it, because it has its majority.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn pay_out(manager: lock_core::LockManager) -> Result<(), lock_core::Error> {
    /// use lock_core::{ErrorKind, Replicas};
    /// use std::time::Duration;
    ///
    /// let replicated = Replicas::new(1, Duration::from_millis(300));
    /// match manager.lock("payout").durability(replicated).run(async |_| println!("paid")).await {
    ///     Err(error) if error.kind() == ErrorKind::NotReplicated => println!("not paid: {error}"),
    ///     paid => paid?,
    /// }
    /// # Ok(()) }
    /// ```
    pub fn durability(mut self, replicas: impl Into<Option<Replicas>>) -> Self {
        self.options.durability = replicas.into();
        self
    }

    /// Sets the label `lock` in metrics. Default: empty; the attribute sets its template, the layer its name.
    ///
    /// Use a template such as `goods:<id>`, never the key: one label per key would be unbounded.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock("goods:7").label("goods:<id>").await?;
    /// # guard.release().await }
    /// ```
    pub fn label(mut self, label: &'static str) -> Self {
        self.label = label;
        self
    }

    /// Returns whether the request tries only once: its wait is zero.
    #[must_use]
    pub fn tries_once(&self) -> bool {
        self.options.wait == Wait::Atmost(Duration::ZERO)
    }

    /// Ends the lease after `most` if nothing else bounds it, and if the work then ends, too: for layers with a bound of
    /// their own.
    #[doc(hidden)]
    pub fn bounded(mut self, most: Duration) -> Self {
        if self.options.on_lost == OnLost::Cancel {
            self.options.max_hold.get_or_insert(most);
        }
        self
    }

    /// Sets the place that [`ErrorKind::WouldDeadlock`] names, for code that asks on behalf of other code.
    #[doc(hidden)]
    pub fn asked_at(mut self, place: &'static Location<'static>) -> Self {
        self.since = place;
        self
    }
}

impl LockRequest {
    /// Acquires the lease, waiting until the key is free or `wait` has passed. Awaiting the request does the same; this future
    /// can be named.
    ///
    /// The ttl counts from the moment the request is sent, so [`Lease::remaining`] is already less.
    ///
    /// # Errors
    /// * [`ErrorKind::Busy`] if `wait` has passed: nothing is held.
    /// * [`ErrorKind::Backend`] if the backend did not answer: a lease that it may have set is released in the background.
    /// * [`ErrorKind::Invalid`] for a key or a duration out of range, before anything is sent.
    /// * [`ErrorKind::WouldDeadlock`] inside a scoped form that holds the key.
    /// * [`ErrorKind::Overloaded`] if more requests wait than the manager allows.
    /// * [`ErrorKind::NotReplicated`] with a [`durability`](Self::durability); then also [`ErrorKind::Lost`] if the key was taken
    ///   away meanwhile.
    /// * [`ErrorKind::WrongType`], [`ErrorKind::Denied`], [`ErrorKind::Unsupported`], [`ErrorKind::NoRuntime`] and
    ///   [`ErrorKind::ShutDown`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::{LockManager, future::Acquire};
    ///
    /// let manager = LockManager::in_memory();
    /// let acquire: Acquire = manager.lock("goods:1").acquire();
    /// let guard = acquire.await?;
    /// assert!(guard.is_held());
    /// # guard.release().await }
    /// ```
    pub fn acquire(self) -> Acquire {
        Acquire::new(self)
    }

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
    pub async fn run<T>(self, work: impl AsyncFnOnce(Lease) -> T) -> Result<T, Error> {
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
    pub async fn try_run<T>(self, work: impl AsyncFnOnce(Lease) -> T) -> Result<Option<T>, Error> {
        let Some(guard) = self.try_acquire().await? else { return Ok(None) };
        let lease = guard.lease().clone();
        guard.protect(work(lease)).await.map(Some)
    }
}

impl IntoFuture for LockRequest {
    type Output = <Acquire as Future>::Output;
    type IntoFuture = Acquire;

    fn into_future(self) -> Acquire {
        self.acquire()
    }
}

fn none_if_busy<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(guard) => Ok(Some(guard)),
        Err(error) if error.kind() == ErrorKind::Busy => Ok(None),
        Err(error) => Err(error),
    }
}
