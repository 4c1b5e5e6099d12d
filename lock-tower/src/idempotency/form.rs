//! HTTP and gRPC, as far as their answers differ.

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header, response::Parts};
use http_body::Body;

use super::problem::Problem;
use crate::{body::ResponseBody, http::Http, protocol::Protocol};

/// A protocol of an [`IdempotencyLayer`](super::IdempotencyLayer): [`Http`] or `Grpc`. `B` and `R` are the bodies of its requests and
/// responses, `E` is the error of the service.
///
/// This trait is sealed.
pub trait Form<B, R: Body, E>:
    Protocol<Request<B>, Response<R>, E, Response = Response<ResponseBody<R>>, Error = E> + Clone + Send + Sync + 'static
{
    /// Makes the body of a request again after it was read.
    #[doc(hidden)]
    fn body(bytes: Bytes) -> B;

    /// Whether an answer is the end of the matter, so that it is kept. All others invite a retry, which runs again.
    #[doc(hidden)]
    fn is_final(head: &Parts, trailers: Option<&HeaderMap>) -> bool;

    #[doc(hidden)]
    fn answer(problem: Problem) -> Response<Bytes>;
}

impl<B: From<Bytes>, R: Body, E> Form<B, R, E> for Http {
    fn body(bytes: Bytes) -> B {
        bytes.into()
    }

    fn is_final(head: &Parts, _trailers: Option<&HeaderMap>) -> bool {
        (200..500).contains(&head.status.as_u16()) && !invites_a_retry(head)
    }

    fn answer(problem: Problem) -> Response<Bytes> {
        problem.to_response()
    }
}

#[cfg(feature = "grpc")]
impl<R: Body, E> Form<tonic::body::Body, R, E> for crate::grpc::Grpc {
    fn body(bytes: Bytes) -> tonic::body::Body {
        tonic::body::Body::new(ResponseBody::<tonic::body::Body>::refusal(bytes))
    }

    fn is_final(head: &Parts, trailers: Option<&HeaderMap>) -> bool {
        use tonic::Code::{
            Aborted, Cancelled, DataLoss, DeadlineExceeded, Internal, ResourceExhausted, Unauthenticated, Unavailable,
            Unknown,
        };

        // The status of a stream of messages is in trailers that have not come yet.
        let status = trailers.and_then(tonic::Status::from_header_map);
        let code =
            status.or_else(|| tonic::Status::from_header_map(&head.headers)).map_or(tonic::Code::Ok, |s| s.code());
        let of_now = [Cancelled, Unknown, DeadlineExceeded, ResourceExhausted, Unauthenticated];
        let of_the_server = [Aborted, Internal, Unavailable, DataLoss];
        let is_retried = of_now.contains(&code) || of_the_server.contains(&code);
        head.status.is_success() && !invites_a_retry(head) && !is_retried
    }

    fn answer(problem: Problem) -> Response<Bytes> {
        problem.to_status().into_http()
    }
}

/// Whether an answer says so, or is the refusal of a lock inside, by another layer or by a handler.
fn invites_a_retry(head: &Parts) -> bool {
    let of_now = matches!(head.status.as_u16(), 401 | 408 | 425 | 429);
    // A 202 with the header says when to look for what was begun.
    let retry_after = head.status.is_client_error() && head.headers.contains_key(header::RETRY_AFTER);
    of_now || retry_after || head.extensions.get::<lock_core::Error>().is_some()
}
