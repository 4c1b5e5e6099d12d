//! The backends of a builder: by URL, by the URLs of a quorum, or given directly.

use std::sync::Arc;

use super::{
    Backend, MemoryBackend, QuorumBackend,
    host::{SENTINEL_PORT, with_port},
    options::ConnectOptions,
};
use crate::error::BuildError;

/// The description of a backend.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Url(RedactedUrl),
    Quorum(Vec<RedactedUrl>),
    /// The connection info of a client of the `redis` crate.
    #[cfg(feature = "redis")]
    Client(Box<::redis::ConnectionInfo>),
    Backend(Arc<dyn Backend>),
}

/// A URL that may hold a password.
#[derive(Clone)]
pub(crate) struct RedactedUrl(String);

/// Makes the backend of the only source.
pub(crate) fn backend(sources: &[Source], options: &ConnectOptions) -> Result<Arc<dyn Backend>, BuildError> {
    if let [source] = sources
        && let Some(method) = options.needs_sentinels()
        && source.lacks_sentinels()
    {
        return Err(BuildError::new(format!(
            "`{method}` is for sentinels, and none are named; write redis+sentinel://HOST,HOST,HOST/SERVICE, or leave it out"
        )));
    }
    match sources {
        [] => Err(BuildError::new(
            "no backend was given; call `url`, `quorum`, `client`, `connection_info` or `backend` before `build`",
        )),
        [first, second, ..] => Err(BuildError::new(format!(
            "there are two backends, one of `{}` and one of `{}`; give one, or all servers to one `quorum`",
            first.method(),
            second.method()
        ))),
        [Source::Backend(backend)] => match options.needs_a_server() {
            None => Ok(Arc::clone(backend)),
            Some(method) => Err(BuildError::new(format!(
                "`{method}` is for a connection that the manager makes, and `backend` brings its own; leave one out"
            ))),
        },
        #[cfg(feature = "redis")]
        [Source::Client(client)] => Ok(Arc::new(super::RedisBackend::like(client, options)?)),
        [Source::Url(url)] => url.backend(options),
        [Source::Quorum(urls)] => quorum(urls, options),
    }
}

impl Source {
    pub(crate) fn url(url: impl Into<String>) -> Self {
        Self::Url(RedactedUrl(url.into()))
    }

    pub(crate) fn quorum<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Self {
        Self::Quorum(urls.into_iter().map(|url| RedactedUrl(url.as_ref().to_owned())).collect())
    }

    /// Whether it names servers, and no sentinels of any. (An own backend has an error of its own.)
    fn lacks_sentinels(&self) -> bool {
        let urls = match self {
            Self::Url(url) => std::slice::from_ref(url),
            Self::Quorum(urls) => urls,
            #[cfg(feature = "redis")]
            Self::Client(_) => return true,
            Self::Backend(_) => return false,
        };
        let has_scheme =
            |url: &RedactedUrl, is: fn(&str) -> bool| url.0.split_once("://").is_some_and(|(name, _)| is(name));
        !urls.iter().any(|url| has_scheme(url, |name| name.ends_with("+sentinel")))
            && !urls.iter().all(|url| has_scheme(url, |name| name == "memory"))
    }

    /// The method of the builder that named it.
    fn method(&self) -> &'static str {
        match self {
            Self::Url(_) => "url",
            Self::Quorum(_) => "quorum",
            #[cfg(feature = "redis")]
            Self::Client(_) => "client",
            Self::Backend(_) => "backend",
        }
    }
}

impl RedactedUrl {
    /// Makes the backend that the URL names. Nothing of the URL but its scheme may get into an error.
    fn backend(&self, options: &ConnectOptions) -> Result<Arc<dyn Backend>, BuildError> {
        let Self(url) = self;
        let Some((scheme, rest)) = url.split_once("://") else {
            let what = match url.split_once(':') {
                _ if url.is_empty() => "is empty",
                Some((scheme, _)) if scheme == "memory" || is_server(scheme) => "lacks :// behind its scheme",
                _ => "has no scheme",
            };
            return Err(BuildError::new(format!("the URL {what}; use one like redis://127.0.0.1:6379")));
        };
        match scheme {
            "memory" if rest.is_empty() => Ok(Arc::new(MemoryBackend::new())),
            "memory" => Ok(Arc::new(MemoryBackend::named(rest))),
            _ if is_server(scheme) => server(url, options),
            // A text that cannot be a scheme may be another part that went astray, such as the password, so it is not shown.
            _ if !scheme.chars().all(|char| char.is_ascii_alphanumeric() || "+-.".contains(char)) => {
                Err(BuildError::new("the URL does not begin with a scheme; use one like redis://127.0.0.1:6379"))
            }
            _ => Err(BuildError::new(format!(
                "the scheme {scheme:?} is unknown; there are redis, rediss, valkey, valkeys (each also with +sentinel or \
                 +cluster), unix and memory"
            ))),
        }
    }

    /// Where the URL leads: host and port, the sentinels and the service, or the path of a socket. Without user, password,
    /// database and options.
    fn place(&self) -> String {
        let (scheme, rest) = self.0.split_once("://").unwrap_or_default();
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        if !matches!(scheme, "redis" | "rediss" | "valkey" | "valkeys") && !names_several(scheme) {
            return rest.to_owned();
        }
        let (authority, service) = rest.split_once('/').unwrap_or((rest, ""));
        let hosts = authority.rsplit('@').next().unwrap_or_default().to_ascii_lowercase();
        if !names_several(scheme) {
            return with_port(&hosts, 6_379);
        }
        let mut hosts: Vec<_> = hosts.split(',').map(|host| with_port(host, SENTINEL_PORT)).collect();
        hosts.sort_unstable();
        format!("{}/{service}", hosts.join(","))
    }

    fn is_cluster(&self) -> bool {
        self.0.split_once("://").is_some_and(|(scheme, _)| scheme.ends_with("+cluster"))
    }
}

says! { Debug for RedactedUrl: _this => "…" }

/// Whether a scheme is that of a server, of sentinels or of a cluster.
fn is_server(scheme: &str) -> bool {
    matches!(scheme, "redis" | "rediss" | "valkey" | "valkeys" | "unix" | "redis+unix" | "valkey+unix")
        || names_several(scheme)
}

/// Whether a scheme is that of sentinels or of a cluster.
fn names_several(scheme: &str) -> bool {
    matches!(scheme.split_once('+'), Some(("redis" | "rediss" | "valkey" | "valkeys", "sentinel" | "cluster")))
}

/// Makes the backend of several nodes; one alone is that node.
fn quorum(urls: &[RedactedUrl], options: &ConnectOptions) -> Result<Arc<dyn Backend>, BuildError> {
    let mut nodes = urls.iter().map(|url| url.backend(options)).collect::<Result<Vec<_>, _>>()?;
    refuse_twice(urls)?;
    if nodes.len() > 1 && urls.iter().any(RedactedUrl::is_cluster) {
        return Err(BuildError::new("a cluster cannot be a node of a quorum; name servers that are independent"));
    }
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
fn server(url: &str, options: &ConnectOptions) -> Result<Arc<dyn Backend>, BuildError> {
    Ok(Arc::new(super::RedisBackend::with_options(url, options)?))
}

#[cfg(not(feature = "redis"))]
fn server(_url: &str, _options: &ConnectOptions) -> Result<Arc<dyn Backend>, BuildError> {
    Err(BuildError::new("a URL of a Redis server needs the feature `redis` of lock-core, which is off"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::timeouts::Timeouts;

    fn refusal(urls: &[&str]) -> String {
        let error = of(urls).expect_err("no such quorum");
        assert!(!format!("{error} {error:?}").contains("secret"), "no password in an error");
        error.to_string()
    }

    fn of(urls: &[&str]) -> Result<Arc<dyn Backend>, BuildError> {
        let second = Duration::from_secs(1);
        let timeouts = Timeouts { command: second, connect: second };
        backend(&[Source::quorum(urls)], &ConnectOptions::new("test", timeouts))
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
            ("unix:///run/redis.sock", "redis+unix:///run/redis.sock?db=2"),
            ("redis+sentinel://:secret@a,B/shop", "redis+sentinel://b:26379,a/shop?db=2"),
        ] {
            let twice = refusal(&[one, "memory://b", other]);
            assert!(twice.contains("URLs 1 and 3"), "{one}, {other}: {twice}");
        }
        let place = |url: &str| RedactedUrl(url.to_owned()).place();
        assert_ne!(place("redis://a:1"), place("redis://a:2"));
        assert_ne!(place("redis://[::1]:1"), place("redis://[::1]"));
    }

    #[test]
    fn a_password_of_sentinels_without_sentinels_is_refused() {
        let second = Duration::from_secs(1);
        let mut options = ConnectOptions::new("test", Timeouts { command: second, connect: second });
        options.sentinel_password = Some("secret".to_owned());
        let made = |source: Source| backend(&[source], &options).map(drop).map_err(|error| error.to_string());
        for source in [Source::url("redis://a"), Source::url("redis+cluster://a"), Source::quorum(["redis://a"; 3])] {
            let error = made(source).expect_err("no sentinels");
            assert!(error.contains("`sentinel_password` is for sentinels") && !error.contains("secret"), "{error}");
        }
        let own = made(Source::Backend(Arc::new(MemoryBackend::new()))).expect_err("an own backend");
        assert!(own.contains("`sentinel_password` is for a connection"), "{own}");
        assert_eq!(made(Source::url("memory://")), Ok(()), "as it ignores a password");
        #[cfg(feature = "redis")]
        assert_eq!(made(Source::url("redis+sentinel://a/shop")), Ok(()));
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_cluster_among_the_nodes_is_refused() {
        let cluster = "redis+cluster://:secret@a,b";
        assert!(refusal(&["redis://c", cluster, "redis://d"]).contains("a cluster cannot be a node"));
        assert!(of(&[cluster]).is_ok(), "no quorum");
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
