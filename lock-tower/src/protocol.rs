use std::time::Duration;

use lock_core::Lease;

use crate::{error::BoxError, mode::BodyLease, refusal::Refusal};

/// How a [`LockLayer`](crate::LockLayer) speaks: how a request carries its lease, and what a refusal looks like.
///
/// [`Plain`] knows nothing of requests and answers with errors; `Http` and `Grpc` answer with responses. Make one of
/// your own where the service should see its lease in a request of another type, or where refusals have a form of their
/// own, and give it to [`LockLayer::with_protocol`](crate::LockLayer::with_protocol).
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
    /// What the locked service answers.
    type Response;
    /// What the locked service fails with.
    type Error;

    /// Puts the lease where the service can find it; called once the lease is held and before the service is called.
    fn attach(&self, request: &mut Req, lease: &Lease);

    /// Converts the service's response; called when the lease has been released.
    fn done(&self, response: Res) -> Self::Response;

    /// Converts the service's error, of a call or of its readiness.
    fn fail(&self, error: Err) -> Self::Error;

    /// Answers in place of the service.
    ///
    /// # Errors
    /// Where the protocol has no response that says so, the refusal is an error.
    fn refuse(&self, refusal: Refusal) -> Result<Self::Response, Self::Error>;

    /// Returns whether a request wants a lock at all; the others go to the service as they are. Default: all do.
    fn applies(&self, request: &Req) -> bool {
        let _ = request;
        true
    }

    /// Returns how long the caller itself waits, where the request says so: the layer's wait ends then at the latest.
    /// Default: unknown.
    fn time_left(&self, request: &Req) -> Option<Duration> {
        let _ = request;
        None
    }

    /// Tells a request how long it waited, before the service is called; only where it has a
    /// [`time_left`](Self::time_left), so that the service does not take the whole of it once more. Default: does
    /// nothing.
    fn waited(&self, request: &mut Req, waited: Duration) {
        let _ = (request, waited);
    }

    /// Puts the lease into the response, to be held until its body ends; called only with
    /// [`until_body_end`](crate::LockLayer::until_body_end), which asks for [`HoldsBodies`]. Default: releases it.
    fn hold(&self, response: Self::Response, hold: BodyLease) -> Self::Response {
        drop(hold);
        response
    }
}

/// A [`Protocol`] whose [`hold`](Protocol::hold) keeps the lease until the body of a response ends: what
/// [`until_body_end`](crate::LockLayer::until_body_end) asks for.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot hold a lease in the body of a response",
    label = "`until_body_end` needs a protocol that can",
    note = "use `LockLayer::http` or `LockLayer::grpc`, or write `Protocol::hold` for one of your own, and \
            `impl HoldsBodies` for it"
)]
pub trait HoldsBodies {}

/// Requests of any type: a refusal is an error of the service.
///
/// The error of the locked service is [`BoxError`]. What the lock refuses is a boxed [`lock_core::Error`], what the
/// [`KeyExtractor`](crate::KeyExtractor) refuses is its own error, and the inner service's errors go through as they
/// are: `downcast_ref` tells them apart.
///
/// Requests do not carry their lease, as there is no place for it; see [`Protocol`] for how to make one.
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
