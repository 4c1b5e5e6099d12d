use std::time::Duration;

use lock_core::{Lease, Leases};

use crate::{error::BoxError, refusal::Refusal, until::BodyLease};

/// The protocol of a [`LockLayer`](crate::LockLayer): how a request carries its lease, and what a refusal looks like.
///
/// [`Plain`] works with any request and answers with errors; `Http` and `Grpc` answer with responses. Implement your
/// own if the service should see its lease in a request of another type, or if refusals need another
/// form, and give it to [`LockLayer::with_protocol`](crate::LockLayer::with_protocol).
///
/// # Examples
///
/// A request that carries its lease:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_tower::BoxError> {
/// use lock_core::{Lease, LockManager};
/// use lock_tower::{BoxError, LockLayer, Plain, Protocol, Refusal};
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// struct Sale {
///     goods: u64,
///     lease: Option<Lease>,
/// }
///
/// #[derive(Clone)]
/// struct Sales;
///
/// impl<Res, Err: Into<BoxError>> Protocol<Sale, Res, Err> for Sales {
///     type Response = Res;
///     type Error = BoxError;
///
///     fn attach(&self, sale: &mut Sale, lease: &Lease) {
///         sale.lease = Some(lease.clone());
///     }
///
///     fn pass(&self, sale: &mut Sale) {
///         sale.lease = None;
///     }
///
///     fn done(&self, response: Res) -> Res {
///         response
///     }
///
///     fn fail(&self, error: Err) -> BoxError {
///         error.into()
///     }
///
///     fn refuse(&self, refusal: Refusal) -> Result<Res, BoxError> {
///         Err(refusal.into_error())
///     }
/// }
///
/// let manager = LockManager::in_memory();
/// let service = ServiceBuilder::new()
///     .layer(LockLayer::with_protocol(manager, |sale: &Sale| format!("goods:{}", sale.goods), Sales))
///     .service(service_fn(async |sale: Sale| {
///         let lease = sale.lease.ok_or("called without a lock")?;
///         Ok::<_, BoxError>(format!("sold under fencing token {}", lease.fencing_token()))
///     }));
/// let answer = service.oneshot(Sale { goods: 1, lease: None }).await?;
/// assert!(answer.starts_with("sold"));
/// # Ok(()) }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot speak for a service of `{Req}`",
    note = "`Plain` wants an error that converts into a boxed one; `Http` wants `http::Request` and `http::Response`"
)]
pub trait Protocol<Req, Res, Err> {
    /// The response of the locked service.
    type Response;
    /// The error of the locked service.
    type Error;

    /// Puts the lease where the service can find it; called once the lease is held and before the service is called.
    fn attach(&self, request: &mut Req, lease: &Lease);

    /// Does the same for a request with [several keys](crate::key#several-keys). Default: does nothing, so that the service does
    /// not see the leases.
    fn attach_all(&self, request: &mut Req, leases: &Leases) {
        let _ = (request, leases);
    }

    /// Removes the leases of outer layers from a request that passes without a lock, so that the service does not take one of them
    /// for the lease of this layer; called before the service is called. Default: does nothing.
    fn pass(&self, request: &mut Req) {
        let _ = request;
    }

    /// Converts the service's response; called when the lease has been released.
    fn done(&self, response: Res) -> Self::Response;

    /// Converts the service's error, of a call or of its readiness.
    fn fail(&self, error: Err) -> Self::Error;

    /// Answers in place of the service.
    ///
    /// # Errors
    /// An error if the protocol has no response for the refusal.
    fn refuse(&self, refusal: Refusal) -> Result<Self::Response, Self::Error>;

    /// Returns whether a request shares its key with others that do; see `LockLayer::shared_for` of HTTP and gRPC. Default: no
    /// request does.
    fn shares(&self, request: &Req) -> bool {
        let _ = request;
        false
    }

    /// Returns whether a request needs a permit in a layer with [`permits`](crate::LockLayer::permits). Default: if it needs a
    /// lock.
    fn counts(&self, request: &Req) -> bool {
        self.applies(request)
    }

    /// Returns whether a request needs a lock; other requests go to the service without one. Default: all requests do.
    fn applies(&self, request: &Req) -> bool {
        let _ = request;
        true
    }

    /// Returns how long the caller waits, if the request limits that. The layer's wait ends then at the latest. Default: `None`.
    fn time_left(&self, request: &Req) -> Option<Duration> {
        let _ = request;
        None
    }

    /// Writes into a request how long it waited, before the service is called, so that the service does not use the caller's whole
    /// time again. Called only if the request has a [`time_left`](Self::time_left). Default: does nothing.
    fn waited(&self, request: &mut Req, waited: Duration) {
        let _ = (request, waited);
    }

    /// Puts the lease into the response, to be held until its body ends. Called only with
    /// [`until_body_end`](crate::LockLayer::until_body_end), which requires [`HoldsBodies`]. Default: releases the lease.
    fn hold(&self, response: Self::Response, hold: BodyLease) -> Self::Response {
        hold.release();
        response
    }
}

/// A [`Protocol`] whose [`hold`](Protocol::hold) keeps the lease until the body of a response ends, as
/// [`until_body_end`](crate::LockLayer::until_body_end) requires.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot hold a lease in the body of a response",
    label = "`until_body_end` needs a protocol that can",
    note = "use `LockLayer::http` or `LockLayer::grpc`, or write `Protocol::hold` for one of your own, and \
            `impl HoldsBodies` for it"
)]
pub trait HoldsBodies {}

/// Requests of any type: a refusal is an error of the service.
///
/// The error of the locked service is [`BoxError`]. A refusal of the lock is a boxed [`lock_core::Error`], a refusal of the
/// [`KeyExtractor`](crate::KeyExtractor) is its own error, and errors of the inner service pass unchanged;
/// `downcast_ref` distinguishes them.
///
/// Requests do not carry their lease; see [`Protocol`] for how to add one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl<Req, Res, Err: Into<BoxError>> Protocol<Req, Res, Err> for Plain {
    type Response = Res;
    type Error = BoxError;

    fn attach(&self, _request: &mut Req, _lease: &Lease) {}

    fn done(&self, response: Res) -> Res {
        response
    }

    fn fail(&self, error: Err) -> BoxError {
        error.into()
    }

    fn refuse(&self, refusal: Refusal) -> Result<Res, BoxError> {
        Err(refusal.into_error())
    }
}
