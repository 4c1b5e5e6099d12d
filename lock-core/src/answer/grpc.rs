use std::{collections::HashMap, sync::Arc};

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::{Answer, Case};
use crate::error::Error;

/// Sets the error as the source of the status, which is not sent.
///
/// The error is logged at `ERROR` if the service has to be repaired, and at `WARN` if the backend fails, the lease was lost or too
/// many requests wait, each at most once a second. Any other error is logged at `DEBUG`.
impl From<Error> for Status {
    fn from(error: Error) -> Self {
        super::log(&error);
        let mut status = Self::from(Answer::from(&error));
        status.set_source(Arc::new(error));
        status
    }
}

impl From<Answer> for Status {
    fn from(answer: Answer) -> Self {
        let mut details = ErrorDetails::new();
        details.set_error_info(answer.case.code().to_ascii_uppercase(), DOMAIN, HashMap::new());
        if answer.retry_after.is_some() {
            details.set_retry_info(answer.retry_after);
        }
        Self::with_error_details(code(answer.case), answer.detail, details)
    }
}

fn code(case: Case) -> Code {
    match case {
        Case::Busy => Code::Aborted,
        Case::Full | Case::Overloaded => Code::ResourceExhausted,
        Case::Unavailable => Code::Unavailable,
        Case::Key => Code::InvalidArgument,
        Case::OutOfTime => Code::DeadlineExceeded,
        Case::NotHeld => Code::FailedPrecondition,
        // Part of the work may be done, and clients repeat calls that were aborted.
        Case::Lost => Code::Unknown,
        Case::Misconfigured => Code::Internal,
    }
}

/// The domain in the `ErrorInfo`.
const DOMAIN: &str = "lock-core";
