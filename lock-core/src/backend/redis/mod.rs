//! Redis as the backend: one node.

mod advice;
mod attempts;
mod call;
mod connection;
mod connector;
mod failure;
mod free;
mod handshake;
mod info;
mod link;
mod names;
mod pauses;
mod renewals;
mod reply;
mod script;
mod settings;
mod source;
mod status;
mod stream;
#[cfg(test)]
mod tests;
mod upkeep;

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use redis::{Cmd, FromRedisValue, from_redis_value};
use tokio::{runtime::Handle, task::coop::unconstrained, time::Instant};

use self::{
    connector::{Connector, Unanswered},
    settings::Settings,
};
use super::{
    Answer, Backend, BackendError, Batch, Calls, Reply,
    timeouts::{CONNECT_TIMEOUT, Timeouts},
    token::TOKEN_MARK,
};
use crate::{
    error::{BuildError, ErrorKind},
    health::NodeHealth,
    key::LockKey,
};

/// A store of leases in one Redis server: what [`LockManager::connect`](crate::LockManager::connect) makes of a
/// `redis://`, `rediss://` or `unix://` URL.
///
/// It has one connection, made and kept by [`upkeep`](Backend::upkeep). Clones share it. Most programs never name it;
/// it is public to be wrapped by another backend, and for the conformance suite.
#[derive(Clone, Debug)]
pub struct RedisBackend {
    connector: Arc<Connector>,
}

impl RedisBackend {
    /// Reads a `redis://`, `rediss://` or `unix://` URL, without any I/O. `client_name` is shown in the server's
    /// `CLIENT LIST`; `command_timeout` is the limit of one request, reconnecting included. An attempt to connect may
    /// take 5 s.
    ///
    /// # Errors
    /// [`BuildError`] when the URL is wrong, or needs the feature `tls` and it is off, or the timeout is out of range.
    pub fn from_url(url: &str, client_name: &str, command_timeout: Duration) -> Result<Self, BuildError> {
        Self::with_timeouts(url, client_name, Timeouts::new(command_timeout, CONNECT_TIMEOUT)?)
    }

    /// Makes a backend with timeouts that are in range.
    pub(crate) fn with_timeouts(url: &str, client_name: &str, timeouts: Timeouts) -> Result<Self, BuildError> {
        let settings = Settings::from_url(url, client_name, timeouts)?;
        Ok(Self { connector: Arc::new(Connector::new(settings)) })
    }
}

impl Backend for RedisBackend {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        let connector = Arc::clone(&self.connector);
        // What is polled first is sent first, and an answer that is there counts, however much else the task has done.
        Reply::new(unconstrained(async move {
            let answer = match batch.is_empty() {
                true => sign_of_life(&connector).await,
                false => call::call(&connector, batch).await,
            };
            connector.status.note_all(&answer);
            answer
        }))
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        let connector = Arc::clone(&self.connector);
        Reply::new(async move { list(&connector, &prefix).await })
    }

    fn epoch(&self) -> u64 {
        self.connector.link.epoch()
    }

    /// Not where a waiter that is told has the engine's only thread, and could keep it until the little time is over that
    /// its grant gives.
    fn grants_leases(&self) -> bool {
        Handle::try_current().is_ok_and(|runtime| runtime.metrics().num_workers() > 1)
    }

    fn is_reachable(&self) -> bool {
        self.connector.link.is_up()
    }

    fn time_limit(&self) -> Duration {
        self.connector.limit()
    }

    fn identity(&self) -> Option<Arc<str>> {
        self.connector.link.run().map(|run| run.as_str().into())
    }

    fn health(&self) -> Vec<NodeHealth> {
        vec![self.connector.health()]
    }

    fn upkeep(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(upkeep::keep(Arc::clone(&self.connector), calls))
    }
}

/// Sends a PING if there is a connection, and else waits for one, whose handshake the server answers.
///
/// Connecting takes several round trips, so it has its own limit, and ends as soon as the server is known to be down.
async fn sign_of_life(connector: &Connector) -> Result<Answer, BackendError> {
    if connector.link.is_up() {
        query::<redis::Value>(connector, &redis::cmd("PING")).await?;
    } else {
        let limit = connector.settings.connect_limit.max(connector.limit());
        let (begun, really) = (Instant::now(), std::time::Instant::now());
        let connected = connector.connection(0, begun + limit).await;
        // No server can be quick enough for a clock that leaps to the next timer.
        connected.map_err(|error| match begun.elapsed() > 2 * really.elapsed() + PAUSED_BEYOND {
            true => BackendError::new(
                ErrorKind::Backend,
                format!(
                    "{error}; the clock of this tokio runtime is paused, so give the manager a runtime whose clock runs, \
                     with `LockManager::builder().runtime(..)`"
                ),
            )
            .did_not_happen(),
            false => error,
        })?;
    }
    Ok(Answer::new([]))
}

/// Runs a command that may be repeated.
async fn query<T: FromRedisValue>(connector: &Connector, command: &Cmd) -> Result<T, BackendError> {
    let limit = Instant::now() + connector.limit();
    let mut after = 0;
    loop {
        let connection = connector.connection(after, limit).await?;
        after = connection.epoch;
        match connector.send(connection, command, limit).await {
            Ok(reply) => {
                return from_redis_value(reply).map_err(|error| failure::of(error.into(), connector.address()));
            }
            Err(Unanswered::Broken(_)) => {}
            Err(Unanswered::Unsent(error) | Unanswered::Silent(error)) => return Err(error),
            Err(Unanswered::Refused(error)) => return Err(failure::of(error, connector.address())),
        }
    }
}

/// Finds our keys by SCAN, a page at a time.
async fn list(connector: &Connector, prefix: &str) -> Result<Vec<LockKey>, BackendError> {
    let pattern = format!("{}*", escape_pattern(prefix));
    let mut found = Vec::new();
    let mut cursor = 0_u64;
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(PAGE).arg("TYPE").arg("string");
        let (next, page): (u64, Vec<Vec<u8>>) = query(connector, &scan).await?;
        // Keys that are no keys of ours: not UTF-8, too long, or side keys.
        let keys: Vec<_> = page.iter().filter_map(|key| LockKey::new(std::str::from_utf8(key).ok()?).ok()).collect();
        if !keys.is_empty() {
            let mut mget = redis::cmd("MGET");
            for key in &keys {
                mget.arg(key.wire());
            }
            let values: Vec<Option<Vec<u8>>> = query(connector, &mget).await?;
            let ours =
                |value: &Option<Vec<u8>>| value.as_ref().is_some_and(|value| value.starts_with(TOKEN_MARK.as_bytes()));
            found.extend(keys.into_iter().zip(values).filter(|(_, value)| ours(value)).map(|(key, _)| key));
        }
        if next == 0 {
            // SCAN may give a key more than once.
            found.sort_unstable();
            found.dedup();
            return Ok(found);
        }
        cursor = next;
    }
}

/// Makes the characters of a prefix stand for themselves in a glob pattern.
fn escape_pattern(prefix: &str) -> String {
    prefix.chars().fold(String::new(), |mut escaped, character| {
        if matches!(character, '*' | '?' | '[' | ']' | '^' | '\\') {
            escaped.push('\\');
        }
        escaped.push(character);
        escaped
    })
}

/// How many keys one SCAN looks at.
const PAGE: u32 = 1_000;

/// By how much the clock of a runtime may be ahead of the system's without counting as paused.
const PAUSED_BEYOND: Duration = Duration::from_millis(50);
