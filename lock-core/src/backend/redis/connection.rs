//! One ordered connection to one node, replaced when it breaks or falls silent.
//!
//! The `redis` crate's own `ConnectionManager` keeps a connection that fell silent and forgets the client's name on a
//! reconnect; this one replaces the connection as soon as a command or a heartbeat runs out of time. No lock is held
//! while it connects: who needs the connection waits for it, at most until its own limit.

use std::{
    error::Error as _,
    fmt,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt};
use rand::{RngExt, rngs::StdRng};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind as RedisErrorKind, PushKind, RedisError, Value,
    aio::MultiplexedConnection,
};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{advice::Advice, failure};
use crate::{
    backend::{BackendError, Calls},
    error::ErrorKind,
    key::LockKey,
    token::Token,
};

/// What requests and upkeep share.
pub(super) struct Connector {
    run: Mutex<Option<Arc<str>>>,
    settings: Settings,
    link: watch::Sender<Link>,
    /// The epoch of the newest connection.
    epoch: AtomicU64,
    /// The newest epoch that somebody found broken.
    broken: AtomicU64,
    found_broken: Notify,
    /// Whether the server knows no later protocol.
    resp2: AtomicBool,
    pub(super) advice: Advice,
}

/// How to reach the node.
pub(super) struct Settings {
    pub(super) client: Client,
    /// The same in RESP2, for servers without RESP3.
    pub(super) client_resp2: Client,
    /// Host and port, or the path of the socket: for messages.
    pub(super) address: String,
    pub(super) client_name: String,
    /// The limit of one command, and of one attempt to connect.
    pub(super) limit: Duration,
    /// Whether the connection is encrypted.
    pub(super) tls: bool,
}

/// Whether there is a connection.
enum Link {
    Up(Connection),
    /// Why the last attempt failed, if there was one.
    Down(Option<BackendError>),
}

#[derive(Clone)]
pub(super) struct Connection {
    inner: MultiplexedConnection,
    pub(super) epoch: u64,
}

/// A fresh connection and what the upkeep needs of it.
struct Connected {
    inner: MultiplexedConnection,
    /// What the server sends of its own accord. Ends, or says so, when the connection is closed.
    pushes: mpsc::UnboundedReceiver<redis::PushInfo>,
    /// Its name on the server, if the server tells.
    identity: Option<Identity>,
    /// Whether calls come over it.
    listening: bool,
}

/// What names a connection: its number, which counts within one run of the server.
#[derive(Clone)]
struct Identity {
    id: i64,
    run: String,
}

impl Connector {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            link: watch::Sender::new(Link::Down(None)),
            epoch: AtomicU64::new(0),
            broken: AtomicU64::new(0),
            found_broken: Notify::new(),
            resp2: AtomicBool::new(false),
            run: Mutex::default(),
            advice: Advice::default(),
        }
    }

    pub(super) fn address(&self) -> &str {
        &self.settings.address
    }

    pub(super) fn limit(&self) -> Duration {
        self.settings.limit
    }

    /// The run of the server that is, or was last, connected to.
    pub(super) fn run(&self) -> Option<Arc<str>> {
        self.run.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Whether there is a connection that is not known to be broken.
    pub(super) fn is_up(&self) -> bool {
        let broken = self.broken.load(Ordering::Acquire);
        matches!(&*self.link.borrow(), Link::Up(connection) if connection.epoch > broken)
    }

    /// Returns the connection, waiting until `limit` for one that is newer than `after` and not known to be broken.
    ///
    /// What cannot be mended by waiting (a wrong password, a server that is too old) is answered at once.
    pub(super) async fn connection(&self, after: u64, limit: Instant) -> Result<Connection, BackendError> {
        let is_fit = |connection: &Connection| connection.epoch > after.max(self.broken.load(Ordering::Acquire));
        if let Link::Up(connection) = &*self.link.borrow()
            && is_fit(connection)
        {
            return Ok(connection.clone());
        }
        let mut link = self.link.subscribe();
        let usable = link.wait_for(|link| match link {
            Link::Up(connection) => is_fit(connection),
            Link::Down(Some(error)) => error.kind() != ErrorKind::Backend,
            Link::Down(None) => false,
        });
        let waited = timeout_at(limit, usable).await;
        match waited.as_ref().map(|link| link.as_deref()) {
            Ok(Ok(Link::Up(connection))) => return Ok(connection.clone()),
            Ok(Ok(Link::Down(Some(error)))) => return Err(error.clone()),
            _ => {}
        }
        drop(waited);
        let Link::Down(Some(error)) = &*self.link.borrow() else {
            return Err(self.out_of_time().did_not_happen());
        };
        Err(error.clone().did_not_happen())
    }

    /// Runs one command until `limit`. A connection that breaks or stays silent is replaced.
    pub(super) async fn send(
        &self,
        mut connection: Connection,
        command: &Cmd,
        limit: Instant,
    ) -> Result<Value, Unanswered> {
        match timeout_at(limit, connection.inner.send_packed_command(command)).await {
            Ok(Ok(reply)) => reply.extract_error().map_err(Unanswered::Refused),
            Ok(Err(error)) if is_broken(&error) => {
                self.replace(connection.epoch);
                Err(Unanswered::Broken(failure::of(error, self.address())))
            }
            Ok(Err(error)) => Err(Unanswered::Refused(error)),
            Err(_) => {
                self.replace(connection.epoch);
                Err(Unanswered::Silent(self.out_of_time()))
            }
        }
    }

    fn out_of_time(&self) -> BackendError {
        BackendError::new(
            ErrorKind::Backend,
            format!(
                "{} did not answer within {:?}; check that it runs and can be reached",
                self.address(),
                self.limit()
            ),
        )
    }

    /// Says that the connection of an epoch is of no use any more.
    fn replace(&self, epoch: u64) {
        self.broken.fetch_max(epoch, Ordering::AcqRel);
        self.found_broken.notify_one();
    }

    /// Connects, listens for calls, watches the connection, and connects anew, for as long as it is polled.
    pub(super) async fn keep(self: Arc<Self>, calls: Calls) {
        let _end = EndOfUpkeep(&self);
        let mut former: Option<Identity> = None;
        let mut failures = 0;
        let mut random: StdRng = rand::make_rng();
        // An attempt that met a hole in the network is not waited for: others follow it.
        let mut attempts = FuturesUnordered::new();
        loop {
            if attempts.len() < ATTEMPTS {
                attempts.push(timeout(self.settings.limit, self.connect(former.clone(), &calls)));
            }
            let attempt = tokio::select! {
                biased;
                Some(attempt) = attempts.next() => attempt,
                () = sleep(self.settings.limit / ATTEMPTS as u32) => continue,
            };
            let error = match attempt.unwrap_or_else(|_| Err(self.out_of_time())) {
                Ok(Connected { inner, mut pushes, identity, listening }) => {
                    attempts.clear();
                    failures = 0;
                    if let Some(identity) = &identity {
                        let run = Some(identity.run.as_str().into());
                        *self.run.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = run;
                    }
                    former = identity;
                    let mut epoch = 0;
                    // In one step, for those who ask whether there is a connection, and since when.
                    self.link.send_modify(|link| {
                        epoch = self.epoch.fetch_add(1, Ordering::AcqRel) + 1;
                        *link = Link::Up(Connection { inner: inner.clone(), epoch });
                    });
                    calls.listening(listening);
                    self.watch(inner, &mut pushes, epoch, &calls).await;
                    self.link.send_replace(Link::Down(None));
                    calls.listening(false);
                    tracing::warn!(address = self.address(), "connection lost; connecting anew");
                    continue;
                }
                Err(error) => error,
            };
            let longest = if error.kind() == ErrorKind::Backend { pause(failures) } else { PAUSE_IF_REFUSED };
            let pause = jittered(longest, random.random());
            if failures == 0 {
                tracing::warn!(address = self.address(), %error, cause = error.source(), "could not connect; trying again");
            }
            failures += 1;
            self.link.send_replace(Link::Down(Some(error.did_not_happen())));
            sleep(pause).await;
        }
    }

    /// Returns when the connection is of no use any more.
    async fn watch(
        &self,
        inner: MultiplexedConnection,
        pushes: &mut mpsc::UnboundedReceiver<redis::PushInfo>,
        epoch: u64,
        calls: &Calls,
    ) {
        let mut heartbeat = pin!(self.heartbeat(Connection { inner, epoch }));
        let mut pushed = true;
        while self.broken.load(Ordering::Acquire) < epoch {
            tokio::select! {
                biased;
                () = self.found_broken.notified() => {}
                push = pushes.recv(), if pushed => match push {
                    Some(push) if push.kind == PushKind::Disconnection => return,
                    Some(push) if push.kind == PushKind::Message => {
                        if let Some((key, token)) = call(&push.data) {
                            calls.called(key, token);
                        }
                    }
                    Some(_) => {}
                    // No pushes over this protocol; the heartbeat has to notice.
                    None => pushed = false,
                },
                () = &mut heartbeat => return,
            }
        }
    }

    /// Returns when the connection does not answer any more.
    async fn heartbeat(&self, connection: Connection) {
        let ping = redis::cmd("PING");
        loop {
            sleep(HEARTBEAT).await;
            let sent = self.send(connection.clone(), &ping, Instant::now() + self.settings.limit).await;
            if let Err(Unanswered::Broken(_) | Unanswered::Silent(_)) = sent {
                return;
            }
        }
    }

    /// Makes a connection that is ready for use: HELLO, AUTH, SELECT, the client's name and the subscription to its calls
    /// come first. `former` is the connection that it replaces, which is killed where that is allowed, so that nothing that it still carries is
    /// executed later.
    async fn connect(&self, former: Option<Identity>, calls: &Calls) -> Result<Connected, BackendError> {
        let Settings { client, client_resp2, client_name, .. } = &self.settings;
        let failed = |error| failure::of(error, self.address());
        if self.settings.tls {
            choose_cryptography();
        }
        let mut resp2 = self.resp2.load(Ordering::Relaxed);
        let mut connected = match open(if resp2 { client_resp2 } else { client }, resp2).await {
            Err(error) if lacks_resp3(&error) => {
                self.advice.no_resp3(self.address());
                self.resp2.store(true, Ordering::Relaxed);
                resp2 = true;
                open(client_resp2, true).await
            }
            opened => opened,
        }
        .map_err(failed)?;

        let mut handshake = redis::pipe();
        handshake.cmd("CLIENT").arg("SETNAME").arg(client_name);
        handshake.cmd("CLIENT").arg("ID");
        handshake.cmd("INFO").arg("server");
        handshake.cmd("INFO").arg("memory");
        let replies = connected.inner.send_packed_commands(&handshake, 0, 4).await.map_err(failed)?;
        // Each may be forbidden to the user, and then is done without.
        let info = replies.get(2).and_then(info).unwrap_or_default();
        if let Some(version) = field(info, "redis_version")
            && version
                .split('.')
                .next()
                .and_then(|major| major.parse().ok())
                .is_some_and(|major: u32| major < LEAST_MAJOR)
        {
            return Err(BackendError::new(
                ErrorKind::Unsupported,
                format!("{} runs Redis {version}; version {LEAST_MAJOR} is the least", self.address()),
            ));
        }
        self.advice.memory(self.address(), replies.get(3).and_then(self::info).unwrap_or_default());
        if let (Some(Value::Int(id)), Some(run)) = (replies.get(1), field(info, "run_id")) {
            connected.identity = Some(Identity { id: *id, run: run.to_owned() });
        }
        // After a restart of the server the number may be that of somebody else's connection.
        if let (Some(former), Some(present)) = (former, &connected.identity)
            && former.run == present.run
        {
            let mut kill = redis::cmd("CLIENT");
            kill.arg("KILL").arg("ID").arg(former.id);
            connected.inner.send_packed_command(&kill).await.map_err(failed)?;
        }
        if !resp2 {
            connected.listening = match connected.inner.subscribe(&**calls.channel()).await {
                Ok(()) => true,
                Err(error) if is_broken(&error) => return Err(failed(error)),
                Err(error) => {
                    self.advice.no_subscribe(self.address(), &error);
                    false
                }
            };
        }
        Ok(connected)
    }
}

async fn open(client: &Client, resp2: bool) -> Result<Connected, RedisError> {
    let (sender, pushes) = mpsc::unbounded_channel();
    let mut config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    if !resp2 {
        config = config.set_push_sender(sender);
    }
    let inner = client.get_multiplexed_async_connection_with_config(&config).await?;
    Ok(Connected { inner, pushes, identity: None, listening: false })
}

/// Why a command has no usable answer.
pub(super) enum Unanswered {
    /// The server answered with an error.
    Refused(RedisError),
    /// The connection broke before the answer: the command may have been executed.
    Broken(BackendError),
    /// The time ran out before the answer: the command may have been, or may still be, executed.
    Silent(BackendError),
}

/// Says that the runtime has ended: the connection ended with it.
struct EndOfUpkeep<'a>(&'a Connector);

impl Drop for EndOfUpkeep<'_> {
    fn drop(&mut self) {
        self.0.link.send_replace(Link::Down(None));
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("address", &self.settings.address).finish_non_exhaustive()
    }
}

/// Reads a message on the channel of calls: its last part is token and key, with a space between.
pub(super) fn call(message: &[Value]) -> Option<(LockKey, Token)> {
    let Some(Value::BulkString(payload)) = message.last() else { return None };
    let (token, key) = std::str::from_utf8(payload).ok()?.split_once(' ')?;
    Some((LockKey::new(key).ok()?, token.parse().ok()?))
}

/// Errors of the connection, as opposed to answers of the server.
fn is_broken(error: &RedisError) -> bool {
    matches!(error.kind(), RedisErrorKind::Io | RedisErrorKind::Parse)
}

/// Whether the server knows only RESP2: it says so, or does not know HELLO at all.
fn lacks_resp3(error: &RedisError) -> bool {
    error.kind() == RedisErrorKind::RESP3NotSupported
        || error.detail().is_some_and(|detail| detail.contains("unknown command") && detail.contains("HELLO"))
}

/// The text in the reply to `INFO`, if the user may ask for it.
fn info(reply: &Value) -> Option<&str> {
    match reply {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

/// A field of `INFO`.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// The longest pause after a failed attempt: 10 ms growing to 100 ms.
fn pause(failures: u32) -> Duration {
    Duration::from_millis(10 << failures.min(3)).min(LONGEST_PAUSE)
}

/// From half of `longest` to all of it, as `chance` from 0 to 1 decides, so that a fleet does not come back in step.
fn jittered(longest: Duration, chance: f64) -> Duration {
    longest.mul_f64(0.5 + chance / 2.0)
}

#[cfg(feature = "tls")]
fn choose_cryptography() {
    // Only where the program has not chosen; without a choice rustls would panic.
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Somebody else may have been quicker, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

#[cfg(not(feature = "tls"))]
fn choose_cryptography() {}

const HEARTBEAT: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause after the server refused us: somebody has to mend that first.
const PAUSE_IF_REFUSED: Duration = Duration::from_millis(750);
/// How many attempts to connect may be under way: they follow one another by this part of their limit.
const ATTEMPTS: usize = 4;
/// RESP3, HELLO and the options of CLIENT came with Redis 6.
const LEAST_MAJOR: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_attempts_grow_to_a_tenth_of_a_second_at_most_and_differ() {
        let longest: Vec<_> = (0..40).map(pause).collect();
        assert!(longest.is_sorted() && longest[0] == Duration::from_millis(10), "{longest:?}");
        assert!(longest[3] >= LONGEST_PAUSE / 2 && longest[39] <= LONGEST_PAUSE, "{longest:?}");
        let pauses = [0.0, 0.25, 0.5, 1.0].map(|chance| jittered(LONGEST_PAUSE, chance).as_millis());
        assert_eq!(pauses, [50, 62, 75, 100]);
    }
}
