//! What an error of the server or of the connection means for a request.

use std::{error, fmt, io};

use redis::{ErrorKind as RedisErrorKind, RedisError, ServerErrorKind, Value};

use super::{names::FENCE_COUNTER, source};
use crate::{backend::BackendError, error::ErrorKind};

/// Reads an error of the `redis` crate. `address` is the server's, without user and password.
pub(super) fn of(error: RedisError, address: &str) -> BackendError {
    match error.kind() {
        RedisErrorKind::AuthenticationFailed => denied(error.detail().unwrap_or("no reason given"), address),
        RedisErrorKind::Io => closed(address).with_source(Cause::of(&error)),
        RedisErrorKind::Parse | RedisErrorKind::UnexpectedReturnType => BackendError::new(
            ErrorKind::Backend,
            format!("{address} does not speak the Redis protocol; check host, port and TLS"),
        )
        .with_source(Cause::of(&error)),
        RedisErrorKind::InvalidClientConfig => BackendError::new(ErrorKind::Unsupported, format!("{address}: {error}")),
        _ => {
            let code = error.code().unwrap_or("ERR").to_owned();
            let detail = error.detail().map_or_else(|| error.to_string(), str::to_owned);
            let failure = of_server(&code, &detail, address);
            if failure.kind() == ErrorKind::Backend && error.category().contains("switch database") {
                let message = format!("{address} does not let this user select the database of the URL: {detail}");
                return BackendError::new(ErrorKind::Unsupported, message).did_not_happen();
            }
            failure
        }
    }
}

/// Reads an error of the system, from before anything was said to the server.
pub(super) fn of_stream(error: &io::Error, address: &str) -> BackendError {
    closed(address).with_source(Cause(error.to_string()))
}

/// Reads an error of the name service.
pub(super) fn of_lookup(error: &io::Error, address: &str) -> BackendError {
    let message = format!(
        "{address} could not be reached, as its host name was not found; check the name in the URL, and the name service"
    );
    BackendError::new(ErrorKind::Backend, message).with_source(Cause(error.to_string()))
}

/// The error of a connection that could not be made, or was closed.
pub(super) fn closed(address: &str) -> BackendError {
    BackendError::new(
        ErrorKind::Backend,
        format!("{address} could not be reached, or closed the connection; check that it runs and listens there"),
    )
}

/// The error of a node of a cluster, which keeps only some of the keys, and perhaps not the fencing counter.
pub(super) fn cluster(server: &str) -> BackendError {
    BackendError::new(
        ErrorKind::Unsupported,
        format!(
            "{server} is a node of a Redis Cluster, which lock-core does not support yet; \
             use a server that is not in cluster mode"
        ),
    )
}

/// Reads the message of an error that the script caught.
pub(super) fn of_message(message: &str, address: &str) -> BackendError {
    let (code, detail) = message.split_once(' ').unwrap_or((message, ""));
    of_server(code, detail, address)
}

/// Errors of the connection, as opposed to answers of the server.
pub(super) fn is_broken(error: &RedisError) -> bool {
    matches!(error.kind(), RedisErrorKind::Io | RedisErrorKind::Parse)
}

/// Whether the server is not a primary now, or has no data yet, as after a switchover.
pub(super) fn is_demotion(error: &RedisError) -> bool {
    error.code().is_some_and(|code| DEMOTED.contains(&code))
}

/// Whether a reply to the script holds the error of a server that is not a primary now.
pub(super) fn tells_of_demotion(reply: &Value) -> bool {
    let Value::Array(values) = reply else { return false };
    values.iter().any(|value| match value {
        Value::BulkString(text) => DEMOTED.iter().any(|code| text.starts_with(code.as_bytes())),
        _ => false,
    })
}

/// Whether the script is not in the server's cache.
pub(super) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == RedisErrorKind::Server(ServerErrorKind::NoScript)
}

fn of_server(code: &str, detail: &str, server: &str) -> BackendError {
    // Some errors repeat the arguments of the command, tokens included.
    let detail = detail.split("with args beginning").next().unwrap_or_default().trim_end_matches([' ', ',']);
    // A script that failed half-way has executed the items before.
    let in_script = detail.contains("user_script");
    let known = detail.to_ascii_lowercase();
    let says = |words: &str| known.contains(words);
    let named = source::command_in(detail).map(|command| format!(" ({command})")).unwrap_or_default();
    let detail = detail.split(" script: ").next().unwrap_or_default();
    let error = match code {
        "WRONGTYPE" if says("(xadd)") => BackendError::new(
            ErrorKind::Unsupported,
            format!(
                "{server} does not count fencing tokens in a stream at `{FENCE_COUNTER}`, as when an older version of \
                 lock-core uses it too; stop the older version, then wait a minute or delete that key"
            ),
        )
        .did_not_happen(),
        "WRONGTYPE" => BackendError::new(
            ErrorKind::WrongType,
            "the key holds something that is no lock (a hash, a list, …); it was left untouched, use another key",
        ),
        "WRONGPASS" => denied(detail, server),
        // Of a refused SELECT the code is not known.
        _ if code == "NOAUTH" || says("authentication required") => BackendError::new(
            ErrorKind::Denied,
            format!("{server} wants a password, and the URL has none; write it as in redis://:PASSWORD@HOST:PORT"),
        )
        .did_not_happen(),
        _ if says("no permissions to run") || says("can't run this command") => BackendError::new(
            ErrorKind::Unsupported,
            format!("{server} does not let this user run a command that the lock needs: {detail}{named}"),
        ),
        _ if code == "NOPERM" || says("can't access at least one of the keys") => BackendError::new(
            ErrorKind::Denied,
            format!("{server} does not let this user at the key, or at `{{*}}lock-core:*` beside it: {detail}"),
        ),
        "OOM" => BackendError::new(
            ErrorKind::Backend,
            format!("{server} is out of memory and takes no new locks; raise maxmemory or free keys"),
        ),
        "READONLY" => {
            BackendError::new(ErrorKind::Backend, format!("{server} is a read-only replica; locks need the primary"))
        }
        "CROSSSLOT" | "MOVED" | "ASK" => cluster(server),
        _ if says("unknown command") || says("unknown redis command") => BackendError::new(
            ErrorKind::Unsupported,
            format!("{server} lacks a command that the lock needs: {detail}{named}"),
        ),
        _ if says("db index is out of range") => BackendError::new(
            ErrorKind::Unsupported,
            format!("{server} has no database of that number; check the number after the last / of the URL"),
        ),
        _ if says("not allowed in cluster mode") => cluster(server),
        _ => BackendError::new(ErrorKind::Backend, format!("{server} answered {code}: {detail}")),
    };
    if REFUSED_BEFORE_EXECUTION.contains(&code) && !in_script { error.did_not_happen() } else { error }
}

/// The words of an error of the `redis` crate, which would give them twice, as its own and as its cause's.
#[derive(Debug)]
struct Cause(String);

impl Cause {
    fn of(error: &RedisError) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl error::Error for Cause {}

/// Errors that a command is refused with before it has done anything.
const REFUSED_BEFORE_EXECUTION: [&str; 8] =
    ["BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOAUTH", "NOPERM", "WRONGPASS", "WRONGTYPE"];

/// Errors of a server that is not the primary of its data, or not yet.
const DEMOTED: [&str; 3] = ["LOADING", "MASTERDOWN", "READONLY"];

fn denied(detail: &str, server: &str) -> BackendError {
    BackendError::new(
        ErrorKind::Denied,
        format!("{server} refused the user or the password: {detail}; check both in the URL"),
    )
    .did_not_happen()
}
