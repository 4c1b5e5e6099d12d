//! How to reach a node: the settings of its URL or client, and those of the builder.

use std::{sync::Arc, time::Duration};

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, io::tcp::TcpSettings};

use super::{
    provider::Provider,
    spelling,
    stream::{self, Address},
    tls::Tls,
};
use crate::{backend::options::ConnectOptions, error::BuildError};

/// How to reach one node.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) address: Address,
    pub(super) access: Arc<Access>,
}

/// Settings that are the same for every node of one URL.
pub(super) struct Access {
    /// How the connection is encrypted, if it is.
    pub(super) tls: Option<Tls>,
    /// User, password and database.
    pub(super) redis: RedisConnectionInfo,
    /// The provider of user and password for each connection.
    pub(super) credentials: Option<Provider>,
    /// The options of a TCP connection.
    pub(super) tcp: TcpSettings,
    /// Whether the URL asks for RESP2.
    pub(super) resp2: bool,
    pub(super) client_name: String,
    /// The limit of one command, reconnecting included.
    pub(super) limit: Duration,
    /// The limit of one attempt to connect.
    pub(super) connect_limit: Duration,
}

/// The URL or client that names a node.
struct Source<'a> {
    /// For messages: a URL, or a client.
    name: &'static str,
    info: &'a ConnectionInfo,
    is_encrypted: bool,
    /// The database, if it is named.
    database: Option<i64>,
    resp2: bool,
}

impl Settings {
    /// Reads a URL. Nothing of it but host and port may get into an error: it may hold a password.
    pub(super) fn from_url(url: &str, options: &ConnectOptions) -> Result<Self, BuildError> {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let is_encrypted = matches!(scheme, "rediss" | "valkeys");
        if is_encrypted && !TLS {
            return Err(BuildError::new(format!("{scheme}:// needs the feature `tls` of lock-core, which is off")));
        }
        let info = parse(url, is_encrypted)?;
        let (place, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let mut parameters = parameters.split('&');
        let names_database = match info.addr() {
            ConnectionAddr::Unix(_) => parameters.clone().any(|parameter| parameter.starts_with("db=")),
            _ => place.split_once('/').is_some_and(|(_, path)| !path.trim_matches('/').is_empty()),
        };
        Self::new(
            Source {
                name: "the URL of the Redis server",
                info: &info,
                is_encrypted,
                database: names_database.then_some(info.redis_settings().db()),
                // The crate's own default is RESP2, so its setting does not tell whether the URL asks for it.
                resp2: parameters.any(|parameter| matches!(parameter, "protocol=resp2" | "protocol=2")),
            },
            options,
        )
    }

    /// Reads what a client of the `redis` crate has. What it trusts cannot be read.
    pub(super) fn from_client(info: &ConnectionInfo, options: &ConnectOptions) -> Result<Self, BuildError> {
        let is_encrypted = match info.addr() {
            ConnectionAddr::TcpTls { .. } if !TLS => {
                return Err(BuildError::new("a client with TLS needs the feature `tls` of lock-core, which is off"));
            }
            ConnectionAddr::TcpTls { insecure: true, .. } if options.tls.is_none() => {
                return Err(BuildError::new(format!(
                    "the client takes any certificate (insecure), so anybody may answer for its server: {CONFIG}"
                )));
            }
            ConnectionAddr::TcpTls { tls_params: Some(_), .. } if options.tls.is_none() => {
                return Err(BuildError::new(format!(
                    "the client has certificates of its own, which cannot be read from it: {CONFIG}"
                )));
            }
            ConnectionAddr::TcpTls { .. } => true,
            _ => false,
        };
        let database = info.redis_settings().db();
        let database = (database != 0).then_some(database);
        // Whether it asks for RESP2 is not known, as that is the crate's default.
        Self::new(Source { name: "the client", info, is_encrypted, database, resp2: false }, options)
    }

    fn new(source: Source<'_>, options: &ConnectOptions) -> Result<Self, BuildError> {
        let address = address(&source)?;
        if options.tls.is_some() && !source.is_encrypted {
            return Err(BuildError::new(match address {
                Address::Tcp { .. } => {
                    "`tls` was given for a connection without TLS; write rediss:// instead of redis://"
                }
                Address::Unix(_) => {
                    "`tls` was given for a socket in the file system, which has no TLS; leave `tls` out"
                }
            }));
        }
        let access = Access {
            tls: source.is_encrypted.then(|| Tls::new(options)),
            redis: user(&source, options)?.set_db(database(&source, options)?),
            credentials: options.credentials.clone(),
            tcp: stream::tcp_settings(source.info.tcp_settings(), options.timeouts.command),
            resp2: source.resp2,
            client_name: options.client_name.clone(),
            limit: options.timeouts.command,
            connect_limit: options.timeouts.connect,
        };
        Ok(Self { address, access: Arc::new(access) })
    }

    /// Returns how to reach another node of the same servers.
    pub(super) fn at(&self, address: Address) -> Self {
        Self { address, access: Arc::clone(&self.access) }
    }
}

/// Adds user and password of the builder to those of the source.
fn user(source: &Source<'_>, options: &ConnectOptions) -> Result<RedisConnectionInfo, BuildError> {
    let name = source.name;
    let mut redis = source.info.redis_settings().clone();
    if let Some(username) = &options.username {
        redis = redis.set_username(username);
    }
    if let Some(password) = &options.password {
        redis = redis.set_password(password);
    }
    let has_user = redis.username().is_some_and(|user| !user.is_empty());
    if options.credentials.is_some() {
        if has_user || redis.password().is_some() {
            return Err(BuildError::new(format!(
                "user and password come from a provider of credentials, and also from {name} or the builder; give only one"
            )));
        }
    } else if has_user && redis.password().is_none() && redis.username() != Some("default") {
        return Err(BuildError::new(format!(
            "{name} or the builder names a user without a password, and the server would take it for its default user; \
             give the password too"
        )));
    }
    Ok(redis)
}

/// Returns the database that the source or the builder names, which must agree if both do.
fn database(source: &Source<'_>, options: &ConnectOptions) -> Result<i64, BuildError> {
    let name = source.name;
    match (source.database, options.database.map(i64::from)) {
        (Some(named), Some(given)) if named != given => {
            Err(BuildError::new(format!("{name} names database {named}, and the builder database {given}; give one")))
        }
        (Some(named), _) if named < 0 => {
            Err(BuildError::new(format!("{name} is wrong: a database number is not negative")))
        }
        (named, given) => Ok(named.or(given).unwrap_or(0)),
    }
}

/// Has the `redis` crate read a URL, after a look at what it would misread.
fn parse(url: &str, tls: bool) -> Result<ConnectionInfo, BuildError> {
    let (_, rest) = url.split_once("://").unwrap_or_default();
    if let Some(what) = spelling::fragment(url) {
        return Err(wrong(what));
    }
    // It would be taken for a part of the path, which is shown.
    let sockets = ["unix://", "redis+unix://", "valkey+unix://"];
    let place = sockets.iter().find_map(|scheme| url.strip_prefix(scheme)).unwrap_or_default();
    if !place.starts_with('/') && place.contains('@') {
        return Err(wrong("a socket has no user and password before an @; write ?user=…&pass=… at the end"));
    }
    // The crate passes over what it does not know, and locks would be in another database than the user thinks.
    let options = url.split_once('?').map_or("", |(_, options)| options);
    if place.is_empty() {
        if let Some(what) = spelling::option(options, &["protocol"]) {
            return Err(wrong(&format!(
                "{what}; the database is written behind the host, redis://HOST/3, user and password before it, and a ? in \
                 a password is %3F"
            )));
        }
        if let Some(what) = spelling::hosts_of_one(rest) {
            return Err(wrong(what));
        }
    } else if let Some(what) = spelling::option(options, &["db", "user", "pass", "protocol"]) {
        return Err(wrong(&what));
    }
    // The TLS of the crate would install a provider for the whole process.
    let plain = tls.then(|| format!("redis://{rest}"));
    plain.as_deref().unwrap_or(url).into_connection_info().map_err(|error| {
        if has_wrong_port(rest) {
            return wrong(
                "the port after the host is not a number from 1 to 65535; in a password, @ : / % # are written %40 %3A \
                 %2F %25 %23",
            );
        }
        if place.is_empty()
            && let Some(what) = spelling::password(rest)
        {
            return wrong(what);
        }
        let what = error.to_string();
        // The crate's own words, up to where it might repeat the input.
        if what.starts_with("Invalid database number") {
            return wrong("the database is not a number; write one, as in redis://HOST/0 or ?db=0");
        }
        wrong(what.split(" - ").next().unwrap_or("it does not parse"))
    })
}

/// Where the server listens.
fn address(source: &Source<'_>) -> Result<Address, BuildError> {
    let wrong = |what: &str| BuildError::new(format!("{} is wrong: {what}", source.name));
    match source.info.addr() {
        ConnectionAddr::Tcp(_, 0) | ConnectionAddr::TcpTls { port: 0, .. } => {
            Err(wrong("port 0 cannot be connected to; the usual one is 6379"))
        }
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Ok(Address::Tcp { host: host.clone(), port: *port })
        }
        ConnectionAddr::Unix(path) => Ok(Address::Unix(path.clone())),
        _ => Err(wrong("this kind of address is not supported")),
    }
}

fn wrong(what: &str) -> BuildError {
    BuildError::new(format!("the URL of the Redis server is wrong: {what}"))
}

/// Returns whether the text after the last `:` of the authority is not a port. It may be part of a password that was not
/// percent-encoded.
fn has_wrong_port(rest: &str) -> bool {
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']') && port.parse::<u16>().is_err())
}

/// Whether there is TLS.
const TLS: bool = cfg!(feature = "tls-no-provider");

/// The remedy for a client whose certificates are not known.
const CONFIG: &str = "give a configuration of rustls to `LockManager::builder().tls(..)`";

#[cfg(test)]
mod tests;
