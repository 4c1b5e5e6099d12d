use std::fmt::Write as _;

use ::http::{HeaderValue, Response, StatusCode, header};

use super::{Answer, Case};

impl Answer {
    /// Replaces the status code: 423 or 429 for a busy key, for example. The body says the same.
    #[must_use]
    pub fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Makes the HTTP response: headers, and a body of the type `application/problem+json`.
    #[must_use]
    pub fn to_response<B: From<String>>(&self) -> Response<B> {
        let body = format!(
            r#"{{"type":"about:blank","title":{},"status":{},"detail":{},"code":{}}}"#,
            in_json(self.status.canonical_reason().unwrap_or_default()),
            self.status.as_u16(),
            in_json(&self.detail),
            in_json(self.case.code()),
        );
        let mut response = Response::new(B::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(after) = self.retry_after {
            let seconds = after.as_secs().saturating_add(u64::from(after.subsec_nanos() > 0));
            headers.insert(header::RETRY_AFTER, seconds.max(1).into());
        }
        response
    }
}

pub(super) fn status(case: Case) -> StatusCode {
    StatusCode::from_u16(case.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Writes text as a JSON string, with its quotes.
fn in_json(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\0'..='\u{1f}' => {
                write!(quoted, "\\u{:04x}", u32::from(character)).expect("a `String` takes everything");
            }
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn text_of_a_client_stays_inside_its_json_string() {
        assert_eq!(in_json(r#"a"b\c"#), r#""a\"b\\c""#);
        assert_eq!(in_json("a\r\n\0ä\u{7f}"), "\"a\\u000d\\u000a\\u0000ä\u{7f}\"");
    }

    #[test]
    fn the_time_to_retry_is_in_whole_seconds_rounded_up_and_at_least_one() {
        let said = |after| {
            let response: Response<String> = Answer::new(Case::Busy).retry_after(after).to_response();
            response.headers().get(header::RETRY_AFTER).map(|value| value.to_str().unwrap().to_owned())
        };
        let nanos = |nanos| Some(Duration::from_nanos(nanos));
        assert_eq!(said(nanos(0)).as_deref(), Some("1"));
        assert_eq!(said(nanos(1)).as_deref(), Some("1"));
        assert_eq!(said(nanos(1_000_000_000)).as_deref(), Some("1"));
        assert_eq!(said(nanos(1_000_000_001)).as_deref(), Some("2"));
        assert_eq!(said(Some(Duration::MAX)).as_deref(), Some("18446744073709551615"));
        assert_eq!(said(None), None);
    }
}
