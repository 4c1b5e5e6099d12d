//! HTTP and gRPC, as far as their answers differ, and the reasons why a request is not given an answer of the handler.

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body::Body;
use lock_core::answer::{Answer, Case};

use super::service::Stop;
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
    fn is_final(answer: &Response<Bytes>, trailers: Option<&HeaderMap>) -> bool;

    /// Answers with a code in place of that of the case.
    #[doc(hidden)]
    fn answer(answer: Answer, code: &'static str) -> Response<Bytes>;
}

impl<B: From<Bytes>, R: Body, E> Form<B, R, E> for Http {
    fn body(bytes: Bytes) -> B {
        bytes.into()
    }

    fn is_final(answer: &Response<Bytes>, _trailers: Option<&HeaderMap>) -> bool {
        (200..500).contains(&answer.status().as_u16()) && !invites_a_retry(answer)
    }

    fn answer(answer: Answer, code: &'static str) -> Response<Bytes> {
        // No detail has the code of a case in it.
        answer.to_response().map(|body: String| body.replace(answer.case().code(), code).into())
    }
}

#[cfg(feature = "grpc")]
impl<R: Body, E> Form<tonic::body::Body, R, E> for crate::grpc::Grpc {
    fn body(bytes: Bytes) -> tonic::body::Body {
        tonic::body::Body::new(ResponseBody::<tonic::body::Body>::refusal(bytes))
    }

    fn is_final(answer: &Response<Bytes>, trailers: Option<&HeaderMap>) -> bool {
        // The status of a stream of messages is in trailers that have not come yet.
        let status = [trailers, Some(answer.headers())].into_iter().flatten().find_map(tonic::Status::from_header_map);
        // All but Cancelled, Unknown, DeadlineExceeded, ResourceExhausted, Aborted, Internal, Unavailable, DataLoss and Unauthenticated.
        let is_kept = status.is_none_or(|status| matches!(status.code() as i32, 0 | 3 | 5..=7 | 9 | 11 | 12));
        answer.status().is_success() && !invites_a_retry(answer) && is_kept
    }

    fn answer(answer: Answer, code: &'static str) -> Response<Bytes> {
        use tonic_types::StatusExt;

        let status = tonic::Status::from(answer);
        let mut details = status.get_error_details();
        if let Some(info) = details.error_info().cloned() {
            details.set_error_info(code.to_ascii_uppercase(), info.domain, info.metadata);
        }
        tonic::Status::with_error_details(status.code(), status.message(), details).into_http()
    }
}

/// Whether an answer says so, or is the refusal of a lock inside, by another layer or by a handler.
fn invites_a_retry(answer: &Response<Bytes>) -> bool {
    let of_now = matches!(answer.status().as_u16(), 401 | 408 | 425 | 429);
    // A 202 with the header says when to look for what was begun.
    let retry_after = answer.status().is_client_error() && answer.headers().contains_key(header::RETRY_AFTER);
    of_now || retry_after || answer.extensions().get::<lock_core::Error>().is_some()
}

/// The code of an answer that was not kept.
pub(super) const NOT_KEPT: &str = "idempotency_answer_not_kept";

/// The reason why a request is not given an answer of the handler: what it is to proxies and gRPC, status, code and detail.
pub(super) struct Problem(Case, StatusCode, &'static str, &'static str);

#[rustfmt::skip]
impl Problem {
    pub(super) const KEY_MISSING: Self = Self(Case::Key, StatusCode::BAD_REQUEST, "idempotency_key_missing",
        "this operation requires an Idempotency-Key; nothing was done");
    pub(super) const KEY_UNUSABLE: Self = Self(Case::Key, StatusCode::BAD_REQUEST, "idempotency_key_unusable",
        "an Idempotency-Key is sent once, and has 1 to 255 visible ASCII characters; nothing was done");
    pub(super) const KEY_REUSED: Self = Self(Case::NotHeld, StatusCode::UNPROCESSABLE_ENTITY, "idempotency_key_reused",
        "this Idempotency-Key was used for another request; send a new key with a new request");
    pub(super) const TOO_LARGE: Self = Self(Case::Key, StatusCode::PAYLOAD_TOO_LARGE, "idempotency_request_too_large",
        "the request is too large for an operation with an Idempotency-Key; nothing was done");
    pub(super) const UNREADABLE: Self = Self(Case::Key, StatusCode::BAD_REQUEST, "idempotency_request_unreadable",
        "the request was not complete when it ended, or after five minutes; nothing was done");
    pub(super) const NOT_KEPT: Self = Self(Case::NotHeld, StatusCode::CONFLICT, NOT_KEPT,
        "the first request with this Idempotency-Key was carried out, but its answer could not be kept");
    pub(super) const NOT_STORED: Self = Self(Case::Lost, StatusCode::INTERNAL_SERVER_ERROR, "idempotency_answer_not_stored",
        "the request was carried out, but its answer could not be stored; a retry may carry it out again");
    pub(super) const UNAVAILABLE: Self = Self(Case::Unavailable, StatusCode::SERVICE_UNAVAILABLE, "idempotency_unavailable",
        "the answers to earlier requests cannot be read at the moment; nothing was done, try again later");
}

impl From<Problem> for Stop {
    fn from(Problem(case, status, code, detail): Problem) -> Self {
        Self::Problem(Answer::new(case).status(status).detail(detail), code)
    }
}
