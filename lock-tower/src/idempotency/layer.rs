use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::Request;
use lock_core::LockManager;

use super::answers::{Answers, MEMORY, MOST};
use crate::{
    http::Http,
    key::{Principal, Scoped},
    layer::LockLayer,
    misconfigured::Misconfigured,
    shared::shown,
};

/// Gives all requests of one `Idempotency-Key` one answer: that of the first.
///
/// See the [module's documentation](crate::idempotency) for how it works and what it promises.
#[derive(Clone, Debug)]
#[must_use]
pub struct IdempotencyLayer<K, A, P = Http> {
    pub(super) lock: LockLayer<Scoped<K>, P>,
    pub(super) answers: A,
    pub(super) keep: Duration,
    pub(super) wait: Duration,
    /// The most bytes of an answer that is kept.
    pub(super) limit: usize,
    pub(super) store_timeout: Duration,
    pub(super) is_optional: bool,
    is_beside_the_locks: bool,
    /// Whether the log has the warning of answers in memory.
    warned: Arc<AtomicBool>,
}

impl<K, A: Answers> IdempotencyLayer<K, A> {
    /// Makes a layer for HTTP. The key of a request is `whose`, as in `scoped("payments", extension::<Account>())`, and its header
    /// `Idempotency-Key`. GET, HEAD and OPTIONS pass without one.
    ///
    /// `whose` begins with the client who sends the request; [`Principal`] says why. Answers are read and stored in `answers`.
    #[track_caller]
    pub fn http(manager: LockManager, whose: Scoped<K>, answers: A) -> Self {
        Self::around(LockLayer::http(manager, whose), answers)
    }
}

#[cfg(feature = "grpc")]
impl<K, A: Answers> IdempotencyLayer<K, A, crate::grpc::Grpc> {
    /// Makes a layer for gRPC: calls have their key in the metadata `idempotency-key`. All calls but health checks and reflection
    /// require one, unless [`lock`](Self::lock) names the methods.
    ///
    /// A call is read before the method runs, and its answer before it is sent, so this is for unary methods.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::{idempotency::{IdempotencyLayer, MemoryAnswers}, key::{header, scoped}};
    ///
    /// let whose = scoped("payments", header::<String>("x-account"));
    /// let once = IdempotencyLayer::grpc(LockManager::in_memory(), whose, MemoryAnswers::new())
    ///     .lock(|lock| lock.methods(["/bank.Payments/Pay"]));
    /// # let _ = once;
    /// ```
    #[track_caller]
    pub fn grpc(manager: LockManager, whose: Scoped<K>, answers: A) -> Self {
        Self::around(LockLayer::grpc(manager, whose), answers)
    }
}

impl<K, A: Answers, P> IdempotencyLayer<K, A, P> {
    fn around(lock: LockLayer<Scoped<K>, P>, answers: A) -> Self {
        let (keep, wait, limit) = (Duration::from_secs(24 * 3600), Duration::from_secs(2), 256 * 1024);
        let (store_timeout, warned) = (Duration::from_secs(10), Arc::default());
        Self { lock, answers, keep, wait, limit, store_timeout, warned, is_optional: false, is_beside_the_locks: false }
    }

    /// Sets how long an answer is kept, at most 100 years. Default: 24 hours. After that, a request with the same key runs again.
    pub fn keep(self, keep: Duration) -> Self {
        Self { keep, ..self }
    }

    /// Sets how long a duplicate waits for the answer of the first request. Default: 2 seconds. After that it is answered with 409,
    /// in gRPC with `ABORTED`; with zero at once, as the draft of the IETF has it. The longest wait is 100 years.
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait: wait.min(MOST), ..self }
    }

    /// Sets how many bytes the body of an answer may have that is kept. Default: 256 KiB. A larger one is sent to the first client
    /// only; duplicates are told that the request was carried out. The body of a request may have as many, and 2 MiB at least.
    pub fn limit(self, bytes: usize) -> Self {
        Self { limit: bytes, ..self }
    }

    /// Sets how long the store may take to answer, also before a request is told that its lease was lost. Default: 10 seconds. After that a
    /// request is refused with 503, and storing is tried again, with twice the time.
    pub fn store_timeout(self, timeout: Duration) -> Self {
        Self { store_timeout: timeout, ..self }
    }

    /// Lets requests without an idempotency key through, without a lock. By default they are refused. A handler behind this layer sees no lease
    /// then, also not that of a layer outside.
    pub fn optional(self) -> Self {
        Self { is_optional: true, ..self }
    }

    /// Allows that answers are in the Redis that has the locks. When answers fill that server, **every lock of every service stops**.
    pub fn beside_the_locks(self) -> Self {
        Self { is_beside_the_locks: true, ..self }
    }

    /// Changes the lock behind the layer: its [`options`](LockLayer::options) but `wait`, its [`name`](LockLayer::name), the methods
    /// that need a key, the limits of waiters, or the answers of the lock itself.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::Method;
    /// use lock_core::{LeaseOptions, LockManager};
    /// use lock_tower::{idempotency::{IdempotencyLayer, MemoryAnswers}, key::{header, scoped}};
    /// use std::time::Duration;
    ///
    /// let whose = scoped("payments", header::<String>("x-account"));
    /// let once = IdempotencyLayer::http(LockManager::in_memory(), whose, MemoryAnswers::new()).lock(|lock| {
    ///     let options = LeaseOptions::new().ttl(Duration::from_secs(5)).max_hold(Duration::from_secs(60));
    ///     lock.name("payments").methods([Method::POST]).options(options).max_waiters_per_key(1_000)
    /// });
    /// # let _ = once;
    /// ```
    pub fn lock(self, change: impl FnOnce(LockLayer<Scoped<K>, P>) -> LockLayer<Scoped<K>, P>) -> Self {
        Self { lock: change(self.lock), ..self }
    }

    /// Checks the options, the key and the store, so that a misconfigured service fails at start-up instead of refusing every
    /// request. `B` is the type of the bodies of requests, in axum `axum::body::Body`.
    ///
    /// # Errors
    /// [`Misconfigured`] as of [`LockLayer::check_for`], and for each of these:
    /// * Answers that are in the Redis of the locks, unless [`beside_the_locks`](Self::beside_the_locks) is set.
    /// * Permits, a `store_timeout` of zero, and a time to keep of zero or of more than 100 years.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::{idempotency::{IdempotencyLayer, MemoryAnswers}, key::{header, scoped}};
    /// use std::time::Duration;
    ///
    /// let whose = scoped("payments", header::<String>("x-account"));
    /// let once = IdempotencyLayer::http(LockManager::in_memory(), whose, MemoryAnswers::new());
    /// once.check_for::<axum::body::Body>()?;
    /// assert!(once.keep(Duration::ZERO).check_for::<axum::body::Body>().is_err());
    /// # Ok::<_, lock_tower::Misconfigured>(())
    /// ```
    pub fn check_for<B>(&self) -> Result<(), Misconfigured>
    where
        K: Principal<Request<B>>,
    {
        self.lock.check_for::<Request<B>>()?;
        self.check_store()
    }

    /// Checks what is known without the type of the requests. Warns once of answers that other instances do not have.
    pub(super) fn check_at_start(&self) -> Result<(), Misconfigured> {
        let is_shared = self.lock.manager.health().nodes().iter().any(|node| node.address() != MEMORY);
        let is_lost = is_shared && self.answers.address().is_some_and(|address| address == MEMORY);
        if is_lost && !self.warned.swap(true, Ordering::Relaxed) {
            let lock = shown(self.lock.name_of());
            let what = "answers are in the memory of this process: another instance, and this one after a restart, runs a duplicate \
                        again; store them in Redis or in the service's database";
            tracing::warn!(lock, "{what}");
        }
        self.lock.check_options().and_then(|()| self.check_store())
    }

    fn check_store(&self) -> Result<(), Misconfigured> {
        let (keep, health) = (self.keep, self.lock.manager.health());
        let address = self.answers.address().filter(|address| !self.is_beside_the_locks && address != MEMORY);
        let fills = |address: &String| health.nodes().iter().any(|node| node.address() == address);
        let problem = if keep.as_millis() == 0 || keep > MOST {
            format!("answers cannot be kept for {keep:?}; keep them for a time from 1 ms to 100 years")
        } else if self.store_timeout.is_zero() {
            "no store answers in no time; let `store_timeout` be longer".to_owned()
        } else if self.lock.counts() {
            "with permits several requests of a key would run at once; leave them out".to_owned()
        } else if let Some(address) = address.filter(fills) {
            format!(
                "the answers would fill {address}, which has the locks; use another server, or call `.beside_the_locks()` on the layer"
            )
        } else {
            return Ok(());
        };
        Err(self.lock.misconfigured(problem))
    }
}
