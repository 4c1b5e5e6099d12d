use std::{
    any, fmt,
    marker::PhantomData,
    panic::Location,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use lock_core::{LockManager, LockRequest, OnLost};
use tower_layer::Layer;

use crate::{
    admission::{Admission, Limits, Overloaded, Place},
    mode::{Detached, UntilBodyEnd, UntilResponse},
    protocol::Plain,
    service::LockService,
};

/// Puts a lock around every request of a service.
///
/// See the [crate's documentation](crate) for examples, and for where in a stack it belongs.
pub struct LockLayer<K, P = Plain, M = UntilResponse> {
    manager: LockManager,
    pub(crate) key: K,
    pub(crate) protocol: P,
    options: Options,
    shared: Arc<Shared>,
    mode: PhantomData<fn() -> M>,
}

/// What the layer was told; the rest are the manager's defaults.
#[derive(Clone, Copy, Debug)]
struct Options {
    ttl: Option<Duration>,
    wait: Option<Duration>,
    max_hold: Option<Duration>,
    on_lost: OnLost,
    on_backend_error: OnBackendError,
    limits: Limits,
    name: &'static str,
    /// Where in the user's code the layer was made.
    made_at: &'static Location<'static>,
}

/// What all clones of a layer, and all its services, have in common.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    admission: Arc<Admission>,
    /// Requests that went through without a lock as the backend did not answer.
    let_through: AtomicU64,
}

impl Shared {
    pub(crate) fn count_let_through(&self) {
        self.let_through.fetch_add(1, Relaxed);
    }
}

/// What becomes of a request when the backend does not answer; see [`LockLayer::on_backend_error`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnBackendError {
    /// The request is refused, and the service not called.
    #[default]
    Refuse,
    /// The service is called **without a lock**, which is logged as a warning and counted.
    LetThrough,
}

impl<K> LockLayer<K> {
    /// Makes a layer for any kind of request: what the lock refuses is an error of the service, see [`Plain`].
    ///
    /// `key` finds the key of a request, see [`KeyExtractor`](crate::KeyExtractor). An axum `Router` takes no layer
    /// that fails; use `LockLayer::http` there.
    #[must_use]
    #[track_caller]
    pub fn new(manager: LockManager, key: K) -> Self {
        Self::with_protocol(manager, key, Plain)
    }
}

#[cfg(feature = "http")]
impl<K> LockLayer<K, crate::Http> {
    /// Makes a layer for HTTP requests: what the lock refuses is a response with a status that says why, see
    /// [`Http`](crate::Http).
    ///
    /// `key` finds the key of a request, see [`KeyExtractor`](crate::KeyExtractor). GET, HEAD and OPTIONS pass without
    /// a lock; [`methods`](Self::methods) and [`all_methods`](Self::all_methods) change that.
    #[must_use]
    #[track_caller]
    pub fn http(manager: LockManager, key: K) -> Self {
        Self::with_protocol(manager, key, crate::Http::default())
    }
}

#[cfg(feature = "http")]
impl<K, M> LockLayer<K, crate::Http, M> {
    /// Locks requests of these methods only. Default: all but GET, HEAD and OPTIONS.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::Method;
    /// use lock_core::LockManager;
    /// use lock_tower::{LockLayer, key::fixed};
    ///
    /// let writes = LockLayer::http(LockManager::in_memory(), fixed("shop")).methods([Method::PUT, Method::DELETE]);
    /// # let _ = writes;
    /// ```
    #[must_use]
    pub fn methods(mut self, methods: impl IntoIterator<Item = http::Method>) -> Self {
        self.protocol = self.protocol.methods(methods);
        self
    }

    /// Locks requests of every method, GET, HEAD and OPTIONS included.
    #[must_use]
    pub fn all_methods(mut self) -> Self {
        self.protocol = self.protocol.all_methods();
        self
    }

    /// Replaces the answers to requests that the lock refuses; see [`Http::answer`](crate::Http::answer).
    #[must_use]
    pub fn answer<F>(mut self, answer: F) -> Self
    where
        F: Fn(&crate::Refusal, http::Response<bytes::Bytes>) -> http::Response<bytes::Bytes> + Send + Sync + 'static,
    {
        self.protocol = self.protocol.answer(answer);
        self
    }
}

#[cfg(feature = "grpc")]
impl<K> LockLayer<K, crate::Grpc> {
    /// Makes a layer for gRPC requests: what the lock refuses is a response with a status code of gRPC, see
    /// [`Grpc`](crate::Grpc).
    ///
    /// `key` finds the key of a request, see [`KeyExtractor`](crate::KeyExtractor): it sees an [`http::Request`], with
    /// the metadata as headers.
    #[must_use]
    #[track_caller]
    pub fn grpc(manager: LockManager, key: K) -> Self {
        Self::with_protocol(manager, key, crate::Grpc::default())
    }
}

#[cfg(feature = "grpc")]
impl<K, M> LockLayer<K, crate::Grpc, M> {
    /// Replaces the answers to requests that the lock refuses; see [`Grpc::answer`](crate::Grpc::answer).
    #[must_use]
    pub fn answer<F>(mut self, answer: F) -> Self
    where
        F: Fn(&crate::Refusal, tonic::Status) -> tonic::Status + Send + Sync + 'static,
    {
        self.protocol = self.protocol.answer(answer);
        self
    }
}

impl<K, P> LockLayer<K, P> {
    /// Makes a layer that answers in a protocol of your own; see [`Protocol`](crate::Protocol).
    #[must_use]
    #[track_caller]
    pub fn with_protocol(manager: LockManager, key: K, protocol: P) -> Self {
        let options = Options {
            ttl: None,
            wait: None,
            max_hold: None,
            on_lost: OnLost::default(),
            on_backend_error: OnBackendError::default(),
            limits: Limits::default(),
            name: "",
            made_at: Location::caller(),
        };
        Self { manager, key, protocol, options, shared: Arc::default(), mode: PhantomData }
    }

    /// Holds the lease until the body of the response has ended or was dropped, and not only until its head is there:
    /// for a service that streams what the lock protects.
    ///
    /// A client that reads slowly keeps the key for as long as it likes, which is why it is not the default; set
    /// [`max_hold`](Self::max_hold). When the lease is lost the body ends with an error (in gRPC with the status
    /// ABORTED), unless [`on_lost`](Self::on_lost) says otherwise. A response without a body, a 101 among them,
    /// releases at once. What the body asks for while it is read is not recognised as `WouldDeadlock`.
    ///
    /// It works where the protocol can do it: [`Http`](crate::Http) and [`Grpc`](crate::Grpc). The futures of the
    /// service have to be `Send + 'static`.
    #[must_use]
    pub fn until_body_end(self) -> LockLayer<K, P, UntilBodyEnd> {
        self.into_mode()
    }

    /// Lets the service work in a task of its own: once it has its lease, it goes on to its end when the client has
    /// gone, and the key is busy until then.
    ///
    /// The futures of the service have to be `Send + 'static`. A request that waits for its key when its client goes is
    /// given up all the same.
    #[must_use]
    pub fn detached(self) -> LockLayer<K, P, Detached> {
        self.into_mode()
    }

    fn into_mode<M>(self) -> LockLayer<K, P, M> {
        let Self { manager, key, protocol, options, shared, .. } = self;
        LockLayer { manager, key, protocol, options, shared, mode: PhantomData }
    }
}

impl<K, P, M> LockLayer<K, P, M> {
    /// Sets how long a process that has fallen silent blocks others: 10 ms to 100 years. Default: the manager's, which
    /// is 10 s unless it was changed.
    ///
    /// The lease is renewed until the service has answered, however long that takes; see
    /// [`LockRequest::ttl`]. A ttl out of range shows in each request that is refused.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// Sets how long a request waits for a busy key; with zero it tries once. Default: the manager's, which is 10 s
    /// unless it was changed.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.options.wait = Some(wait);
        self
    }

    /// Ends the lease, and with it the work of the service, after `max_hold` (above zero). Default: no bound.
    #[must_use]
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.max_hold = Some(max_hold);
        self
    }

    /// Tries once: a request whose key is busy is refused at once. The same as a [`wait`](Self::wait) of zero.
    #[must_use]
    pub fn try_only(self) -> Self {
        self.wait(Duration::ZERO)
    }

    /// Names the layer in metrics and spans, where a name per key would be too many. Default: empty.
    #[must_use]
    pub fn name(mut self, name: &'static str) -> Self {
        self.options.name = name;
        self
    }

    /// Sets what becomes of the work when its lease is lost. Default: [`OnLost::Cancel`], it is dropped.
    #[must_use]
    pub fn on_lost(mut self, policy: OnLost) -> Self {
        self.options.on_lost = policy;
        self
    }

    /// Sets what becomes of a request when the backend does not answer
    /// ([`ErrorKind::Backend`](lock_core::ErrorKind::Backend)). Default: [`OnBackendError::Refuse`].
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::{LockLayer, OnBackendError, key::fixed};
    ///
    /// let layer = LockLayer::new(LockManager::in_memory(), fixed("shop")).on_backend_error(OnBackendError::LetThrough);
    /// assert_eq!(layer.let_through(), 0);
    /// ```
    #[must_use]
    pub fn on_backend_error(mut self, policy: OnBackendError) -> Self {
        self.options.on_backend_error = policy;
        self
    }

    /// Returns how many requests went through without a lock as the backend did not answer, through this layer, its
    /// clones and their services.
    #[must_use]
    pub fn let_through(&self) -> u64 {
        self.shared.let_through.load(Relaxed)
    }

    /// Sets how many requests may be on their way to a lock at a time, through this layer, its clones and their
    /// services; more are refused. Default: no limit.
    ///
    /// A request counts from the call until it has its lease, also when the key is free, so leave room for those that
    /// come at the same moment.
    #[must_use]
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.options.limits.in_all = Some(most);
        self
    }

    /// Sets how many requests of *one key* may be on their way to its lock at a time; otherwise as
    /// [`max_waiters`](Self::max_waiters). Default: no limit.
    #[must_use]
    pub fn max_waiters_per_key(mut self, most: usize) -> Self {
        self.options.limits.per_key = Some(most);
        self
    }

    pub(crate) fn request(&self, key: &str) -> LockRequest {
        let Options { ttl, wait, max_hold, name, made_at, .. } = self.options;
        let mut request = self.manager.lock(key).label(name).asked_at(made_at);
        if let Some(ttl) = ttl {
            request = request.ttl(ttl);
        }
        if let Some(wait) = wait {
            request = request.wait(wait);
        }
        if let Some(max_hold) = max_hold {
            request = request.max_hold(max_hold);
        }
        request
    }

    pub(crate) fn admit(&self, key: &str) -> Result<Option<Place>, Overloaded> {
        self.shared.admission.admit(self.options.limits, key)
    }

    pub(crate) fn lost_policy(&self) -> OnLost {
        self.options.on_lost
    }

    /// Where to count what is let through, if anything is.
    pub(crate) fn lets_through(&self) -> Option<Arc<Shared>> {
        (self.options.on_backend_error == OnBackendError::LetThrough).then(|| Arc::clone(&self.shared))
    }
}

impl<S, K: Clone, P: Clone, M> Layer<S> for LockLayer<K, P, M> {
    type Service = LockService<S, K, P, M>;

    fn layer(&self, inner: S) -> Self::Service {
        LockService::new(inner, self.clone())
    }
}

impl<K: Clone, P: Clone, M> Clone for LockLayer<K, P, M> {
    fn clone(&self) -> Self {
        Self {
            manager: self.manager.clone(),
            key: self.key.clone(),
            protocol: self.protocol.clone(),
            options: self.options,
            shared: Arc::clone(&self.shared),
            mode: PhantomData,
        }
    }
}

impl<K, P: fmt::Debug, M> fmt::Debug for LockLayer<K, P, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer")
            .field("manager", &self.manager)
            .field("key", &format_args!("{}", any::type_name::<K>()))
            .field("protocol", &self.protocol)
            .field("options", &self.options)
            .finish()
    }
}
