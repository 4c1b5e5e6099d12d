//! The options of a lease: one list for managers, requests, layers and the attribute.
//!
//! An option that is not set is `None`, so that options can be laid over others: those of a request over those of a layer over the
//! manager's. What remains `None` has its default, which the readers at the foot of the type know.

use std::time::Duration;

#[cfg(doc)]
use crate::{ErrorKind, LockGuard};
use crate::{
    end::OnLost,
    error::Argument,
    replicas::Replicas,
    request::LockRequest,
    ttl::{MAX_TTL, Renewal, Ttl},
};

/// The options of a lease: how long it lasts, how long to wait for it, and what happens when it is lost.
///
/// Options are given to a manager by [`defaults`](crate::LockManagerBuilder::defaults), to a request by
/// [`options`](LockRequest::options), and to a layer of lock-tower by its `options`. A [`LockRequest`] also has each of the setters.
/// An option that is not set is the manager's.
///
/// Ranges are checked when the manager is built, when the request is awaited, or by the layer's `check`.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lock_core::{LeaseOptions, LockManager};
/// use std::time::Duration;
///
/// let defaults = LeaseOptions::new().ttl(Duration::from_secs(5)).wait(Duration::from_secs(2));
/// let manager = LockManager::builder().url("memory://").defaults(defaults).build()?;
///
/// let short = LeaseOptions::new().ttl(Duration::from_secs(1));
/// let guard = manager.lock("goods:1").options(short).await?;
/// assert_eq!(guard.ttl(), Duration::from_secs(1));
/// assert_eq!(manager.lock("goods:2").await?.ttl(), Duration::from_secs(5));
/// # guard.release().await?; Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "options do nothing unless a manager, a request or a layer gets them"]
pub struct LeaseOptions {
    pub(crate) ttl: Option<Duration>,
    /// [`Duration::MAX`] is without end.
    pub(crate) wait: Option<Duration>,
    pub(crate) renewal: Option<Renewal>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) at_least: Option<Duration>,
    pub(crate) on_lost: Option<OnLost>,
    /// The inner one is `None` for the primary alone.
    pub(crate) durability: Option<Option<Replicas>>,
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
    /// Default: no bound, unless the manager has one.
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
    /// * The work of [`run`](LockRequest::run), [`try_run`](LockRequest::try_run) or [`protect`](LockGuard::protect) panics, or its future is dropped.
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

impl LeaseOptions {
    /// Makes options of which none is set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Fills what is not set from other options.
    #[doc(hidden)]
    pub fn or(self, others: Self) -> Self {
        Self {
            ttl: self.ttl.or(others.ttl),
            wait: self.wait.or(others.wait),
            renewal: self.renewal.or(others.renewal),
            max_hold: self.max_hold.or(others.max_hold),
            at_least: self.at_least.or(others.at_least),
            on_lost: self.on_lost.or(others.on_lost),
            durability: self.durability.or(others.durability),
        }
    }

    /// Returns the ttl as it was set, or 10 s.
    pub(crate) fn usual_ttl(&self) -> Duration {
        self.ttl.unwrap_or(TEN_SECONDS)
    }

    /// Returns for how long to wait. Added to any moment, a wait without end is [`Moment::NEVER`](crate::clock::Moment::NEVER).
    pub(crate) fn patience(&self) -> Duration {
        self.wait.unwrap_or(TEN_SECONDS)
    }

    pub(crate) fn replicas(&self) -> Option<Replicas> {
        self.durability.flatten()
    }

    /// Returns the ttl and the renewal if all options are in their ranges; otherwise which option is not, and why.
    pub(crate) fn check(&self) -> Result<(Ttl, Renewal), (Argument, String)> {
        let ttl = Ttl::new(self.usual_ttl()).map_err(|detail| (Argument::Ttl, detail))?;
        let (half, renewal) = (ttl.get() / 2, self.renewal.unwrap_or(Renewal::ThirdOfTtl));
        let (argument, detail) = match renewal {
            Renewal::Every(interval) if !(MIN_INTERVAL..=half).contains(&interval) => {
                let detail = format!(
                    "`renew_every` of {interval:?} is not between {MIN_INTERVAL:?} and {half:?}, half of the ttl of {:?}: a renewal \
                     that fails must leave time for another; raise the ttl, or set another `renew_every` (this one may be a default)",
                    ttl.get()
                );
                (Argument::RenewEvery, detail)
            }
            _ if self.max_hold.is_some_and(|most| most.is_zero()) => (
                Argument::MaxHold,
                "a `max_hold` of zero leaves no time to work; raise it; `Duration::MAX` is no bound".to_owned(),
            ),
            _ if self.at_least.is_some_and(|least| least > MAX_TTL) => {
                (Argument::AtLeast, "an `at_least` of more than 100 years is too long; lower it".to_owned())
            }
            _ => return self.replicas().map_or(Ok(()), |replicas| replicas.check(ttl)).map(|()| (ttl, renewal)),
        };
        Err((argument, detail))
    }
}

const TEN_SECONDS: Duration = Duration::from_secs(10);

/// The least interval between two renewals of a lease.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_are_set_count_and_all_others_are_those_below() {
        let seconds = Duration::from_secs;
        let manager = LeaseOptions::new().ttl(seconds(1)).fixed().durability(Replicas::new(1, seconds(1)));
        let layer = LeaseOptions::new().ttl(seconds(2)).wait_forever().durability(None);
        let request = LeaseOptions::new().wait(seconds(3));
        let both = request.or(layer.or(manager));
        assert_eq!((both.usual_ttl(), both.patience(), both.replicas()), (seconds(2), seconds(3), None));
        assert_eq!(both.check().map(|(_, renewal)| renewal), Ok(Renewal::Never));
        assert_eq!(LeaseOptions::new().or(manager), manager);
    }
}
