//! Whether a form was sent from a page of this service.

use http::{HeaderMap, HeaderName, Uri, header};

/// Returns whether the browser says that a request comes from a page of the same origin, or why not.
///
/// Browsers send `Sec-Fetch-Site` over TLS and to the local host, and `Origin` with each form, and scripts cannot change
/// either. A request with neither header is refused: it is not from a browser of today. (Go's `http.CrossOriginProtection` works
/// likewise.) There is no token in the form. It would be known to one process only, and behind a load balancer another one
/// may receive the form.
pub(super) fn same_origin(headers: &HeaderMap, uri: &Uri) -> Result<(), &'static str> {
    if let Some(site) = headers.get(SEC_FETCH_SITE) {
        return if site == "same-origin" { Ok(()) } else { Err("the form was sent from another site") };
    }
    let Some(origin) = headers.get(header::ORIGIN) else {
        return Err("the request has neither a Sec-Fetch-Site nor an Origin header");
    };
    let host = match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => headers.get(header::HOST).and_then(|host| host.to_str().ok()),
    };
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    match (origin, host) {
        (Some((_, origin)), Some(host)) if origin.eq_ignore_ascii_case(host) => Ok(()),
        _ => Err("the form was sent from another site, or a proxy has changed the Host header"),
    }
}

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn is_accepted(headers: &[(&'static str, &'static str)], uri: &'static str) -> bool {
        let headers =
            headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        same_origin(&headers.collect(), &Uri::from_static(uri)).is_ok()
    }

    #[test]
    fn only_the_own_pages_may_send_forms() {
        let host = ("host", "ops.example.com:8443");
        let own = ("origin", "https://ops.example.com:8443");
        assert!(is_accepted(&[host, ("sec-fetch-site", "same-origin")], "/"));
        assert!(is_accepted(&[host, own], "/"));
        assert!(is_accepted(&[own], "https://OPS.example.com:8443/locks"), "HTTP/2 has the host in its URI");
        for site in ["cross-site", "same-site", "none", ""] {
            assert!(!is_accepted(&[host, own, ("sec-fetch-site", site)], "/"), "{site}");
        }
        let others =
            ["null", "https://evil.example", "https://ops.example.com", "https://ops.example.com:8443.evil.example"];
        for origin in others {
            assert!(!is_accepted(&[host, ("origin", origin)], "/"), "{origin}");
        }
        assert!(!is_accepted(&[host], "/") && !is_accepted(&[own], "/") && !is_accepted(&[], "/"));
    }
}
