//! Answers to requests that the lock refused: status codes, and texts that a client may read.
//!
//! With the feature `axum`, [`Error`] is a response: a handler returns `Result<T, lock_core::Error>`. With the feature
//! `tonic`, `?` makes a `tonic::Status` of it. Both answer by this table, and so does the layer of `lock-tower`:
//!
//! | case | code | HTTP | gRPC | retry |
//! | --- | --- | --- | --- | --- |
//! | the key is busy | `lock_busy` | 409 | `ABORTED` | what is left of the holder's ttl, or a second |
//! | all permits of the key are taken | `lock_full` | 429 | `RESOURCE_EXHAUSTED` | a second, or what is left of a holder's ttl if that is less |
//! | too many requests wait | `lock_overloaded` | 429 | `RESOURCE_EXHAUSTED` | a second |
//! | the backend does not answer, too few replicas had the lease, or the manager was shut down | `lock_unavailable` | 503 | `UNAVAILABLE` | a second |
//! | the lease was lost while the work ran, or a guard could not extend or release it | `lock_lost` | 500 | `UNKNOWN` | never: part of the work may be done |
//! | the key is empty, too long or reserved | `lock_key` | 400 | `INVALID_ARGUMENT` | never |
//! | the caller's own time is over | `lock_out_of_time` | 409 | `DEADLINE_EXCEEDED` | never |
//! | the lease that was handed over is not held | `lock_not_held` | 409 | `FAILED_PRECONDITION` | never |
//! | anything else | `lock_misconfigured` | 500 | `INTERNAL` | never |
//!
//! An HTTP answer has a body of the type `application/problem+json` (RFC 9457) with the members `type`, `title`, `status`,
//! `detail` and `code`, and a header `Retry-After` in whole seconds, at least 1. A gRPC status has the detail as its
//! message, and in its details an `ErrorInfo` (the code in capitals as the reason, `lock-core` as the domain) and a
//! `RetryInfo`. Neither names the key, an address or a place in the code.
//!
//! # Examples
//!
//! An error type of one's own, and another status for a busy key:
//!
//! ```
//! # #[cfg(feature = "axum")] mod example {
//! use axum::{http::StatusCode, response::{IntoResponse, Response}};
//! use lock_core::answer::Answer;
//!
//! enum ShopError {
//!     Lock(lock_core::Error),
//!     SoldOut,
//! }
//!
//! impl IntoResponse for ShopError {
//!     fn into_response(self) -> Response {
//!         match self {
//!             Self::Lock(error) if error.is_busy() => Answer::from(&error).status(StatusCode::LOCKED).into_response(),
//!             Self::Lock(error) => error.into_response(),
//!             Self::SoldOut => StatusCode::GONE.into_response(),
//!         }
//!     }
//! }
//! # }
//! ```

#[cfg(feature = "axum")]
mod axum;
#[cfg(feature = "tonic")]
mod grpc;
#[cfg(feature = "http")]
mod http;

use std::{borrow::Cow, time::Duration};

pub use crate::error::Case;
use crate::error::Error;
#[cfg(any(feature = "axum", feature = "tonic"))]
use crate::flood::Floods;

/// The answer to a request that the lock refused, in any protocol.
///
/// It is made from an [`Error`] by `From`, or from a [`Case`] by [`new`](Self::new). With the feature `http` it becomes an HTTP
/// response (`to_response`), with `axum` it is a response of axum, and with `tonic` it becomes a `tonic::Status`.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
/// use lock_core::{LockManager, answer::{Answer, Case}};
/// use std::time::Duration;
///
/// let manager = LockManager::in_memory();
/// let _guard = manager.lock("goods:1").await?;
/// let error = manager.lock("goods:1").wait(Duration::ZERO).await.unwrap_err();
/// let answer = Answer::from(&error).detail("these goods are being sold").retry_after(None);
/// assert_eq!(answer.case(), Case::Busy);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    case: Case,
    detail: Cow<'static, str>,
    retry_after: Option<Duration>,
    #[cfg(feature = "http")]
    status: ::http::StatusCode,
}

sets! { Answer =>
    /// Replaces the text for people. Everything in it is sent to the client.
    #[must_use]
    pub detail(detail: impl Into<Cow<'static, str>>) => detail = detail.into();

    /// Replaces the time after which a client may retry the request; `None` omits it.
    #[must_use]
    pub retry_after(retry_after: Option<Duration>) => retry_after = retry_after;
}

impl Answer {
    /// Creates the answer to a case, with the case's [message](Case::public_message) and [`retry_after`](Case::retry_after).
    #[must_use]
    pub fn new(case: Case) -> Self {
        Self {
            case,
            detail: Cow::Borrowed(case.public_message()),
            retry_after: case.retry_after(),
            #[cfg(feature = "http")]
            status: http::status(case),
        }
    }

    /// Returns the case that this answers.
    #[must_use]
    pub fn case(&self) -> Case {
        self.case
    }
}

impl From<&Error> for Answer {
    fn from(error: &Error) -> Self {
        Self::new(error.case()).retry_after(error.retry_after())
    }
}

/// Logs the error, since the answer does not contain it. Each case that an operator has to act on gets at most one line a second:
/// otherwise an outage would write one for every request.
#[cfg(any(feature = "axum", feature = "tonic"))]
fn log(error: &Error) {
    static FLOODS: Floods = Floods::new();
    let case = error.case();
    let error = error as &dyn std::error::Error;
    let Some(others) = FLOODS.line(case) else {
        log!(debug, error, "answered with an error");
        return;
    };
    let others = (others > 0).then_some(others);
    if case == Case::Misconfigured {
        log!(error, error, others, "answered with an error");
    } else {
        log!(warn, error, others, "answered with an error");
    }
}
