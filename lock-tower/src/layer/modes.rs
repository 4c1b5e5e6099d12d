//! The modes of a layer: exclusive, shared by some requests, permits.

use lock_core::{KeyInMode, LockRequest};

use super::{LockLayer, options::Options};

impl<K, P, U> LockLayer<K, P, U> {
    /// Lets at most `total` requests of a key be served at the same time, over all instances of the service: each takes one of
    /// `total` permits. 1 to 1,000,000. By default one request is served at a time.
    ///
    /// The total belongs to the key: all layers that limit a key have to name the same one. With `LockLayer::http` every method counts,
    /// unless `methods` names some; HEAD counts if GET does. A request that finds all permits taken waits in line, as for a busy key, and is then refused
    /// with 429 (`lock_full`, with `Retry-After`), in gRPC with RESOURCE_EXHAUSTED (if the key is not held by permits, but in another
    /// mode or by another library, as any busy key); with [`try_only`](Self::try_only) at once.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "http")]
    /// # fn main() {
    /// use lock_core::LockManager;
    /// use lock_tower::{LockLayer, key::{header, scoped}};
    ///
    /// let per_tenant = scoped("tenant", header::<String>("x-tenant"));
    /// let limit = LockLayer::http(LockManager::in_memory(), per_tenant).permits(8).try_only();
    /// # let _ = limit;
    /// # }
    /// # #[cfg(not(feature = "http"))] fn main() {}
    /// ```
    #[must_use]
    pub fn permits(mut self, total: u32) -> Self {
        self.options.permits = Some(total);
        self
    }

    /// Whether each request takes a permit.
    pub(crate) fn counts(&self) -> bool {
        self.options.permits.is_some()
    }

    /// Makes the request for one key.
    pub(super) fn in_mode(&self, request: LockRequest, is_shared: bool) -> LockRequest {
        match self.options.permits {
            Some(total) => request.permits(total),
            None if is_shared => request.shared(),
            None => request,
        }
    }

    /// Names the mode of one key of several.
    pub(super) fn key_in_mode(&self, key: &str, is_shared: bool) -> KeyInMode {
        match self.options.permits {
            Some(total) => lock_core::permits(key, total),
            None if is_shared => lock_core::shared(key),
            None => lock_core::exclusive(key),
        }
    }

    /// Records whether some requests share their keys.
    #[cfg(any(feature = "http", feature = "grpc"))]
    fn sharing(mut self, some: bool) -> Self {
        self.options.shares = some;
        self
    }
}

#[cfg(feature = "http")]
impl<K, U> LockLayer<K, crate::http::Http, U> {
    /// Lets requests with these methods share their key with one another: any number of readers, or one writer. Requests with
    /// other methods have the key alone. By default all requests that are locked do.
    ///
    /// The methods are locked even if they would pass otherwise, as GET does. HEAD shares the key if GET does, because routers such as
    /// axum's answer HEAD by the handler of GET. Requests are served in the order in which
    /// they came, so that a stream of readers does not keep a writer waiting.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::Method;
    /// use lock_core::LockManager;
    /// use lock_tower::{LockLayer, key::{header, scoped}};
    ///
    /// let per_goods = scoped("goods", header::<String>("x-goods"));
    /// let layer = LockLayer::http(LockManager::in_memory(), per_goods).shared_for([Method::GET]);
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn shared_for(mut self, methods: impl IntoIterator<Item = ::http::Method>) -> Self {
        self.protocol = self.protocol.shared_for(methods);
        let some = self.protocol.shares_some();
        self.sharing(some)
    }
}

#[cfg(feature = "grpc")]
impl<K, U> LockLayer<K, crate::grpc::Grpc, U> {
    /// Lets calls to these methods (`/shop.Goods/Get`) and services (`shop.Catalog`) share their key with one another: any number
    /// of readers, or one writer. Other calls have the key alone. By default all calls that are locked do.
    ///
    /// Calls are served in the order in which they came, so that a stream of readers does not keep a writer waiting. A name that
    /// [`except`](Self::except) has, too, is not locked.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::{LockLayer, key::{header, scoped}};
    ///
    /// let per_goods = scoped("goods", header::<String>("x-goods"));
    /// let layer = LockLayer::grpc(LockManager::in_memory(), per_goods).shared_for(["/shop.Goods/Get", "shop.Catalog"]);
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn shared_for(mut self, names: impl IntoIterator<Item = &'static str>) -> Self {
        self.protocol = self.protocol.shared_for(names);
        let some = self.protocol.shares_some();
        self.named().sharing(some)
    }
}

impl Options {
    /// What is wrong with the modes.
    pub(super) fn problem_of_modes(&self) -> Option<&'static str> {
        (self.permits.is_some() && self.shares).then_some(
            "`permits` and `shared_for` make no sense together: a key has permits, or is shared; leave one of them out",
        )
    }
}
