//! An answer as it is stored: lines of text, and the body.
//!
//! ```text
//! lock-tower 1 <fingerprint> 201     the form, the request that was answered, the status
//! content-type:application/json      the headers that are kept
//!                                    an empty line, trailers, an empty line, the body
//! ```
//!
//! Of an answer that was not kept the first line alone is stored, with `-` in place of the status. A value of a header has no line
//! break in it, so nothing is escaped.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

/// An answer that is stored.
#[derive(Debug)]
pub(super) struct Record<'a> {
    pub(super) fingerprint: &'a str,
    /// `None` if it was too large to be kept.
    pub(super) answer: Option<Kept>,
}

/// What there is of an answer.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) trailers: HeaderMap,
    pub(super) body: Bytes,
}

/// Writes an answer with those of its headers that `keeps` allows.
pub(super) fn write(
    fingerprint: &str,
    status: StatusCode,
    headers: &HeaderMap,
    keeps: impl Fn(&HeaderName) -> bool,
    trailers: Option<&HeaderMap>,
    body: &[u8],
) -> Bytes {
    let mut record = format!("{FORM} {fingerprint} {}\n", status.as_u16()).into_bytes();
    let mut fields = |fields: &mut dyn Iterator<Item = (&HeaderName, &HeaderValue)>| {
        for (name, value) in fields {
            for part in [name.as_str().as_bytes(), b":", value.as_bytes(), b"\n"] {
                record.extend_from_slice(part);
            }
        }
        record.push(b'\n');
    };
    fields(&mut headers.iter().filter(|(name, _)| keeps(name)));
    fields(&mut trailers.into_iter().flatten().filter(|(name, _)| !is_never_kept(name)));
    record.extend_from_slice(body);
    record.into()
}

/// Writes that there was an answer, and that it was not kept.
pub(super) fn write_not_kept(fingerprint: &str) -> Bytes {
    format!("{FORM} {fingerprint} -\n").into()
}

/// Reads what [`write`] or [`write_not_kept`] wrote; returns `None` if it is something else.
pub(super) fn read(record: &Bytes) -> Option<Record<'_>> {
    let mut rest = &**record;
    let head = std::str::from_utf8(line(&mut rest)?).ok()?;
    let (fingerprint, status) = head.strip_prefix(FORM)?.strip_prefix(' ')?.split_once(' ')?;
    if status == "-" {
        return Some(Record { fingerprint, answer: None });
    }
    let status = status.parse().ok()?;
    let (headers, trailers) = (read_fields(&mut rest)?, read_fields(&mut rest)?);
    let answer = Kept { status, headers, trailers, body: record.slice_ref(rest) };
    Some(Record { fingerprint, answer: Some(answer) })
}

fn read_fields(rest: &mut &[u8]) -> Option<HeaderMap> {
    let mut fields = HeaderMap::new();
    loop {
        let line = line(rest)?;
        if line.is_empty() {
            return Some(fields);
        }
        // A name of HTTP/2 may begin with a colon, but no header does that reaches a service.
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        fields.append(name, HeaderValue::from_bytes(&line[colon + 1..]).ok()?);
    }
}

fn line<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let (line, after) = (&rest[..end], &rest[end + 1..]);
    *rest = after;
    Some(line)
}

/// Returns whether a header is kept unless the layer is told otherwise.
pub(super) fn is_kept(name: &HeaderName) -> bool {
    [
        header::CACHE_CONTROL,
        header::CONTENT_DISPOSITION,
        header::CONTENT_ENCODING,
        header::CONTENT_LANGUAGE,
        header::CONTENT_LOCATION,
        header::CONTENT_TYPE,
        header::ETAG,
        header::LAST_MODIFIED,
        header::LINK,
        header::LOCATION,
        header::VARY,
    ]
    .contains(name)
        || name.as_str().starts_with("grpc-")
}

/// Returns whether a header is of one connection, of one moment or of one client, so that no other may be given it.
pub(super) fn is_never_kept(name: &HeaderName) -> bool {
    [
        header::AUTHORIZATION,
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::DATE,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        header::SET_COOKIE,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ]
    .contains(name)
        || name == "keep-alive"
}

const FORM: &str = "lock-tower 1";
