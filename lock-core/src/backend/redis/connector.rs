//! The connector of one node: the one ordered connection that requests share, replaced when it breaks or falls silent.
//!
//! The `redis` crate's own `ConnectionManager` keeps a connection that fell silent and forgets the client's name on a
//! reconnect; this one replaces the connection as soon as a command or a heartbeat runs out of time. No lock is held
//! while it connects: a request that needs the connection waits for it, until its own limit or until the server is known
//! to be down.

use std::{
    fmt,
    future::pending,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use redis::{FromRedisValue, RedisError, Value, from_redis_value};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};

use super::{
    advice::Advice,
    commands::Commands,
    connection::{Connection, Sent},
    failure::{self, Named},
    link::Link,
    listeners::Listeners,
    replicas::Replication,
    sentinel::Sentinels,
    settings::Settings,
    status::Status,
    stream::{Address, Resolver},
    wire::Values,
};
use crate::{
    backend::{BackendError, Replied},
    health::NodeHealth,
};

/// The connection to one node, shared by requests and the driver.
pub(super) struct Connector {
    pub(super) settings: Settings,
    pub(super) role: Role,
    /// The sentinels that know where the server is, if its address is not fixed.
    pub(super) sentinels: Option<Arc<Sentinels>>,
    /// Where the latest attempt to connect went, if its address is not fixed.
    aim: Mutex<Option<(Address, Arc<str>)>>,
    /// Whether the nodes of a cluster name its address, and no URL does.
    pub(super) is_announced: bool,
    /// Whether the latest stream to its address could be opened.
    pub(super) is_reached: AtomicBool,
    /// The name of the server in messages until an attempt to connect has found its address.
    pub(super) name: Arc<str>,
    /// Told when a sentinel says that something has changed.
    pub(super) told: Notify,
    pub(super) resolver: Resolver,
    /// Whether the provider of credentials is being asked.
    pub(super) asks_provider: AtomicBool,
    pub(super) link: Link,
    /// How many drivers keep it.
    pub(super) keepers: AtomicUsize,
    /// The requests that wait for replicas of this server.
    pub(super) replication: Replication,
    /// When the server last answered an attempt to connect that may still succeed.
    heard: Mutex<Option<Instant>>,
    /// Whether a server has left a transaction open, because it refused to execute it. No transaction is sent after that.
    pub(super) stuck: AtomicBool,
    /// Whether the next connection tries scripts in the write of its handshake.
    pub(super) tries_scripts: AtomicBool,
    /// Whether the server knows no later protocol.
    pub(super) resp2: AtomicBool,
    /// How many attempts in a row ended when the server closed the connection on HELLO.
    pub(super) closed_at_hello: AtomicU32,
    pub(super) advice: Arc<Advice>,
    /// The managers that share the connection and receive grants.
    pub(super) listeners: Arc<Listeners>,
    pub(super) status: Status,
}

/// State that the nodes of a cluster share.
#[derive(Clone, Default)]
pub(super) struct Shared {
    /// Numbers their connections together. Rises with each of them, and when a slot has moved.
    pub(super) epoch: Arc<AtomicU64>,
    pub(super) advice: Arc<Advice>,
    pub(super) listeners: Arc<Listeners>,
}

/// The role of a server for this manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It keeps all locks.
    Primary,
    /// It keeps the locks of some slots of a cluster.
    Node,
    /// It knows which server is the primary.
    Sentinel,
}

/// Why a command has no usable answer.
pub(super) enum Unanswered {
    /// It was not sent, since its time was over before.
    Unsent(BackendError),
    /// The server answered with an error.
    Refused(RedisError),
    /// The connection broke before the answer: the command may have been executed.
    Broken(BackendError),
    /// The time ran out before the answer: the command may have been, or may still be, executed.
    Silent(BackendError),
}

impl Connector {
    /// Reaches a server at a fixed address.
    pub(super) fn new(settings: Settings, role: Role) -> Self {
        Self::sharing(settings, role, Shared::default())
    }

    /// Reaches a node of a cluster, whose nodes have something in common.
    pub(super) fn sharing(settings: Settings, role: Role, shared: Shared) -> Self {
        Self {
            name: settings.address.to_string().into(),
            settings,
            role,
            sentinels: None,
            aim: Mutex::default(),
            is_announced: false,
            is_reached: AtomicBool::new(false),
            told: Notify::new(),
            resolver: Resolver::new(ATTEMPTS),
            asks_provider: AtomicBool::new(false),
            link: Link::new(shared.epoch),
            keepers: AtomicUsize::new(0),
            replication: Replication::default(),
            heard: Mutex::default(),
            stuck: AtomicBool::new(false),
            tries_scripts: AtomicBool::new(false),
            resp2: AtomicBool::new(false),
            closed_at_hello: AtomicU32::new(0),
            advice: shared.advice,
            listeners: shared.listeners,
            status: Status::default(),
        }
    }

    /// Reaches the primary that the sentinels name.
    pub(super) fn found_by(settings: Settings, sentinels: Arc<Sentinels>) -> Self {
        let name = sentinels.to_string().into();
        Self { sentinels: Some(sentinels), name, ..Self::new(settings, Role::Primary) }
    }

    /// Returns where to connect to now.
    pub(super) async fn locate(&self) -> Replied<Address> {
        let Some(sentinels) = &self.sentinels else { return Ok(self.settings.address.clone()) };
        let address = sentinels.primary(self.limit(), self.link.newest() > 0).await?;
        let name = address.to_string().into();
        *self.aim.lock().unwrap_or_else(PoisonError::into_inner) = Some((address.clone(), name));
        Ok(address)
    }

    /// Returns when the server is elsewhere than where the latest attempt to connect went.
    pub(super) async fn moved(&self) {
        let Some(sentinels) = &self.sentinels else { return pending().await };
        let is_aim = |address: &Address| {
            let aim = self.aim.lock().unwrap_or_else(PoisonError::into_inner);
            aim.as_ref().is_none_or(|(aim, _)| aim == address)
        };
        sentinels.until_not(is_aim).await;
    }

    /// Records that no attempt to connect goes anywhere yet.
    pub(super) fn forget_aim(&self) {
        *self.aim.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns when the server is elsewhere than at the end of a connection, which may be older than the latest attempt.
    pub(super) async fn moved_from(&self, address: &Address) {
        let Some(sentinels) = &self.sentinels else { return pending().await };
        sentinels.until_not(|primary| primary == address).await;
    }

    /// Whether the server is known to be elsewhere.
    pub(super) fn is_elsewhere(&self, address: &Address) -> bool {
        self.sentinels.as_ref().is_some_and(|sentinels| sentinels.are_sure_of_another(address))
    }

    /// The address of the server, for messages.
    pub(super) fn address(&self) -> Arc<str> {
        if self.sentinels.is_some()
            && let Some((_, address)) = &*self.aim.lock().unwrap_or_else(PoisonError::into_inner)
        {
            return Arc::clone(address);
        }
        Arc::clone(&self.name)
    }

    /// The role of the server for the log, or `None` if it keeps locks.
    pub(super) fn role_in_log(&self) -> Option<&'static str> {
        (self.role == Role::Sentinel).then_some("sentinel")
    }

    /// Whether a command can be put on the connection by any thread: there is one, and the driver that reads it is that of the only
    /// manager. If there were another one, it could read the answer before the task of this manager knows that it has to wait for it.
    pub(super) fn sends_at_once(&self) -> bool {
        self.keepers.load(Ordering::SeqCst) == 1 && self.link.is_up()
    }

    pub(super) fn limit(&self) -> Duration {
        self.settings.access.limit
    }

    /// Says how the node is doing, as far as is known.
    pub(super) fn health(&self) -> NodeHealth {
        let (up, since) = self.link.is_up_since();
        let mut node = self.status.health(&self.address(), up, since);
        node.database = Some(self.settings.access.redis.db());
        node
    }

    /// Returns the connection, waiting until `limit` for one that is newer than `after` and not known to be broken; see
    /// [`Link::connection`] for when it fails sooner.
    pub(super) async fn connection(&self, after: u64, limit: Instant) -> Replied<Connection> {
        let connection = self.link.connection(after, limit).await;
        connection.map_err(|error| error.unwrap_or_else(|| self.out_of_time()).did_not_happen())
    }

    /// Runs a command that may be repeated, or several, whose replies are an array then.
    pub(super) async fn query<T: FromRedisValue>(&self, commands: &Commands) -> Replied<T> {
        self.query_over(commands).await.map(|(reply, _)| reply)
    }

    /// As [`query`](Self::query), with the epoch of the connection that has answered.
    pub(super) async fn query_over<T: FromRedisValue>(&self, commands: &Commands) -> Replied<(T, u64)> {
        let limit = Instant::now() + self.limit();
        let mut after = 0;
        loop {
            let connection = self.connection(after, limit).await?;
            after = connection.epoch;
            match self.reply(&mut connection.send(commands, limit)).await {
                // The connection has ended behind them.
                Ok(replies) if replies.len() < commands.count() => {}
                Ok(mut replies) => {
                    let single = if replies.len() == 1 { replies.pop() } else { None };
                    let reply = single.unwrap_or_else(|| Value::Array(replies.into_vec()));
                    let reply = from_redis_value(reply).map_err(|error| self.read(error.into()))?;
                    return Ok((reply, after));
                }
                Err(Unanswered::Broken(_)) => {}
                Err(unanswered) => return Err(self.failed(unanswered)),
            }
        }
    }

    /// Waits for the replies to what was sent. A connection that breaks or stays silent is replaced. The error of a single command is
    /// [`Unanswered::Refused`]. Of several commands, some have no reply if the server has refused the first ones and closed the connection.
    pub(super) async fn reply(&self, sent: &mut Sent) -> Result<Values, Unanswered> {
        // If another driver keeps the connection, its runtime may stand still.
        self.reply_unless(self.link.ended(sent.connection.epoch), sent).await
    }

    /// Waits for the replies, unless the connection has `ended` before.
    pub(super) async fn reply_unless(
        &self,
        ended: impl Future<Output = ()>,
        sent: &mut Sent,
    ) -> Result<Values, Unanswered> {
        let Some(replies) = &mut sent.replies else {
            // The caller was not polled in time. That says nothing about the connection, which others use.
            return Err(Unanswered::Unsent(self.out_of_time().did_not_happen()));
        };
        let (connection, begun, limit) = (&sent.connection, sent.begun, sent.limit);
        let epoch = connection.epoch;
        let mut ended = pin!(ended);
        let out_of_time = async {
            sleep_until(limit).await;
            // If all threads of the runtime stood still, the answer may have arrived and not been read yet. Reading takes longer on a
            // machine that is so busy that this timer was late, too.
            sleep(limit.elapsed().clamp(TO_READ, LATE_TO_READ)).await;
        };
        tokio::select! {
            // An answer that is there counts, however late it is looked for.
            biased;
            replies = replies => match replies {
                Ok(replies) => {
                    connection.about.answered_within(begun.elapsed());
                    match &replies[..] {
                        [Value::ServerError(error)] if sent.count == 1 => Err(Unanswered::Refused(error.clone().into())),
                        _ => Ok(replies),
                    }
                }
                Err(error) if failure::is_broken(&error) => {
                    self.link.replace(epoch, Duration::ZERO);
                    Err(Unanswered::Broken(failure::of(error, &self.address())))
                }
                Err(error) => Err(Unanswered::Refused(error)),
            },
            () = &mut ended => Err(Unanswered::Broken(self.lost(epoch))),
            () = out_of_time => {
                let silent = begun.elapsed();
                // A request that had little time left, or a server that is far away, says nothing about the connection.
                if silent >= connection.least_silence().min(self.limit()) {
                    self.link.replace(epoch, silent);
                }
                Err(Unanswered::Silent(self.silent()))
            }
        }
    }

    /// Reads an error of the server.
    pub(super) fn refusal(&self, error: RedisError) -> BackendError {
        if self.role == Role::Node && error.redirect_node().is_some() {
            let message = format!("{} does not have the slot of the key; try again", self.address());
            return BackendError::unavailable(message).did_not_happen();
        }
        self.read(error)
    }

    /// Reads an error of the server, according to its role.
    pub(super) fn read(&self, error: RedisError) -> BackendError {
        let read = if self.role == Role::Sentinel { failure::of_sentinel } else { failure::of };
        read(error, &self.address())
    }

    /// Reads why a command has no usable answer.
    pub(super) fn failed(&self, unanswered: Unanswered) -> BackendError {
        match unanswered {
            Unanswered::Refused(error) => self.refusal(error),
            Unanswered::Unsent(error) | Unanswered::Broken(error) | Unanswered::Silent(error) => error,
        }
    }

    /// The error of a request for which there was no connection in time.
    pub(super) fn out_of_time(&self) -> BackendError {
        if self.asks_for_credentials() {
            return failure::no_credentials("has not answered yet", &self.address());
        }
        self.silent()
    }

    /// The error of a request that was sent and not answered in time.
    pub(super) fn silent(&self) -> BackendError {
        let (address, limit) = (&self.address(), self.limit());
        if let Some(named) = self.named().filter(|_| !self.is_reached.load(Ordering::Relaxed)) {
            return failure::unreachable(address, Some(named), &format!("did not answer within {limit:?}"));
        }
        // A server without TLS waits for more of what it does not understand.
        let check = match self.settings.access.tls {
            Some(_) => "check that it runs and can be reached, and that this port speaks TLS",
            None => "check that it runs and can be reached",
        };
        BackendError::unavailable(format!("{address} did not answer within {limit:?}; {check}"))
    }

    /// The source of the address of the latest attempt to connect; `None` if a URL named it.
    pub(super) fn named(&self) -> Option<Named<'_>> {
        if self.is_announced {
            return Some(Named::ByCluster);
        }
        let sentinels = self.sentinels.as_ref()?;
        let has_aim = self.aim.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        has_aim.then(|| Named::BySentinels(&sentinels.service))
    }

    /// Why the connection of an epoch was replaced.
    pub(super) fn lost(&self, epoch: u64) -> BackendError {
        if self.link.silence(epoch).is_zero() { failure::closed(&self.address()) } else { self.silent() }
    }

    /// Replaces the connection to a server that has become a replica, or has begun to load its data: its name may lead to
    /// another server by now.
    ///
    /// Only once a second: a connection that is younger shows that another one does not help.
    pub(super) fn demoted(&self, connection: &Connection) {
        if connection.about.since.elapsed() > DEMOTED_AGAIN {
            self.link.replace(connection.epoch, Duration::ZERO);
        } else {
            // The next heartbeat replaces the connection, so that not every request meets the same error.
            connection.mark_demoted();
        }
    }

    /// Records that the server has answered an attempt to connect.
    pub(super) fn heard(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Returns when the server last answered an attempt to connect that may still succeed.
    pub(super) fn last_heard(&self) -> Option<Instant> {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the attempt which the server answered has failed.
    pub(super) fn forget_heard(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("address", &self.address()).finish_non_exhaustive()
    }
}

/// How many attempts to connect may be in flight: they follow one another by this part of the limit of a command.
pub(super) const ATTEMPTS: usize = 4;
/// How old a connection must be to be replaced because its server is not a primary.
pub(super) const DEMOTED_AGAIN: Duration = Duration::from_secs(1);
/// How long it takes a runtime that goes on to read what has come.
const TO_READ: Duration = Duration::from_millis(1);
/// How long it may take one that has stood still.
const LATE_TO_READ: Duration = Duration::from_millis(25);
