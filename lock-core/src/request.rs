use std::{
    future::{Future, IntoFuture},
    panic::Location,
    sync::Arc,
    time::Duration,
};

use crate::{
    backend::Token,
    engine::{Engine, tenure::Terms},
    error::{Argument, Error, ErrorKind},
    future::{Acquire, AcquireAll, protected::OnLost},
    guard::{LockAllGuard, LockGuard},
    key::LockKey,
    lease::Lease,
    leases::Leases,
    ttl::{MAX_TTL, Renewal, Ttl},
};

/// A request for a lease: its options, and the ways to make it.
///
/// [`LockManager::lock`](crate::LockManager::lock) begins one with the manager's defaults. Awaiting it, or
/// [`acquire`](Self::acquire), waits for the key; [`try_acquire`](Self::try_acquire) does not;
/// [`run`](Self::run) keeps the lease around a piece of work and drops the work when the lease is lost, and
/// [`try_run`](Self::try_run) does so where the key is free.
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
    pub(crate) options: Options,
    /// The token of a lease that is taken up.
    pub(crate) from: Option<Token>,
    /// Where in the user's code the request was begun.
    pub(crate) since: &'static Location<'static>,
    /// What it is called where keys would be too many.
    pub(crate) label: &'static str,
}

/// What a request asks for; the manager has one with its defaults.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) ttl: Duration,
    pub(crate) wait: Wait,
    pub(crate) renewal: Renewal,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) at_least: Duration,
    pub(crate) on_lost: OnLost,
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
        }
    }
}

impl<K> LockRequest<K> {
    /// Sets how long a holder that has fallen silent blocks others: 10 ms to 100 years, in whole milliseconds (rounded
    /// down). Default: the manager's, which is 10 s unless it was changed.
    ///
    /// The lease is renewed while the guard lives, so the ttl needs not cover the work; it should cover a pause of the
    /// process or of the network that the lease is to survive. Shorter frees the key sooner after a crash.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// Sets how long to wait for a busy key; zero means one try. Default: the manager's, which is 10 s.
    ///
    /// A request fails with [`ErrorKind::Backend`] if it does not find out within
    /// [`command_timeout`](crate::LockManagerBuilder::command_timeout) whether the key is busy, and at once while the
    /// server is known to be down. A request that knows the key to be busy stays in line for the whole wait, through
    /// outages and restarts of the server.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.options.wait = Wait::Atmost(wait);
        self
    }

    /// Waits for as long as the key is busy, through outages and restarts of the server; see [`wait`](Self::wait) for what
    /// happens if the server does not answer the first question.
    pub fn wait_forever(mut self) -> Self {
        self.options.wait = Wait::Forever;
        self
    }

    /// Switches renewal off: the lease ends with its ttl unless it is extended. Default: renewed, unless the manager says
    /// otherwise.
    pub fn fixed(mut self) -> Self {
        self.options.renewal = Renewal::Never;
        self
    }

    /// Renews every `interval`: at least 10 ms, and at most half of the ttl, so that a renewal that fails leaves time for
    /// another. Default: the manager's, which is a third of the ttl.
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.options.renewal = Renewal::Every(interval);
        self
    }

    /// Ends the lease after `max_hold` (above zero), as a bound for work that is stuck; [`Duration::MAX`] takes the bound
    /// off. Default: the manager's, which has no bound.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.max_hold = Some(max_hold);
        self
    }

    /// Keeps the key busy for at least this long from the moment it was acquired, even if the holder is done sooner: for
    /// a job that several machines start at about the same time, and that is to run once. At most 100 years. Default:
    /// the manager's, which is zero.
    ///
    /// It counts from the acquire, which may come up to a
    /// [`command_timeout`](crate::LockManagerBuilder::command_timeout) after the asking. For a job on a schedule choose
    /// less than the time between two runs less the command timeout, or the next run may find the key busy and be skipped;
    /// and more than the clocks of the machines may differ, plus the command timeout, or one run may happen twice.
    ///
    /// A holder that is done sooner still gives the lease back: the key is then left to expire at that time, whatever
    /// becomes of the process. A lease that was lost or handed over does not keep the key.
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

    /// Sets what becomes of scoped work when its lease is lost: that of [`run`](Self::run), [`try_run`](Self::try_run) and
    /// [`protect`](LockGuard::protect). Default: the manager's, which is [`OnLost::Cancel`].
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

    /// Names the request in metrics, where a name per key would be too many: the template of its keys (`goods:<id>`), or
    /// what the lock is for. Default: empty. The macro gives its template, the layer its name.
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

    /// Says what is out of its range among the options, the manager's included, for code that asks later and often.
    #[doc(hidden)]
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.options.check().err().map(|(_, detail)| detail)
    }

    fn terms(&self) -> Result<Terms, Error> {
        let ttl = self.options.check().map_err(|(argument, detail)| Error::invalid(argument, "acquire", detail))?;
        let Options { renewal, max_hold, at_least, .. } = self.options;
        Ok(Terms { ttl, renewal, max_hold, at_least, since: self.since, label: self.label })
    }
}

impl Options {
    /// Whether all of them are in their ranges: the ttl, or which one is not and why.
    pub(crate) fn check(&self) -> Result<Ttl, (Argument, String)> {
        let Self { ttl, renewal, max_hold, at_least, .. } = *self;
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
            return Err((Argument::MaxHold, "a `max_hold` of zero leaves no time to work".to_owned()));
        }
        if at_least > MAX_TTL {
            return Err((Argument::AtLeast, "an `at_least` of more than 100 years is too long".to_owned()));
        }
        Ok(ttl)
    }
}

impl LockRequest {
    /// Acquires the lease, waiting until the key is free or `wait` has passed. The same as awaiting the request, but
    /// with a future that can be named.
    ///
    /// The ttl counts from the moment the request leaves, so what [`Lease::remaining`] shows is already less.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when the wait was over: nothing is held. [`ErrorKind::Backend`] when the backend did not
    /// answer: whatever may have been set is released in the background. [`ErrorKind::Invalid`] for a key or a
    /// duration out of range, before anything is sent. [`ErrorKind::WouldDeadlock`] inside a scoped form that holds
    /// the key. Also [`ErrorKind::WrongType`], [`ErrorKind::Denied`], [`ErrorKind::Unsupported`],
    /// [`ErrorKind::NoRuntime`] and [`ErrorKind::ShutDown`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub fn acquire(self) -> Acquire {
        Acquire::new(self)
    }

    /// Tries once to acquire the lease; none if the key is busy.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), without [`ErrorKind::Busy`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn try_acquire(self) -> Result<Option<LockGuard>, Error> {
        none_if_busy(self.wait(Duration::ZERO).acquire().await)
    }

    /// Acquires the lease, runs `work` for as long as the lease is held, and releases it.
    ///
    /// The deadline is looked at before every poll of the work. When the lease is lost the work is *dropped* where it
    /// stands and the error is returned: what it had begun must be safe to break off at an await (a database
    /// transaction rolls back). Work that completes as the lease ends has its result returned. A release that fails
    /// never hides the result; it goes on in the background and is logged. [`on_lost`](Self::on_lost) lets the work finish
    /// instead.
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

    /// Tries once, and runs `work` as [`run`](Self::run) does; none, at once and without running it, if the key is busy.
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

    /// The key and the terms, or what is wrong with them.
    pub(crate) fn check(&self) -> Result<(&LockKey, Terms), Error> {
        let key = self.keys.as_ref().map_err(Clone::clone)?;
        let terms = self.terms().map_err(|error| error.on(key))?;
        Ok((key, terms))
    }
}

/// A request for several leases, which [`LockManager::lock_all`](crate::LockManager::lock_all) begins: all or none.
pub type LockAllRequest = LockRequest<Vec<LockKey>>;

impl LockAllRequest {
    /// Acquires all leases or none, one after the other in the order of the keys' bytes, waiting only while it holds
    /// keys that come before, so two such requests cannot deadlock. `wait` bounds the whole.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`]; the error names the key that failed, and everything acquired before it is
    /// released. [`ErrorKind::Invalid`] when there is no key.
    ///
    /// # Cancel safety
    /// Dropping the future releases what it has acquired and leaves nothing behind.
    pub fn acquire(self) -> AcquireAll {
        AcquireAll::new(self)
    }

    /// Tries once to acquire all leases; none if one of the keys is busy.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), without [`ErrorKind::Busy`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn try_acquire(self) -> Result<Option<LockAllGuard>, Error> {
        none_if_busy(self.wait(Duration::ZERO).acquire().await)
    }

    /// Acquires all leases, runs `work` for as long as all of them are held, and releases them; see
    /// [`LockRequest::run`].
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`ErrorKind::Lost`] when one lease was lost while the work ran.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the leases in the background.
    pub async fn run<T>(self, work: impl AsyncFnOnce(Leases) -> T) -> Result<T, Error> {
        let guard = self.acquire().await?;
        let leases = guard.leases().clone();
        guard.protect(work(leases)).await
    }

    /// Tries once, and runs `work` as [`run`](Self::run) does; none, at once and without running it, if one of the keys
    /// is busy; see [`LockRequest::try_run`].
    ///
    /// # Errors
    /// As [`run`](Self::run), without [`ErrorKind::Busy`].
    ///
    /// # Cancel safety
    /// As [`run`](Self::run).
    pub async fn try_run<T>(self, work: impl AsyncFnOnce(Leases) -> T) -> Result<Option<T>, Error> {
        let Some(guard) = self.try_acquire().await? else { return Ok(None) };
        let leases = guard.leases().clone();
        guard.protect(work(leases)).await.map(Some)
    }

    pub(crate) fn for_key(&self, key: LockKey) -> LockRequest {
        LockRequest {
            engine: Arc::clone(&self.engine),
            keys: Ok(key),
            options: self.options,
            from: None,
            since: self.since,
            label: self.label,
        }
    }
}

impl IntoFuture for LockRequest {
    type Output = <Acquire as Future>::Output;
    type IntoFuture = Acquire;

    fn into_future(self) -> Acquire {
        self.acquire()
    }
}

impl IntoFuture for LockAllRequest {
    type Output = <AcquireAll as Future>::Output;
    type IntoFuture = AcquireAll;

    fn into_future(self) -> AcquireAll {
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

/// The least interval between two renewals of a lease.
const MIN_INTERVAL: Duration = Duration::from_millis(10);
