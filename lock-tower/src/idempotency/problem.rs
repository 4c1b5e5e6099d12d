//! The reasons why a request is not given an answer of the handler.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use lock_core::answer::{Answer, Case};

/// The reason why a request is not given an answer of the handler, unless the lock has one.
#[derive(Clone, Copy, Debug)]
#[expect(unnameable_types, reason = "an argument of a sealed trait")]
pub struct Problem {
    /// What it is to clients, proxies and gRPC.
    case: Case,
    status: StatusCode,
    code: &'static str,
    detail: &'static str,
    retry_after: Option<Duration>,
}

const fn problem(case: Case, status: StatusCode, code: &'static str, detail: &'static str) -> Problem {
    Problem { case, status, code, detail, retry_after: None }
}

#[rustfmt::skip]
impl Problem {
    pub(super) const KEY_MISSING: Self = problem(Case::Key, StatusCode::BAD_REQUEST, "idempotency_key_missing",
        "this operation requires an Idempotency-Key; nothing was done");
    pub(super) const KEY_UNUSABLE: Self = problem(Case::Key, StatusCode::BAD_REQUEST, "idempotency_key_unusable",
        "an Idempotency-Key is sent once, and has 1 to 255 visible ASCII characters; nothing was done");
    pub(super) const KEY_REUSED: Self = problem(Case::NotHeld, StatusCode::UNPROCESSABLE_ENTITY, "idempotency_key_reused",
        "this Idempotency-Key was used for another request; send a new key with a new request");
    pub(super) const REQUEST_TOO_LARGE: Self = problem(Case::Key, StatusCode::PAYLOAD_TOO_LARGE, "idempotency_request_too_large",
        "the request is too large for an operation with an Idempotency-Key; nothing was done");
    pub(super) const REQUEST_UNREADABLE: Self = problem(Case::Key, StatusCode::BAD_REQUEST, "idempotency_request_unreadable",
        "the request ended before it was complete; nothing was done");
    const IN_PROGRESS: Self = problem(Case::Busy, StatusCode::CONFLICT, "idempotency_in_progress",
        "the first request with this Idempotency-Key is still running; try again later for its answer");
    pub(super) const NOT_KEPT: Self = problem(Case::NotHeld, StatusCode::CONFLICT, "idempotency_answer_not_kept",
        "the first request with this Idempotency-Key was carried out, but its answer was too large to be kept");
    pub(super) const NOT_STORED: Self = problem(Case::Lost, StatusCode::INTERNAL_SERVER_ERROR, "idempotency_answer_not_stored",
        "the request was carried out, but its answer could not be stored; a retry may carry it out again");
    pub(super) const UNAVAILABLE: Self = Self { retry_after: Some(Duration::from_secs(1)),
        ..problem(Case::Unavailable, StatusCode::SERVICE_UNAVAILABLE, "idempotency_unavailable",
        "the answers to earlier requests cannot be read at the moment; nothing was done, try again later") };
}

impl Problem {
    /// The first request is still running, and may be over after this time.
    pub(super) fn in_progress(retry_after: Option<Duration>) -> Self {
        Self { retry_after, ..Self::IN_PROGRESS }
    }

    fn answer(self) -> Answer {
        Answer::new(self.case).status(self.status).detail(self.detail).retry_after(self.retry_after)
    }

    /// Answers in HTTP: problem details as in RFC 9457.
    pub(super) fn to_response(self) -> Response<Bytes> {
        // No detail has the code of a case in it.
        self.answer().to_response().map(|body: String| body.replace(self.case.code(), self.code).into())
    }

    /// Answers in gRPC.
    #[cfg(feature = "grpc")]
    pub(super) fn to_status(self) -> tonic::Status {
        use tonic_types::StatusExt;

        let status = tonic::Status::from(self.answer());
        let mut details = status.get_error_details();
        if let Some(info) = details.error_info().cloned() {
            details.set_error_info(self.code.to_ascii_uppercase(), info.domain, info.metadata);
        }
        tonic::Status::with_error_details(status.code(), status.message().to_owned(), details)
    }
}
