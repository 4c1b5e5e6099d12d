//! Answers and the headers that they all have.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use serde_json::Value;

/// An answer before it is a response.
#[derive(Debug)]
pub(super) struct Answer {
    status: StatusCode,
    media: &'static str,
    body: String,
    allow: Option<&'static str>,
}

impl Answer {
    /// Makes a page of its title and body: HTML, with all that is not ours escaped. It reloads itself after `refresh` seconds.
    pub(super) fn page(status: StatusCode, title: &str, refresh: Option<u32>, body: &str) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        let refresh = refresh.map(|seconds| format!("<meta http-equiv=refresh content={seconds}>")).unwrap_or_default();
        let page = format!(
            "<!doctype html><html lang=en><head><meta charset=utf-8><title>{title}</title>\
             <meta name=viewport content=\"width=device-width, initial-scale=1\">\
             <meta name=color-scheme content=\"light dark\"><link rel=stylesheet href=\"?style={version}\">\
             {refresh}</head><body><main>{body}</main></body></html>"
        );
        Self { status, media: "text/html; charset=utf-8", body: page, allow: None }
    }

    pub(super) fn json(status: StatusCode, body: &Value) -> Self {
        Self { status, media: "application/json", body: body.to_string(), allow: None }
    }

    pub(super) fn style() -> Self {
        let body = include_str!("style.css").to_owned();
        Self { status: StatusCode::OK, media: "text/css; charset=utf-8", body, allow: None }
    }

    /// Says which methods would have been answered.
    pub(super) fn allow(self, methods: &'static str) -> Self {
        Self { allow: Some(methods), ..self }
    }

    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::from(self.body)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.media));
        for (name, value) in SAFETY {
            headers.insert(name, HeaderValue::from_static(value));
        }
        if let Some(methods) = self.allow {
            headers.insert(header::ALLOW, HeaderValue::from_static(methods));
        }
        response
    }
}

/// No scripts, no external resources, no framing, never cached. The referrer is left to the own site, because a browser
/// that is to send none sends `Origin: null` with the form; keys do not leave the site in it.
const SAFETY: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (header::CACHE_CONTROL, "no-store"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "same-origin"),
];
