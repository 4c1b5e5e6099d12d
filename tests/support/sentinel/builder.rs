//! Sentinels that know one another from the start, over servers that follow one another.

use std::time::Duration;

use super::Sentinels;
use crate::{SOON, ServerBuilder, eventually, launch::PortTaken, ports::free_port, replication, server::RedisServer};

/// What is special about sentinels, and about the servers that they watch over.
#[derive(Debug)]
pub struct SentinelsBuilder {
    pub(super) sentinels: usize,
    pub(super) replicas: usize,
    pub(super) down_after: Duration,
    pub(super) server: ServerBuilder,
    pub(super) sentinel: ServerBuilder,
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

    /// How long a server is silent before a sentinel finds it down: a second by default.
    pub fn down_after(mut self, down_after: Duration) -> Self {
        self.down_after = down_after;
        self
    }

    /// Has the servers ask every client for this password, sentinels and replicas included.
    pub fn password(mut self, password: &str) -> Self {
        self.server = self.server.password(password).option("--masterauth", password);
        self
    }

    /// Has the sentinels ask every client for this password, the other sentinels included.
    pub fn sentinel_password(mut self, password: &str) -> Self {
        self.sentinel = self.sentinel.password(password);
        self
    }

    /// Has the sentinels admit this user alone.
    pub fn sentinel_user(mut self, user: &str, password: &str) -> Self {
        self.sentinel.user = Some(user.to_owned());
        self.sentinel_password(password)
    }

    /// Sets one option of every server that has data, as on the command line.
    pub fn option(mut self, name: &str, value: &str) -> Self {
        self.server = self.server.option(name, value);
        self
    }

    /// Starts all and returns when they know one another.
    ///
    /// # Panics
    /// When redis-server is missing or the servers don't come together in time.
    pub async fn start(self) -> Sentinels {
        let servers = self.start_servers().await;
        for _ in 0..20 {
            if let Ok(sentinels) = self.start_sentinels(&servers).await {
                let this = Sentinels { sentinels, servers };
                this.await_whole().await;
                return this;
            }
        }
        panic!("ports were taken twenty times before the sentinels could have them");
    }

    /// Returns when the replicas have what the primary has, since a sentinel asks them at once and then each ten seconds.
    async fn start_servers(&self) -> Vec<RedisServer> {
        let primary = self.server.clone().start().await;
        let follow = Some(format!("replicaof 127.0.0.1 {}\n", primary.port()));
        let replica = ServerBuilder { file: follow, ..self.server.clone() };
        let mut servers = vec![primary];
        for _ in 0..self.replicas {
            servers.push(replica.clone().start().await);
        }
        let replicas: Vec<_> = servers.iter().skip(1).collect();
        eventually(SOON, "the replicas have what the primary has", async || {
            replication::is_replicated(&servers[0], &replicas).await
        })
        .await;
        servers
    }

    /// Their files name the replicas and all sentinels, which else would take some seconds to find one another.
    async fn start_sentinels(&self, servers: &[RedisServer]) -> Result<Vec<RedisServer>, PortTaken> {
        let ports: Vec<_> = (0..self.sentinels).map(|_| free_port()).collect();
        let mut sentinels = Vec::new();
        for (number, port) in ports.iter().enumerate() {
            let file = Some(self.file(number, &ports, servers));
            sentinels.push(ServerBuilder { file, ..self.sentinel.clone() }.start_at(*port).await?);
        }
        Ok(sentinels)
    }

    /// The file of the sentinel of that `number`.
    fn file(&self, number: usize, ports: &[u16], servers: &[RedisServer]) -> String {
        let id = |number: usize, port: u16| format!("{number:020x}{port:020x}");
        let service = Sentinels::SERVICE;
        let quorum = self.sentinels / 2 + 1;
        let down_after = self.down_after.as_millis();
        let mut text = format!(
            "sentinel myid {}\n\
             sentinel monitor {service} 127.0.0.1 {} {quorum}\n\
             sentinel down-after-milliseconds {service} {down_after}\n\
             sentinel failover-timeout {service} 5000\n",
            id(number, ports[number]),
            servers[0].port(),
        );
        if let Some(password) = &self.server.password {
            text += &format!("sentinel auth-pass {service} {}\n", quoted(password));
        }
        for replica in &servers[1..] {
            text += &format!("sentinel known-replica {service} 127.0.0.1 {}\n", replica.port());
        }
        for (other, port) in ports.iter().enumerate().filter(|(other, _)| *other != number) {
            let id = id(other, *port);
            text += &format!("sentinel known-sentinel {service} 127.0.0.1 {port} {id}\n");
        }
        text + &self.access()
    }

    /// Whom the sentinels admit, and as whom they speak to one another.
    fn access(&self) -> String {
        let Some(password) = &self.sentinel.password else { return String::new() };
        let (word, given) = (quoted(password), quoted(&format!(">{password}")));
        let Some(user) = &self.sentinel.user else { return format!("requirepass {word}\n") };
        format!(
            "user default off\nuser {user} on {given} ~* &* +@all\n\
             sentinel sentinel-user {user}\nsentinel sentinel-pass {word}\n"
        )
    }
}

/// A word in a configuration file.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
