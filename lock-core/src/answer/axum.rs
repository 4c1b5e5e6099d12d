use axum_core::response::{IntoResponse, Response};

use super::Answer;
use crate::error::Error;

/// Answers like [`Answer`], and puts the error into the extensions of the response, for a layer that logs it or
/// answers in another form.
///
/// The error is logged at `ERROR` if the service has to be repaired, and at `WARN` if the backend fails, the lease was lost or too
/// many requests wait, each at most once a second. Any other error is logged at `DEBUG`.
impl IntoResponse for Error {
    fn into_response(self) -> Response {
        super::log(&self);
        let mut response = Answer::from(&self).to_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        self.to_response()
    }
}
