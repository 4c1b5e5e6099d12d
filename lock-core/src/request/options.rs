//! The options of a request, and their ranges.

use std::{panic::Location, time::Duration};

use super::LockRequest;
#[cfg(doc)]
use crate::{ErrorKind, LockGuard};
use crate::{
    error::Argument,
    future::protected::OnLost,
    replicas::Replicas,
    ttl::{MAX_TTL, Renewal, Ttl},
};

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
    /// For a scheduled job, name the run in the key by its scheduled time, as in `jobs:nightly:2026-11-24`, and choose as long as any
    /// machine can be late, such as a week. If the key is fixed, choose less than the interval; a machine that is later than
    /// `at_least` then runs the job again. The time counts from the acquire, which may be executed up to a
    /// [`command_timeout`](crate::LockManagerBuilder::command_timeout) after the request.
    ///
    /// A holder that finishes sooner still releases the lease: the key is then left to expire at that time, even if the process
    /// ends. Work that returns an error has finished, too. The key is free sooner in these cases:
    /// * The work of [`run`](Self::run), [`try_run`](Self::try_run) or [`protect`](LockGuard::protect) panics, or its future is dropped.
    /// * The guard is released by [`release_at_once`](LockGuard::release_at_once).
    /// * The lease is lost or handed over, or its holder dies (after the ttl).
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

/// The options of a request. The manager has one with its defaults.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) ttl: Duration,
    pub(crate) wait: Wait,
    pub(crate) renewal: Renewal,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) at_least: Duration,
    pub(crate) on_lost: OnLost,
    pub(crate) durability: Option<Replicas>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Atmost(Duration),
    Forever,
}

impl Wait {
    /// For how long; added to any moment, without end is [`Moment::NEVER`](crate::clock::Moment::NEVER).
    pub(crate) fn get(self) -> Duration {
        match self {
            Self::Atmost(wait) => wait,
            Self::Forever => Duration::MAX,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(10),
            wait: Wait::Atmost(Duration::from_secs(10)),
            renewal: Renewal::ThirdOfTtl,
            max_hold: None,
            at_least: Duration::ZERO,
            on_lost: OnLost::Cancel,
            durability: None,
        }
    }
}

impl Options {
    /// Whether all of them are in their ranges: the ttl, or which one is not and why.
    pub(crate) fn check(&self) -> Result<Ttl, (Argument, String)> {
        let Self { ttl, renewal, max_hold, at_least, durability, .. } = *self;
        let ttl = Ttl::new(ttl).map_err(|detail| (Argument::Ttl, detail))?;
        if let Renewal::Every(interval) = renewal
            && !(MIN_INTERVAL..=ttl.get() / 2).contains(&interval)
        {
            let (most, ttl) = (ttl.get() / 2, ttl.get());
            let detail = format!(
                "`renew_every` of {interval:?} is not between {MIN_INTERVAL:?} and {most:?}, half of the ttl of {ttl:?}: \
                 a renewal that fails must leave time for another"
            );
            return Err((Argument::RenewEvery, detail));
        }
        if max_hold.is_some_and(|max_hold| max_hold.is_zero()) {
            return Err((
                Argument::MaxHold,
                "a `max_hold` of zero leaves no time to work; raise it, or leave it out".to_owned(),
            ));
        }
        if at_least > MAX_TTL {
            return Err((Argument::AtLeast, "an `at_least` of more than 100 years is too long; lower it".to_owned()));
        }
        durability.map_or(Ok(()), |replicas| replicas.check(ttl))?;
        Ok(ttl)
    }
}

/// The least interval between two renewals of a lease.
const MIN_INTERVAL: Duration = Duration::from_millis(10);
