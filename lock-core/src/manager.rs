mod answers;
mod inspecting;

use std::{fmt, panic::Location, sync::Arc, sync::OnceLock, time::Duration};

use crate::{
    backend::{Answer, BackendError, Batch, Operation, Outcome, Replied},
    engine::{Engine, tenure::TenureId},
    error::{AlreadyInstalled, Argument, Error, ErrorKind},
    handover::Handover,
    health::Health,
    key::LockKey,
    options::LeaseOptions,
    request::{self, KeyInMode, LockAllRequest, LockRequest},
};

/// The source of leases: one connection per node, one renewal scheduler, and the defaults of its requests.
///
/// Make one per process and backend, clone it freely (a clone is two pointers), and give it to handlers, layers and
/// macros alike, or [`install`](Self::install) it. The engine starts with the first request, on that request's
/// runtime unless the builder was given one, and ends when the last clone, request and guard is gone.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
/// use lock_core::LockManager;
///
/// let manager = LockManager::in_memory(); // or: LockManager::connect("redis://127.0.0.1").await?
/// let guard = manager.lock("goods:1").await?;
/// assert!(manager.is_locked("goods:1").await?);
/// guard.release().await?;
/// assert!(!manager.is_locked("goods:1").await?);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LockManager {
    engine: Arc<Engine>,
    settings: Arc<Settings>,
}

/// The settings of the builder that concern requests.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) service: String,
    pub(crate) prefix: String,
    pub(crate) options: LeaseOptions,
    pub(crate) command_timeout: Duration,
}

static INSTALLED: OnceLock<LockManager> = OnceLock::new();

tokio::task_local! {
    static SCOPED: LockManager;
}

impl LockManager {
    pub(crate) fn new(engine: Arc<Engine>, settings: Settings) -> Self {
        Self { engine, settings: Arc::new(settings) }
    }

    /// Installs this manager as the process-wide default for [`current`](Self::current) and the macro.
    ///
    /// # Errors
    /// [`AlreadyInstalled`] if a manager is installed already; that one stays.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// LockManager::in_memory().install().expect("the first one"); // or: LockManager::connect("redis://127.0.0.1").await?.install()?
    /// let guard = LockManager::current()?.lock("goods:1").await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn install(&self) -> Result<(), AlreadyInstalled> {
        INSTALLED.set(self.clone()).map_err(|_| AlreadyInstalled)
    }

    /// Runs a future with this as the manager that [`current`](Self::current) finds, instead of the installed one: for
    /// tests, which can each have their own. Tasks that the future spawns are not covered.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let held = manager.scope(async { LockManager::current()?.lock("goods:1").await }).await?;
    /// assert!(manager.is_locked("goods:1").await?);
    /// held.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        SCOPED.scope(self.clone(), future)
    }

    /// Returns the manager of the [`scope`](Self::scope) that the task is in, else the installed one.
    ///
    /// # Errors
    /// [`ErrorKind::NoManager`] if the task is in no scope and no manager is installed.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::{ErrorKind, LockManager};
    ///
    /// assert_eq!(LockManager::current().unwrap_err().kind(), ErrorKind::NoManager);
    /// let manager = LockManager::in_memory();
    /// let guard = manager.scope(async { LockManager::current()?.lock("goods:1").await }).await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn current() -> Result<Self, Error> {
        SCOPED
            .try_with(Clone::clone)
            .ok()
            .or_else(|| INSTALLED.get().cloned())
            .ok_or_else(|| Error::new(ErrorKind::NoManager, "find a lock manager"))
    }

    /// Begins a request for one key, with the manager's defaults. An invalid key is reported when the request is awaited.
    ///
    /// Keys are 1 to 1,024 bytes of UTF-8, used unchanged behind the manager's prefix.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    /// use std::time::Duration;
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock("goods:1").ttl(Duration::from_secs(3)).wait(Duration::from_secs(2)).await?;
    /// assert_eq!(guard.key(), "goods:1");
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn lock(&self, key: impl AsRef<str>) -> LockRequest {
        self.request(self.key(key.as_ref()))
    }

    /// Begins a request for several keys, all or none: strings, which are acquired exclusively, or keys with a mode each
    /// ([`exclusive`](crate::exclusive), [`shared`](crate::shared), [`permits`](crate::permits)).
    ///
    /// If all keys are free, they are acquired together. If not, they are acquired one after the other in an order that all such
    /// requests have in common, so that two of them cannot deadlock. A key that is named twice counts once, and is exclusive if it
    /// is named so once. At most 5,000 keys; more fail with [`ErrorKind::Invalid`] before anything is sent. While one key is waited for,
    /// those that come before it are held: bound that by [`wait`](LockAllRequest::wait), since `max_hold` begins with the last key.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock_all(["goods:3", "goods:1"]).await?;
    /// assert!(guard.is_held());
    /// assert!(guard.fencing_token("goods:1").is_some());
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn lock_all<K: Into<KeyInMode>>(&self, keys: impl IntoIterator<Item = K>) -> LockAllRequest {
        let keys = keys.into_iter().map(|key| {
            let KeyInMode { key, mode } = key.into();
            Ok((self.key(&key)?, mode))
        });
        let keys = keys.collect::<Result<Vec<_>, Error>>().and_then(|mut keys| {
            keys.sort_by(|(one, _), (other, _)| one.cmp(other));
            let keys = request::merge(keys)?;
            if keys.is_empty() {
                let detail = "there is no key to lock; name at least one";
                return Err(Error::invalid(Argument::Keys, "lock", detail));
            }
            if keys.len() > MOST_KEYS {
                let detail =
                    format!("{} keys are more than {MOST_KEYS}; lock a key that stands for all of them", keys.len());
                return Err(Error::invalid(Argument::Keys, "lock", detail));
            }
            Ok(keys)
        });
        self.request(keys)
    }

    /// Begins a request for a lease that another process [handed over](crate::LockGuard::hand_over), with the ttl of that lease.
    /// The request takes one round trip and does not wait. The new holder gets a new, larger fencing token.
    ///
    /// The request fails with [`ErrorKind::NotHeld`] if the lease has expired or another process has taken it up.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::{ErrorKind, LockManager};
    ///
    /// let manager = LockManager::in_memory();
    /// let handover = manager.lock("import:7").await?.hand_over()?;
    /// let guard = manager.take_up(handover.clone()).await?;
    /// assert_eq!(guard.key(), "import:7");
    /// assert_eq!(manager.take_up(handover).await.unwrap_err().kind(), ErrorKind::NotHeld); // only the first gets it
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn take_up(&self, handover: Handover) -> LockRequest {
        let mut request = self.request(self.key(handover.key())).ttl(handover.ttl.get());
        request.mode = handover.token.mode();
        request.from = Some(handover.token);
        request
    }

    /// Frees a key that any holder has, another library included, and returns whether the key was held.
    ///
    /// This is a tool for operators. A lease of this manager ends at once ([`LossReason::Forced`](crate::LossReason)), and so does a
    /// lease of another process that was renewed before. Any other lease ends with its next renewal; until then two holders may rely
    /// on the key.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect). A key that holds another value (a hash, a list) is [`ErrorKind::WrongType`], and is left
    /// untouched.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not prevent the release.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::{ErrorKind, LockManager, LossReason};
    ///
    /// let manager = LockManager::in_memory();
    /// let stuck = manager.lock("goods:1").await?;
    /// assert!(manager.force_release("goods:1").await?);
    /// assert_eq!(stuck.release().await.unwrap_err().kind(), ErrorKind::Lost(LossReason::Forced));
    /// # Ok(()) }
    /// ```
    pub async fn force_release(&self, key: impl AsRef<str>) -> Result<bool, Error> {
        let key = self.key(key.as_ref())?;
        self.engine.admit(FORCE).map_err(|error| error.on(&key))?;
        let before = self.engine.tenures_of(&key);
        let force = Operation::Force { key: key.clone(), foreign: true };
        let outcome = self.engine.call(Batch::from([force])).await.and_then(Answer::single);
        self.forced(&key, &before, outcome)
    }

    /// Frees every key that begins with `prefix` and is held by a lease of this library, and returns how many there were.
    /// Other values under the prefix, locks of other libraries included, stay. The keys are found by SCAN, which does not block
    /// the server.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    /// Dropping the future leaves some keys freed and others not.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let _guards = (manager.lock("goods:1").await?, manager.lock("goods:2").await?, manager.lock("report").await?);
    /// assert_eq!(manager.force_release_all("goods:").await?, 2);
    /// assert!(manager.is_locked("report").await?);
    /// # Ok(()) }
    /// ```
    pub async fn force_release_all(&self, prefix: impl AsRef<str>) -> Result<u64, Error> {
        let attempt = "list the keys";
        self.engine.admit(attempt)?;
        let pattern = format!("{}{}", self.settings.prefix, prefix.as_ref());
        let keys = self.engine.list(pattern).await.map_err(|error| Error::backend(attempt, None, error))?;
        let keys: Vec<_> = keys.into_iter().map(|key| key.behind(&self.settings.prefix)).collect();
        let mut freed = 0;
        for keys in keys.chunks(FORCED_AT_ONCE) {
            let forces = keys.iter().map(|key| Operation::Force { key: key.clone(), foreign: false }).collect();
            self.engine.admit(FORCE)?;
            let before: Vec<_> = keys.iter().map(|key| self.engine.tenures_of(key)).collect();
            let outcomes = Answer::each(self.engine.call(forces).await);
            // All results are read before the first error is returned: each key that was freed has to end its lease here.
            let results = keys.iter().zip(&before).zip(outcomes);
            let results: Vec<_> = results.map(|((key, before), outcome)| self.forced(key, before, outcome)).collect();
            freed += results.iter().filter(|result| matches!(result, Ok(true))).count() as u64;
            if let Some(error) = results.into_iter().find_map(Result::err) {
                return Err(error.after(freed));
            }
        }
        Ok(freed)
    }

    /// Reads the answer to a forced release, and says whether the key was held. `before` are the tenures that it had when that
    /// was asked for.
    fn forced(&self, key: &LockKey, before: &[TenureId], outcome: Replied<Outcome>) -> Result<bool, Error> {
        let now = self.engine.now();
        match outcome {
            Ok(Outcome::Released) => {
                self.engine.with(|state| state.queues.forced(key, before, now));
                Ok(true)
            }
            Ok(Outcome::Gone) => Ok(false),
            Ok(outcome) => Err(Error::backend(FORCE, Some(key), BackendError::unexpected(outcome))),
            Err(error) => {
                // It may have been released nevertheless: a holder that renews its lease finds out now.
                self.engine.with(|state| state.queues.changed(key, now));
                Err(Error::backend(FORCE, Some(key), error))
            }
        }
    }

    /// Refuses new requests and fails those that wait, while holders go on: the first step of a graceful shutdown.
    ///
    /// Call it when the process is told to stop, as by SIGTERM. The requests that the server still works on then
    /// hold their key or fail, and none of them waits for a key that it would soon give back. Leases are renewed as before, and can be
    /// extended, handed over and released. [`shutdown`](Self::shutdown) is the last step.
    ///
    /// From now on every other request of this manager and its clones fails with [`ErrorKind::ShutDown`]: acquires, also of holders that
    /// want another key; [`take_up`](Self::take_up), [`inspect`](Self::inspect) and [`force_release`](Self::force_release). A
    /// [`downgrade`](crate::LockGuard::downgrade) fails, too, and releases its key. [`health`](Self::health) reports that the manager is
    /// not ready. There is no way back, and a second call does nothing. The call does not block.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::{ErrorKind, LockManager};
    /// use std::time::Duration;
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock("goods:1").await?;
    /// let waiter = tokio::spawn(manager.lock("goods:1").acquire());
    /// # tokio::task::yield_now().await;
    /// manager.stop_waiting();
    /// assert_eq!(waiter.await.expect("no panic").unwrap_err().kind(), ErrorKind::ShutDown);
    /// assert!(guard.is_held());
    /// guard.release().await?;
    /// assert_eq!(manager.shutdown(Duration::from_secs(5)).await, 0);
    /// # Ok(()) }
    /// ```
    pub fn stop_waiting(&self) {
        self.engine.stop_waiting();
    }

    /// Refuses new requests, waits at most `grace` for the holders to finish, and releases the leases that are left.
    ///
    /// Returns how many leases were cut short; they end with [`LossReason::ShutDown`](crate::LossReason). Zero is a clean end. The
    /// connection is closed, and every clone of the manager is shut down.
    ///
    /// The shutdown waits for all releases in flight, whether their futures are polled or not. If the server does not answer, or may
    /// still execute a request that was sent over a broken connection, because this user may not `CLIENT KILL` it, that takes up to
    /// twice the [`command_timeout`](crate::LockManagerBuilder::command_timeout) beyond `grace`. It also waits for a
    /// [`take_up`](Self::take_up) that has begun: if its future is kept without being polled, the connection is closed when
    /// the future is polled or dropped.
    ///
    /// A shutdown of a [quorum](crate::LockManagerBuilder::quorum) ends when a majority has released the leases, and each other node
    /// has too or is known to be down. For a node that hangs, that takes one `command_timeout`. The task keeps sending releases to
    /// such a node, and closes the connections when the node has answered or its leases have expired.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the manager refusing requests; call it again to finish.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::{ErrorKind, LockManager};
    /// use std::time::Duration;
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock("goods:1").await?;
    /// guard.release().await?;
    /// let cut_short = manager.shutdown(Duration::from_secs(5)).await;
    /// assert_eq!(cut_short, 0);
    /// assert_eq!(manager.lock("goods:1").await.unwrap_err().kind(), ErrorKind::ShutDown);
    /// # Ok(()) }
    /// ```
    pub async fn shutdown(&self, grace: Duration) -> usize {
        self.engine.shut_down(grace, self.settings.command_timeout).await
    }

    /// Waits for a sign of life of the backend.
    pub(crate) async fn ping(&self) -> Result<(), Error> {
        self.engine.admit(CONNECT)?;
        let answer = self.engine.call(Batch::new()).await;
        answer.map(|_| ()).map_err(|error| Error::backend(CONNECT, None, error))
    }

    fn key(&self, key: &str) -> Result<LockKey, Error> {
        LockKey::with_prefix(&self.settings.prefix, key)
    }

    #[track_caller]
    fn request<K>(&self, keys: Result<K, Error>) -> LockRequest<K> {
        LockRequest::new(&self.engine, keys, self.settings.options, Location::caller())
    }
}

getters! { manager: LockManager =>
    /// Returns how the manager and its backend are doing, without a round trip: for readiness probes and status pages.
    ///
    /// Never waits. A manager that was [built](crate::LockManagerBuilder::build) and has had no request begins to connect, so it is
    /// up soon after the first call.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let _guard = manager.lock("goods:1").await?;
    /// let health = manager.health();
    /// assert!(health.is_up());
    /// assert_eq!(health.held(), 1);
    /// # Ok(()) }
    /// ```
    health: Health = manager.engine.health();
    /// Returns the name of the service: the [`client_name`](crate::LockManagerBuilder::client_name) that the builder was given.
    service: &str = &manager.settings.service;
    /// Returns the [`prefix`](crate::LockManagerBuilder::prefix) of all keys of the manager; empty if it has none.
    prefix: &str = &manager.settings.prefix;
    /// Returns whether the manager was [shut down](Self::shutdown), or is about to be: it refuses new requests, also after
    /// [`stop_waiting`](Self::stop_waiting).
    is_shut_down: bool = manager.engine.state().shut_down;
    /// Returns the number of entries in each list that the manager keeps in memory, by name. A soak test compares them.
    #[doc(hidden)]
    __sizes: Vec<(&'static str, usize)> = manager.engine.state().queues.sizes();
    /// Identifies the manager for the test kit; see `Engine::id`.
    #[doc(hidden)]
    __id: usize = manager.engine.id();
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager").field("engine", &self.engine).field("settings", &self.settings).finish()
    }
}

/// How many keys one request may have. A request for 20,000 free keys took eight times its `wait`, one for so many did not.
const MOST_KEYS: usize = 5_000;
/// How many keys are released by force in one call.
const FORCED_AT_ONCE: usize = 256;

const FORCE: &str = "force the release of";

const CONNECT: &str = "connect to the backend";
