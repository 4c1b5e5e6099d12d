//! The options of a request, and the setters that it shares with [`LeaseOptions`].

use std::{panic::Location, time::Duration};

use super::LockRequest;
#[cfg(doc)]
use crate::{ErrorKind, LockGuard};
use crate::{end::OnLost, options::LeaseOptions, replicas::Replicas, ttl::Renewal};

impl<K> LockRequest<K> {
    /// Sets the options that are set in `options`; all others stay as they are.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::{LeaseOptions, LockManager};
    /// use std::time::Duration;
    ///
    /// let careful = LeaseOptions::new().ttl(Duration::from_secs(3)).max_hold(Duration::from_secs(60));
    /// let manager = LockManager::in_memory();
    /// manager.lock("goods:1").options(careful).run(async |_| println!("sold")).await?;
    /// # Ok(()) }
    /// ```
    pub fn options(mut self, options: LeaseOptions) -> Self {
        self.options = options.or(self.options);
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
        self.options.patience().is_zero()
    }

    /// Makes the request one of a layer that was made at `place`, which [`ErrorKind::WouldDeadlock`] names. Caps the lease
    /// at `most`, unless `max_hold` is set or a loss does not cancel the work.
    #[doc(hidden)]
    pub fn of_layer(mut self, place: &'static Location<'static>, most: Option<Duration>) -> Self {
        if self.options.on_lost.unwrap_or_default() == OnLost::Cancel {
            self.options.max_hold = self.options.max_hold.or(most);
        }
        Self { since: place, ..self }
    }
}

/// Writes each setter twice: as one of [`LeaseOptions`], and as one of [`LockRequest`], which forwards it.
macro_rules! setters {
    ($($(#[$doc:meta])* $setter:ident($($value:ident: $type:ty)?) => $option:ident: $set:expr;)*) => {
        impl LeaseOptions {
            $($(#[$doc])*
            pub fn $setter(self, $($value: $type)?) -> Self {
                Self { $option: Some($set), ..self }
            })*
        }

        impl<K> LockRequest<K> {
            $($(#[$doc])*
            pub fn $setter(mut self, $($value: $type)?) -> Self {
                self.options = self.options.$setter($($value)?);
                self
            })*
        }
    };
}

setters! {
    /// Sets how long a holder that has fallen silent blocks others: 10 ms to 100 years, in whole milliseconds (rounded
    /// down). Default: 10 s, unless the manager has another.
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
    ttl(ttl: Duration) => ttl: ttl;

    /// Sets how long to wait for a busy key; zero means one try. Default: 10 s, unless the manager has another.
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
    wait(wait: Duration) => wait: wait;

    /// Waits indefinitely while the key is busy, through outages and restarts of the server. Default: 10 s, unless the
    /// manager has another. See [`wait`](Self::wait) for a server that does not answer the first request.
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
    wait_forever() => wait: Duration::MAX;

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
    fixed() => renewal: Renewal::Never;

    /// Renews after each third of the ttl: the default, for a request or a layer of a manager whose leases are
    /// [`fixed`](Self::fixed) or have a [`renew_every`](Self::renew_every) that does not fit another ttl.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_core::{LeaseOptions, LockManager};
    /// use std::time::Duration;
    ///
    /// let options = LeaseOptions::new().ttl(Duration::from_secs(10)).renew_every(Duration::from_secs(4));
    /// let manager = LockManager::builder().url("memory://").defaults(options).connect().await?;
    /// let guard = manager.lock("report").ttl(Duration::from_secs(3)).renewed().await?;
    /// # guard.release().await?;
    /// # Ok(()) }
    /// ```
    renewed() => renewal: Renewal::ThirdOfTtl;

    /// Renews every `interval`: at least 10 ms, and at most half of the ttl, so that a renewal that fails leaves time for
    /// another. Default: a third of the ttl, unless the manager has another.
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
    renew_every(interval: Duration) => renewal: Renewal::Every(interval);

    /// Ends the lease after `max_hold` (above zero), as a bound for work that is stuck. [`Duration::MAX`] removes the bound.
    /// Default: no bound, unless the manager has one. It counts from when the key was acquired; for several keys, from when the
    /// last of them was.
    ///
    /// A lease that ends this way frees its key, even if [`at_least`](Self::at_least) would keep the key busy for longer.
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
    max_hold(max_hold: Duration) => max_hold: max_hold;

    /// Keeps the key busy for at least this long from the moment it was acquired, even if the holder finishes sooner. Use it for
    /// a job that several machines start at about the same time, and that has to run once. At most 100 years. Default:
    /// zero, unless the manager has another.
    ///
    /// For a scheduled job, name the run in the key by its scheduled time, as in `jobs:nightly:2026-11-24`, and choose as long as any
    /// machine can be late, such as a week. If the key is fixed, choose less than the interval; a machine that is later than
    /// `at_least` then runs the job again. The time counts from the acquire, which may be executed up to a
    /// [`command_timeout`](crate::LockManagerBuilder::command_timeout) after the request.
    ///
    /// A holder that finishes sooner still releases the lease: the key is then left to expire at that time, even if the process
    /// ends. Work that returns an error has finished, too. The key is free sooner in these cases:
    /// * The work of [`run`](LockRequest::run), [`try_run`](LockRequest::try_run) or [`protect`](LockGuard::protect) panics, or its future is dropped;
    ///   or a panic drops the guard.
    /// * The guard is released by [`release_at_once`](LockGuard::release_at_once).
    /// * The lease is lost or handed over, or its holder dies (after the ttl).
    /// * The server cannot be reached from the moment the holder is done until the ttl is over.
    /// * The server loses its data, or its clock steps. To do a job exactly once, record its run in the job's own transaction.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    /// use std::time::Duration;
    ///
    /// let manager = LockManager::in_memory();
    /// let run = "2026-11-24"; // for which it was scheduled
    /// let nightly = || manager.lock(format!("jobs:nightly:{run}")).at_least(Duration::from_secs(7 * 24 * 3600));
    /// nightly().try_run(async |_| println!("cleaning up")).await?;
    /// assert!(nightly().try_acquire().await?.is_none()); // another machine, days later
    /// # Ok(()) }
    /// ```
    at_least(at_least: Duration) => at_least: at_least;

    /// Sets what happens to scoped work ([`run`](LockRequest::run), [`try_run`](LockRequest::try_run), [`protect`](LockGuard::protect)) when its
    /// lease is lost. Default: [`OnLost::Cancel`], unless the manager has another.
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
    on_lost(policy: OnLost) => on_lost: policy;

    /// Requires the lease to reach this many [`Replicas`] in time; otherwise the lease is released, and the error is
    /// [`ErrorKind::NotReplicated`]. `None` removes the manager's default. Default: the primary alone, at no cost, unless the manager has
    /// another.
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
    durability(replicas: impl Into<Option<Replicas>>) => durability: replicas.into();
}
