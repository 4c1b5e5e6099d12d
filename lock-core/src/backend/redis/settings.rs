//! How to reach a node: what its URL says, and what the builder was told.

use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

use super::stream::Place;
use crate::{backend::timeouts::Timeouts, error::BuildError};

/// How to reach the node.
pub(super) struct Settings {
    pub(super) place: Place,
    /// Whether the connection is encrypted.
    pub(super) tls: bool,
    /// User, password and database.
    pub(super) redis: RedisConnectionInfo,
    /// Whether the URL asks for RESP2.
    pub(super) resp2: bool,
    /// Host and port, or the path of the socket: for messages.
    pub(super) address: String,
    pub(super) client_name: String,
    /// The limit of one command, reconnecting included.
    pub(super) limit: Duration,
    /// The limit of one attempt to connect.
    pub(super) connect_limit: Duration,
}

impl Settings {
    /// Reads a URL. Nothing of it but host and port may get into an error: it may hold a password.
    pub(super) fn from_url(url: &str, client_name: &str, timeouts: Timeouts) -> Result<Self, BuildError> {
        let (scheme, _) = url.split_once("://").unwrap_or_default();
        let tls = matches!(scheme, "rediss" | "valkeys");
        if tls && !cfg!(feature = "tls") {
            return Err(BuildError::new(format!("{scheme}:// needs the feature `tls` of lock-core, which is off")));
        }
        let info = parse(url, tls)?;
        let place = place(&info)?;
        if info.redis_settings().db() < 0 {
            return Err(wrong("a database number is not negative"));
        }
        let (_, options) = url.split_once('?').unwrap_or_default();
        Ok(Self {
            address: place.to_string(),
            place,
            tls,
            redis: info.redis_settings().clone(),
            // The crate's own default is RESP2, so its setting does not tell whether the URL asks for it.
            resp2: options.split('&').any(|option| matches!(option, "protocol=resp2" | "protocol=2")),
            client_name: client_name.to_owned(),
            limit: timeouts.command,
            connect_limit: timeouts.connect,
        })
    }
}

/// Has the `redis` crate read a URL, after a look at what it would misread.
fn parse(url: &str, tls: bool) -> Result<ConnectionInfo, BuildError> {
    let (_, rest) = url.split_once("://").unwrap_or_default();
    if url.contains('#') {
        return Err(wrong("it ends with a fragment; a # in a password is written %23"));
    }
    // It would be taken for a part of the path, which is shown.
    let place = url.strip_prefix("unix://").or_else(|| url.strip_prefix("redis+unix://")).unwrap_or_default();
    if place.split('/').next().is_some_and(|before| before.contains('@')) {
        return Err(wrong("a socket has no user and password before an @; write ?user=…&pass=… at the end"));
    }
    // The crate passes over what it does not know, and locks would be in another database than the user thinks.
    let options = url.split_once('?').map_or("", |(_, options)| options);
    let names = options.split('&').map(|option| option.split('=').next().unwrap_or_default());
    if names.clone().any(|name| !name.is_empty() && name != "protocol") && place.is_empty() {
        return Err(wrong(
            "after the ? it has an option other than `protocol`; the database is written behind the host, \
             redis://HOST/3, user and password before it, and a ? in a password is %3F",
        ));
    }
    if names.clone().any(|name| !matches!(name, "" | "db" | "user" | "pass" | "protocol")) {
        return Err(wrong("after the ? it has an option other than `db`, `user`, `pass` and `protocol`"));
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
        let what = error.to_string();
        // The crate's own words, up to where it might repeat the input.
        wrong(what.split(" - ").next().unwrap_or("it does not parse"))
    })
}

/// Where the server listens.
fn place(info: &ConnectionInfo) -> Result<Place, BuildError> {
    match info.addr() {
        ConnectionAddr::Tcp(_, 0) => Err(wrong("port 0 cannot be connected to; the usual one is 6379")),
        ConnectionAddr::Tcp(host, port) => Ok(Place::Tcp { host: host.clone(), port: *port }),
        ConnectionAddr::Unix(path) => Ok(Place::Unix(path.clone())),
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
