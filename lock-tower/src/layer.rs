use std::{any, fmt, marker::PhantomData, panic::Location, sync::Arc, time::Duration};

use lock_core::{LeaseOptions, LockManager, LockRequest};

use self::options::Options;
use crate::{
    acquiring::Acquiring,
    protocol::{HoldsBodies, Plain},
    shared::Shared,
    until::{Detached, UntilBodyEnd, UntilResponse},
};

mod check;
#[cfg(feature = "grpc")]
mod grpc;
#[cfg(feature = "http")]
mod http;
mod limits;
mod modes;
pub(crate) mod options;
mod outage;

/// Puts a lock around every request of a service.
///
/// See the [crate's documentation](crate) for examples, and for where in a stack it belongs.
pub struct LockLayer<K, P = Plain, U = UntilResponse> {
    pub(crate) manager: LockManager,
    pub(crate) key: K,
    pub(crate) protocol: P,
    options: Options,
    /// Where in the user's code the layer was made.
    pub(crate) made_at: &'static Location<'static>,
    shared: Arc<Shared>,
    until: PhantomData<fn() -> U>,
}

impl<K> LockLayer<K> {
    /// Makes a layer for any kind of request, which refuses requests with an error of the service; see [`Plain`].
    ///
    /// `key` finds the key of a request; see [`KeyExtractor`](crate::KeyExtractor).
    ///
    /// An axum `Router` does not accept a layer whose service can fail: the compiler says that `Infallible: From<Box<dyn Error>>` is
    /// not satisfied. Use `LockLayer::http` there.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::LockLayer;
    ///
    /// let layer = LockLayer::new(LockManager::in_memory(), |order: &u64| format!("order:{order}"));
    /// # let _ = layer;
    /// ```
    #[must_use]
    #[track_caller]
    pub fn new(manager: LockManager, key: K) -> Self {
        Self::with_protocol(manager, key, Plain)
    }
}

impl<K, P> LockLayer<K, P> {
    /// Makes a layer that answers in a protocol of your own; see [`Protocol`](crate::Protocol), which has an example.
    #[must_use]
    #[track_caller]
    pub fn with_protocol(manager: LockManager, key: K, protocol: P) -> Self {
        let (options, made_at) = (Options::default(), Location::caller());
        Self { manager, key, protocol, options, made_at, shared: Arc::default(), until: PhantomData }
    }

    /// Holds the lease until the body of the response has ended or was dropped, for a service that streams what the lock
    /// protects. By default the lease is released when the head of the response is there.
    ///
    /// The lease of a response without a body, such as one to HEAD or a 101, is released in the background: the client may see the
    /// response before the key is free. When the client hangs up or cancels, the body is dropped and the key is free. When the lease is
    /// lost, the body ends with an error (in gRPC with the status UNKNOWN), unless [`on_lost`](LeaseOptions::on_lost) says otherwise.
    ///
    /// **A client that reads slowly, or not at all, keeps the key indefinitely**, because its lease is
    /// renewed; so this is not the default. [`max_hold`](LeaseOptions::max_hold) frees the key on time, and the client
    /// sees an aborted body when it reads on. Until then the server keeps the body and what was already sent.
    /// A client that stalls in the middle of its *upload* keeps the key either way.
    ///
    /// A request for the same key by the body itself is not recognised as `WouldDeadlock`.
    ///
    /// Requires a protocol that handles bodies: `Http`, `Grpc`, or your own type that implements [`HoldsBodies`]. The futures of
    /// the service have to be `Send + 'static`.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "http")]
    /// # fn main() {
    /// use lock_core::{LeaseOptions, LockManager};
    /// use lock_tower::LockLayer;
    /// use std::time::Duration;
    ///
    /// let options = LeaseOptions::new().max_hold(Duration::from_secs(600));
    /// let layer = LockLayer::http(LockManager::in_memory(), "export").until_body_end().options(options);
    /// # let _ = layer;
    /// # }
    /// # #[cfg(not(feature = "http"))] fn main() {}
    /// ```
    #[must_use]
    pub fn until_body_end(self) -> LockLayer<K, P, UntilBodyEnd>
    where
        P: HoldsBodies,
    {
        self.keeping()
    }

    /// Runs the service in a task of its own. Once the lease is acquired, the service runs to its end even if the client hangs
    /// up, and the key is busy until then. The task is in the `tracing` span of its request.
    ///
    /// Work without a lease is not detached: that of a request whose key is `None`, whose method is not locked, or that
    /// [`LetThrough`](crate::OnBackendError::LetThrough) lets through. It is dropped with its request. A detached layer stands outside of all
    /// others that lock: the lease of a layer outside ends with its client, or is lost, and the detached work goes on.
    ///
    /// The futures of the service have to be `Send + 'static`. If the client hangs up while its request still waits for the key, the
    /// request is cancelled. A server of HTTP/1 notices that [only if the body of the request was
    /// read](crate#what-happens-to-a-request).
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::LockLayer;
    ///
    /// let layer = LockLayer::new(LockManager::in_memory(), "import").detached().try_only();
    /// # let layer: LockLayer<&str, lock_tower::Plain, lock_tower::Detached> = layer;
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn detached(self) -> LockLayer<K, P, Detached> {
        self.keeping()
    }

    fn keeping<U>(self) -> LockLayer<K, P, U> {
        let Self { manager, key, protocol, options, made_at, shared, .. } = self;
        LockLayer { manager, key, protocol, options, made_at, shared, until: PhantomData }
    }
}

impl<K, P, U> LockLayer<K, P, U> {
    /// Sets the options of the leases, such as `ttl`, `wait` and `max_hold`; see [`LeaseOptions`] for all. Options that are not set
    /// are the manager's. Called again, it changes the options that are set again.
    ///
    /// **Set `max_hold` to the longest time that the service may take.** The body of a request is read under the lock, and a client
    /// that stalls in the middle of its upload keeps the key until then. The wait for the key does not count. If neither the layer nor
    /// the manager sets a bound, it is five minutes with `LockLayer::http` and `LockLayer::grpc`, and there is none with
    /// [`new`](LockLayer::new) and [`with_protocol`](LockLayer::with_protocol). [`Duration::MAX`] removes the bound: a stalled client
    /// then keeps the key without end, unless something else ends the upload, such as `RequestBodyTimeoutLayer` of tower-http.
    ///
    /// The end of `max_hold` is a loss, too. If [`on_lost`](LeaseOptions::on_lost) lets work go on after a loss, it goes on **while the
    /// next request of the key is served**, and a hold then has no bound by default.
    ///
    /// With [`at_least`](LeaseOptions::at_least), a key stays busy for that long after a request began, whatever the service answered; a
    /// client that hangs up before the answer frees it at once. So does, with [`until_body_end`](Self::until_body_end), a body that is
    /// dropped before its end, as hyper drops a stream over HTTP/1 once all of its `content-length` is written.
    ///
    /// With a [`durability`](LeaseOptions::durability), a request whose lease too few replicas have in time is refused, in HTTP with
    /// 503, in gRPC with UNAVAILABLE, even with [`LetThrough`](crate::OnBackendError::LetThrough).
    ///
    /// If an option is out of range, every request is refused; see [`check_for`](Self::check_for).
    ///
    /// # Examples
    ///
    /// A payout must not stop halfway, so the work runs to its end, and then the answer is the error:
    ///
    /// ```
    /// use lock_core::{LeaseOptions, LockManager, OnLost};
    /// use lock_tower::LockLayer;
    /// use std::time::Duration;
    ///
    /// let options = LeaseOptions::new().ttl(Duration::from_secs(3)).wait(Duration::from_secs(2)).on_lost(OnLost::Finish);
    /// let payout = LockLayer::new(LockManager::in_memory(), "payout").options(options);
    /// # let _ = payout;
    /// ```
    #[must_use]
    pub fn options(mut self, options: LeaseOptions) -> Self {
        self.options.lease = options.or(self.options.lease);
        self
    }

    /// Refuses a request at once if its key is busy, like a [`wait`](LeaseOptions::wait) of zero.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::LockLayer;
    ///
    /// let layer = LockLayer::new(LockManager::in_memory(), |order: &u64| format!("order:{order}")).try_only();
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn try_only(self) -> Self {
        self.options(LeaseOptions::new().wait(Duration::ZERO))
    }

    /// Sets the label `lock` of the layer in metrics, spans and log lines. Default: empty.
    ///
    /// One name stands for all keys: one label per key would be unbounded.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::LockLayer;
    ///
    /// let layer = LockLayer::new(LockManager::in_memory(), "stock").name("stock");
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn name(mut self, name: &'static str) -> Self {
        self.options.name = name;
        self
    }

    pub(crate) fn name_of(&self) -> &'static str {
        self.options.name
    }

    /// Begins to acquire the keys of a request.
    pub(crate) fn acquire(&self, keys: &[String], is_shared: bool) -> Acquiring {
        match keys {
            [key] => Acquiring::one(self.request(key, is_shared).acquire()),
            keys => {
                let keys = keys.iter().map(|key| self.key_in_mode(key, is_shared));
                Acquiring::all(self.configure(self.manager.lock_all(keys)).acquire())
            }
        }
    }

    pub(crate) fn request(&self, key: &str, is_shared: bool) -> LockRequest {
        self.configure(self.in_mode(self.manager.lock(key), is_shared))
    }

    fn configure<L>(&self, request: LockRequest<L>) -> LockRequest<L> {
        let Options { lease, usual_max_hold, name, .. } = self.options;
        request.label(name).options(lease).of_layer(self.made_at, usual_max_hold)
    }
}

impl<K: Clone, P: Clone, U> Clone for LockLayer<K, P, U> {
    fn clone(&self) -> Self {
        Self {
            manager: self.manager.clone(),
            key: self.key.clone(),
            protocol: self.protocol.clone(),
            options: self.options,
            made_at: self.made_at,
            shared: Arc::clone(&self.shared),
            until: PhantomData,
        }
    }
}

impl<K, P: fmt::Debug, U> fmt::Debug for LockLayer<K, P, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer")
            .field("manager", &self.manager)
            .field("key", &format_args!("{}", any::type_name::<K>()))
            .field("protocol", &self.protocol)
            .field("options", &self.options)
            .finish()
    }
}

/// The default bound of a hold if clients send bodies: a client that stalls must not keep the key forever.
#[cfg(feature = "http")]
pub(crate) const MAX_HOLD: Duration = Duration::from_secs(5 * 60);
