use std::{any, fmt, marker::PhantomData, panic::Location, sync::Arc, time::Duration};

use lock_core::{LockManager, LockRequest, OnLost, Replicas};

use self::options::{OnBackendError, Options};
use crate::{
    acquiring::Acquiring,
    admission::Limits,
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
    manager: LockManager,
    pub(crate) key: K,
    pub(crate) protocol: P,
    options: Options,
    shared: Arc<Shared>,
    until: PhantomData<fn() -> U>,
}

impl<K> LockLayer<K> {
    /// Makes a layer for any kind of request, which refuses requests with an error of the service; see [`Plain`].
    ///
    /// `key` finds the key of a request; see [`KeyExtractor`](crate::KeyExtractor). An axum `Router` does not accept a layer
    /// whose service can fail; use `LockLayer::http` there.
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
        let options = Options {
            ttl: None,
            wait: None,
            max_hold: None,
            usual_max_hold: None,
            on_lost: None,
            durability: None,
            on_backend_error: OnBackendError::default(),
            limits: Limits::default(),
            locks_nothing: false,
            misnamed: None,
            busy_is_success: false,
            permits: None,
            shares: false,
            name: "",
            made_at: Location::caller(),
        };
        Self { manager, key, protocol, options, shared: Arc::default(), until: PhantomData }
    }

    /// Holds the lease until the body of the response has ended or was dropped, for a service that streams what the lock
    /// protects. By default the lease is released when the head of the response is there.
    ///
    /// A response without a body, such as one to HEAD or a 101, releases at once. When the client hangs up or cancels,
    /// the body is dropped and the key is free. When the lease is lost, the body ends with an error (in gRPC with the status
    /// UNKNOWN), unless [`on_lost`](Self::on_lost) says otherwise.
    ///
    /// **A client that reads slowly, or not at all, keeps the key indefinitely**, because its lease is
    /// renewed; so this is not the default. [`max_hold`](Self::max_hold) frees the key on time, and the client
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
    /// use lock_core::LockManager;
    /// use lock_tower::LockLayer;
    /// use std::time::Duration;
    ///
    /// let layer = LockLayer::http(LockManager::in_memory(), "export").until_body_end().max_hold(Duration::from_secs(600));
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
    /// The futures of the service have to be `Send + 'static`. If the client hangs up while its request still waits for the key, the
    /// request is cancelled.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::LockLayer;
    /// use std::time::Duration;
    ///
    /// let layer = LockLayer::new(LockManager::in_memory(), "import").detached().max_hold(Duration::from_secs(600));
    /// # let layer: LockLayer<&str, lock_tower::Plain, lock_tower::Detached> = layer;
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn detached(self) -> LockLayer<K, P, Detached> {
        self.keeping()
    }

    fn keeping<U>(self) -> LockLayer<K, P, U> {
        let Self { manager, key, protocol, options, shared, .. } = self;
        LockLayer { manager, key, protocol, options, shared, until: PhantomData }
    }
}

impl<K, P, U> LockLayer<K, P, U> {
    /// Sets how long a process that has fallen silent blocks others: 10 ms to 100 years. Default: the manager's, which
    /// is 10 s unless it was changed.
    ///
    /// The lease is renewed until the service has answered, however long that takes; see
    /// [`LockRequest::ttl`]. If the ttl is out of range, every request is refused; see [`check`](Self::check).
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::LockLayer;
    /// use std::time::Duration;
    ///
    /// let layer = LockLayer::new(LockManager::in_memory(), "stock").ttl(Duration::from_secs(3));
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// Sets how long a request waits for a busy key; with zero it tries once. Default: the manager's, which is 10 s
    /// unless it was changed.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::LockLayer;
    /// use std::time::Duration;
    ///
    /// let layer = LockLayer::new(LockManager::in_memory(), "stock").ttl(Duration::from_secs(3)).wait(Duration::from_secs(2));
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.options.wait = Some(wait);
        self
    }

    /// Ends the lease, and with it the work of the service, after `max_hold` (above zero). Default: the manager's; if
    /// that has no bound, five minutes with `LockLayer::http` and `LockLayer::grpc`, and none with
    /// [`new`](LockLayer::new) and [`with_protocol`](LockLayer::with_protocol), nor if work goes on after a loss
    /// ([`on_lost`](Self::on_lost)).
    ///
    /// **Set it to the longest time that the service may take.** The body of a request is read under the lock, and a client that
    /// stalls in the middle of its upload keeps the key until then. The wait for the key does not count.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::LockLayer;
    /// use std::time::Duration;
    ///
    /// let import = LockLayer::new(LockManager::in_memory(), "import").max_hold(Duration::from_secs(60));
    /// # let _ = import;
    /// ```
    #[must_use]
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.max_hold = Some(max_hold);
        self
    }

    /// Removes the bound of [`max_hold`](Self::max_hold) and the layer's default: a lease is held for as long as the service
    /// works, or as long as the manager's `max_hold` allows.
    ///
    /// **A client that stalls in the middle of its upload then keeps the key without end**, unless something else ends the
    /// upload, such as `RequestBodyTimeoutLayer` of tower-http.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "http")]
    /// # fn main() {
    /// use lock_core::LockManager;
    /// use lock_tower::LockLayer;
    ///
    /// let import = LockLayer::http(LockManager::in_memory(), "import").no_max_hold();
    /// # let _ = import;
    /// # }
    /// # #[cfg(not(feature = "http"))] fn main() {}
    /// ```
    #[must_use]
    pub fn no_max_hold(mut self) -> Self {
        self.options.max_hold = None;
        self.options.usual_max_hold = None;
        self
    }

    /// Refuses a request at once if its key is busy, like a [`wait`](Self::wait) of zero.
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
        self.wait(Duration::ZERO)
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

    /// Sets what happens to the work when its lease is lost. Default: the manager's, which is [`OnLost::Cancel`] (the work is
    /// dropped) unless it was changed.
    ///
    /// The end of [`max_hold`](Self::max_hold) is a loss, too. With [`OnLost::Finish`] and [`OnLost::Ignore`] the work continues
    /// **while the next request of the key is served**, so a hold then has no bound by default.
    ///
    /// # Examples
    ///
    /// A payout must not stop halfway, so the work runs to its end, and then the answer is the error:
    ///
    /// ```
    /// use lock_core::{LockManager, OnLost};
    /// use lock_tower::LockLayer;
    ///
    /// let payout = LockLayer::new(LockManager::in_memory(), "payout").on_lost(OnLost::Finish);
    /// # let _ = payout;
    /// ```
    #[must_use]
    pub fn on_lost(mut self, policy: OnLost) -> Self {
        self.options.on_lost = Some(policy);
        self
    }

    /// Serves a request only if so many [`Replicas`] have its lease in time. `None` removes the manager's default. Default: the
    /// manager's, which is the primary alone; see [`LockRequest::durability`].
    ///
    /// Any other request is refused, in HTTP with 503, in gRPC with UNAVAILABLE, even with
    /// [`OnBackendError::LetThrough`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_core::{LockManager, Replicas};
    /// use lock_tower::LockLayer;
    /// use std::time::Duration;
    ///
    /// let manager = LockManager::connect("redis://127.0.0.1").await?;
    /// let payout = LockLayer::new(manager, "payout").durability(Replicas::new(1, Duration::from_millis(300)));
    /// # let _ = payout; Ok(()) }
    /// ```
    #[must_use]
    pub fn durability(mut self, replicas: impl Into<Option<Replicas>>) -> Self {
        self.options.durability = Some(replicas.into());
        self
    }

    pub(crate) fn name_of(&self) -> &'static str {
        self.options.name
    }

    /// Begins to acquire the keys of a request.
    pub(crate) fn acquire(&self, keys: &[String], is_shared: bool) -> Acquiring {
        match keys {
            [key] => Acquiring::one(self.configure(self.in_mode(self.manager.lock(key), is_shared)).acquire()),
            keys => {
                let keys = keys.iter().map(|key| self.key_in_mode(key, is_shared));
                Acquiring::all(self.configure(self.manager.lock_all(keys)).acquire())
            }
        }
    }

    fn configure<L>(&self, request: LockRequest<L>) -> LockRequest<L> {
        let Options { ttl, wait, max_hold, usual_max_hold, on_lost, durability, name, made_at, .. } = self.options;
        let mut request = request.label(name).asked_at(made_at);
        if let Some(ttl) = ttl {
            request = request.ttl(ttl);
        }
        if let Some(wait) = wait {
            request = request.wait(wait);
        }
        if let Some(max_hold) = max_hold {
            request = request.max_hold(max_hold);
        }
        if let Some(policy) = on_lost {
            request = request.on_lost(policy);
        }
        if let Some(replicas) = durability {
            request = request.durability(replicas);
        }
        if let Some(most) = usual_max_hold {
            request = request.bounded(most);
        }
        request
    }
}

impl<K: Clone, P: Clone, U> Clone for LockLayer<K, P, U> {
    fn clone(&self) -> Self {
        Self {
            manager: self.manager.clone(),
            key: self.key.clone(),
            protocol: self.protocol.clone(),
            options: self.options,
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
const MAX_HOLD: Duration = Duration::from_secs(5 * 60);
