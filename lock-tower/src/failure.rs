//! What a refusal becomes.

use std::{
    error::Error,
    fmt::{self, Write as _},
    sync::Arc,
};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Body;
use lock_core::{Argument, ErrorKind};

use crate::{body::ResponseBody, key::Mistake, protocol::Refusal};

/// What a client is to do about a refusal; each protocol has its own codes for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    BadKey,
    Busy,
    StillBusy,
    OutOfTime,
    Overloaded,
    Unavailable,
    Lost,
    WouldDeadlock,
    Misconfigured,
}

/// The user's function that replaces the answer to a refusal, if there is one.
pub(crate) struct Answer<A>(Option<Replace<A>>);

type Replace<A> = Arc<dyn Fn(&Refusal, A) -> A + Send + Sync>;

impl<A> Answer<A> {
    pub(crate) fn with(replace: impl Fn(&Refusal, A) -> A + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(replace)))
    }

    pub(crate) fn give(&self, refusal: &Refusal, answer: A) -> A {
        match &self.0 {
            Some(replace) => replace(refusal, answer),
            None => answer,
        }
    }
}

impl<A> Clone for Answer<A> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<A> Default for Answer<A> {
    fn default() -> Self {
        Self(None)
    }
}

impl<A> fmt::Debug for Answer<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "replaced" } else { "as it is" })
    }
}

impl Refusal {
    pub(crate) fn verdict(&self) -> Verdict {
        let (error, tried_once) = match self {
            Self::Key(error) if error.is::<Mistake>() => return Verdict::Misconfigured,
            Self::Misconfigured(_) => return Verdict::Misconfigured,
            Self::Key(_) => return Verdict::BadKey,
            Self::Overloaded(_) => return Verdict::Overloaded,
            Self::OutOfTime(_) => return Verdict::OutOfTime,
            Self::Lost(_) => return Verdict::Lost,
            Self::NotAcquired { error, tried_once } => (error, *tried_once),
        };
        match error.kind() {
            ErrorKind::Busy if tried_once => Verdict::Busy,
            ErrorKind::Busy => Verdict::StillBusy,
            ErrorKind::Overloaded => Verdict::Overloaded,
            ErrorKind::Backend | ErrorKind::ShutDown => Verdict::Unavailable,
            ErrorKind::Invalid(Argument::Key) => Verdict::BadKey,
            ErrorKind::WouldDeadlock => Verdict::WouldDeadlock,
            _ => Verdict::Misconfigured,
        }
    }

    /// A text that tells a client what to do, and nothing about what is behind the service: keys, addresses and places
    /// in the code go to the log.
    pub(crate) fn detail(&self) -> String {
        match (self.verdict(), self) {
            (Verdict::BadKey, Self::Key(error)) => return error.to_string(),
            (Verdict::BadKey, Self::NotAcquired { error, .. }) => return error.to_string(),
            (Verdict::BadKey | Verdict::Misconfigured, _) => MISCONFIGURED,
            (Verdict::Busy, _) => BUSY,
            (Verdict::StillBusy | Verdict::OutOfTime, _) => STILL_BUSY,
            (Verdict::Overloaded, _) => OVERLOADED,
            (Verdict::Unavailable, _) => UNAVAILABLE,
            (Verdict::Lost, _) => LOST,
            (Verdict::WouldDeadlock, _) => WOULD_DEADLOCK,
        }
        .to_owned()
    }

    /// Sends an answer out, with the error of the lock in its extensions.
    pub(crate) fn respond<B: Body>(self, mut response: Response<Bytes>) -> Response<ResponseBody<B>> {
        if let Self::NotAcquired { error, .. } | Self::Lost(error) = self {
            response.extensions_mut().insert(error);
        }
        response.map(ResponseBody::refusal)
    }

    pub(crate) fn log(&self, status_code: u16) {
        let (error, what) = match self {
            Self::Key(error) => (error.as_ref() as &(dyn Error + 'static), "a request has no usable key"),
            Self::Misconfigured(error) => (error as _, "a request was refused, as every other"),
            Self::NotAcquired { error, .. } => (error as _, "a request did not get its lock"),
            Self::Overloaded(error) => (error as _, "a request did not get its lock"),
            Self::OutOfTime(error) => (error as _, "a request did not get its lock"),
            Self::Lost(error) => (error as _, "a request lost its lock while it was being served"),
        };
        match self.verdict() {
            Verdict::Misconfigured | Verdict::WouldDeadlock => tracing::error!(status_code, error, "{what}"),
            Verdict::Unavailable | Verdict::Overloaded | Verdict::Lost => tracing::warn!(status_code, error, "{what}"),
            // The client's doing, and every busy request's fate: not worth a line each in production.
            _ => tracing::debug!(status_code, error, "{what}"),
        }
    }

    /// Makes the answer in HTTP: a response as RFC 9457 describes it, *Problem Details for HTTP APIs*.
    pub(crate) fn to_problem(&self) -> Response<Bytes> {
        let (status, retry) = match self.verdict() {
            Verdict::BadKey => (StatusCode::BAD_REQUEST, false),
            Verdict::Busy => (StatusCode::CONFLICT, false),
            Verdict::Lost => (StatusCode::SERVICE_UNAVAILABLE, false),
            // Nothing was done: the client may send the same request again.
            Verdict::StillBusy | Verdict::OutOfTime | Verdict::Overloaded | Verdict::Unavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, true)
            }
            Verdict::WouldDeadlock | Verdict::Misconfigured => (StatusCode::INTERNAL_SERVER_ERROR, false),
        };
        let body = format!(
            r#"{{"type":"about:blank","title":"{}","status":{},"detail":"{}"}}"#,
            status.canonical_reason().unwrap_or_default(),
            status.as_u16(),
            escape(&self.detail()),
        );
        let mut response = Response::new(body.into());
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if retry {
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
const OVERLOADED: &str = "too many requests wait for locks; nothing was done, try again later";
const UNAVAILABLE: &str = "the lock cannot be acquired at present; nothing was done, try again later";
const LOST: &str = "the lock was lost while the request was being served; part of it may have been done, or all of it";
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
