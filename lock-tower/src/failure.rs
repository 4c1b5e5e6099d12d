//! What a refusal becomes in HTTP.

use std::{error::Error, fmt::Write as _};

use http::{HeaderValue, Response, StatusCode, header};
use lock_core::{Argument, ErrorKind};

use crate::{body::ResponseBody, protocol::Refusal};

impl Refusal {
    /// Answers with a status and a text that tell a client what to do, and nothing about what is behind the service:
    /// keys, addresses and places in the code go to the log.
    pub(crate) fn into_response<B>(self) -> Response<ResponseBody<B>> {
        let problem = self.problem();
        self.log(problem.status);
        let mut response = problem.into_response();
        if let Self::NotAcquired { error, .. } | Self::Lost(error) = self {
            response.extensions_mut().insert(error);
        }
        response
    }

    fn problem(&self) -> Problem {
        let (error, tried_once) = match self {
            Self::Key(error) => return Problem::new(StatusCode::BAD_REQUEST, error.to_string()),
            Self::Lost(_) => return Problem::new(StatusCode::SERVICE_UNAVAILABLE, LOST),
            Self::NotAcquired { error, tried_once } => (error, *tried_once),
        };
        match error.kind() {
            ErrorKind::Busy if tried_once => Problem::new(StatusCode::CONFLICT, BUSY),
            ErrorKind::Busy => Problem::new(StatusCode::SERVICE_UNAVAILABLE, STILL_BUSY).retry(),
            ErrorKind::Backend | ErrorKind::Overloaded | ErrorKind::ShutDown => {
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE).retry()
            }
            ErrorKind::Invalid(Argument::Key) => Problem::new(StatusCode::BAD_REQUEST, error.to_string()),
            ErrorKind::WouldDeadlock => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, WOULD_DEADLOCK),
            _ => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, MISCONFIGURED),
        }
    }

    fn log(&self, status: StatusCode) {
        let (error, what) = match self {
            Self::Key(error) => (error.as_ref() as &(dyn Error + 'static), "a request has no usable key"),
            Self::NotAcquired { error, .. } => (error as _, "a request did not get its lock"),
            Self::Lost(error) => (error as _, "a request was broken off, its lock was lost"),
        };
        let status_code = status.as_u16();
        match self {
            Self::NotAcquired { .. } if status == StatusCode::INTERNAL_SERVER_ERROR => {
                tracing::error!(status_code, error, "{what}");
            }
            Self::NotAcquired { error: cause, .. }
                if status == StatusCode::SERVICE_UNAVAILABLE && cause.kind() != ErrorKind::Busy =>
            {
                tracing::warn!(status_code, error, "{what}");
            }
            Self::Lost(_) => tracing::warn!(status_code, error, "{what}"),
            // The client's doing, and every busy request's fate: not worth a line each in production.
            _ => tracing::debug!(status_code, error, "{what}"),
        }
    }
}

/// A response as RFC 9457 describes it, *Problem Details for HTTP APIs*.
struct Problem {
    status: StatusCode,
    detail: String,
    /// Whether the client may send the same request again: nothing was done.
    retry: bool,
}

impl Problem {
    fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), retry: false }
    }

    fn retry(self) -> Self {
        Self { retry: true, ..self }
    }

    fn into_response<B>(self) -> Response<ResponseBody<B>> {
        let body = format!(
            r#"{{"type":"about:blank","title":"{}","status":{},"detail":"{}"}}"#,
            self.status.canonical_reason().unwrap_or_default(),
            self.status.as_u16(),
            escape(&self.detail),
        );
        let mut response = Response::new(ResponseBody::refusal(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.retry {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// Makes text fit for a JSON string.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\\' => escaped.extend(['\\', character]),
            '\0'..='\u{1f}' => {
                write!(escaped, "\\u{:04x}", u32::from(character)).expect("a `String` takes everything");
            }
            _ => escaped.push(character),
        }
    }
    escaped
}

const BUSY: &str = "locked by another request; nothing was done, try again later";
const STILL_BUSY: &str = "locked by other requests for as long as this one could wait; nothing was done, \
                          try again later";
const UNAVAILABLE: &str = "the lock cannot be acquired at present; nothing was done, try again later";
const LOST: &str = "the lock was lost while the request was being served, which was broken off; \
                    part of it may have been done";
const WOULD_DEADLOCK: &str = "this request holds its lock already and would have waited for itself; \
                              the service must take the lock in one place only, and its log says which two there are";
const MISCONFIGURED: &str = "the service's lock is not set up as it should be, and its log says what to change; \
                             nothing was done";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_client_stays_inside_its_json_string() {
        assert_eq!(escape(r#"a"b\c"#), r#"a\"b\\c"#);
        assert_eq!(escape("a\r\n\0ä\u{7f}"), "a\\u000d\\u000a\\u0000ä\u{7f}");
    }
}
