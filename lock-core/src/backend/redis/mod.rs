//! Redis as the backend: one node.

mod advice;
mod attempts;
mod connection;
mod connector;
mod failure;
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

use futures_util::future::join_all;
use redis::{Cmd, FromRedisValue, from_redis_value};
use tokio::{task::coop::unconstrained, time::Instant};

use self::{
    connection::Connection,
    connector::{Connector, Unanswered},
    settings::Settings,
};
use super::{
    Answer, Backend, BackendError, Batch, Calls, Operation, Reply,
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
                false => call(&connector, batch).await,
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
        self.connector.epoch()
    }

    fn is_reachable(&self) -> bool {
        self.connector.is_up()
    }

    fn time_limit(&self) -> Duration {
        self.connector.limit()
    }

    fn identity(&self) -> Option<Arc<str>> {
        self.connector.run().map(|run| run.as_str().into())
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
    if connector.is_up() {
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

/// Executes a batch. A connection that breaks under it is replaced, and the batch repeated, until the limit; but not if it
/// releases by force.
async fn call(connector: &Connector, batch: Batch) -> Result<Answer, BackendError> {
    let limit = connector.limit().min(of_use_within(&batch).max(connector.least_silence()));
    call_until(connector, batch, Instant::now() + limit).await
}

/// How long to wait for the answer to a batch so that its renewals can still be retried in time.
fn of_use_within(batch: &[Operation]) -> Duration {
    let within = batch.iter().map(|operation| match operation {
        Operation::Renew(renew) => renew.within,
        _ => Duration::MAX,
    });
    within.min().unwrap_or(Duration::MAX)
}

async fn call_until(connector: &Connector, batch: Batch, limit: Instant) -> Result<Answer, BackendError> {
    let evalsha = script::evalsha(&batch);
    let mut after = 0;
    let mut unanswered = None;
    loop {
        let connection = match connector.connection(after, limit).await {
            Ok(connection) => connection,
            // What was sent over an earlier connection may have happened.
            Err(error) => return Err(unanswered.unwrap_or(error)),
        };
        after = connection.epoch;
        match evaluate(connector, connection.clone(), &evalsha, &batch, limit).await {
            Ok((reply, by_source)) => {
                if failure::tells_of_demotion(&reply) {
                    connector.demoted(&connection);
                }
                let mut answer = script::answer_to(&batch, reply, connector.address())?;
                answer.repeated = unanswered.is_some();
                if answer.repeated {
                    // What this one refused an earlier one may have done.
                    answer.outcomes =
                        answer.outcomes.into_iter().map(|item| item.map_err(BackendError::in_doubt)).collect();
                }
                answer.out_of_order = by_source;
                answer.by = connection.run();
                if answer.calls_refused {
                    connector.advice.no_publish(connector.address());
                }
                return Ok(answer);
            }
            // By now the next holder may have the key.
            Err(Unanswered::Broken(error)) if batch.iter().any(|item| matches!(item, Operation::Force { .. })) => {
                return Err(error);
            }
            Err(Unanswered::Broken(error)) => unanswered = Some(error),
            Err(Unanswered::Unsent(error)) => return Err(unanswered.unwrap_or(error)),
            Err(Unanswered::Silent(error)) => return Err(error),
            Err(Unanswered::Refused(error)) => {
                if failure::is_demotion(&error) {
                    connector.demoted(&connection);
                }
                let error = failure::of(error, connector.address());
                // A batch is refused as a whole where the user may not touch one of its keys.
                if matches!(error.kind(), ErrorKind::Denied) && batch.len() > 1 {
                    return one_by_one(connector, batch, limit, unanswered.is_some()).await;
                }
                // A refusal says nothing of what an earlier connection carried.
                return Err(if unanswered.is_some() { error.in_doubt() } else { error });
            }
        }
    }
}

/// Runs the script by its hash, or by its source where the server does not have it; returns the reply, and whether it
/// came to the latter. What was sent meanwhile may have been executed first, if others have brought the script.
async fn evaluate(
    connector: &Connector,
    connection: Connection,
    evalsha: &Cmd,
    batch: &[Operation],
    limit: Instant,
) -> Result<(redis::Value, bool), Unanswered> {
    match connector.send(connection.clone(), evalsha, limit).await {
        Err(Unanswered::Refused(error)) if failure::is_no_script(&error) => {
            connector.send(connection, &script::eval(batch), limit).await.map(|reply| (reply, true))
        }
        result => result.map(|reply| (reply, false)),
    }
}

/// Runs each operation by itself; `repeated` says that an earlier connection may have carried them.
async fn one_by_one(
    connector: &Connector,
    batch: Batch,
    limit: Instant,
    repeated: bool,
) -> Result<Answer, BackendError> {
    let mut whole = Answer::new([]);
    whole.out_of_order = true;
    whole.repeated = repeated;
    // All at once, so that they take one round trip together.
    let calls = batch.into_iter().map(|operation| Box::pin(call_until(connector, Batch::from([operation]), limit)));
    for answer in join_all(calls).await {
        let outcome = answer.and_then(|answer| {
            whole.repeated |= answer.repeated;
            whole.calls_refused |= answer.calls_refused;
            answer.single()
        });
        whole.outcomes.push(outcome.map_err(|error| if repeated { error.in_doubt() } else { error }));
    }
    Ok(whole)
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
