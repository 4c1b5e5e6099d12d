//! The handshake of a connection: the protocol, the user, the client's name, and a look at the server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, ready},
};
use redis::{
    AsyncConnectionConfig, ErrorKind as RedisErrorKind, ProtocolVersion, PushInfo, PushKind, RedisError, RedisResult,
    Value, aio::MultiplexedConnection,
};
use tokio::{
    sync::mpsc,
    task::coop::unconstrained,
    time::{Instant, timeout},
};

use super::{
    connection::Driver,
    connector::{Connector, Role},
    failure::{self, is_broken},
    former::Former,
    info::{self, field},
    names,
    provider::{Login, Logins},
    slot::Tag,
    stream::{self, Address, Paced, Stream},
    tls,
};
use crate::{
    backend::{BackendError, Calls, EVERYONE},
    error::ErrorKind,
};

/// A fresh connection and what the upkeep needs of it.
pub(super) struct Connected {
    pub(super) inner: MultiplexedConnection,
    pub(super) driver: Driver,
    /// Messages that the server pushes. The stream ends, or says so, when the connection is closed.
    pub(super) pushes: mpsc::UnboundedReceiver<PushInfo>,
    /// Where the server is.
    pub(super) address: Address,
    /// The run of the server, if it is known.
    pub(super) run: Option<Arc<String>>,
    /// The number of the connection within that run, if it is known.
    pub(super) id: Option<i64>,
    /// Whether calls come over it.
    pub(super) listening: bool,
    /// Whether the server says when a key changes that is watched.
    pub(super) tracks: bool,
    /// Whether a message was taken for a reply.
    pub(super) misread: Arc<AtomicBool>,
    /// How long the server took for its last answers.
    pub(super) round_trip: Duration,
    /// The credentials that follow those which it was made with, if there is a provider.
    pub(super) logins: Option<Logins>,
    /// Whether the server has closed the connections that this one replaces; `None` if there are none to be closed.
    pub(super) killed: Option<BoxFuture<'static, bool>>,
}

/// Why an attempt to connect has failed.
pub(super) struct Failure {
    pub(super) error: BackendError,
    /// Whether the server answered, and refused: then there is no hurry to ask again.
    pub(super) refused: bool,
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        Self { refused: error.kind() != ErrorKind::Backend, error }
    }
}

impl Connector {
    /// Makes an attempt to connect, with the credentials of a provider if there is one. A connection without `calls` receives no
    /// messages: it neither subscribes nor tracks.
    pub(super) async fn attempt(
        &self,
        login: Option<(Login, Logins)>,
        former: Option<Former>,
        calls: Option<&Calls>,
    ) -> Result<Connected, Failure> {
        let (login, logins) = login.unzip();
        let connected = timeout(self.settings.access.connect_limit, self.connect(login.as_ref(), former, calls)).await;
        let connected = connected.map_err(|_| self.out_of_time())??;
        Ok(Connected { logins, ..connected })
    }

    /// Makes a connection that is ready for use. `former` is the connection that it replaces. It is killed if that is allowed, so
    /// that its requests are not executed later.
    async fn connect(
        &self,
        login: Option<&Login>,
        former: Option<Former>,
        calls: Option<&Calls>,
    ) -> Result<Connected, Failure> {
        let by_choice = self.settings.access.resp2;
        let is_known = by_choice || self.resp2.load(Ordering::Relaxed);
        let is_guess = !is_known && self.guesses_resp2();
        let mut resp2 = is_known || is_guess;
        let mut connected = match self.open(login, resp2).await? {
            Err(error) if !resp2 && Self::lacks_resp3(&error) => {
                resp2 = true;
                self.open(login, resp2).await?
            }
            opened => opened,
        }
        .map_err(|error| {
            self.closed_at_hello.fetch_add(u32::from(is_broken(&error)), Ordering::Relaxed);
            self.refused(error, login.is_some())
        })?;
        // The guess would be permanent. So HELLO is tried once more: a balancer may have closed the connection because its server
        // was not up yet.
        if is_guess && let Ok(Ok(speaks_resp3)) = self.open(login, false).await {
            (connected, resp2) = (speaks_resp3, false);
        }
        self.identify(&mut connected, resp2, calls).await?;
        // The kill is sent before all other commands on this connection, so no request has to wait for its answer.
        let to_kill = former.map(|former| former.to_kill(connected.run.as_ref(), connected.id)).unwrap_or_default();
        if !to_kill.is_empty() {
            let mut kills = redis::Pipeline::with_capacity(to_kill.len());
            for id in to_kill {
                kills.cmd("CLIENT").arg("KILL").arg("ID").arg(id);
            }
            let mut inner = connected.inner.clone();
            let mut killed: BoxFuture<'static, bool> = Box::pin(async move {
                let replies = inner.send_packed_commands(&kills, 0, kills.len()).await.unwrap_or_default();
                // How many were closed: none, if one was closed before.
                replies.len() == kills.len() && replies.iter().all(|reply| matches!(reply, Value::Int(_)))
            });
            connected.killed = match unconstrained(&mut killed).now_or_never() {
                Some(is_done) => Some(Box::pin(ready(is_done))),
                None => Some(killed),
            };
        }
        if resp2 && !by_choice {
            self.advice.no_resp3(&self.address());
        }
        self.resp2.store(resp2, Ordering::Relaxed);
        Ok(connected)
    }

    /// Opens a connection, and says the protocol, the user and the database over it. The inner error is the server's.
    pub(super) async fn open(
        &self,
        login: Option<&Login>,
        resp2: bool,
    ) -> Result<Result<Connected, RedisError>, Failure> {
        let address = self.locate().await?;
        let stream = Paced::new(self.stream(&address).await?);
        let protocol = if resp2 { ProtocolVersion::RESP2 } else { ProtocolVersion::RESP3 };
        let mut info = self.settings.access.redis.clone().set_protocol(protocol);
        if let Some(Login { username, password }) = login {
            info = info.set_username(username).set_password(password);
        }
        let (sender, pushes) = mpsc::unbounded_channel();
        let misread = Arc::new(AtomicBool::new(false));
        let is_misread = Arc::clone(&misread);
        let send = move |push: PushInfo| {
            // The server sends it unasked when a slot has moved away, and the crate takes it for a reply.
            if push.kind == PushKind::SUnsubscribe {
                is_misread.store(true, Ordering::Release);
            }
            sender.send(push)
        };
        let mut config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        if !resp2 {
            config = config.set_push_sender(send);
            // The name of the `redis` crate tells nothing that the client's name does not, and a server that allows its users no
            // `CLIENT SETINFO` would note a breach for each connection. Over RESP2 nothing else may ask for a sign of life.
            if info.lib_name().is_none() {
                info = info.set_skip_set_lib_name();
            }
        }
        let hello = MultiplexedConnection::new_with_config(&info, stream, config);
        let opened = self.step(hello).await?;
        self.heard();
        Ok(opened.map(|(inner, driver)| {
            let driver = Driver::new(driver);
            Connected {
                inner,
                driver,
                pushes,
                address,
                run: None,
                id: None,
                listening: false,
                tracks: false,
                misread,
                round_trip: Duration::MAX,
                logins: None,
                killed: None,
            }
        }))
    }

    async fn stream(&self, address: &Address) -> Result<Box<dyn Stream>, Failure> {
        let failed = |error| failure::of_stream(&error, &self.address(), self.named());
        match address {
            Address::Tcp { host, port } => {
                // A name server may take longer than a command does.
                let addresses = self.resolver.addresses(host, *port).await;
                let addresses = addresses.map_err(|error| failure::of_lookup(&error, &self.address(), self.named()))?;
                let opened = timeout(self.limit(), stream::tcp(addresses, &self.settings.access.tcp)).await;
                self.is_reached.store(matches!(opened, Ok(Ok(_))), Ordering::Relaxed);
                let stream = opened.map_err(|_| self.out_of_time())?.map_err(failed)?;
                let Some(tls) = &self.settings.access.tls else { return Ok(Box::new(stream)) };
                // It takes two round trips.
                let stream = timeout(2 * self.limit(), tls.encrypt(stream, host)).await;
                let stream = stream.map_err(|_| self.out_of_time())?.map_err(|error| {
                    match tls::failure(&error, &self.address(), host) {
                        // A certificate does not change from one moment to the next.
                        Some(error) => Failure { error, refused: true },
                        None => failure::of_stream(&error, &self.address(), None).into(),
                    }
                })?;
                self.heard();
                Ok(stream)
            }
            #[cfg(unix)]
            Address::Unix(path) => {
                let stream = self.step(tokio::net::UnixStream::connect(path)).await?;
                Ok(Box::new(stream.map_err(failed)?))
            }
            #[cfg(not(unix))]
            Address::Unix(_) => Err(failed(std::io::ErrorKind::Unsupported.into()).into()),
        }
    }

    /// Reads an error of the first commands. `has_provider` says that user and password came from a provider.
    fn refused(&self, error: RedisError, has_provider: bool) -> Failure {
        if self.settings.access.tls.is_some()
            && let Address::Tcp { host, .. } = &self.settings.address
            && let Some(error) = tls::failure_at_hello(&error, &self.address(), host)
        {
            return Failure { error, refused: true };
        }
        if has_provider { failure::of_login(error, &self.address()).into() } else { self.read(error).into() }
    }

    /// One round trip of an attempt. A server that takes longer than a command may is of no use.
    async fn step<T>(&self, step: impl Future<Output = T>) -> Result<T, BackendError> {
        timeout(self.limit(), step).await.map_err(|_| self.out_of_time())
    }

    /// Names the connection, listens for calls, and looks at what server this is.
    async fn identify(&self, connected: &mut Connected, resp2: bool, calls: Option<&Calls>) -> Result<(), Failure> {
        let failed = |error| self.read(error);
        let mut questions = redis::pipe();
        questions.cmd("CLIENT").arg("SETNAME").arg(&self.settings.access.client_name);
        questions.cmd("CLIENT").arg("ID");
        questions.cmd("INFO").arg("server");
        questions.cmd("INFO").arg("replication");
        if self.role != Role::Sentinel {
            questions.cmd("INFO").arg("memory");
        }
        if self.role != Role::Sentinel && calls.is_some() {
            // Of our own writes we know.
            questions.cmd("CLIENT").arg("TRACKING").arg("ON").arg("OPTIN").arg("NOLOOP");
        }
        let mut asks = connected.inner.clone();
        let listen = self.subscribe(connected.inner.clone(), calls.filter(|_| !resp2));
        let begun = Instant::now();
        let asked = async { tokio::join!(asks.send_packed_commands(&questions, 0, questions.len()), listen) };
        let (replies, subscribed) = self.step(connected.driver.carry(asked)).await?;
        connected.round_trip = begun.elapsed();
        let replies = replies.map_err(failed)?;
        // Without a password the older protocol lets us come this far.
        if let Some(Value::ServerError(error)) = replies.first()
            && error.code() == "NOAUTH"
        {
            return Err(failed(error.clone().into()).into());
        }
        // Each may be forbidden to the user, and then is done without.
        if let Some(Value::Int(id)) = replies.get(1) {
            connected.id = Some(*id);
        }
        let [server, replication, memory] =
            [2, 3, 4].map(|at| replies.get(at).and_then(info::text).unwrap_or_default());
        self.refuse(server, replication)?;
        if self.role == Role::Sentinel {
            connected.listening = subscribed.is_some_and(|subscribed| subscribed.is_ok());
            return Ok(());
        }
        self.advice.memory(&self.address(), memory);
        // A seed of a cluster may be a replica, which has none of its own.
        if field(replication, "role") == Some("master") {
            self.advice.replicas(&self.address(), self.settings.access.replicas, replication);
        }
        connected.tracks = !resp2 && matches!(replies.get(5), Some(Value::Okay));
        connected.run = field(server, "run_id").map(|run| Arc::new(run.to_owned()));
        connected.listening = match subscribed {
            Some(Ok(())) => true,
            Some(Err(error)) if is_broken(&error) => return Err(failed(error).into()),
            Some(Err(error)) => {
                self.advice.no_subscribe(&self.address(), &error);
                false
            }
            None => false,
        };
        Ok(())
    }

    /// Subscribes to what a server of this role has to say. Returns `None` without `calls`.
    async fn subscribe(&self, mut inner: MultiplexedConnection, calls: Option<&Calls>) -> Option<RedisResult<()>> {
        let channel = calls?.channel();
        let everyone = names::of_database(EVERYONE, self.settings.access.redis.db());
        Some(match self.role {
            Role::Primary => inner.subscribe(&[&**channel, &*everyone]).await,
            Role::Sentinel => inner.subscribe(&SWITCHES).await,
            Role::Node => {
                let mut messages = inner.clone();
                // The second is only for those who look at holders and waiters.
                let channels = [&**channel, &*everyone];
                let (shards, messages) = tokio::join!(try_shards(&mut inner, channel), messages.subscribe(&channels));
                if let Err(error) = &messages
                    && !is_broken(error)
                {
                    self.advice.no_subscribe(&self.address(), error);
                }
                shards
            }
        })
    }

    /// Refuses a server that cannot keep locks, by what `INFO` says of it.
    fn refuse(&self, server: &str, replication: &str) -> Result<(), Failure> {
        let unsupported = |message| Err(BackendError::new(ErrorKind::Unsupported, message).into());
        let address = &*self.address();
        if let Some(version) = field(server, "redis_version")
            && let Some(major) = version.split('.').next().and_then(|major| major.parse::<u32>().ok())
            && major < LEAST_MAJOR
        {
            return unsupported(format!(
                "{address} runs Redis {version}; upgrade it to version {LEAST_MAJOR} or later"
            ));
        }
        // Valkey has a name of its own for it.
        match (field(server, "redis_mode").or_else(|| field(server, "server_mode")), self.role) {
            (Some("cluster"), Role::Primary | Role::Sentinel) => return Err(failure::cluster(address).into()),
            (Some("sentinel"), Role::Primary | Role::Node) => {
                return unsupported(format!(
                    "{address} is a Redis Sentinel; write redis+sentinel://HOST,HOST,HOST/SERVICE with all sentinels \
                     and the name under which they know the primary"
                ));
            }
            (Some("standalone"), Role::Sentinel) => {
                return unsupported(format!(
                    "{address} is not a Redis Sentinel; redis+sentinel:// names the sentinels, whose usual port is 26379, and \
                     redis:// the server itself"
                ));
            }
            (Some("standalone"), Role::Node) => {
                return unsupported(format!(
                    "{address} is not a node of a Redis Cluster; write redis:// for a single server"
                ));
            }
            _ => {}
        }
        if self.role == Role::Primary && field(replication, "role") == Some("slave") {
            let message = format!("{address} is a replica; connect to the primary");
            // Sentinels will name the new primary soon, so their refusal is not permanent.
            let refused = self.sentinels().is_none();
            return Err(Failure { error: BackendError::new(ErrorKind::Backend, message), refused });
        }
        Ok(())
    }

    /// Whether to try RESP2 because the server closes the connection on HELLO, as some do on any unknown command. A server that
    /// goes down closes it, too, so it must have done so twice, and must never have spoken RESP3.
    fn guesses_resp2(&self) -> bool {
        self.link.newest() == 0 && self.closed_at_hello.load(Ordering::Relaxed) % 3 == 2
    }

    /// Whether the server, or a proxy before it, says that it knows only RESP2.
    fn lacks_resp3(error: &RedisError) -> bool {
        let detail = error.detail().unwrap_or_default().to_ascii_lowercase();
        match error.code() {
            _ if is_broken(error) => false,
            _ if error.kind() == RedisErrorKind::RESP3NotSupported => true,
            Some("NOPROTO") => true,
            Some("NOAUTH" | "WRONGPASS") => false,
            _ => ["unknown command", "unsupported", "not supported", "invalid request", "'hello'"]
                .iter()
                .any(|words| detail.contains(words)),
        }
    }
}

/// Finds out whether this user may listen to channels of slots, which came with Redis 7. If another node
/// has the slot of this channel, the user may.
async fn try_shards(connection: &mut MultiplexedConnection, channel: &str) -> RedisResult<()> {
    let mut subscribe = redis::cmd("SSUBSCRIBE");
    subscribe.arg(names::channel(Tag::ONE, channel));
    match connection.send_packed_command(&subscribe).await?.extract_error() {
        Err(error) if error.redirect_node().is_none() && error.code() != Some("CLUSTERDOWN") => Err(error),
        _ => Ok(()),
    }
}

/// The channels of a sentinel on which it says that another server is the primary, or will be.
const SWITCHES: [&str; 2] = ["+switch-master", "+promoted-slave"];
/// RESP3, HELLO and the options of CLIENT came with Redis 6.
const LEAST_MAJOR: u32 = 6;
