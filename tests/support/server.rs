//! Real redis-servers, one or more for each test, on ports and in folders of their own.

use std::{collections::HashMap, io, path::Path, time::Duration};

use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    launch::{PortTaken, Running, ServerBuilder, UP_WITHIN, info_field},
    resp::{RawClient, Reply},
    signals,
};

/// A redis-server of this test's own; it is killed, and its folder removed, on drop or when the test process dies.
///
/// It keeps nothing on disk, and allows `DEBUG` to local clients.
#[derive(Debug)]
pub struct RedisServer {
    pub(crate) setup: ServerBuilder,
    pub(crate) port: u16,
    pub(crate) running: Option<Running>, // before the folder, which it may write to until it is killed
    pub(crate) folder: TempDir,
}

impl RedisServer {
    /// Starts a server with nothing special about it, and returns when it answers.
    ///
    /// # Panics
    /// When redis-server is missing or doesn't come up within a minute.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// A server with a password, an option of its own, a socket in the file system.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// `redis://127.0.0.1:PORT`, with the password in it if there is one.
    pub fn url(&self) -> String {
        self.url_at(&self.address())
    }

    /// The same through another address, such as that of a proxy in front of this server.
    pub fn url_at(&self, address: &str) -> String {
        match &self.setup.password {
            Some(password) => format!("redis://:{}@{address}", percent_encoded(password)),
            None => format!("redis://{address}"),
        }
    }

    /// `unix://PATH`, without the password, of a server with a [socket](ServerBuilder::unix_socket).
    pub fn socket_url(&self) -> String {
        format!("unix://{}", self.folder().join(Self::SOCKET).display())
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The port, the same through every restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder that the server runs in: its log, its socket, what it was told to write.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The process number of the server.
    ///
    /// # Panics
    /// While the server is stopped.
    pub fn pid(&self) -> u32 {
        let running = self.running.as_ref().expect("the server is running");
        running.pid()
    }

    /// Whether the server was not stopped; it may be paused.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Kills the server, as a crash would. Does nothing when it is stopped.
    pub fn stop(&mut self) {
        self.running = None;
    }

    /// Starts the stopped server again, on the same port and in the same folder.
    ///
    /// # Panics
    /// When it is running, or doesn't come up within a minute.
    pub async fn start_again(&mut self) {
        assert!(self.running.is_none(), "the server is running");
        let deadline = Instant::now() + UP_WITHIN;
        self.running = Some(loop {
            match self.setup.launch(self.port, self.folder()).await {
                Ok(running) => break running,
                Err(PortTaken) if Instant::now() < deadline => sleep(Duration::from_millis(20)).await,
                Err(PortTaken) => panic!("port {} has been taken by somebody else", self.port),
            }
        });
    }

    /// Kills the server and starts it again at once. What it held is gone, unless options say otherwise.
    ///
    /// # Panics
    /// When it doesn't come up within a minute.
    pub async fn restart(&mut self) {
        self.stop();
        self.start_again().await;
    }

    /// Stops the server where it stands (SIGSTOP): connections stay open and nothing is answered.
    ///
    /// # Panics
    /// When the server is not running.
    pub fn pause(&self) {
        signals::pause(self.pid());
    }

    /// Lets a paused server go on (SIGCONT).
    ///
    /// # Panics
    /// When the server is not running.
    pub fn resume(&self) {
        signals::resume(self.pid());
    }

    /// Opens a connection, signed in, named [`RedisServer::OWN_NAME`].
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn connect(&self) -> io::Result<RawClient> {
        self.setup.connect(&self.address()).await
    }

    /// Runs one command on a connection of its own.
    ///
    /// # Panics
    /// When the server doesn't answer within a minute. A refusal is an answer: [`Reply::Error`].
    pub async fn call(&self, command: &[&str]) -> Reply {
        let answer = timeout(ANSWER_WITHIN, async { self.connect().await?.call(command).await });
        match answer.await {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) => panic!("{command:?}: {error}"),
            Err(_) => panic!("{command:?}: no answer within {ANSWER_WITHIN:?}"),
        }
    }

    /// Runs one command on a connection of its own, on a server that may be stopped or paused: `None` when there is no
    /// answer within half a second.
    pub async fn ask(&self, command: &[&str]) -> Option<Reply> {
        let running = self.running.as_ref()?;
        if signals::stands(running.pid()) == Some(true) {
            return None;
        }
        let answer = timeout(MAY_BE_DOWN, async { self.connect().await?.call(command).await });
        answer.await.ok()?.ok()
    }

    /// The keys that match `pattern`, in order.
    ///
    /// # Panics
    /// As [`call`](Self::call) does.
    pub async fn keys(&self, pattern: &str) -> Vec<String> {
        let command = ["KEYS", pattern];
        let answer = timeout(ANSWER_WITHIN, async { self.connect().await?.call(&command).await });
        let reply = match answer.await {
            Ok(Ok(reply)) => reply,
            // Sentinels end the connections of a server that they give another role. A question may be asked again.
            _ => self.call(&command).await,
        };
        let mut keys: Vec<_> = reply.items().iter().filter_map(Reply::text).collect();
        keys.sort();
        keys
    }

    /// The keys that stand there, but those that stay when nobody holds a lock or waits for one: the counter of fencing
    /// tokens, and for some seconds until when somebody may be waiting.
    ///
    /// # Panics
    /// As [`call`](Self::call) does.
    pub async fn left(&self) -> Vec<String> {
        let mut keys = self.keys("*").await;
        keys.retain(|key| key != Self::COUNTER && key != Self::WAITING);
        keys
    }

    /// The fencing token that was given out last, or `None` if none ever was.
    ///
    /// # Panics
    /// As [`call`](Self::call) does, and when the counter is not a stream.
    pub async fn last_fence(&self) -> Option<u64> {
        if self.call(&["EXISTS", Self::COUNTER]).await.integer() == Some(0) {
            return None;
        }
        let reply = self.call(&["XINFO", "STREAM", Self::COUNTER]).await;
        let id = reply.field("last-generated-id").expect("a stream has a last id");
        let (ms, seq) = id.split_once('-').expect("an id has two parts");
        let number = |part: &str| part.parse::<u64>().expect("a part of an id is a number");
        Some(number(ms) * 1_000 + number(seq))
    }

    /// The connections of everybody but the harness.
    ///
    /// # Panics
    /// As [`call`](Self::call) does.
    pub async fn client_list(&self) -> Vec<Client> {
        let text = self.call(&["CLIENT", "LIST"]).await.text();
        text.unwrap_or_default().lines().map(Client::parse).filter(|client| client.name() != Self::OWN_NAME).collect()
    }

    /// What its clock shows, in ms.
    ///
    /// # Panics
    /// As [`call`](Self::call) does.
    pub async fn clock(&self) -> u64 {
        let parts = self.call(&["TIME"]).await;
        let parts: Vec<u64> = parts.items().iter().filter_map(|part| part.text()?.parse().ok()).collect();
        parts[0] * 1_000 + parts[1] / 1_000
    }

    /// One figure of `INFO`, such as `total_commands_processed`.
    ///
    /// # Panics
    /// When there is none of that name, and as [`call`](Self::call) does.
    pub async fn info(&self, field: &str) -> String {
        let text = self.call(&["INFO", "everything"]).await.text();
        let text = text.unwrap_or_default();
        match info_field(&text, field) {
            Some(value) => value.to_owned(),
            None => panic!("INFO has no {field}"),
        }
    }

    /// How often a command was executed; 0 if it never was.
    ///
    /// # Panics
    /// As [`call`](Self::call) does.
    pub async fn calls_of(&self, command: &str) -> u64 {
        self.counted("commandstats", &format!("cmdstat_{command}:calls=")).await
    }

    /// How often scripts and transactions were called.
    ///
    /// # Panics
    /// As [`call`](Self::call) does.
    pub async fn script_calls(&self) -> u64 {
        let mut calls = 0;
        for command in ["eval", "evalsha", "fcall", "exec"] {
            calls += self.calls_of(command).await;
        }
        calls
    }

    /// How often a command was answered with an error of this code; 0 if none was.
    ///
    /// # Panics
    /// As [`call`](Self::call) does.
    pub async fn errors_of(&self, code: &str) -> u64 {
        self.counted("errorstats", &format!("errorstat_{code}:count=")).await
    }

    async fn counted(&self, section: &str, prefix: &str) -> u64 {
        let text = self.call(&["INFO", section]).await.text().unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix(prefix)?.split(',').next()?.parse().ok());
        count.unwrap_or_default()
    }

    /// Kills the connections of everybody but the harness's own that asks for it; returns how many there were. One that
    /// hears calls counts as a subscriber.
    ///
    /// # Panics
    /// As [`call`](Self::call) does.
    pub async fn kill_clients(&self) -> i64 {
        let mut killed = 0;
        for class in ["normal", "pubsub"] {
            let answer = self.call(&["CLIENT", "KILL", "TYPE", class, "SKIPME", "yes"]).await;
            killed += answer.integer().expect("a number");
        }
        killed
    }

    /// The name that the harness gives to its own connections.
    pub const OWN_NAME: &str = "lock-tests";
    pub(crate) const SOCKET: &str = "redis.sock";
    /// The key of the counter of fencing tokens.
    pub const COUNTER: &str = "{0}lock-core:fence";
    /// The key that says until when somebody may be waiting.
    pub const WAITING: &str = "{0}lock-core:waiting";
}

/// One line of `CLIENT LIST`.
#[derive(Clone, Debug)]
pub struct Client {
    fields: HashMap<String, String>,
}

impl Client {
    /// The name that the client gave itself; empty when it gave none.
    pub fn name(&self) -> &str {
        self.field("name")
    }

    /// One field, such as `id`, `cmd` or `sub`; empty when there is none.
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    fn parse(line: &str) -> Self {
        let fields = line.split(' ').filter_map(|pair| pair.split_once('='));
        Self { fields: fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect() }
    }
}

fn percent_encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// How long an answer is awaited of a server that may be down.
const MAY_BE_DOWN: Duration = Duration::from_secs(3);
