//! Redis as the backend: a server, the primary that sentinels name, or a cluster.

mod advice;
mod attempts;
mod call;
mod cluster;
mod commands;
mod connection;
mod connector;
mod credentials;
mod driver;
mod failure;
mod former;
mod free;
mod handshake;
mod info;
mod link;
mod listeners;
mod names;
mod parse;
mod pauses;
mod provider;
mod publish;
mod renewals;
mod replicas;
mod reply;
mod script;
mod sentinel;
mod settings;
mod slot;
mod source;
mod spelling;
mod status;
mod stream;
mod target;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls-no-provider")]
mod tls;
#[cfg(not(feature = "tls-no-provider"))]
#[path = "no_tls.rs"]
mod tls;
mod way;
mod wire;

use std::{
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use redis::{ConnectionInfo, Value, from_redis_value};
use tokio::{
    runtime::Handle,
    task::coop::unconstrained,
    time::{Instant, sleep},
};

pub(crate) use self::provider::Provider;
use self::{
    cluster::Cluster,
    commands::Commands,
    connection::Connection,
    connector::{Connector, Role, Unanswered},
    sentinel::Sentinels,
    settings::Settings,
    slot::Tag,
    target::Target,
    way::Way,
};
use super::{
    Answer, Backend, BackendError, Batch, Calls, Replied, Reply,
    options::ConnectOptions,
    timeouts::{CONNECT_TIMEOUT, Timeouts},
    token::TOKEN_MARK,
};
use crate::{
    error::{BuildError, ErrorKind},
    health::NodeHealth,
    key::LockKey,
};

/// A store of leases in Redis, which [`LockManager::connect`](crate::LockManager::connect) makes from any URL but `memory://`.
///
/// It has one connection to a server, or one to each node of a cluster and to each sentinel, kept by
/// [`driver`](Backend::driver), and a second one once it was asked to wait for [`Replicas`](crate::Replicas). Clones share
/// them. Most programs never name it; it is public to be wrapped by another backend, and for the conformance suite.
#[derive(Clone, Debug)]
pub struct RedisBackend {
    servers: Servers,
}

/// The servers that keep the locks.
#[derive(Clone, Debug)]
enum Servers {
    /// One server, at a fixed place or wherever its sentinels say.
    Primary(Arc<Connector>),
    Cluster(Arc<Cluster>),
}

impl RedisBackend {
    /// Reads a URL of one of the forms that [`LockManager::connect`](crate::LockManager::connect) lists, without any I/O.
    /// `client_name` is shown in the server's `CLIENT LIST`; `command_timeout` is the limit of one request, reconnecting
    /// included. An attempt to connect may take 5 s.
    ///
    /// # Errors
    /// [`BuildError`] when the URL is wrong, or needs the feature `tls` and it is off, or the timeout is out of range.
    pub fn from_url(url: &str, client_name: &str, command_timeout: Duration) -> Result<Self, BuildError> {
        let timeouts = Timeouts::new(command_timeout, CONNECT_TIMEOUT)?;
        Self::with_options(url, &ConnectOptions::new(client_name, timeouts))
    }

    /// Makes a backend with options that are in range.
    pub(crate) fn with_options(url: &str, options: &ConnectOptions) -> Result<Self, BuildError> {
        let servers = match Target::from_url(url, options)? {
            Target::Server(settings) => Servers::Primary(Arc::new(Connector::new(settings, Role::Primary))),
            Target::Service { service, sentinels, primary } => {
                let sentinels = Arc::new(Sentinels::new(service, sentinels));
                Servers::Primary(Arc::new(Connector::found_by(primary, sentinels)))
            }
            Target::Cluster { seeds, settings } => Servers::Cluster(Arc::new(Cluster::new(seeds, settings))),
        };
        Ok(Self { servers })
    }

    /// Makes a backend that reaches its server as a client of the `redis` crate does.
    pub(crate) fn like(client: &ConnectionInfo, options: &ConnectOptions) -> Result<Self, BuildError> {
        let server = Connector::new(Settings::from_client(client, options)?, Role::Primary);
        Ok(Self { servers: Servers::Primary(Arc::new(server)) })
    }
}

impl Backend for RedisBackend {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        // An answer that has arrived counts, however much else the task has done.
        match self.servers.clone() {
            Servers::Primary(connector) if batch.is_empty() || replicas::are_asked(&batch) => {
                Reply::new(unconstrained(async move {
                    let answer = match batch.is_empty() {
                        true => sign_of_life(&connector, connect_limit(&connector.settings)).await,
                        false => connector.replication.confirm(&connector, Tag::ONE, batch).await,
                    };
                    connector.status.note_all(&answer);
                    answer
                }))
            }
            Servers::Primary(connector) => {
                let way = Way::to_server(Arc::clone(&connector));
                let up = if is_real_time() { way.up() } else { None };
                let within = call::within(&batch);
                let Some(connection) = up else { return Reply::new(unconstrained(call::call(way, batch, within))) };
                let counts = connection.wire.counts();
                // The thread that calls puts the commands on the wire and writes them, and the task waits for the replies.
                let limit = call::limit(&way, within);
                let answer = call::put(way, connection.clone(), batch, limit);
                // Otherwise the task has to look soon: another manager may read the answer by now, or nobody.
                let is_sent =
                    connection.wire.flush() && connector.sends_at_once() && connector.link.epoch() == connection.epoch;
                Reply::put(answer, is_sent.then(|| [counts].into()))
            }
            Servers::Cluster(cluster) if batch.is_empty() => {
                Reply::new(unconstrained(async move { cluster.sign_of_life().await }))
            }
            Servers::Cluster(cluster) => cluster.call(batch),
        }
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        let servers = self.servers.clone();
        Reply::new(async move {
            match servers {
                Servers::Primary(connector) => list(&connector, &prefix).await,
                Servers::Cluster(cluster) => cluster.list(&prefix).await,
            }
        })
    }

    fn publish(&self, channel: Arc<str>, message: String) -> Reply<Option<usize>> {
        Reply::new(publish::publish(self.servers.clone(), channel, message))
    }

    fn epoch(&self) -> u64 {
        match &self.servers {
            Servers::Primary(connector) => connector.link.epoch(),
            Servers::Cluster(cluster) => cluster.epoch(),
        }
    }

    /// `false` on a runtime of one thread: a waiter that holds at once could keep the engine's only thread until its grant is
    /// over.
    fn grants_leases(&self) -> bool {
        Handle::try_current().is_ok_and(|runtime| runtime.metrics().num_workers() > 1)
    }

    fn waits_for_replicas(&self) -> Replied<()> {
        Ok(())
    }

    fn is_driven(&self) -> bool {
        // A provider of credentials is a task of the application's.
        matches!(&self.servers, Servers::Primary(connector) if connector.settings.access.credentials.is_none())
    }

    fn sends_at_once(&self) -> bool {
        match &self.servers {
            Servers::Primary(connector) => connector.sends_at_once(),
            Servers::Cluster(cluster) => cluster.sends_at_once(),
        }
    }

    fn is_reachable(&self) -> bool {
        match &self.servers {
            Servers::Primary(connector) => connector.link.is_up(),
            Servers::Cluster(cluster) => cluster.is_reachable(),
        }
    }

    fn time_limit(&self) -> Duration {
        match &self.servers {
            Servers::Primary(connector) => connector.limit(),
            Servers::Cluster(cluster) => cluster.limit(),
        }
    }

    /// A request that waits for the answer to another call takes up to twice as long as its own round trip. If the round trip is short,
    /// that costs less than more and smaller calls would. In a cluster, a node that stands still or a slot that moves would hold up the
    /// keys of all others.
    fn calls_at_once(&self) -> usize {
        match &self.servers {
            Servers::Primary(connector) => calls_within(connector.link.round_trip()),
            Servers::Cluster(_) => MOST_CALLS,
        }
    }

    fn identity(&self) -> Option<Arc<str>> {
        match &self.servers {
            Servers::Primary(connector) => connector.link.run().map(|run| run.as_str().into()),
            Servers::Cluster(_) => None,
        }
    }

    fn health(&self) -> Vec<NodeHealth> {
        match &self.servers {
            Servers::Primary(connector) => vec![connector.health()],
            Servers::Cluster(cluster) => cluster.health(),
        }
    }

    fn driver(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        match self.servers.clone() {
            Servers::Primary(connector) => Box::pin(driver::keep(connector, calls)),
            Servers::Cluster(cluster) => Box::pin(cluster::keep(cluster, calls)),
        }
    }
}

/// Whether the clock of this thread's runtime runs. In a test it may be paused, while that of the task runs: then the task sends.
fn is_real_time() -> bool {
    let (tokios, systems) = (Instant::now().into_std(), std::time::Instant::now());
    tokios.max(systems).duration_since(tokios.min(systems)) < PAUSED_BEYOND
}

/// How many calls may be in flight to one server, by the round trip to it.
fn calls_within(round_trip: Duration) -> usize {
    let calls = round_trip.as_micros() / FOR_EACH_CALL.as_micros();
    usize::try_from(calls).unwrap_or(usize::MAX).clamp(LEAST_CALLS, MOST_CALLS)
}

/// How long a sign of life may take that has to be connected for.
fn connect_limit(settings: &Settings) -> Duration {
    settings.access.connect_limit.max(settings.access.limit)
}

/// Sends a PING if there is a connection, and else waits for one, whose handshake the server answers.
///
/// Connecting takes several round trips, so it has its own limit, and ends as soon as the server is known to be down.
async fn sign_of_life(connector: &Connector, limit: Duration) -> Replied<Answer> {
    if connector.link.is_up() {
        connector.query::<Value>(&Commands::one(["PING"])).await?;
    } else {
        let (begun, really) = (Instant::now(), std::time::Instant::now());
        // Later, the former connection is killed first, and scripts may be held back.
        connector.tries_scripts.store(connector.link.newest() == 0, Ordering::Relaxed);
        let connected = first_connection(connector, begun + limit).await;
        // No server can be quick enough for a clock that leaps to the next timer.
        let connection = connected.map_err(|error| match begun.elapsed() > 2 * really.elapsed() + PAUSED_BEYOND {
            true => BackendError::unavailable(format!(
                "{error}; the clock of this tokio runtime is paused, so give the manager a runtime whose clock runs, \
                     with `LockManager::builder().runtime(..)`"
            ))
            .did_not_happen(),
            false => error,
        })?;
        may_run_scripts(connector, connection).await?;
    }
    Ok(Answer::new([]))
}

/// Whether the server has scripts, and the user may run them and what renewals and releases need. Otherwise no request could ever wait
/// for a lock, keep it or release it. Other problems show in the first acquire.
async fn may_run_scripts(connector: &Connector, connection: Connection) -> Replied<()> {
    let limit = Instant::now() + connector.limit();
    let mut sent = connection.take_trial(limit).unwrap_or_else(|| connection.send(&script::trial(), limit));
    let replies = match connector.reply(&mut sent).await {
        Ok(replies) => replies.into_vec(),
        Err(Unanswered::Broken(_)) => connector.query::<Vec<Value>>(&script::trial()).await.unwrap_or_default(),
        Err(_) => return Ok(()),
    };
    let refused = replies.into_iter().filter_map(|reply| reply.extract_error().err());
    let mut errors = refused.map(|error| connector.refusal(error));
    errors.find(|error| matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Denied)).map_or(Ok(()), Err)
}

/// Returns whether each key holds a token or a group of ours: not if it holds something else, or has left this node.
///
/// Only the beginning of each value is read. The values of other programs may be large, and the leases are renewed over the
/// same connection: they would wait behind the answer, and be lost.
async fn are_ours(connector: &Connector, keys: &[LockKey]) -> Replied<Vec<bool>> {
    let is_of_cluster = connector.role == Role::Node;
    let mut reads = Commands::default();
    let end = (TOKEN_MARK.len() - 1).to_string();
    for key in keys {
        if is_of_cluster {
            // The slot of the key may be on its way to this node.
            reads.add(["ASKING"]);
        }
        reads.add(["GETRANGE", key.wire(), "0", &end]);
        if is_of_cluster {
            reads.add(["ASKING"]);
        }
        // What those who share a key have in common.
        reads.add(["ZRANGEBYSCORE", key.wire(), "+inf", "+inf", "LIMIT", "0", "1"]);
    }
    let replies: Vec<Value> = connector.query(&reads).await?;
    let (first, step) = if is_of_cluster { (1, 2) } else { (0, 1) };
    let is_ours = |reply: Value| match reply.extract_error() {
        Ok(Value::Array(marks)) => Ok(marks.into_iter().next().is_some_and(has_mark)),
        Ok(begin) => Ok(has_mark(begin)),
        Err(error) if matches!(error.code(), Some("WRONGTYPE" | "MOVED" | "ASK")) => Ok(false),
        Err(error) => Err(connector.refusal(error)),
    };
    let each: Result<Vec<bool>, _> = replies.into_iter().skip(first).step_by(step).map(is_ours).collect();
    Ok(each?.chunks(2).map(|of_key| of_key.contains(&true)).collect())
}

/// Whether a value begins as our tokens do.
fn has_mark(value: Value) -> bool {
    from_redis_value::<String>(value).is_ok_and(|text| text.starts_with(TOKEN_MARK))
}

/// Waits for a connection until `limit`.
async fn first_connection(connector: &Connector, limit: Instant) -> Replied<Connection> {
    let asks = || connector.asks_for_credentials();
    patiently(limit, connector.limit(), asks, || connector.connection(0, limit)).await
}

/// Waits for what `look` finds, until `limit`. While a provider is asked for credentials, the server counts as down, though
/// it was not asked yet: so it has the limit of a command from then on.
async fn patiently<T, F: Future<Output = Replied<T>>>(
    limit: Instant,
    of_command: Duration,
    asks_provider: impl Fn() -> bool,
    look: impl Fn() -> F,
) -> Replied<T> {
    let mut patient_until = Instant::now();
    loop {
        let found = look().await;
        let now = Instant::now();
        if asks_provider() {
            patient_until = limit.min(now + of_command);
        }
        match found {
            Err(error) if error.kind() == ErrorKind::Backend && now < patient_until => sleep(BETWEEN_LOOKS).await,
            found => return found,
        }
    }
}

/// Finds our keys by SCAN, a page at a time.
async fn list(connector: &Connector, prefix: &str) -> Replied<Vec<LockKey>> {
    let pattern = format!("{}*", escape_pattern(prefix));
    let mut found = Vec::new();
    let (mut cursor, mut epoch) = (0_u64, 0);
    loop {
        let mut scan = Commands::one(["SCAN"]);
        scan.number(cursor).text("MATCH").text(&pattern).text("COUNT").number(PAGE);
        let ((next, page), over): ((u64, Vec<Vec<u8>>), u64) = connector.query_over(&scan).await?;
        let before = std::mem::replace(&mut epoch, over);
        if cursor != 0 && before != epoch {
            // A cursor means nothing to another server.
            let message = format!("the connection to {} broke while keys were listed; try again", connector.address());
            return Err(BackendError::unavailable(message));
        }
        // Keys that are no keys of ours: not UTF-8, too long, or side keys.
        let keys: Vec<_> = page.iter().filter_map(|key| LockKey::new(std::str::from_utf8(key).ok()?).ok()).collect();
        if !keys.is_empty() {
            let ours = are_ours(connector, &keys).await?;
            found.extend(keys.into_iter().zip(ours).filter(|(_, is_ours)| *is_ours).map(|(key, _)| key));
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

/// How often to look for a connection while a provider is asked for credentials.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// The most calls in flight, to a server that is far away or to the nodes of a cluster.
const MOST_CALLS: usize = 64;
/// The fewest: while the server executes one, the next one is on its way.
const LEAST_CALLS: usize = 2;
/// For how much of the round trip to a server there is one call in flight.
const FOR_EACH_CALL: Duration = Duration::from_micros(100);

/// How many keys one SCAN looks at.
const PAGE: u32 = 1_000;

/// By how much the clock of a runtime may be ahead of the system's without counting as paused.
const PAUSED_BEYOND: Duration = Duration::from_millis(50);
