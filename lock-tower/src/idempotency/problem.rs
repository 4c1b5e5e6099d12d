//! The reasons why a request is not given an answer of the handler.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use lock_core::answer::{Answer, Case};

use crate::refusal::Refusal;

/// A request that is not given an answer of the handler.
pub(super) enum Refused {
    /// The lock says why.
    Lock(Refusal),
    Problem(Problem),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(unnameable_types, reason = "an argument of a sealed trait")]
pub enum Problem {
    KeyMissing,
    KeyUnusable,
    RequestTooLarge,
    RequestUnreadable,
    /// The key was used for another request.
    KeyReused,
    /// The first request of the key is still running; it may be over after this time.
    InProgress(Option<Duration>),
    AnswerNotKept,
    AnswerNotStored,
    Unavailable,
}

impl Problem {
    /// Returns the answer, and the word for programs that stands in place of that of the case.
    fn answer(self) -> (Answer, &'static str) {
        let (case, code, detail) = match self {
            Self::KeyMissing => {
                (Case::Key, "idempotency_key_missing", "this operation requires an Idempotency-Key; nothing was done")
            }
            Self::KeyUnusable => (
                Case::Key,
                "idempotency_key_unusable",
                "an Idempotency-Key is sent once, and has 1 to 255 visible ASCII characters; nothing was done",
            ),
            Self::RequestTooLarge => (
                Case::Key,
                "idempotency_request_too_large",
                "the request is too large for an operation with an Idempotency-Key; nothing was done",
            ),
            Self::RequestUnreadable => (
                Case::Key,
                "idempotency_request_unreadable",
                "the request ended before it was complete; nothing was done",
            ),
            Self::KeyReused => (
                Case::NotHeld,
                "idempotency_key_reused",
                "this Idempotency-Key was used for another request; send a new key with a new request",
            ),
            Self::InProgress(_) => (
                Case::Busy,
                "idempotency_in_progress",
                "the first request with this Idempotency-Key is still running; try again later for its answer",
            ),
            Self::AnswerNotKept => (
                Case::NotHeld,
                "idempotency_answer_not_kept",
                "the first request with this Idempotency-Key was carried out, but its answer was too large to be kept",
            ),
            Self::AnswerNotStored => (
                Case::Lost,
                "idempotency_answer_not_stored",
                "the request was carried out, but its answer could not be stored; a retry may carry it out again",
            ),
            Self::Unavailable => (
                Case::Unavailable,
                "idempotency_unavailable",
                "the answers to earlier requests cannot be read at the moment; nothing was done, try again later",
            ),
        };
        let answer = Answer::new(case).detail(detail);
        let answer = match self {
            Self::RequestTooLarge => answer.status(StatusCode::PAYLOAD_TOO_LARGE),
            Self::KeyReused => answer.status(StatusCode::UNPROCESSABLE_ENTITY),
            Self::InProgress(after) => answer.retry_after(after),
            _ => answer,
        };
        (answer, code)
    }

    /// Answers in HTTP: problem details as in RFC 9457.
    pub(super) fn to_response(self) -> Response<Bytes> {
        let (answer, code) = self.answer();
        // No detail has the code of a case in it.
        answer.to_response().map(|body: String| body.replace(answer.case().code(), code).into())
    }

    /// Answers in gRPC.
    #[cfg(feature = "grpc")]
    pub(super) fn to_status(self) -> tonic::Status {
        use tonic_types::StatusExt;

        let (answer, code) = self.answer();
        let status = tonic::Status::from(answer);
        let mut details = status.get_error_details();
        if let Some(info) = details.error_info().cloned() {
            details.set_error_info(code.to_ascii_uppercase(), info.domain, info.metadata);
        }
        tonic::Status::with_error_details(status.code(), status.message().to_owned(), details)
    }
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self::Lock(refusal)
    }
}
