//! The handshake of a connection: the protocol, the user, the client's name, and a look at the server.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::FutureExt;
use redis::{
    AsyncConnectionConfig, ErrorKind as RedisErrorKind, ProtocolVersion, PushInfo, RedisError, Value,
    aio::MultiplexedConnection,
};
use tokio::{
    sync::mpsc,
    task::coop::unconstrained,
    time::{Instant, timeout},
};

use super::{
    connection::Driver,
    connector::Connector,
    failure::{self, is_broken},
    info::{self, field},
    stream::{self, Paced, Place, Stream},
};
use crate::{
    backend::{BackendError, Calls},
    error::ErrorKind,
};

/// A fresh connection and what the upkeep needs of it.
pub(super) struct Connected {
    pub(super) inner: MultiplexedConnection,
    pub(super) driver: Driver,
    /// Messages that the server pushes. The stream ends, or says so, when the connection is closed.
    pub(super) pushes: mpsc::UnboundedReceiver<PushInfo>,
    /// The run of the server, if the server tells.
    pub(super) run: Option<Arc<String>>,
    /// The number of the connection within that run, if the server tells.
    pub(super) id: Option<i64>,
    /// Whether calls come over it.
    pub(super) listening: bool,
    /// How long the server took for its last answers.
    pub(super) round_trip: Duration,
}

/// The connection that another one replaces.
#[derive(Clone)]
pub(super) struct Former {
    pub(super) run: Arc<String>,
    pub(super) id: i64,
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
    /// Makes a connection that is ready for use. `former` is the connection that it replaces, which is killed where that
    /// is allowed, so that nothing that it still carries is executed later.
    pub(super) async fn connect(&self, former: Option<Former>, calls: &Calls) -> Result<Connected, Failure> {
        let by_choice = self.settings.resp2;
        let is_known = by_choice || self.resp2.load(Ordering::Relaxed);
        let is_guess = !is_known && self.guesses_resp2();
        let mut resp2 = is_known || is_guess;
        let mut connected = match self.open(resp2).await? {
            Err(error) if !resp2 && Self::lacks_resp3(&error) => {
                resp2 = true;
                self.open(resp2).await?
            }
            opened => opened,
        }
        .map_err(|error| {
            self.closed_at_hello.fetch_add(u32::from(is_broken(&error)), Ordering::Relaxed);
            failure::of(error, self.address())
        })?;
        // The guess would be for good. So who has hung up is asked once more: it may have been a balancer whose server was not
        // up yet.
        if is_guess && let Ok(Ok(speaks_resp3)) = self.open(false).await {
            (connected, resp2) = (speaks_resp3, false);
        }
        self.identify(&mut connected, resp2, calls).await?;
        // Its commands come before all others on this connection, so that nobody has to wait for the answer. In
        // another run of the server, the former number may be that of somebody else's connection.
        if let (Some(former), Some(run)) = (former, &connected.run)
            && former.run == *run
            && connected.id != Some(former.id)
        {
            let mut kill = redis::cmd("CLIENT");
            kill.arg("KILL").arg("ID").arg(former.id);
            // Otherwise it would not be sent any more, since nobody waits for the answer.
            kill.set_no_response(true);
            let _ = unconstrained(connected.inner.send_packed_command(&kill)).now_or_never();
        }
        if resp2 && !by_choice {
            self.advice.no_resp3(self.address());
        }
        self.resp2.store(resp2, Ordering::Relaxed);
        Ok(connected)
    }

    /// Opens a connection, and says the protocol, the user and the database over it. The inner error is the server's.
    async fn open(&self, resp2: bool) -> Result<Result<Connected, RedisError>, BackendError> {
        let stream = Paced::new(self.stream().await?);
        let protocol = if resp2 { ProtocolVersion::RESP2 } else { ProtocolVersion::RESP3 };
        let info = self.settings.redis.clone().set_protocol(protocol);
        let (sender, pushes) = mpsc::unbounded_channel();
        let mut config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        if !resp2 {
            config = config.set_push_sender(sender);
        }
        let hello = MultiplexedConnection::new_with_config(&info, stream, config);
        let opened = self.step(hello).await?;
        self.heard();
        Ok(opened.map(|(inner, driver)| {
            let driver = Driver::new(driver);
            Connected { inner, driver, pushes, run: None, id: None, listening: false, round_trip: Duration::MAX }
        }))
    }

    async fn stream(&self) -> Result<Box<dyn Stream>, BackendError> {
        let failed = |error| failure::of_stream(&error, self.address());
        match &self.settings.place {
            Place::Tcp { host, port } => {
                // A name server may take longer than a command does.
                let addresses = self.resolver.addresses(host, *port).await;
                let addresses = addresses.map_err(|error| failure::of_lookup(&error, self.address()))?;
                let stream = self.step(stream::tcp(addresses)).await?.map_err(failed)?;
                if !self.settings.tls {
                    return Ok(Box::new(stream));
                }
                // It takes two round trips.
                let stream = timeout(2 * self.limit(), stream::encrypted(stream, host)).await;
                let stream = stream.map_err(|_| self.out_of_time())?.map_err(failed)?;
                self.heard();
                Ok(stream)
            }
            #[cfg(unix)]
            Place::Unix(path) => {
                let stream = self.step(tokio::net::UnixStream::connect(path)).await?;
                Ok(Box::new(stream.map_err(failed)?))
            }
            #[cfg(not(unix))]
            Place::Unix(_) => Err(failed(std::io::ErrorKind::Unsupported.into())),
        }
    }

    /// One round trip of an attempt. A server that takes longer than a command may is of no use.
    async fn step<T>(&self, step: impl Future<Output = T>) -> Result<T, BackendError> {
        timeout(self.limit(), step).await.map_err(|_| self.out_of_time())
    }

    /// Names the connection, listens for calls, and looks at what server this is.
    async fn identify(&self, connected: &mut Connected, resp2: bool, calls: &Calls) -> Result<(), Failure> {
        let failed = |error| failure::of(error, self.address());
        let mut questions = redis::pipe();
        questions.cmd("CLIENT").arg("SETNAME").arg(&self.settings.client_name);
        questions.cmd("CLIENT").arg("ID");
        questions.cmd("INFO").arg("server");
        questions.cmd("INFO").arg("memory");
        questions.cmd("INFO").arg("replication");
        let (mut asks, mut subscribes) = (connected.inner.clone(), connected.inner.clone());
        let listen = async { if resp2 { None } else { Some(subscribes.subscribe(&**calls.channel()).await) } };
        let begun = Instant::now();
        let asked = async { tokio::join!(asks.send_packed_commands(&questions, 0, 5), listen) };
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
        let [server, memory, replication] =
            [2, 3, 4].map(|at| replies.get(at).and_then(info::text).unwrap_or_default());
        self.refuse(server, replication)?;
        self.advice.memory(self.address(), memory);
        connected.run = field(server, "run_id").map(|run| Arc::new(run.to_owned()));
        connected.listening = match subscribed {
            Some(Ok(())) => true,
            Some(Err(error)) if is_broken(&error) => return Err(failed(error).into()),
            Some(Err(error)) => {
                self.advice.no_subscribe(self.address(), &error);
                false
            }
            None => false,
        };
        Ok(())
    }

    /// Refuses a server that cannot keep locks, by what `INFO` says of it.
    fn refuse(&self, server: &str, replication: &str) -> Result<(), Failure> {
        let unsupported = |message| Err(BackendError::new(ErrorKind::Unsupported, message).into());
        let address = self.address();
        if let Some(version) = field(server, "redis_version")
            && let Some(major) = version.split('.').next().and_then(|major| major.parse::<u32>().ok())
            && major < LEAST_MAJOR
        {
            return unsupported(format!("{address} runs Redis {version}; version {LEAST_MAJOR} is the least"));
        }
        match field(server, "redis_mode") {
            Some("cluster") => return Err(failure::cluster(address).into()),
            Some("sentinel") => {
                return unsupported(format!(
                    "{address} is a Redis Sentinel, which lock-core does not support yet; name the primary itself"
                ));
            }
            _ => {}
        }
        if field(replication, "role") == Some("slave") {
            let message = format!("{address} is a replica; locks need the primary");
            return Err(Failure { error: BackendError::new(ErrorKind::Backend, message), refused: true });
        }
        Ok(())
    }

    /// Whether to try RESP2 because the server closes the connection on HELLO, as some do on any command that they do not
    /// know. A server that goes down does, too: so twice says more than once, and none has spoken RESP3 before.
    fn guesses_resp2(&self) -> bool {
        self.link.epoch() == 0 && self.closed_at_hello.load(Ordering::Relaxed) % 3 == 2
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

/// RESP3, HELLO and the options of CLIENT came with Redis 6.
const LEAST_MAJOR: u32 = 6;
