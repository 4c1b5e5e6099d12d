//! An answer as it is stored: lines of text, and the body.
//!
//! ```text
//! lock-tower 1 <fingerprint> 201     the form, the request that was answered, the status
//! content-type:application/json      headers of the content; a trailer has a space before its name
//!                                    an empty line, and the body
//! ```
//!
//! Of an answer that was not kept the first line alone is stored, with `-` in place of the status. A value of a header has no line
//! break in it, so nothing is escaped.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use super::{problem::Problem, steps::Stop};

/// Writes an answer.
pub(super) fn write(
    fingerprint: &str,
    status: StatusCode,
    headers: &HeaderMap,
    trailers: Option<&HeaderMap>,
    body: &[u8],
) -> Bytes {
    let mut record = format!("{FORM}{fingerprint} {}\n", status.as_u16()).into_bytes();
    let is_kept = |name: &str| KEPT.contains(&name) || name.starts_with("grpc-");
    let headers = headers.iter().filter(|(name, _)| is_kept(name.as_str()));
    let trailers = trailers.into_iter().flatten().map(|field| (" ", field));
    for (mark, (name, value)) in headers.map(|field| ("", field)).chain(trailers) {
        for part in [mark.as_bytes(), name.as_str().as_bytes(), b":", value.as_bytes(), b"\n"] {
            record.extend_from_slice(part);
        }
    }
    record.push(b'\n');
    record.extend_from_slice(body);
    record.into()
}

/// Writes that there was an answer, and that it was not kept.
pub(super) fn write_not_kept(fingerprint: &str) -> Bytes {
    format!("{FORM}{fingerprint} -\n").into()
}

/// Returns what a request of this fingerprint is told, or `None` if the record is something else.
pub(super) fn read(record: &Bytes, fingerprint: &str) -> Option<Stop> {
    let mut rest = &**record;
    let mut line = || {
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let line = &rest[..end];
        rest = &rest[end + 1..];
        Some(line)
    };
    let head = std::str::from_utf8(line()?).ok()?;
    let (answered, status) = head.strip_prefix(FORM)?.split_once(' ')?;
    if answered != fingerprint {
        return Some(Stop::Problem(Problem::KEY_REUSED));
    }
    if status == "-" {
        return Some(Stop::Problem(Problem::NOT_KEPT));
    }
    let (mut kept, mut trailers) = (Response::new(()), HeaderMap::new());
    *kept.status_mut() = status.parse().ok()?;
    loop {
        let (fields, field) = match line()? {
            [] => break,
            [b' ', field @ ..] => (&mut trailers, field),
            field => (kept.headers_mut(), field),
        };
        let colon = field.iter().position(|byte| *byte == b':')?;
        let value = HeaderValue::from_bytes(&field[colon + 1..]).ok()?;
        fields.append(HeaderName::from_bytes(&field[..colon]).ok()?, value);
    }
    Some(Stop::Kept(Box::new(kept.map(|()| (record.slice_ref(rest), trailers)))))
}

const FORM: &str = "lock-tower 1 ";

/// The headers that describe the content. All others are of one connection, of one moment or of one client, or may be.
#[rustfmt::skip]
const KEPT: [&str; 11] = ["cache-control", "content-disposition", "content-encoding", "content-language", "content-location",
    "content-type", "etag", "last-modified", "link", "location", "vary"];
