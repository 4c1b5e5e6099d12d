//! What an error of the server or of the connection means for a request.

use std::{error, fmt};

use redis::{ErrorKind as RedisErrorKind, RedisError, ServerErrorKind};

use crate::{backend::BackendError, error::ErrorKind};

/// Reads an error of the `redis` crate. `address` is the server's, without user and password.
pub(super) fn of(error: RedisError, address: &str) -> BackendError {
    match error.kind() {
        RedisErrorKind::AuthenticationFailed => denied(error.detail().unwrap_or("no reason given"), address),
        RedisErrorKind::Io => BackendError::new(
            ErrorKind::Backend,
            format!("{address} could not be reached, or closed the connection; check that it runs and listens there"),
        )
        .with_source(Cause::of(&error)),
        RedisErrorKind::Parse | RedisErrorKind::UnexpectedReturnType => BackendError::new(
            ErrorKind::Backend,
            format!("{address} does not speak the Redis protocol; check host, port and TLS"),
        )
        .with_source(Cause::of(&error)),
        RedisErrorKind::InvalidClientConfig => BackendError::new(ErrorKind::Unsupported, format!("{address}: {error}")),
        _ => {
            let code = error.code().unwrap_or("ERR").to_owned();
            let detail = error.detail().map_or_else(|| error.to_string(), str::to_owned);
            of_server(&code, &detail, Some(address))
        }
    }
}

/// Reads the message of an error that the script caught.
pub(super) fn of_message(message: &str) -> BackendError {
    let (code, detail) = message.split_once(' ').unwrap_or((message, ""));
    of_server(code, detail, None)
}

/// Whether the script is not in the server's cache.
pub(super) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == RedisErrorKind::Server(ServerErrorKind::NoScript)
}

fn of_server(code: &str, detail: &str, address: Option<&str>) -> BackendError {
    let server = address.unwrap_or("the server");
    // Some errors repeat the arguments of the command, tokens included.
    let detail = detail.split("with args beginning").next().unwrap_or_default().trim_end_matches([' ', ',']);
    let error = match code {
        "WRONGTYPE" => BackendError::new(
            ErrorKind::WrongType,
            "the key holds something that is no lock (a hash, a list, …); it was left untouched, use another key",
        ),
        "NOAUTH" | "WRONGPASS" => denied(detail, server),
        // Of a refused SELECT the code is not known.
        _ if detail.contains("no permissions to run") => BackendError::new(
            ErrorKind::Unsupported,
            format!("{server} does not let this user run a command that the lock needs: {detail}"),
        ),
        "NOPERM" => BackendError::new(
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
        _ if detail.contains("unknown command") => {
            BackendError::new(ErrorKind::Unsupported, format!("{server} lacks a command that the lock needs: {detail}"))
        }
        _ if detail.contains("DB index is out of range") => BackendError::new(
            ErrorKind::Unsupported,
            format!("{server} has no database of that number; check the number after the last / of the URL"),
        ),
        _ if detail.contains("not allowed in cluster mode") => BackendError::new(
            ErrorKind::Unsupported,
            format!("{server} is part of a cluster: {detail}; leave the number after the last / out of the URL"),
        ),
        _ => BackendError::new(ErrorKind::Backend, format!("{server} answered {code}: {detail}")),
    };
    if REFUSED_BEFORE_EXECUTION.contains(&code) { error.did_not_happen() } else { error }
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

fn denied(detail: &str, server: &str) -> BackendError {
    BackendError::new(
        ErrorKind::Denied,
        format!("{server} refused the user or the password: {detail}; check both in the URL"),
    )
    .did_not_happen()
}
