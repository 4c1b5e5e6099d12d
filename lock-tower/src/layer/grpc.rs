use lock_core::LockManager;

use super::{LockLayer, MAX_HOLD};

impl<K> LockLayer<K, crate::grpc::Grpc> {
    /// Makes a layer for gRPC requests, which refuses requests with a status code of gRPC; see
    /// [`Grpc`](crate::Grpc).
    ///
    /// Clients of plain HTTP do not understand these answers: they have the status 200. Use `LockLayer::http` for them.
    ///
    /// `key` finds the key of a request; see [`KeyExtractor`](crate::KeyExtractor). It gets an [`http::Request`] with
    /// the metadata as headers. Health checks and reflection pass without a lock; [`methods`](Self::methods) and
    /// [`except`](Self::except) change what is locked. A lease is held for five minutes at most;
    /// the option [`max_hold`](Self::options) changes that.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "grpc")]
    /// # fn main() {
    /// use lock_core::LockManager;
    /// use lock_tower::{LockLayer, key::{header, scoped}};
    ///
    /// let layer = LockLayer::grpc(LockManager::in_memory(), scoped("account", header::<String>("x-account")));
    /// # let _ = layer;
    /// # }
    /// # #[cfg(not(feature = "grpc"))] fn main() {}
    /// ```
    #[must_use]
    #[track_caller]
    pub fn grpc(manager: LockManager, key: K) -> Self {
        let mut layer = Self::with_protocol(manager, key, crate::grpc::Grpc::default());
        layer.options.usual_max_hold = Some(MAX_HOLD);
        layer
    }
}

impl<K, U> LockLayer<K, crate::grpc::Grpc, U> {
    /// Locks calls of these methods only, as in `"/shop.Goods/Sell"`, or of whole services, as in `"shop.Goods"` (in
    /// tonic's code, `SERVICE_NAME`); at least one. Default: all but health checks and reflection.
    ///
    /// What stands before service and method in the path of a call does not count: a gateway or a nested router may have put it there.
    /// If a name cannot be that of a method or service, the layer refuses every request; see [`check_for`](Self::check_for).
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::{LockLayer, key::{header, scoped}};
    ///
    /// let per_goods = LockLayer::grpc(LockManager::in_memory(), scoped("goods", header::<String>("goods-id")))
    ///     .methods(["shop.Goods"])
    ///     .except(["/shop.Goods/Watch"]);
    /// # let _ = per_goods;
    /// ```
    #[must_use]
    pub fn methods(mut self, names: impl IntoIterator<Item = &'static str>) -> Self {
        self.protocol = self.protocol.methods(names);
        self.named()
    }

    /// Lets calls of these methods or services pass without a lock, even if [`methods`](Self::methods) names them. Names are
    /// written as there. Default: only health checks and reflection pass.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::{LockLayer, key::{header, scoped}};
    ///
    /// let per_goods = LockLayer::grpc(LockManager::in_memory(), scoped("goods", header::<String>("goods-id")))
    ///     .except(["/shop.Goods/Watch"]);
    /// # let _ = per_goods;
    /// ```
    #[must_use]
    pub fn except(mut self, names: impl IntoIterator<Item = &'static str>) -> Self {
        self.protocol = self.protocol.except(names);
        self.named()
    }

    pub(super) fn named(mut self) -> Self {
        self.options.misnamed = self.protocol.misnamed();
        self.options.locks_nothing = self.protocol.locks_nothing();
        self
    }

    /// Answers a busy key with this code. Default: `ABORTED`.
    ///
    /// With `OK` the layer refuses every request; see [`check_for`](Self::check_for).
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::LockLayer;
    /// use tonic::Code;
    ///
    /// let export = LockLayer::grpc(LockManager::in_memory(), "export").try_only().busy_code(Code::FailedPrecondition);
    /// # let _ = export;
    /// ```
    #[must_use]
    pub fn busy_code(mut self, code: tonic::Code) -> Self {
        self.options.busy_is_success = code == tonic::Code::Ok;
        self.protocol = self.protocol.busy_code(code);
        self
    }

    /// Replaces the answers to requests that the lock refuses. The function gets the reason and the default status, and
    /// returns the status to send.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::{LockLayer, key::{header, scoped}};
    /// use tonic::Status;
    ///
    /// let per_account = scoped("account", header::<String>("x-account"));
    /// let layer = LockLayer::grpc(LockManager::in_memory(), per_account).answer(|refusal, status| {
    ///     if refusal.is_busy() { Status::already_exists("this account is being charged") } else { status }
    /// });
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn answer<F>(mut self, answer: F) -> Self
    where
        F: Fn(&crate::refusal::Refusal, tonic::Status) -> tonic::Status + Send + Sync + 'static,
    {
        self.protocol = self.protocol.answer(answer);
        self
    }
}
