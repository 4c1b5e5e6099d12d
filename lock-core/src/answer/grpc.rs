use std::{collections::HashMap, sync::Arc};

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::Answer;
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
        Self::with_error_details(Code::from_i32(answer.case.grpc_code()), answer.detail, details)
    }
}

/// The domain in the `ErrorInfo`.
const DOMAIN: &str = "lock-core";
