//! What can be known to be wrong before the first request.

use super::LockLayer;
use crate::{key::KeyExtractor, misconfigured::Misconfigured};

impl<K, P, U> LockLayer<K, P, U> {
    /// Checks the options and the key, so that a misconfigured service fails at start-up instead of refusing every request.
    ///
    /// `Req` is the type of the requests, as in `layer.check_for::<Order>()`; for a closure it may be `_`. A layer of HTTP in axum
    /// and a layer of gRPC have `check`, which knows the type.
    ///
    /// A layer that fails the check refuses each request of any method without calling the service: in HTTP with 500,
    /// in gRPC with INTERNAL. It logs that once, when it is first put around a service or when that service is first made
    /// ready.
    ///
    /// # Errors
    /// [`Misconfigured`] for each of these:
    /// * A ttl that is out of range, or a `renew_every`, the layer's or the manager's, below 10 ms or above half of the ttl.
    /// * A durability that is out of range, too long for the ttl, or not supported by the manager's backend.
    /// * [`permits`](Self::permits) that are out of range, together with `shared_for`, or not supported by the manager's backend.
    /// * A `max_hold` of zero, an `at_least` of more than 100 years, or a limit of no waiters.
    /// * No methods to lock, or a name that no method or service can have.
    /// * A busy status that is not the status of an error.
    /// * A text of the key that is empty, too long or has a lone `%`, and a name that cannot be the name of a header.
    ///
    /// Mistakes in the manager are reported when the manager is built.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::{LeaseOptions, LockManager};
    /// use lock_tower::LockLayer;
    /// use std::time::Duration;
    ///
    /// struct Order;
    ///
    /// let layer = LockLayer::new(LockManager::in_memory(), "stock").name("stock");
    /// layer.check_for::<Order>()?;
    /// let short = LeaseOptions::new().ttl(Duration::from_millis(3));
    /// let error = layer.options(short).check_for::<Order>().err().ok_or("3 ms would do")?;
    /// assert!(error.to_string().contains(r#"lock layer "stock""#));
    /// assert!(error.to_string().contains("a ttl of 3ms is below 10 ms"));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn check_for<Req>(&self) -> Result<(), Misconfigured>
    where
        K: KeyExtractor<Req>,
    {
        self.check_options()?;
        self.key.check().map_err(|problem| self.misconfigured(problem))
    }

    /// Checks what is known without the type of the requests.
    pub(crate) fn check_options(&self) -> Result<(), Misconfigured> {
        // An interval of renewal may be the manager's, and not fit the layer's ttl.
        let problem =
            self.options.problem().or_else(|| self.configure(self.in_mode(self.manager.lock("lock"), false)).problem());
        problem.map_or(Ok(()), |problem| Err(self.misconfigured(problem)))
    }

    /// Logs a layer that can never work.
    pub(crate) fn told(&self, checked: Result<(), Misconfigured>) -> Result<(), Misconfigured> {
        if let Err(error) = &checked {
            self.shared.can_never_work(error);
        }
        checked
    }

    pub(crate) fn misconfigured(&self, problem: String) -> Misconfigured {
        Misconfigured { name: self.options.name, made_at: self.made_at, problem }
    }
}

#[cfg(feature = "axum")]
impl<K, U> LockLayer<K, crate::http::Http, U> {
    /// Checks the options and the key of a layer for axum's requests, so that a misconfigured service fails at start-up instead of
    /// refusing every request.
    ///
    /// For requests with another body than axum's there is [`check_for`](Self::check_for), which says what is checked.
    ///
    /// # Errors
    /// [`Misconfigured`] as of [`check_for`](Self::check_for).
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::{LockLayer, key::{path_param, scoped}};
    ///
    /// let layer = LockLayer::http(LockManager::in_memory(), scoped("goods", path_param::<u64>("id")));
    /// layer.check()?;
    /// assert!(layer.methods([]).check().is_err());
    /// # Ok::<_, lock_tower::Misconfigured>(())
    /// ```
    pub fn check(&self) -> Result<(), Misconfigured>
    where
        K: KeyExtractor<axum::extract::Request>,
    {
        self.check_for()
    }
}

#[cfg(feature = "grpc")]
impl<K, U> LockLayer<K, crate::grpc::Grpc, U> {
    /// Checks the options and the key of a layer for tonic's calls, so that a misconfigured service fails at start-up instead of
    /// refusing every call.
    ///
    /// For calls with another body than tonic's there is [`check_for`](Self::check_for), which says what is checked.
    ///
    /// # Errors
    /// [`Misconfigured`] as of [`check_for`](Self::check_for).
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::{LockLayer, key::{header, scoped}};
    ///
    /// let layer = LockLayer::grpc(LockManager::in_memory(), scoped("goods", header::<String>("goods-id")));
    /// layer.check()?;
    /// assert!(layer.methods(["/Goods"]).check().is_err());
    /// # Ok::<_, lock_tower::Misconfigured>(())
    /// ```
    pub fn check(&self) -> Result<(), Misconfigured>
    where
        K: KeyExtractor<http::Request<tonic::body::Body>>,
    {
        self.check_for()
    }
}
