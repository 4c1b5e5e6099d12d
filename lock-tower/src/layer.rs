use std::{any, fmt, time::Duration};

use lock_core::{LockManager, LockRequest};
use tower_layer::Layer;

use crate::{protocol::Plain, service::LockService};

/// Puts a lock around every request of a service.
///
/// See the [crate's documentation](crate) for examples, and for where in a stack it belongs.
#[derive(Clone)]
pub struct LockLayer<K, P = Plain> {
    manager: LockManager,
    pub(crate) key: K,
    pub(crate) protocol: P,
    options: Options,
}

/// What the layer was told; the rest are the manager's defaults.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    ttl: Option<Duration>,
    wait: Option<Duration>,
    max_hold: Option<Duration>,
}

impl<K> LockLayer<K> {
    /// Makes a layer for any kind of request: what the lock refuses is an error of the service, see [`Plain`].
    ///
    /// `key` finds the key of a request, see [`KeyExtractor`](crate::KeyExtractor). An axum `Router` takes no layer
    /// that fails; use `LockLayer::http` there.
    #[must_use]
    pub fn new(manager: LockManager, key: K) -> Self {
        Self::with_protocol(manager, key, Plain)
    }
}

#[cfg(feature = "http")]
impl<K> LockLayer<K, crate::Http> {
    /// Makes a layer for HTTP requests: what the lock refuses is a response with a status that says why, see
    /// [`Http`](crate::Http).
    ///
    /// `key` finds the key of a request, see [`KeyExtractor`](crate::KeyExtractor). Every request that has one is
    /// locked, whatever its method.
    #[must_use]
    pub fn http(manager: LockManager, key: K) -> Self {
        Self::with_protocol(manager, key, crate::Http)
    }
}

impl<K, P> LockLayer<K, P> {
    /// Makes a layer that answers in a protocol of your own; see [`Protocol`](crate::Protocol).
    #[must_use]
    pub fn with_protocol(manager: LockManager, key: K, protocol: P) -> Self {
        Self { manager, key, protocol, options: Options::default() }
    }

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

    pub(crate) fn request(&self, key: &str) -> LockRequest {
        let Options { ttl, wait, max_hold } = self.options;
        let mut request = self.manager.lock(key);
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

    /// Whether a request is refused at once when its key is busy. A manager whose own default is a wait of zero does
    /// not say so.
    pub(crate) fn tries_once(&self) -> bool {
        self.options.wait.is_some_and(|wait| wait.is_zero())
    }
}

impl<S, K: Clone, P: Clone> Layer<S> for LockLayer<K, P> {
    type Service = LockService<S, K, P>;

    fn layer(&self, inner: S) -> Self::Service {
        LockService::new(inner, self.clone())
    }
}

impl<K, P: fmt::Debug> fmt::Debug for LockLayer<K, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer")
            .field("manager", &self.manager)
            .field("key", &format_args!("{}", any::type_name::<K>()))
            .field("protocol", &self.protocol)
            .field("options", &self.options)
            .finish()
    }
}
