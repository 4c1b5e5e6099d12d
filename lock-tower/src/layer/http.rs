use lock_core::LockManager;

use super::{LockLayer, MAX_HOLD};

impl<K> LockLayer<K, crate::http::Http> {
    /// Makes a layer for HTTP requests, which refuses requests with a response whose status says why; see
    /// [`Http`](crate::Http).
    ///
    /// `key` finds the key of a request; see [`KeyExtractor`](crate::KeyExtractor). GET, HEAD and OPTIONS pass without
    /// a lock; [`methods`](Self::methods) and [`all_methods`](Self::all_methods) change that. A lease is held for five
    /// minutes at most; the option [`max_hold`](Self::options) changes that.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "http")]
    /// # fn main() {
    /// use lock_core::LockManager;
    /// use lock_tower::{LockLayer, key::{header, scoped}};
    ///
    /// let layer = LockLayer::http(LockManager::in_memory(), scoped("account", header::<String>("x-account")));
    /// # let _ = layer;
    /// # }
    /// # #[cfg(not(feature = "http"))] fn main() {}
    /// ```
    #[must_use]
    #[track_caller]
    pub fn http(manager: LockManager, key: K) -> Self {
        let mut layer = Self::with_protocol(manager, key, crate::http::Http::default());
        layer.options.usual_max_hold = Some(MAX_HOLD);
        layer
    }
}

impl<K, U> LockLayer<K, crate::http::Http, U> {
    /// Locks requests of these methods only; at least one. Default: all but GET, HEAD and OPTIONS.
    ///
    /// HEAD is locked if GET is, because routers such as axum's answer HEAD by the handler of GET.
    ///
    /// # Examples
    ///
    /// ```
    /// use ::http::Method;
    /// use lock_core::LockManager;
    /// use lock_tower::LockLayer;
    ///
    /// let writes = LockLayer::http(LockManager::in_memory(), "shop").methods([Method::PUT, Method::DELETE]);
    /// # let _ = writes;
    /// ```
    #[must_use]
    pub fn methods(mut self, methods: impl IntoIterator<Item = ::http::Method>) -> Self {
        let mut methods = methods.into_iter().peekable();
        self.options.locks_nothing = methods.peek().is_none();
        self.protocol = self.protocol.methods(methods);
        self
    }

    /// Locks requests of every method, GET, HEAD and OPTIONS included. Default: all but these three.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::LockLayer;
    ///
    /// let all = LockLayer::http(LockManager::in_memory(), "shop").all_methods();
    /// # let _ = all;
    /// ```
    #[must_use]
    pub fn all_methods(mut self) -> Self {
        self.options.locks_nothing = false;
        self.protocol = self.protocol.all_methods();
        self
    }

    /// Answers a busy key with this status. Default: 409 Conflict. Other usual choices are 423 Locked, 429 Too Many Requests, and 503
    /// Service Unavailable for clients that retry on nothing else; [`Http`](crate::Http) says why 503 is not the default.
    ///
    /// A status that is not an error's (4xx, 5xx) makes the layer refuse every request; see [`check_for`](Self::check_for).
    ///
    /// # Examples
    ///
    /// ```
    /// use ::http::StatusCode;
    /// use lock_core::LockManager;
    /// use lock_tower::LockLayer;
    ///
    /// let export = LockLayer::http(LockManager::in_memory(), "export").try_only().busy_status(StatusCode::LOCKED);
    /// # let _ = export;
    /// ```
    #[must_use]
    pub fn busy_status(mut self, status: ::http::StatusCode) -> Self {
        self.options.busy_is_success = !(status.is_client_error() || status.is_server_error());
        self.protocol = self.protocol.busy_status(status);
        self
    }

    /// Replaces the answers to requests that the lock refuses. The function gets the reason and the default answer, and
    /// returns the answer to send.
    ///
    /// If it changes the status and not the body, the body is rewritten, so that status and body agree.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::{HeaderValue, StatusCode, header};
    /// use lock_core::LockManager;
    /// use lock_tower::{LockLayer, key::{header, scoped}};
    ///
    /// let per_account = scoped("account", header::<String>("x-account"));
    /// let layer = LockLayer::http(LockManager::in_memory(), per_account).answer(|refusal, mut answer| {
    ///     if refusal.is_busy() {
    ///         *answer.status_mut() = StatusCode::LOCKED;
    ///         answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("30"));
    ///     }
    ///     answer
    /// });
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn answer<F>(mut self, answer: F) -> Self
    where
        F: Fn(&crate::refusal::Refusal, ::http::Response<bytes::Bytes>) -> ::http::Response<bytes::Bytes>
            + Send
            + Sync
            + 'static,
    {
        self.protocol = self.protocol.answer(answer);
        self
    }
}
