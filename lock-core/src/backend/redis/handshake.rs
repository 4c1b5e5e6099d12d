//! The handshake of a connection: the protocol, the user, the client's name, and an inspection of the server.
//!
//! It takes one round trip: `HELLO` with the login, the database, the questions and the subscriptions leave in one write. Then the kill of the
//! connection that this one replaces leaves before any request: a request that is still in flight there cannot be executed after the
//! first one here. A server that cannot keep locks is refused with the setting that is wrong.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::future::BoxFuture;
use redis::{ErrorKind as RedisErrorKind, RedisError, Value};
use tokio::time::{Instant, timeout};

use super::{
    commands::Commands,
    connector::{Connector, Role},
    failure::{self, is_broken},
    former::Former,
    info::field,
    names,
    provider::{Login, Logins},
    reply, script,
    slot::Tag,
    stream::{Address, Stream},
    tls,
    wire::{Reader, Replies, Wire},
};
use crate::{
    backend::{BackendError, Calls, EVERYONE, Replied},
    error::ErrorKind,
};

/// A fresh connection and what the driver needs of it.
pub(super) struct Connected {
    pub(super) wire: Wire,
    pub(super) reader: Reader,
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
    /// How long the server took to answer.
    pub(super) round_trip: Duration,
    /// The credentials that follow those which it was made with, if there is a provider.
    pub(super) logins: Option<Logins>,
    /// Whether the server has closed the connections that this one replaces; `None` if there are none to be closed.
    pub(super) killed: Option<BoxFuture<'static, bool>>,
    /// When [`script::trial`] was sent, and the replies to come, if it was.
    pub(super) trial: Option<(Instant, Replies)>,
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
        let mut opened = match self.open(login, resp2, &self.questions(resp2, calls)).await? {
            Err(error) if !resp2 && Self::lacks_resp3(&error) => {
                resp2 = true;
                self.open(login, resp2, &self.questions(resp2, calls)).await?
            }
            opened => opened,
        }
        .map_err(|error| {
            self.closed_at_hello.fetch_add(u32::from(is_broken(&error)), Ordering::Relaxed);
            // A proxy may close the connection because of a script.
            self.tries_scripts.store(false, Ordering::Relaxed);
            self.refused(error, login.is_some())
        })?;
        // The guess would be permanent. So HELLO is tried once more: a balancer may have closed the connection because its server
        // was not up yet.
        if is_guess && let Ok(Ok(speaks_resp3)) = self.open(login, false, &self.questions(false, calls)).await {
            (opened, resp2) = (speaks_resp3, false);
        }
        let (mut connected, replies) = opened;
        self.identify(&mut connected, replies, resp2)?;
        // The kill is sent before all other commands on this connection, so no request has to wait for its answer.
        let to_kill = former.map(|former| former.to_kill(connected.run.as_ref(), connected.id)).unwrap_or_default();
        if !to_kill.is_empty() {
            let mut kills = Commands::default();
            for id in to_kill {
                kills.add(["CLIENT", "KILL", "ID", &id.to_string()]);
            }
            let killed = connected.wire.put(&kills);
            connected.killed = Some(Box::pin(async move {
                let Ok(replies) = killed.await else { return false };
                // How many were closed: none, if one was closed before.
                replies.iter().all(|reply| matches!(reply, Value::Int(_)))
            }));
        }
        if resp2 && !by_choice {
            self.advice.no_resp3(&self.address());
        }
        self.resp2.store(resp2, Ordering::Relaxed);
        Ok(connected)
    }

    /// Opens a connection, and says the protocol, the user and the database over it, and `then` more in the same write. Returns the
    /// replies to that. The inner error is the server's.
    pub(super) async fn open(
        &self,
        login: Option<&Login>,
        resp2: bool,
        then: &Commands,
    ) -> Result<Result<(Connected, Vec<Value>), RedisError>, Failure> {
        let address = self.locate().await?;
        let (wire, mut reader) = Wire::new(self.stream(&address).await?);
        let (hello, names) = self.hello(login, resp2);
        let begun = Instant::now();
        let (first, rest) = (wire.put(&hello), wire.put(then));
        // Not waited for here: while a server holds writes back, as during a failover, it holds scripts back.
        let trial = self.tries_scripts.load(Ordering::Relaxed).then(|| (begun, wire.put(&script::trial())));
        let replies = async {
            // What refuses the first commands need not answer the others.
            names.into_iter().zip(first.await?).try_for_each(|(name, reply)| is_accepted(name, reply))?;
            rest.await
        };
        let replies = self.step(reader.carry(replies)).await?;
        let round_trip = begun.elapsed();
        self.heard();
        Ok(replies.map(|replies| {
            let connected = Connected {
                wire,
                reader,
                address,
                run: None,
                id: None,
                listening: false,
                tracks: false,
                round_trip,
                logins: None,
                killed: None,
                trial,
            };
            (connected, replies.into_vec())
        }))
    }

    /// The first commands, without which the others make no sense, and their names.
    fn hello(&self, login: Option<&Login>, resp2: bool) -> (Commands, Vec<&'static str>) {
        let info = &self.settings.access.redis;
        let (username, password) = match login {
            Some(Login { username, password }) => (Some(&**username), Some(&**password)),
            None => (info.username(), info.password()),
        };
        let (mut hello, mut names) = (Commands::default(), Vec::new());
        if !resp2 {
            hello.add(["HELLO", "3"]);
            names.push("HELLO");
        }
        match (password, username) {
            (Some(password), _) if !resp2 => {
                hello.text("AUTH").text(username.unwrap_or("default")).text(password);
            }
            (Some(password), Some(username)) => {
                hello.add(["AUTH", username, password]);
                names.push("AUTH");
            }
            (Some(password), None) => {
                hello.add(["AUTH", password]);
                names.push("AUTH");
            }
            (None, _) => {}
        }
        if info.db() != 0 {
            hello.add(["SELECT", &info.db().to_string()]);
            names.push("SELECT");
        }
        // The name of the `redis` crate tells nothing that the client's name does not, and a server that allows its users no
        // `CLIENT SETINFO` would note a breach for each connection.
        if let (Some(name), Some(version), false) = (info.lib_name(), info.lib_ver(), info.skip_set_lib_name()) {
            hello.add(["CLIENT", "SETINFO", "LIB-NAME", name]);
            hello.add(["CLIENT", "SETINFO", "LIB-VER", version]);
            names.extend(["CLIENT", "CLIENT"]);
        }
        (hello, names)
    }

    async fn stream(&self, address: &Address) -> Result<Box<dyn Stream>, Failure> {
        let failed = |error| failure::of_stream(&error, &self.address(), self.named());
        match address {
            Address::Tcp { host, port } => {
                // A name server may take longer than a command does.
                let addresses = self.resolver.addresses(host, *port).await;
                let addresses = addresses.map_err(|error| failure::of_lookup(&error, &self.address(), self.named()))?;
                let opened = timeout(self.limit(), self.resolver.tcp(addresses, &self.settings.access.tcp)).await;
                self.is_reached.store(matches!(opened, Ok(Ok(_))), Ordering::Relaxed);
                let stream = opened.map_err(|_| self.out_of_time())?.map_err(failed)?;
                let Some(tls) = &self.settings.access.tls else { return Ok(Box::new(stream)) };
                // It takes two round trips.
                let stream = timeout(2 * self.limit(), tls.encrypt(stream, host, &self.resolver)).await;
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
    async fn step<T>(&self, step: impl Future<Output = T>) -> Replied<T> {
        timeout(self.limit(), step).await.map_err(|_| self.out_of_time())
    }

    /// What follows the first commands: the name of the connection, questions about the server, and subscriptions.
    fn questions(&self, resp2: bool, calls: Option<&Calls>) -> Commands {
        let mut questions = Commands::one(["CLIENT", "SETNAME", &self.settings.access.client_name]);
        questions.add(["CLIENT", "ID"]);
        questions.add(["INFO", "server"]);
        questions.add(["INFO", "replication"]);
        if self.role != Role::Sentinel {
            questions.add(["INFO", "memory"]);
        }
        let Some(calls) = calls else { return questions };
        if self.role != Role::Sentinel {
            // Of our own writes we know.
            questions.add(["CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP"]);
        }
        if resp2 {
            return questions;
        }
        let everyone = names::of_database(EVERYONE, self.settings.access.redis.db());
        match self.role {
            Role::Sentinel => {
                for channel in SWITCHES {
                    questions.add(["SUBSCRIBE", channel]);
                }
            }
            Role::Primary | Role::Node => {
                questions.add(["SUBSCRIBE", calls.channel()]);
                questions.add(["SUBSCRIBE", &everyone]);
                if self.role == Role::Node {
                    // If another node has the slot of this channel, the user may listen all the same.
                    questions.add(["SSUBSCRIBE", &names::channel(Tag::ONE, calls.channel())]);
                }
            }
        }
        questions
    }

    /// Reads the replies: what server this is, and whether it may be used.
    fn identify(&self, connected: &mut Connected, replies: Vec<Value>, resp2: bool) -> Result<(), Failure> {
        // Without a password the older protocol lets us come this far.
        if let Some(Value::ServerError(error)) = replies.first()
            && error.code() == "NOAUTH"
        {
            return Err(self.read(error.clone().into()).into());
        }
        // Each may be forbidden to the user, and then is done without.
        if let Some(Value::Int(id)) = replies.get(1) {
            connected.id = Some(*id);
        }
        let [server, replication, memory] =
            [2, 3, 4].map(|at| replies.get(at).and_then(reply::text).unwrap_or_default().to_owned());
        let (server, replication) = (&*server, &*replication);
        self.refuse(server, replication)?;
        let mut replies = replies.into_iter().map(Value::extract_error);
        if self.role == Role::Sentinel {
            let mut subscribed = replies.skip(4);
            connected.listening = subscribed.len() > 0 && subscribed.all(|reply| reply.is_ok());
            return Ok(());
        }
        let tracks = matches!(replies.nth(5), Some(Ok(Value::Okay)));
        connected.tracks = tracks && !resp2;
        let subscribed: Vec<_> = replies.collect();
        self.advice.memory(&self.address(), &memory);
        connected.run = field(server, "run_id").map(|run| Arc::new(run.to_owned()));
        // Grants come over channels of slots in a cluster, and over those of the database elsewhere.
        let (messages, shards) = subscribed.split_at(subscribed.len().min(2));
        let refused = |replies: &[Result<Value, RedisError>]| replies.iter().find_map(|reply| reply.clone().err());
        let messages_refused = refused(messages);
        if let Some(error) = &messages_refused {
            self.advice.no_subscribe(&self.address(), error);
        }
        let shards_refused =
            refused(shards).filter(|error| error.redirect_node().is_none() && error.code() != Some("CLUSTERDOWN"));
        if let Some(error) = &shards_refused {
            self.advice.no_subscribe(&self.address(), error);
        }
        let refused = if self.role == Role::Node { shards_refused } else { messages_refused };
        connected.listening = !subscribed.is_empty() && refused.is_none();
        Ok(())
    }

    /// Refuses a server that cannot keep locks, by what `INFO` says of it.
    fn refuse(&self, server: &str, replication: &str) -> Result<(), Failure> {
        let unsupported = |message| Err(BackendError::unsupported(message).into());
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
            self.resolver.note_replica();
            let message = format!("{address} is a replica; connect to the primary");
            // Sentinels will name the new primary soon, so their refusal is not permanent.
            let refused = self.sentinels.is_none();
            return Err(Failure { error: BackendError::unavailable(message), refused });
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
            Some("NOPROTO") => true,
            Some("NOAUTH" | "WRONGPASS") => false,
            _ => ["unknown command", "unsupported", "not supported", "invalid request", "'hello'"]
                .iter()
                .any(|words| detail.contains(words)),
        }
    }
}

/// Returns the server's error if it refuses one of the first commands.
fn is_accepted(name: &str, reply: Value) -> Result<(), RedisError> {
    let Value::ServerError(error) = reply else { return Ok(()) };
    let detail = error.details().unwrap_or("no reason given").to_owned();
    match name {
        "HELLO" | "SELECT" => Err(error.into()),
        "AUTH" => Err((RedisErrorKind::AuthenticationFailed, "the login failed", detail).into()),
        _ => Ok(()),
    }
}

/// The channels of a sentinel on which it says that another server is the primary, or will be.
const SWITCHES: [&str; 2] = ["+switch-master", "+promoted-slave"];
/// RESP3, HELLO and the options of CLIENT came with Redis 6.
const LEAST_MAJOR: u32 = 6;
