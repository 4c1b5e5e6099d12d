mod connection;

use std::{sync::Arc, time::Duration};

use tokio::runtime::Handle;

use crate::{
    backend::{
        Backend, MemoryBackend,
        options::ConnectOptions,
        timeouts::{CONNECT_TIMEOUT, Timeouts},
        url::{self, Source},
    },
    clock::Clock,
    engine::{Engine, Looks, limits::Limits},
    error::BuildError,
    key::MAX_KEY_BYTES,
    lost::{LostLease, Observer},
    manager::{LockManager, Settings},
    options::LeaseOptions,
};

/// The configuration of a [`LockManager`]; everything is checked in [`build`](Self::build).
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), lock_core::BuildError> {
/// use lock_core::{LeaseOptions, LockManager};
/// use std::time::Duration;
///
/// let manager = LockManager::builder()
///     .url("memory://shop")
///     .prefix("shop:")
///     .defaults(LeaseOptions::new().ttl(Duration::from_secs(5)).wait(Duration::from_secs(2)))
///     .build()?;
/// # let _ = manager; Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` or `connect`"]
pub struct LockManagerBuilder {
    /// Every backend that was named; there must be one.
    sources: Vec<Source>,
    prefix: String,
    defaults: LeaseOptions,
    connect: ConnectOptions,
    runtime: Option<Handle>,
    clock: Option<Arc<dyn Clock>>,
    seed: Option<u64>,
    limits: Limits,
    explain_after: Option<Duration>,
    observer: Option<Observer>,
}

impl Default for LockManagerBuilder {
    fn default() -> Self {
        Self {
            sources: Vec::new(),
            prefix: String::new(),
            defaults: LeaseOptions::new(),
            connect: ConnectOptions::new(
                "lock-core",
                Timeouts { command: Duration::from_secs(1), connect: CONNECT_TIMEOUT },
            ),
            runtime: None,
            clock: None,
            seed: None,
            limits: Limits { per_key: usize::MAX, in_all: usize::MAX, answer: Duration::MAX },
            explain_after: None,
            observer: None,
        }
    }
}

impl LockManager {
    /// Connects to a backend and waits until it has answered, so that a wrong address or password shows at start-up.
    ///
    /// | url | backend |
    /// | --- | --- |
    /// | `redis://[user[:password]@]host[:port][/db]` | a Redis server (feature `redis`, on by default) |
    /// | `rediss://…` | the same through TLS (feature `tls`) |
    /// | `valkey://…`, `valkeys://…` | other names for `redis://` and `rediss://`; these four also before `+sentinel` and `+cluster` |
    /// | `unix:///path/to/socket[?db=1&user=…&pass=…]` | the same through a Unix socket |
    /// | `redis+unix://…`, `valkey+unix://…` | other names for `unix://` |
    /// | `redis+sentinel://[user[:password]@]host,host,host/SERVICE[?db=1]` | the primary that the sentinels know by this name; `&sentinel_user=…&sentinel_pass=…` if they want credentials |
    /// | `redis+cluster://[user[:password]@]host,host,host` | a cluster, by some of its nodes |
    /// | `memory://` | a private store in this process |
    /// | `memory://name` | the store of that name in this process, shared by all who name it |
    ///
    /// Characters that mean something in a URL (`@ : / % #`) are percent-encoded in a password. To start without
    /// waiting for the server, use [`builder`](Self::builder) and its `build`.
    ///
    /// A cluster counts as connected when each of its nodes that has slots has answered. It also does when some nodes have, and
    /// report that the cluster takes commands without the others (`cluster_state:ok`); then one warning names the missing nodes.
    /// If they report that it does not, as during a failover, `connect` waits for that until
    /// [`connect_timeout`](LockManagerBuilder::connect_timeout) is over.
    ///
    /// `?protocol=resp2` at the end of the URL selects the older protocol, for proxies that do not know RESP3. Without it,
    /// RESP2 is used if the server refuses RESP3.
    ///
    /// TLS trusts the certificates of the platform; for others there is `LockManagerBuilder::tls`. TLS uses the process-wide
    /// provider of `rustls` if the application has installed one, and `ring` otherwise. This crate installs no provider.
    ///
    /// In a test whose clock is paused (`start_paused = true`), a server seems to take too long, since tokio's clock leaps
    /// to the next timer while the test waits for the server. Give the manager a runtime whose clock runs, with
    /// [`LockManagerBuilder::runtime`].
    ///
    /// # Errors
    /// [`BuildError`] if the URL is wrong. Also if the backend did not answer, refused the user, or cannot keep locks (too
    /// old, a replica, a node of a cluster); then [`BuildError::cause`] has the details.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::connect("memory://").await?; // or: "redis://127.0.0.1"
    /// manager.lock("goods:1").await?.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn connect(url: impl Into<String>) -> Result<Self, BuildError> {
        Self::builder().url(url).connect().await
    }

    /// Makes a manager with a private store in this process: for tests and for programs of one process.
    ///
    /// The store follows tokio's clock, so a test that pauses the clock has leases in virtual time.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock("goods:1").await?;
    /// assert!(manager.lock("goods:1").try_acquire().await?.is_none());
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn in_memory() -> Self {
        Self::builder().backend(MemoryBackend::new()).build().expect("the defaults are valid")
    }

    /// Begins the configuration of a manager: its backend, the defaults of its requests, and its limits.
    ///
    /// Nothing is checked or connected before [`build`](LockManagerBuilder::build) or [`connect`](LockManagerBuilder::connect).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_core::LockManager;
    ///
    /// let builder = LockManager::builder().url("memory://").prefix("shop:"); // or: "redis://127.0.0.1"
    /// let manager = builder.connect().await?;
    /// manager.lock("goods:1").await?.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn builder() -> LockManagerBuilder {
        LockManagerBuilder::default()
    }
}

impl LockManagerBuilder {
    /// Sets the backend by its URL; see [`LockManager::connect`] for the forms of URLs.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    ///
    /// assert!(LockManager::builder().url("memory://shop").build().is_ok()); // or: "redis://127.0.0.1"
    /// assert!(LockManager::builder().url("127.0.0.1").build().is_err());
    /// ```
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.sources.push(Source::url(url));
        self
    }

    /// Sets the backend to several independent servers, by their URLs, usually three or five. A lease is held while a majority of
    /// the servers has it, so it survives the failure of the rest. [`QuorumBackend`](crate::backend::QuorumBackend) says what is
    /// promised.
    ///
    /// Name the same servers in the same order everywhere. One alone is the same as [`url`](Self::url); two are refused,
    /// as is a server that is named twice, or a cluster among them. An even number works, but survives no more failures than one
    /// server less. The databases may differ from server to server. Before the set of servers changes, stop all processes, or wait for
    /// the longest ttl: majorities of the old and the new set need not share a server.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), lock_core::BuildError> {
    /// # #[cfg(feature = "redis")] {
    /// let nodes = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    /// let manager = lock_core::LockManager::builder().quorum(nodes).build()?;
    /// # let _ = manager; }
    /// # Ok(()) }
    /// ```
    pub fn quorum<U: AsRef<str>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        self.sources.push(Source::quorum(urls));
        self
    }

    /// Sets the backend itself: a [`MemoryBackend`] that managers share, or your own implementation of [`Backend`].
    ///
    /// # Examples
    ///
    /// Two managers on one store, like two processes on one Redis:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_core::{LockManager, backend::MemoryBackend};
    ///
    /// let store = MemoryBackend::new();
    /// let one = LockManager::builder().backend(store.clone()).build()?;
    /// let other = LockManager::builder().backend(store).build()?;
    /// let _guard = one.lock("goods:1").await?;
    /// assert!(other.lock("goods:1").try_acquire().await?.is_none());
    /// # Ok(()) }
    /// ```
    pub fn backend(mut self, backend: impl Backend) -> Self {
        self.sources.push(Source::Backend(Arc::new(backend)));
        self
    }

    /// Sets the options of requests that do not set their own: see [`LeaseOptions`] for the list, and for what applies without this.
    /// Called again, it changes the options that are set again.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_core::{LeaseOptions, LockManager};
    /// use std::time::Duration;
    ///
    /// let defaults = LeaseOptions::new().ttl(Duration::from_secs(5));
    /// let manager = LockManager::builder().url("memory://").defaults(defaults).build()?; // or: "redis://127.0.0.1"
    /// let guard = manager.lock("goods:1").await?;
    /// assert_eq!(guard.ttl(), Duration::from_secs(5));
    /// # guard.release().await?; Ok(()) }
    /// ```
    pub fn defaults(mut self, options: LeaseOptions) -> Self {
        self.defaults = options.or(self.defaults);
        self
    }

    /// Makes the manager without any I/O; the connection is made with the first request.
    ///
    /// # Errors
    /// [`BuildError`] in these cases:
    /// * `url`, `quorum`, `client`, `connection_info` and `backend` were called more than once, or not at all.
    /// * The URL or client is wrong, needs a feature that is off, or contradicts another option.
    /// * A quorum has no nodes, two nodes, or one node twice.
    /// * An option is out of its range.
    /// * There is a default `durability`, and the backend cannot wait for replicas.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::{LeaseOptions, LockManager};
    /// use std::time::Duration;
    ///
    /// assert!(LockManager::builder().url("memory://").build().is_ok());
    /// let short = LeaseOptions::new().ttl(Duration::from_millis(3));
    /// let error = LockManager::builder().url("memory://").defaults(short).build().unwrap_err();
    /// assert!(error.to_string().contains("below 10 ms"));
    /// ```
    pub fn build(self) -> Result<LockManager, BuildError> {
        let wrong = |(argument, detail)| BuildError::new(format!("the default of {argument} is wrong: {detail}"));
        let (ttl, _) = self.defaults.check().map_err(wrong)?;
        let Timeouts { command, connect } = self.connect.timeouts;
        Timeouts::new(command, connect)?;
        if self.prefix.len() >= MAX_KEY_BYTES {
            return Err(BuildError::new(format!(
                "the prefix has {} bytes, which leaves no room for a key; keys have at most {MAX_KEY_BYTES} bytes, the \
                 prefix included",
                self.prefix.len()
            )));
        }
        if self.prefix.contains(['{', '}']) {
            return Err(BuildError::new(format!(
                "the prefix {:?} holds a brace, which in a cluster would move all keys to one slot; leave it out",
                self.prefix
            )));
        }
        let client_name = &self.connect.client_name;
        let printable = client_name.bytes().all(|byte| byte.is_ascii_graphic());
        if client_name.is_empty() || !printable {
            return Err(BuildError::new(format!(
                "the client name {client_name:?} is not made of printable ASCII without spaces"
            )));
        }
        let service = client_name.clone();
        let looks = Looks { service: service.clone(), explain_after: self.explain_after };
        let backend = url::backend(&self.sources, &self.connect)?;
        if self.defaults.replicas().is_some() {
            backend.waits_for_replicas().map_err(|error| BuildError::new(error.to_string()))?;
        }
        #[cfg(feature = "metrics")]
        crate::metrics::describe();
        let clock = self.clock.unwrap_or_else(|| backend.clock());
        let engine = Engine::new(backend, clock, self.runtime, self.seed, looks, self.limits, self.observer);
        engine.warn_of_ttl(ttl, None);
        let settings = Settings { service, prefix: self.prefix, options: self.defaults, command_timeout: command };
        Ok(LockManager::new(engine, settings))
    }

    /// Makes the manager and waits until the backend has answered; see [`LockManager::connect`] for what counts as an answer
    /// of a cluster.
    ///
    /// # Errors
    /// As [`build`](Self::build). Also in these cases, of which [`BuildError::cause`] has the details:
    /// * The backend refuses the user, or is too old.
    /// * The backend does not answer within [`command_timeout`](Self::command_timeout), or a cluster that is failing over within
    ///   [`connect_timeout`](Self::connect_timeout).
    /// * Two nodes of a quorum are one server.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::builder().url("memory://").prefix("shop:").connect().await?; // or: "redis://127.0.0.1"
    /// manager.lock("goods:1").await?.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn connect(self) -> Result<LockManager, BuildError> {
        let manager = self.build()?;
        manager.ping().await.map_err(BuildError::connect)?;
        Ok(manager)
    }
}

sets! { LockManagerBuilder =>
    /// Puts a prefix before every key, as in `"shop:"`; without braces, and at most 1,023 bytes. Default: none.
    ///
    /// Leases and errors name keys as they were asked for, without the prefix.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_core::LockManager;
    ///
    /// let shop = LockManager::builder().url("memory://one-store").prefix("shop:").build()?;
    /// let all = LockManager::builder().url("memory://one-store").build()?;
    /// let guard = shop.lock("goods:1").await?;
    /// assert_eq!(guard.key(), "goods:1");
    /// assert!(all.is_locked("shop:goods:1").await?);
    /// # Ok(()) }
    /// ```
    pub prefix(prefix: impl Into<String>) => prefix = prefix.into();

    /// Sets how many requests of this manager may wait at once; more are refused with
    /// [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded). Default: no limit.
    ///
    /// A request counts as a waiter only once it knows that the key is busy. `try_acquire` never counts.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_core::{ErrorKind, LockManager};
    ///
    /// let manager = LockManager::builder().url("memory://").max_waiters(10_000).max_waiters_per_key(1).build()?;
    /// let _guard = manager.lock("goods:1").await?;
    /// let waits = tokio::spawn(manager.lock("goods:1").acquire());
    /// # tokio::task::yield_now().await;
    /// assert_eq!(manager.lock("goods:1").await.unwrap_err().kind(), ErrorKind::Overloaded);
    /// # waits.abort(); Ok(()) }
    /// ```
    pub max_waiters(most: usize) => limits.in_all = most;

    /// Asks who holds a key when a request has waited for so long. Default: the manager does not ask.
    ///
    /// The answer is logged (`still waiting for the lock`, level INFO) with the key, the holder and for how long it has held the
    /// key: one line for all requests that wait for the key then. If one of them fails because the key is busy, the message of the
    /// error and [`Error::holder`](crate::Error::holder) name the holder. With the feature `opentelemetry`, the span `lock.acquire` of
    /// the request is linked to the trace of the holder when the request is done.
    ///
    /// The answer may be old when a request fails, since the manager asks again only for requests that come later. Each
    /// question reaches every process that uses the store, so choose a time that few requests wait for. A manager asks for one key at a
    /// time, at most ten times a second, the longest wait first.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_core::LockManager;
    /// use std::time::Duration;
    ///
    /// let builder = LockManager::builder().url("memory://").client_name("shop");
    /// let manager = builder.explain_waits_after(Duration::from_millis(50)).build()?;
    /// let _import = manager.lock("goods:1").label("import").await?;
    /// let busy = manager.lock("goods:1").wait(Duration::from_secs(1)).await.expect_err("busy");
    /// assert_eq!(busy.holder().expect("it answered").party().label(), "import");
    /// println!("{busy}"); // could not acquire "goods:1": …; 949ms before, shop on web-3 (process 812, "import") had held it for 51.2ms
    /// # Ok(()) }
    /// ```
    pub explain_waits_after(wait: Duration) => explain_after = Some(wait);

    /// Calls a function for each lease of this manager that is lost, with its key, fencing token and reason: for an error tracker or
    /// an alert. Default: nothing is called.
    ///
    /// The function is called once for each lease, when the holder's futures were woken, also for leases that a
    /// [shutdown](LockManager::shutdown) cuts short. A lease that its holder ends in time is not lost.
    ///
    /// The call comes from the engine's task, or from the thread that notices the loss first, as in
    /// [`is_held`](crate::Lease::is_held). So the function must not block, nor take a lock that is held around such a call. A panic is
    /// caught and logged. What becomes of the work is another option: [`LeaseOptions::on_lost`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_core::{LockManager, LossReason};
    /// use tokio::sync::mpsc;
    ///
    /// let (losses, mut lost) = mpsc::unbounded_channel();
    /// let builder = LockManager::builder().url("memory://"); // or: "redis://127.0.0.1"
    /// let manager = builder.on_lost(move |lease| _ = losses.send(lease.clone())).build()?;
    /// let guard = manager.lock("goods:1").label("sell").await?;
    /// manager.force_release("goods:1").await?;
    /// let lease = lost.recv().await.ok_or("nothing was lost")?;
    /// assert_eq!((lease.key(), lease.label(), lease.reason()), ("goods:1", "sell", LossReason::Forced));
    /// assert_eq!(lease.fencing_token(), guard.fencing_token());
    /// println!("{lease}"); // lost the lease of "goods:1" with fencing token 1785…: …
    /// # Ok(()) }
    /// ```
    pub on_lost(call: impl Fn(&LostLease) + Send + Sync + 'static) => observer = Some(Observer(Arc::new(call)));

    /// Sets how many requests of this manager may wait for one key at once; more are refused with
    /// [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded). Default: no limit.
    ///
    /// A request that tries only once does not count; see [`max_waiters`](Self::max_waiters).
    pub max_waiters_per_key(most: usize) => limits.per_key = most;

    /// Sets the runtime that renewal and connection run on. Default: the runtime of the first request.
    ///
    /// Give the manager a runtime of its own in these cases:
    ///
    /// * The service's tasks may block their threads. Renewal then continues on the other runtime.
    /// * A test has a paused clock and a real server. The manager needs a runtime whose clock runs, in threads of its own.
    /// * A manager in a `static` is shared by many `#[tokio::test]`s. Each test has a runtime of its own, and by default the engine
    ///   ends with the first one. Requests of other tests that are in flight then fail with
    ///   [`ErrorKind::Backend`](crate::ErrorKind::Backend), and their leases are lost.
    ///
    /// The runtime needs tokio's time and IO drivers, and must live longer than the leases.
    ///
    /// Renewals need a thread, and the runtime's timers and sockets. A task that blocks its thread stops no renewals of leases with a
    /// ttl of a second or more if other threads are idle. On a runtime of one thread, or if all threads may be blocked for two thirds of
    /// a ttl, give the manager a runtime of its own, whose thread nothing blocks. That alone keeps leases whatever the tasks do: in rare
    /// cases the thread that a task blocks is the one that was about to run the engine.
    ///
    /// Do not wait for a lock with a foreign `block_on`, such as that of the `futures` crate, inside a task on a runtime of one
    /// thread. Nothing would drive the timers and the connection, and the wait would never end. Use `.await`, or give the manager a
    /// runtime of its own.
    ///
    /// # Examples
    ///
    /// One manager for all tests of a program:
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use std::sync::LazyLock;
    /// use tokio::runtime::Runtime;
    ///
    /// static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));
    /// static LOCKS: LazyLock<LockManager> = LazyLock::new(|| {
    ///     let builder = LockManager::builder().url("memory://").runtime(RUNTIME.handle().clone());
    ///     builder.build().expect("the options are in range")
    /// });
    /// # assert!(!format!("{:?}", *LOCKS).is_empty());
    /// ```
    pub runtime(runtime: Handle) => runtime = Some(runtime);

    /// Sets the source of time and timers. Default: the backend's. For servers it counts the time for which the machine was
    /// suspended; for a store in memory it is tokio's clock.
    ///
    /// A lease ends by this clock. If the clock stands still while the backend's time goes on, two holders may rely on one key.
    pub clock(clock: Arc<dyn Clock>) => clock = Some(clock);

    /// What `lock_test::seeded` sets. Two processes with one seed would have equal tokens.
    #[doc(hidden)]
    pub __seed(seed: u64) => seed = Some(seed);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::OnLost;

    #[test]
    fn a_backend_that_is_given_twice_is_refused() {
        let builder = || LockManager::builder().url("redis://u:secret@shop");
        for twice in [
            builder().url("memory://b"),
            builder().quorum(["memory://a", "memory://b", "memory://c"]),
            builder().backend(MemoryBackend::new()),
        ] {
            let error = twice.build().expect_err("two backends").to_string();
            assert!(error.contains("there are two backends, one of `url`") && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_default_out_of_its_range_is_refused_when_the_manager_is_made() {
        let builder = || LockManager::builder().url("memory://");
        let refusal = |builder: LockManagerBuilder| builder.build().expect_err("out of range").to_string();
        let (ms, options) = (Duration::from_millis, LeaseOptions::new());
        let wrong = |defaults: LeaseOptions| refusal(builder().defaults(defaults));
        assert!(wrong(options.ttl(ms(1))).contains("the default of the ttl"));
        let often = wrong(options.ttl(ms(100)).renew_every(ms(60)));
        assert!(often.contains("the default of the renewal interval"), "{often}");
        assert!(wrong(options.max_hold(Duration::ZERO)).contains("the default of the longest hold"));
        assert!(wrong(options.at_least(Duration::MAX)).contains("stays busy"));
        assert!(refusal(builder().prefix("p".repeat(MAX_KEY_BYTES))).contains("no room for a key"));
        assert!(builder().prefix("p".repeat(MAX_KEY_BYTES - 1)).build().is_ok());
        let usual = options.renew_every(ms(500)).max_hold(Duration::MAX).at_least(ms(1)).on_lost(OnLost::Finish);
        let builder = builder().defaults(usual);
        assert!(builder.clone().build().is_ok());
        assert!(builder.defaults(options.fixed().wait_forever()).build().is_ok());
    }
}
