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
    sealed::Form<B>
    + Protocol<Request<B>, Response<R>, E, Response = Response<ResponseBody<R>>, Error = E>
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<B, R: Body, E, P> Form<B, R, E> for P where
    P: sealed::Form<B>
        + Protocol<Request<B>, Response<R>, E, Response = Response<ResponseBody<R>>, Error = E>
        + Clone
        + Send
        + Sync
        + 'static
{
}

pub(super) mod sealed {
    use super::{Bytes, HeaderMap, Parts, Problem, Response};

    #[expect(unnameable_types, reason = "it seals the trait")]
    pub trait Form<B> {
        /// Makes the body of a request again after it was read.
        fn body(bytes: Bytes) -> B;

        /// Whether an answer is the end of the matter, so that it is kept. All others invite a retry, which runs again.
        fn is_final(head: &Parts, trailers: Option<&HeaderMap>) -> bool;

        fn answer(problem: Problem) -> Response<Bytes>;
    }
}

impl<B: From<Bytes>> sealed::Form<B> for Http {
    fn body(bytes: Bytes) -> B {
        bytes.into()
    }

    fn is_final(head: &Parts, _trailers: Option<&HeaderMap>) -> bool {
        (200..500).contains(&head.status.as_u16())
            && !is_of_a_lock(head)
            && !head.headers.contains_key(header::RETRY_AFTER)
    }

    fn answer(problem: Problem) -> Response<Bytes> {
        problem.to_response()
    }
}

#[cfg(feature = "grpc")]
impl sealed::Form<tonic::body::Body> for crate::grpc::Grpc {
    fn body(bytes: Bytes) -> tonic::body::Body {
        tonic::body::Body::new(ResponseBody::<tonic::body::Body>::refusal(bytes))
    }

    fn is_final(head: &Parts, trailers: Option<&HeaderMap>) -> bool {
        use tonic::{Code, Status};

        let status = trailers.and_then(Status::from_header_map).or_else(|| Status::from_header_map(&head.headers));
        // A stream of messages has its status in trailers that have not come yet.
        let code = status.map_or(Code::Ok, |status| status.code());
        let invites_a_retry = [
            Code::Cancelled,
            Code::Unknown,
            Code::DeadlineExceeded,
            Code::ResourceExhausted,
            Code::Aborted,
            Code::Internal,
            Code::Unavailable,
            Code::DataLoss,
        ];
        head.status.is_success() && !is_of_a_lock(head) && !invites_a_retry.contains(&code)
    }

    fn answer(problem: Problem) -> Response<Bytes> {
        problem.to_status().into_http()
    }
}

/// Whether it is a refusal of a lock inside, by another layer or by a handler.
fn is_of_a_lock(head: &Parts) -> bool {
    head.extensions.get::<lock_core::Error>().is_some()
}
