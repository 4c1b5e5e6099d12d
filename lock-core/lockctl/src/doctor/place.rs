//! The servers that a URL names. The library has read the URL before, and refused what is wrong with it.

use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError};

/// How to reach a server.
#[derive(Clone)]
pub(super) struct Access {
    pub(super) info: ConnectionInfo,
    pub(super) is_encrypted: bool,
    /// How long connecting and each command may take.
    pub(super) limit: Duration,
}

/// What a URL leads to.
pub(super) enum Place {
    Server(Access),
    /// The primary of a service.
    Service {
        service: String,
        sentinels: Vec<Access>,
        /// How to log in to the servers; the address is that of a sentinel.
        servers: Access,
    },
    /// Some nodes of a cluster.
    Cluster(Vec<Access>),
}

impl Access {
    fn new(scheme: &str, rest: &str, limit: Duration) -> Result<Self, RedisError> {
        let is_encrypted = matches!(scheme, "rediss" | "valkeys");
        // The TLS of the `redis` crate is off: `link.rs` has it, as the library does.
        let scheme = if is_encrypted { "redis" } else { scheme };
        let info = format!("{scheme}://{rest}").into_connection_info()?;
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        Ok(Self { info: info.set_redis_settings(settings), is_encrypted, limit })
    }

    /// Returns how to reach another server of the same users.
    pub(super) fn at(&self, host: &str, port: u16) -> Self {
        let info = self.info.clone().set_addr(ConnectionAddr::Tcp(host.to_owned(), port));
        Self { info, ..self.clone() }
    }

    /// Returns the host, unless the server is behind a socket in the file system.
    pub(super) fn host(&self) -> Option<&str> {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, _) => Some(host),
            _ => None,
        }
    }

    /// Names the server, without user and password.
    pub(super) fn address(&self) -> String {
        self.info.addr().to_string()
    }

    /// Returns the user that the server knows this program by.
    pub(super) fn user(&self) -> &str {
        self.info.redis_settings().username().filter(|user| !user.is_empty()).unwrap_or("default")
    }
}

impl Place {
    pub(super) fn of(url: &str, limit: Duration) -> Result<Self, RedisError> {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let Some((scheme, kind @ ("sentinel" | "cluster"))) = scheme.split_once('+') else {
            return Access::new(scheme, rest, limit).map(Self::Server);
        };
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let option = |name: &str| options.split('&').find_map(|option| option.strip_prefix(name)?.strip_prefix('='));
        let (authority, service) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (format!("{login}@"), hosts),
            None => (String::new(), authority),
        };
        let all = |login: &str, usual: u16| {
            let access = |host: &str| Access::new(scheme, &format!("{login}{}", with_port(host, usual)), limit);
            hosts.split(',').map(access).collect::<Result<Vec<_>, _>>()
        };
        if kind == "cluster" {
            return all(&login, 6_379).map(Self::Cluster);
        }
        let login_of_sentinels = option("sentinel_pass").map_or_else(String::new, |password| {
            format!("{}:{password}@", option("sentinel_user").unwrap_or_default())
        });
        let first = with_port(hosts.split(',').next().unwrap_or_default(), SENTINEL);
        let database = option("db").unwrap_or("0");
        Ok(Self::Service {
            service: service.to_owned(),
            sentinels: all(&login_of_sentinels, SENTINEL)?,
            servers: Access::new(scheme, &format!("{login}{first}/{database}"), limit)?,
        })
    }
}

fn with_port(host: &str, usual: u16) -> String {
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    if has_port { host.to_owned() } else { format!("{host}:{usual}") }
}

/// The usual port of sentinels.
const SENTINEL: u16 = 26_379;
