use http::{Request, Response};
use lock_core::Lease;

use crate::{
    body::ResponseBody,
    protocol::{Protocol, Refusal},
};

/// HTTP requests: a refusal is a response, and the service's errors stay what they are.
///
/// The [`Lease`] is in the extensions of the request that the service sees: `request.extensions().get::<Lease>()`,
/// in axum `Extension(lease): Extension<Lease>`. Of several layers, it is that of the innermost.
///
/// | status | when |
/// | --- | --- |
/// | 400 | the key is empty or too long, or its extractor refused the request |
/// | 409 | the key is busy, and the layer does not wait (its `wait` is zero) |
/// | 503, `Retry-After: 1` | the key stayed busy for the whole wait; the backend did not answer; the manager was shut down |
/// | 503 | the lease was lost while the service worked: part of the work may have been done |
/// | 500 | the request holds the key already, in an outer layer; an option is out of its range; the backend refuses the user, or the key holds something that is no lock |
///
/// `Retry-After` is there only where nothing was done and the same request may be sent again. The body is JSON as
/// in RFC 9457 (`application/problem+json`) and says what happened, without the key and without anything about the
/// backend: those are in the log, which `tracing` gets. The text of a 400 is that of the error. The response's
/// extensions hold the [`lock_core::Error`], for a layer further out that wants to answer in another form.
///
/// The lease is released when the head of the response is there, before the client sees it. A body that the
/// service streams after that is **not** under the lock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Http;

impl<ReqBody, ResBody, Err> Protocol<Request<ReqBody>, Response<ResBody>, Err> for Http {
    type Response = Response<ResponseBody<ResBody>>;
    type Error = Err;

    fn attach(&self, request: &mut Request<ReqBody>, lease: &Lease) {
        request.extensions_mut().insert(lease.clone());
    }

    fn done(&self, response: Response<ResBody>) -> Self::Response {
        response.map(ResponseBody::service)
    }

    fn fail(&self, error: Err) -> Err {
        error
    }

    fn refuse(&self, refusal: Refusal) -> Result<Self::Response, Err> {
        Ok(refusal.into_response())
    }
}
