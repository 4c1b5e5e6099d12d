//! Sentinels that know one another from the start, over servers that follow one another.

use std::{
    fmt::{Arguments, Write},
    time::Duration,
};

use super::Sentinels;
use crate::{
    SOON, eventually,
    launch::PortTaken,
    ms,
    ports::free_port,
    replication,
    server::{RedisServer, ServerBuilder},
};

/// What is special about sentinels, and about the servers that they watch over.
#[derive(Debug)]
pub struct SentinelsBuilder {
    sentinels: usize,
    replicas: usize,
    quorum: Option<usize>,
    down_after: Duration,
    password: Option<String>,
    sentinel_user: Option<String>,
    sentinel_password: Option<String>,
    options: Vec<(String, String)>,
}

impl SentinelsBuilder {
    /// How many sentinels there are: three by default.
    pub fn sentinels(mut self, count: usize) -> Self {
        self.sentinels = count;
        self
    }

    /// How many replicas there are: two by default.
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    /// How many sentinels have to find the primary down before it is replaced: a majority by default.
    pub fn quorum(mut self, quorum: usize) -> Self {
        self.quorum = Some(quorum);
        self
    }

    /// How long a server is silent before a sentinel finds it down: a second by default.
    pub fn down_after(mut self, down_after: Duration) -> Self {
        self.down_after = down_after;
        self
    }

    /// Has the servers ask every client for this password, sentinels and replicas included.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Has the sentinels ask every client for this password, the other sentinels included.
    pub fn sentinel_password(mut self, password: &str) -> Self {
        self.sentinel_password = Some(password.to_owned());
        self
    }

    /// Has the sentinels admit this user alone.
    pub fn sentinel_user(mut self, user: &str, password: &str) -> Self {
        self.sentinel_user = Some(user.to_owned());
        self.sentinel_password(password)
    }

    /// Sets one option of every server that has data, as on the command line.
    pub fn option(mut self, name: &str, value: &str) -> Self {
        self.options.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts all and returns when they know one another.
    ///
    /// # Panics
    /// When redis-server is missing or the servers don't come together in time.
    pub async fn start(self) -> Sentinels {
        let servers = self.start_servers().await;
        let mut tries = 0;
        let sentinels = loop {
            match self.start_sentinels(&servers).await {
                Ok(sentinels) => break sentinels,
                Err(PortTaken) => tries += 1,
            }
            assert!(tries < 20, "ports were taken twenty times before the sentinels could have them");
        };
        let this = Sentinels { sentinels, servers, password: self.password };
        this.await_whole().await;
        this
    }

    /// Returns when the replicas have what the primary has, since a sentinel asks them at once and then each ten seconds.
    async fn start_servers(&self) -> Vec<RedisServer> {
        let primary = self.server().file(String::new()).start().await;
        let follow = format!("replicaof 127.0.0.1 {}\n", primary.port());
        let mut servers = vec![primary];
        for _ in 0..self.replicas {
            servers.push(self.server().file(follow.clone()).start().await);
        }
        let replicas: Vec<_> = servers.iter().skip(1).collect();
        eventually(SOON, "the replicas have what the primary has", async || {
            replication::is_replicated(&servers[0], &replicas).await
        })
        .await;
        servers
    }

    fn server(&self) -> ServerBuilder {
        let password = self.password.as_deref();
        let mut server = RedisServer::builder().option("--masterauth", password.unwrap_or_default());
        for (name, value) in &self.options {
            server = server.option(name, value);
        }
        if let Some(password) = password {
            server = server.password(password);
        }
        server
    }

    /// Their files name the replicas and all sentinels, which else would take some seconds to find one another.
    async fn start_sentinels(&self, servers: &[RedisServer]) -> Result<Vec<RedisServer>, PortTaken> {
        let ports: Vec<_> = (0..self.sentinels).map(|_| free_port()).collect();
        let mut sentinels = Vec::new();
        for (number, port) in ports.iter().enumerate() {
            let mut sentinel = RedisServer::builder().sentinel().file(self.file(number, &ports, servers));
            if let Some(password) = &self.sentinel_password {
                sentinel = sentinel.password(password);
            }
            if let Some(user) = &self.sentinel_user {
                sentinel = sentinel.user(user);
            }
            sentinels.push(sentinel.start_at(*port).await?);
        }
        Ok(sentinels)
    }

    /// The file of the sentinel of that `number`.
    fn file(&self, number: usize, ports: &[u16], servers: &[RedisServer]) -> String {
        let id = |number: usize, port: u16| format!("{number:020x}{port:020x}");
        let service = Sentinels::SERVICE;
        let quorum = self.quorum.unwrap_or(self.sentinels / 2 + 1);
        let down_after = self.down_after.as_millis();
        let mut text = format!(
            "sentinel myid {}\n\
             sentinel monitor {service} 127.0.0.1 {} {quorum}\n\
             sentinel down-after-milliseconds {service} {down_after}\n\
             sentinel failover-timeout {service} 5000\n",
            id(number, ports[number]),
            servers[0].port(),
        );
        if let Some(password) = &self.password {
            line(&mut text, format_args!("sentinel auth-pass {service} {}", quoted(password)));
        }
        for replica in &servers[1..] {
            line(&mut text, format_args!("sentinel known-replica {service} 127.0.0.1 {}", replica.port()));
        }
        for (other, port) in ports.iter().enumerate().filter(|(other, _)| *other != number) {
            let id = id(other, *port);
            line(&mut text, format_args!("sentinel known-sentinel {service} 127.0.0.1 {port} {id}"));
        }
        self.add_access(&mut text);
        text
    }

    /// Whom the sentinels admit, and as whom they speak to one another.
    fn add_access(&self, text: &mut String) {
        let Some(password) = &self.sentinel_password else { return };
        let Some(user) = &self.sentinel_user else {
            return line(text, format_args!("requirepass {}", quoted(password)));
        };
        line(text, format_args!("user default off"));
        line(text, format_args!("user {user} on {} ~* &* +@all", quoted(&format!(">{password}"))));
        line(text, format_args!("sentinel sentinel-user {user}"));
        line(text, format_args!("sentinel sentinel-pass {}", quoted(password)));
    }
}

impl Default for SentinelsBuilder {
    fn default() -> Self {
        Self {
            sentinels: 3,
            replicas: 2,
            quorum: None,
            down_after: ms(1_000),
            password: None,
            sentinel_user: None,
            sentinel_password: None,
            options: Vec::new(),
        }
    }
}

fn line(text: &mut String, line: Arguments<'_>) {
    writeln!(text, "{line}").expect("a string takes everything");
}

/// A word in a configuration file.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
