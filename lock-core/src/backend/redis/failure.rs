//! The meaning of an error of the server or of the connection for a request.

use std::io;

use redis::{ErrorKind as RedisErrorKind, RedisError, ServerErrorKind, Value};

use super::source;
use crate::{backend::BackendError, error::ErrorKind};

/// Reads an error of the `redis` crate. `address` is the server's, without user and password.
pub(super) fn of(error: RedisError, address: &str) -> BackendError {
    match error.kind() {
        RedisErrorKind::AuthenticationFailed => denied(error.detail().unwrap_or("no reason given"), address),
        RedisErrorKind::Io => closed(address).with_source(cause(&error)),
        RedisErrorKind::Parse | RedisErrorKind::UnexpectedReturnType => {
            BackendError::unavailable(format!("{address} does not speak the Redis protocol; check host, port and TLS"))
                .with_source(cause(&error))
        }
        RedisErrorKind::InvalidClientConfig => BackendError::unsupported(format!("{address}: {error}")),
        _ => {
            let code = error.code().unwrap_or("ERR").to_owned();
            let detail = error.detail().map_or_else(|| error.to_string(), str::to_owned);
            of_server(&code, &detail, address)
        }
    }
}

/// Reads an error of the `redis` crate, from a login with the credentials of a provider.
pub(super) fn of_login(error: RedisError, address: &str) -> BackendError {
    let detail = sentence(error.detail().unwrap_or("no reason given")).to_owned();
    let error = of(error, address);
    if error.kind() != ErrorKind::Denied {
        return error;
    }
    let message = format!(
        "{address} refused the credentials of the provider: {detail}; check that they have not expired, and are for this server"
    );
    BackendError::denied(message).did_not_happen()
}

/// Reads an error of the `redis` crate from a sentinel, whose user and password are not those of the servers.
pub(super) fn of_sentinel(error: RedisError, address: &str) -> BackendError {
    let is_missing = is_no_password(error.code().unwrap_or_default(), error.detail().unwrap_or_default());
    let detail = sentence(error.detail().unwrap_or("no reason given")).to_owned();
    let error = of(error, address);
    let message = match error.kind() {
        ErrorKind::Denied if is_missing => format!(
            "the sentinel {address} requires a password; add ?sentinel_pass=PASSWORD to the URL, or give it to the builder \
             (sentinel_password); the one before the @ is that of the servers"
        ),
        ErrorKind::Denied => format!(
            "the sentinel {address} refused the name or the password of sentinel_user and sentinel_pass ({detail}); check \
             both, in the URL or where the builder is given them (sentinel_username, sentinel_password)"
        ),
        _ => return error,
    };
    BackendError::denied(message).did_not_happen()
}

/// Reads an error of the provider of credentials.
pub(super) fn of_provider(error: &RedisError, address: &str) -> BackendError {
    no_credentials("failed", address).with_source(cause(error))
}

/// The error of a connection that cannot be made, since there are no credentials: the provider did `what`.
pub(super) fn no_credentials(what: &str, address: &str) -> BackendError {
    let message =
        format!("the provider of credentials for {address} {what}; check the provider and the service that it calls");
    BackendError::unavailable(message).did_not_happen()
}

/// The source of a server's address that is not in a URL.
#[derive(Clone, Copy, Debug)]
pub(super) enum Named<'a> {
    /// Sentinels, as the primary of this service.
    BySentinels(&'a str),
    ByCluster,
}

/// Reads an error of the system, from before anything was said to the server.
pub(super) fn of_stream(error: &io::Error, address: &str, named: Option<Named<'_>>) -> BackendError {
    unreachable(address, named, "could not be reached").with_source(cause(error))
}

/// The error of a connection that could not be made: the server did, or could not, `what`.
pub(super) fn unreachable(address: &str, named: Option<Named<'_>>, what: &str) -> BackendError {
    let message = match named {
        None => return closed(address),
        Some(Named::BySentinels(service)) => format!(
            "{address}, which the sentinels name as the primary of {service:?}, {what}; check that it runs, and that they \
             name an address that this machine can reach (sentinel announce-ip)"
        ),
        Some(Named::ByCluster) => format!(
            "{address}, which the cluster names for some of its slots, {what}; check that it runs, and that the nodes \
             announce an address that this machine can reach (cluster-announce-ip)"
        ),
    };
    BackendError::unavailable(message)
}

/// Reads an error of a DNS lookup.
pub(super) fn of_lookup(error: &io::Error, address: &str, named: Option<Named<'_>>) -> BackendError {
    let (named, name) = match named {
        None => (String::new(), "the name in the URL"),
        Some(Named::BySentinels(service)) => (
            format!(", which the sentinels name as the primary of {service:?},"),
            "the name that the sentinels know it by",
        ),
        Some(Named::ByCluster) => {
            let named = ", which the cluster names for some of its slots,".to_owned();
            (named, "the name that the nodes announce (cluster-announce-hostname)")
        }
    };
    let message = format!("{address}{named} could not be reached: host name not found; check {name}, and the DNS");
    BackendError::unavailable(message).with_source(cause(error))
}

/// The error of a connection that could not be made, or was closed.
pub(super) fn closed(address: &str) -> BackendError {
    BackendError::unavailable(format!(
        "{address} could not be reached, or closed the connection; check that it runs and listens there"
    ))
}

/// The error of a node of a cluster, which keeps only some of the keys, and perhaps not the fencing counter.
pub(super) fn cluster(server: &str) -> BackendError {
    BackendError::unsupported(format!(
        "{server} is a node of a Redis Cluster; write redis+cluster://HOST,HOST,HOST with some of its nodes, from which \
             the others are found"
    ))
}

/// Reads the message of an error that the script caught.
pub(super) fn of_message(message: &str, address: &str) -> BackendError {
    let (code, detail) = message.split_once(' ').unwrap_or((message, ""));
    of_server(code, detail, address)
}

/// Makes one error of the errors of several servers, none of which did `what`; `None` if there is no error. An error that an
/// operator has to act on counts more than that of a server that was not reached.
pub(super) fn of_several(errors: &[BackendError], what: &str) -> Option<BackendError> {
    let lasting = errors.iter().find(|error| error.kind() != ErrorKind::Backend);
    // One server that is wrong may be replaced by another that was not reached now.
    let is_final = errors.iter().all(|error| error.kind() != ErrorKind::Backend);
    lasting.or_else(|| errors.last()).map(|error| match is_final {
        true => error.clone(),
        false => BackendError::unavailable(format!("{what}: {error}")).with_source_of(error),
    })
}

/// Errors of the connection, as opposed to answers of the server.
pub(super) fn is_broken(error: &RedisError) -> bool {
    matches!(error.kind(), RedisErrorKind::Io | RedisErrorKind::Parse)
}

/// Whether the server is not a primary now, or has no data yet, as after a switchover.
pub(super) fn is_demotion(error: &RedisError) -> bool {
    let code = error.code().unwrap_or_default();
    DEMOTED.contains(&code) || in_script(code, error.detail().unwrap_or_default()).is_some_and(is_of_demoted)
}

fn is_of_demoted(message: &str) -> bool {
    DEMOTED.iter().any(|code| message.starts_with(code))
}

/// The error of a command that the script called, in front of which Redis 6 writes lines of the script:
/// `@user_script: 298: -READONLY …`.
fn in_script<'a>(code: &str, detail: &'a str) -> Option<&'a str> {
    let (before, error) = detail.split_once(": -")?;
    (code.starts_with("@user_script") || before.contains("@user_script")).then_some(error)
}

/// Whether a reply to the script holds the error of a server that is not a primary now.
pub(super) fn tells_of_demotion(reply: &Value) -> bool {
    let Value::Array(values) = reply else { return false };
    values.iter().any(|value| match value {
        Value::BulkString(text) => {
            str::from_utf8(text).is_ok_and(|text| is_of_demoted(in_script("", text).unwrap_or(text)))
        }
        _ => false,
    })
}

/// Whether the script is not in the server's cache.
pub(super) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == RedisErrorKind::Server(ServerErrorKind::NoScript)
}

fn of_server(code: &str, detail: &str, server: &str) -> BackendError {
    let detail = sentence(detail);
    // A script that failed half-way has executed the items before.
    let within = in_script(code, detail);
    let is_in_script = within.is_some() || detail.contains("user_script");
    let known = detail.to_ascii_lowercase();
    let says = |words: &str| known.contains(words);
    let named = source::command_in(detail).map(|command| format!(" ({command})")).unwrap_or_default();
    let (code, detail) = within.map_or((code, detail), |within| within.split_once(' ').unwrap_or((within, "")));
    // Since Redis 8 and Valkey 8 the reason comes behind these words.
    let detail = detail.strip_prefix("ACL failure in script: ").unwrap_or(detail);
    let detail = sentence(detail.split(" script: ").next().unwrap_or_default());
    let error = match code {
        "WRONGTYPE" if says("(xadd)") => BackendError::unsupported(format!(
            "{server} has no stream of fencing tokens at `{{*}}lock-core:fence`, probably because an older version of \
                 lock-core uses it too; stop the older version, then wait a minute or delete that key"
        ))
        .did_not_happen(),
        "WRONGTYPE" => BackendError::wrong_type(
            "the key holds a value that is not a lock (a hash, a list, …) and was left untouched; use another key",
        ),
        "WRONGPASS" => denied(detail, server),
        _ if is_no_password(code, detail) => BackendError::denied(format!(
            "{server} requires a password, and none was given; write it in the URL, as in redis://:PASSWORD@HOST:PORT, or \
             give it to the builder"
        ))
        .did_not_happen(),
        _ if says("no permissions to run") || says("can't run this command") => BackendError::unsupported(format!(
            "{server} does not allow this user a command that the lock needs: {detail}{named}{RIGHTS}"
        )),
        _ if code == "NOPERM" || says("can't access at least one of the keys") => BackendError::denied(format!(
            "{server}: this user may not access the key (with the manager's prefix) or the `{{*}}lock-core:*` keys: {detail}{RIGHTS}"
        )),
        "OOM" => BackendError::unavailable(format!(
            "{server} is out of memory and accepts no new locks; raise maxmemory or free keys"
        )),
        "READONLY" => BackendError::unavailable(format!("{server} is a read-only replica; connect to the primary")),
        "CROSSSLOT" | "MOVED" | "ASK" => cluster(server),
        _ if says("unknown command") || says("unknown redis command") => {
            BackendError::unsupported(format!("{server} lacks a command that the lock needs: {detail}{named}"))
        }
        _ if says("db index is out of range") => BackendError::unsupported(format!(
            "{server} has no database with that number; check the number, after the last / of the URL or \
                 where the builder is given it"
        )),
        _ if says("not allowed in cluster mode") => cluster(server),
        _ => BackendError::unavailable(format!("{server} answered {code}: {detail}")),
    };
    if REFUSED_BEFORE_EXECUTION.contains(&code) && !is_in_script { error.did_not_happen() } else { error }
}

/// The words of an error of the `redis` crate, which would give them twice, as its own and as its cause's.
fn cause(error: &impl ToString) -> io::Error {
    io::Error::other(error.to_string())
}

/// Where to look when a user may not do something.
const RIGHTS: &str = "; grant the rights that docs/protocol.md lists";

/// Errors that a command is refused with before it has done anything.
const REFUSED_BEFORE_EXECUTION: [&str; 8] =
    ["BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOAUTH", "NOPERM", "WRONGPASS", "WRONGTYPE"];

/// Errors of a server that is not the primary of its data, or not yet.
const DEMOTED: [&str; 3] = ["LOADING", "MASTERDOWN", "READONLY"];

/// The message of a server without its full stop, since our sentence continues, and without the arguments of the command that some errors
/// repeat: they may be a token or a password.
pub(super) fn sentence(detail: &str) -> &str {
    detail.split("with args beginning").next().unwrap_or_default().trim_end_matches(['.', ' ', ','])
}

fn denied(detail: &str, server: &str) -> BackendError {
    let detail = sentence(detail);
    BackendError::denied(format!(
        "{server} refused the user or the password: {detail}; check both, in the URL or where the builder is given them"
    ))
    .did_not_happen()
}

/// Whether the server requires a password. The code of a refused SELECT is not known.
fn is_no_password(code: &str, detail: &str) -> bool {
    code == "NOAUTH" || detail.to_ascii_lowercase().contains("authentication required")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_stands_in_no_url_is_explained() {
        let (silent, unknown) = ("did not answer within 1s", io::Error::other("no such host"));
        let words = |error: BackendError| error.to_string();
        assert_eq!(
            words(unreachable("a:1", Some(Named::BySentinels("shop")), silent)),
            "a:1, which the sentinels name as the primary of \"shop\", did not answer within 1s; check that it runs, and that \
             they name an address that this machine can reach (sentinel announce-ip)"
        );
        assert_eq!(
            words(unreachable("a:1", Some(Named::ByCluster), silent)),
            "a:1, which the cluster names for some of its slots, did not answer within 1s; check that it runs, and that the \
             nodes announce an address that this machine can reach (cluster-announce-ip)"
        );
        assert_eq!(
            words(of_lookup(&unknown, "a:1", Some(Named::ByCluster))),
            "a:1, which the cluster names for some of its slots, could not be reached: host name not found; check \
             the name that the nodes announce (cluster-announce-hostname), and the DNS"
        );
        assert_eq!(
            words(of_lookup(&unknown, "a:1", Some(Named::BySentinels("shop")))),
            "a:1, which the sentinels name as the primary of \"shop\", could not be reached: host name not found; check the \
             name that the sentinels know it by, and the DNS"
        );
    }

    #[test]
    fn an_error_that_repeats_the_arguments_of_its_command_shows_no_password() {
        let words = "unknown command 'AUTH', with args beginning with: 'secret', ";
        let error = || RedisError::from((RedisErrorKind::AuthenticationFailed, "the login failed", words.to_owned()));
        for error in [
            of(error(), "a:1"),
            of_login(error(), "a:1"),
            of_sentinel(error(), "a:1"),
            of_message(&format!("ERR {words}"), "a:1"),
        ] {
            let error = error.to_string();
            assert!(!error.contains("secret") && error.contains("AUTH"), "{error}");
        }
    }

    #[test]
    fn a_sentence_of_the_server_loses_its_full_stop_where_ours_goes_on() {
        for message in [
            "WRONGPASS invalid username-password pair or user is disabled.",
            "NOPERM No permissions to access a key.",
            "NOPERM this user has no permissions to run the 'get' command.",
            "ERR unknown command 'EVALSHA'.",
        ] {
            let error = of_message(message, "server:6379").to_string();
            assert!(!error.contains(".;") && !error.contains(". ") && !error.ends_with('.'), "{error}");
        }
    }

    #[test]
    fn an_error_in_the_script_is_read_in_the_words_of_each_version() {
        let lines = "Error running script (call to f_1a2b): @user_script:79: @user_script: 79: ";
        for (message, kind, words) in [
            (
                "@user_script:: 298: -READONLY You can't write against a read only replica.",
                ErrorKind::Backend,
                "is a read-only",
            ),
            (&format!("ERR {lines}-READONLY You can't write."), ErrorKind::Backend, "is a read-only"),
            ("@user_script:: 298: -OOM command not allowed", ErrorKind::Backend, "out of memory"),
            (&format!("ERR {lines}-WRONGTYPE Operation against a key"), ErrorKind::WrongType, "not a lock"),
            (
                "ERR ACL failure in script: User l has no permissions to run the 'set' command script: d223, on @user_script:1.",
                ErrorKind::Unsupported,
                "User l has no permissions to run the 'set' command; grant",
            ),
        ] {
            let error = of_message(message, "server:6379");
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(words), "{error}");
            assert!(error.may_have_happened(), "a script may have done something before: {error}");
        }
        let told = |text: &str| tells_of_demotion(&Value::Array(vec![Value::BulkString(text.as_bytes().to_vec())]));
        assert!(told("READONLY You can't write") && told("@user_script:: 298: -READONLY You can't write"));
        assert!(!told("@user_script:: 298: -OOM command not allowed") && !told("1: -READONLY"));
    }

    #[test]
    fn a_user_who_may_not_is_told_where_the_rights_stand() {
        for message in ["NOPERM No permissions to access a key", "NOPERM this user has no permissions to run 'get'"] {
            let error = of_message(message, "server:6379").to_string();
            assert!(error.ends_with("; grant the rights that docs/protocol.md lists"), "{error}");
        }
    }
}
