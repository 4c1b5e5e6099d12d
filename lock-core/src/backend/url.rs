//! Backends as the builder is told of them: by URL, several URLs of a quorum, or as they are.

use std::{fmt, sync::Arc};

use super::{Backend, MemoryBackend, QuorumBackend, timeouts::Timeouts};
use crate::error::BuildError;

/// What a backend is made of.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Url(RedactedUrl),
    Quorum(Vec<RedactedUrl>),
    Backend(Arc<dyn Backend>),
}

/// A URL that may hold a password.
#[derive(Clone)]
pub(crate) struct RedactedUrl(String);

/// Makes the backend of the only source.
pub(crate) fn backend(
    sources: &[Source],
    client_name: &str,
    timeouts: Timeouts,
) -> Result<Arc<dyn Backend>, BuildError> {
    match sources {
        [] => Err(BuildError::new("no backend was given; call `url`, `quorum` or `backend` before `build`")),
        [first, second, ..] => Err(BuildError::new(format!(
            "there are two backends, one of `{}` and one of `{}`; give one, or all servers to one `quorum`",
            first.method(),
            second.method()
        ))),
        [Source::Backend(backend)] => Ok(Arc::clone(backend)),
        [Source::Url(url)] => url.backend(client_name, timeouts),
        [Source::Quorum(urls)] => quorum(urls, client_name, timeouts),
    }
}

impl Source {
    pub(crate) fn url(url: impl Into<String>) -> Self {
        Self::Url(RedactedUrl(url.into()))
    }

    pub(crate) fn quorum<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Self {
        Self::Quorum(urls.into_iter().map(|url| RedactedUrl(url.as_ref().to_owned())).collect())
    }

    /// The method of the builder that named it.
    fn method(&self) -> &'static str {
        match self {
            Self::Url(_) => "url",
            Self::Quorum(_) => "quorum",
            Self::Backend(_) => "backend",
        }
    }
}

impl RedactedUrl {
    /// Makes the backend that the URL names. Nothing of the URL but its scheme may get into an error.
    fn backend(&self, client_name: &str, timeouts: Timeouts) -> Result<Arc<dyn Backend>, BuildError> {
        let Self(url) = self;
        let Some((scheme, rest)) = url.split_once("://") else {
            let what = if url.is_empty() { "is empty" } else { "has no scheme" };
            return Err(BuildError::new(format!("the URL {what}; use one like redis://127.0.0.1:6379")));
        };
        match scheme {
            "memory" if rest.is_empty() => Ok(Arc::new(MemoryBackend::new())),
            "memory" => Ok(Arc::new(MemoryBackend::named(rest))),
            "redis" | "rediss" | "valkey" | "valkeys" | "unix" => server(url, client_name, timeouts),
            // What cannot be a scheme may be a part that went astray, such as the password.
            _ if !scheme.chars().all(|char| char.is_ascii_alphanumeric() || "+-.".contains(char)) => {
                Err(BuildError::new("the URL does not begin with a scheme; use one like redis://127.0.0.1:6379"))
            }
            _ => Err(BuildError::new(format!(
                "the scheme {scheme:?} is unknown; there are redis, rediss, valkey, valkeys, unix and memory"
            ))),
        }
    }

    /// Where the URL leads: host and port, or the path of a socket. Without user, password, database and options.
    fn place(&self) -> String {
        let (scheme, rest) = self.0.split_once("://").unwrap_or_default();
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        if !matches!(scheme, "redis" | "rediss" | "valkey" | "valkeys") {
            return rest.to_owned();
        }
        let authority = rest.split('/').next().unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default().to_ascii_lowercase();
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        if has_port { host } else { format!("{host}:6379") }
    }
}

impl fmt::Debug for RedactedUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// Makes the backend of several nodes; one alone is that node.
fn quorum(urls: &[RedactedUrl], client_name: &str, timeouts: Timeouts) -> Result<Arc<dyn Backend>, BuildError> {
    let mut nodes = urls.iter().map(|url| url.backend(client_name, timeouts)).collect::<Result<Vec<_>, _>>()?;
    refuse_twice(urls)?;
    Ok(if nodes.len() == 1 { nodes.swap_remove(0) } else { Arc::new(QuorumBackend::new(nodes)?) })
}

/// A server that is named twice has two votes, and a majority may be itself alone. (Nothing of a URL but its number gets
/// into the error.)
fn refuse_twice(urls: &[RedactedUrl]) -> Result<(), BuildError> {
    let places: Vec<_> = urls.iter().map(RedactedUrl::place).collect();
    for (index, place) in places.iter().enumerate() {
        // Each store without a name is another.
        if let Some(first) = places[..index].iter().position(|other| other == place && !place.is_empty()) {
            return Err(BuildError::new(format!(
                "URLs {} and {} of the quorum name the same server; its nodes must be independent of one another",
                first + 1,
                index + 1
            )));
        }
    }
    Ok(())
}

#[cfg(feature = "redis")]
fn server(url: &str, client_name: &str, timeouts: Timeouts) -> Result<Arc<dyn Backend>, BuildError> {
    Ok(Arc::new(super::RedisBackend::with_timeouts(url, client_name, timeouts)?))
}

#[cfg(not(feature = "redis"))]
fn server(_url: &str, _client_name: &str, _timeouts: Timeouts) -> Result<Arc<dyn Backend>, BuildError> {
    Err(BuildError::new("a URL of a Redis server needs the feature `redis` of lock-core, which is off"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn refusal(urls: &[&str]) -> String {
        let error = of(urls).expect_err("no such quorum");
        assert!(!format!("{error} {error:?}").contains("secret"), "no password in an error");
        error.to_string()
    }

    fn of(urls: &[&str]) -> Result<Arc<dyn Backend>, BuildError> {
        let second = Duration::from_secs(1);
        backend(&[Source::quorum(urls)], "test", Timeouts { command: second, connect: second })
    }

    #[test]
    fn bad_input_34_and_36_a_quorum_of_no_nodes_or_of_two_is_refused() {
        assert!(refusal(&[]).contains("a quorum of no nodes"), "{}", refusal(&[]));
        let two = refusal(&["memory://a", "memory://b"]);
        assert!(two.contains("needs both") && two.contains("three"), "{two}");
    }

    #[test]
    fn a_quorum_that_names_a_server_twice_is_refused() {
        for (one, other) in [
            ("memory://a", "memory://a"),
            ("redis://u:secret@Shop", "redis://:secret@shop:6379/3"),
            ("redis://[::1]", "redis://[::1]:6379/1?protocol=resp3"),
            ("unix:///run/redis.sock", "unix:///run/redis.sock?db=2"),
        ] {
            let twice = refusal(&[one, "memory://b", other]);
            assert!(twice.contains("URLs 1 and 3"), "{one}, {other}: {twice}");
        }
        let place = |url: &str| RedactedUrl(url.to_owned()).place();
        assert_ne!(place("redis://a:1"), place("redis://a:2"));
        assert_ne!(place("redis://[::1]:1"), place("redis://[::1]"));
    }

    #[test]
    fn a_wrong_url_among_the_nodes_is_refused() {
        assert!(refusal(&["memory://a", "http://:secret@b", "memory://c"]).contains("\"http\" is unknown"));
        assert!(refusal(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]).contains("no scheme"));
        #[cfg(feature = "redis")]
        refusal(&["redis://u:sec/secret@a", "redis://u:sec/secret@b", "redis://u:sec/secret@c"]);
        assert!(of(&["memory://"; 3]).is_ok(), "three stores");
    }
}
