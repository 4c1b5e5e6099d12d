//! A request whose body was read, and its answer as it is stored: lines of text, and the body.
//!
//! ```text
//! lock-tower 1 <fingerprint> 201     the form, the request that was answered, the status
//! content-type:application/json      headers of the content; a trailer has a space before its name
//!                                    an empty line, and the body
//! ```
//!
//! Of an answer that was not kept only the first line is stored, with `-` in place of the status. A value of a header has no line
//! break in it, so nothing is escaped.

use std::{str, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header};
use lock_core::key::join;

use super::{form::Problem, service::Stop};
use crate::key::spelled;

/// What the layer knows of a request that it lets through, in the extensions of the request. A handler needs it to store its answer
/// itself, in the transaction of its effect, which alone makes the effect happen [exactly once](crate::idempotency#exactly-once).
///
/// # Examples
///
/// ```
/// use axum::{Extension, response::Response};
/// use bytes::Bytes;
/// use lock_tower::idempotency::Attempt;
///
/// async fn pay(Extension(attempt): Extension<Attempt>) -> Response {
///     let response = http::Response::builder().status(201).body(Bytes::from("paid")).unwrap_or_default();
///     // In one transaction: the charge, and
///     //   INSERT INTO answers (key, answer, until) VALUES (…) ON CONFLICT (key) DO UPDATE
///     //   SET answer = excluded.answer, until = excluded.until WHERE answers.until <= now()
///     // If that inserts no row, roll back. The layer answers with what is stored.
///     let (key, answer) = (attempt.key(), attempt.answer(&response));
///     # let _ = (key, answer);
///     response.map(axum::body::Body::from)
/// }
/// # let _ = pay;
/// ```
#[derive(Clone, Debug)]
pub struct Attempt {
    key: Arc<str>,
    fingerprint: Arc<str>,
}

impl Attempt {
    /// Describes a request whose body was read.
    pub(super) fn new(prefix: &str, key: &str, request: &Request<()>, body: &[u8]) -> Self {
        let query = request.uri().query().unwrap_or_default();
        // Two spellings of a path are one request. In the form of a key, as in all answers that are stored.
        let path = join(["", &spelled(request.method(), request)]);
        // With the key: a store that takes two keys for one, as a table that folds case, gives no client the answer to another.
        let key = format!("{prefix}{key}");
        let fingerprint = format!("{:032x}", fingerprint([key.as_bytes(), path.as_bytes(), query.as_bytes(), body]));
        Self { key: key.into(), fingerprint: fingerprint.into() }
    }

    /// Returns the key of the answer: the prefix of the manager, scope, principal and idempotency key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns an answer in the form in which [`Answers`](super::Answers) have it, with the headers that are kept. It is for HTTP: the
    /// status of gRPC is in trailers, which it does not have.
    #[must_use]
    pub fn answer(&self, response: &Response<Bytes>) -> Bytes {
        self.kept(response, None)
    }

    /// Writes an answer.
    pub(super) fn kept(&self, response: &Response<Bytes>, trailers: Option<&HeaderMap>) -> Bytes {
        let mut record = format!("{FORM}{} {}\n", self.fingerprint, response.status().as_u16()).into_bytes();
        // A call that fails at once has its status in the headers, and there what its handler says beside it.
        let is_trailer = response.headers().contains_key("grpc-status");
        let is_of_the_moment = |name: &str| {
            OF_THE_MOMENT.contains(&name) || name.starts_with("access-control-") || name.starts_with("proxy-")
        };
        let is_kept =
            |name: &str| KEPT.contains(&name) || name.starts_with("grpc-") || is_trailer && !is_of_the_moment(name);
        let headers = response.headers().iter().filter(|(name, _)| is_kept(name.as_str()));
        let trailers = trailers.into_iter().flatten().filter(|(name, _)| *name != header::SET_COOKIE);
        let trailers = trailers.map(|field| (" ", field));
        for (mark, (name, value)) in headers.map(|field| ("", field)).chain(trailers) {
            record.extend([mark.as_bytes(), name.as_str().as_bytes(), b":", value.as_bytes(), b"\n"].concat());
        }
        [&record[..], b"\n", &response.body()[..]].concat().into()
    }

    /// Writes that there was an answer, and that it was not kept.
    pub(super) fn not_kept(&self) -> Bytes {
        format!("{FORM}{} -\n", self.fingerprint).into()
    }

    /// Returns what this request is told if that is stored, or `None` if that is not an answer.
    pub(super) fn read(&self, record: &Bytes) -> Option<Stop> {
        let first = record.iter().position(|byte| *byte == b'\n')?;
        let (answered, status) = str::from_utf8(&record[..first]).ok()?.strip_prefix(FORM)?.split_once(' ')?;
        if answered != &*self.fingerprint {
            return Some(Problem::KEY_REUSED.into());
        }
        if status == "-" {
            return Some(Problem::NOT_KEPT.into());
        }
        let end = first + record[first..].windows(2).position(|two| two == b"\n\n")?;
        let (mut kept, mut trailers) = (Response::new(record.slice(end + 2..)), HeaderMap::new());
        *kept.status_mut() = status.parse().ok()?;
        for line in record[first..end].split(|byte| *byte == b'\n').skip(1) {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let (fields, name) = match &line[..colon] {
                [b' ', name @ ..] => (&mut trailers, name),
                name => (kept.headers_mut(), name),
            };
            fields.append(HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(&line[colon + 1..]).ok()?);
        }
        // HTTP/1 sends only those that were announced.
        let names: Vec<_> = trailers.keys().map(HeaderName::as_str).collect();
        if let (false, Ok(names)) = (names.is_empty(), HeaderValue::from_str(&names.join(", "))) {
            kept.headers_mut().insert(header::TRAILER, names);
        }
        kept.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
        let trailers = (!trailers.is_empty()).then_some(trailers);
        Some(Stop::Kept(Box::new(kept.map(|body| (body, trailers)))))
    }
}

/// FNV-1a of 128 bits: the same in all versions and on all machines. A client that finds two requests of one fingerprint can only be
/// given the answer to its own other request.
fn fingerprint<const N: usize>(parts: [&[u8]; N]) -> u128 {
    let bytes =
        parts.into_iter().flat_map(|part| (part.len() as u64).to_le_bytes().into_iter().chain(part.iter().copied()));
    bytes.fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b)
    })
}

const FORM: &str = "lock-tower 1 ";

/// The headers that describe the content. All others are of one connection, of one moment or of one client, or may be.
#[rustfmt::skip]
const KEPT: [&str; 11] = ["cache-control", "content-disposition", "content-encoding", "content-language", "content-location",
    "content-type", "etag", "last-modified", "link", "location", "vary"];

/// The headers of one connection, moment or client.
#[rustfmt::skip]
const OF_THE_MOMENT: [&str; 11] = ["alt-svc", "connection", "content-length", "date", "keep-alive", "server", "set-cookie", "trailer",
    "transfer-encoding", "upgrade", "www-authenticate"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_that_of_key_method_path_query_and_body() {
        let of = |method: &str, path: &str, body: &str| {
            let request = Request::builder().method(method).uri(path).body(()).unwrap();
            Attempt::new("", "", &request, body.as_bytes()).fingerprint
        };
        // Stored answers outlive a version of this crate.
        assert_eq!(&*of("POST", "/pay?a", "b"), "5c95768e0314ab6f8edb1b8f74871fa7");
        assert_eq!(of("POST", "/p%61y?a", "b"), of("POST", "/pay?a", "b"), "another spelling");
        for (method, path, body) in
            [("PUT", "/pay?a", "b"), ("POST", "/pay", "b"), ("POST", "/pay?a", ""), ("POST", "/pay?ab", "")]
        {
            assert_ne!(of(method, path, body), of("POST", "/pay?a", "b"), "{method} {path} {body}");
        }
    }
}
