//! Real sentinels, and the primary and the replicas that they watch over.

mod builder;

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use crate::{
    LONG, SOON, ServerBuilder, eventually, eventually_some, ms, replication, resp::Reply, server::RedisServer,
};

pub use builder::SentinelsBuilder;

/// A primary, its replicas and the sentinels over them; all are killed on drop or when the test process dies.
///
/// Server 0 begins as the primary. What a server or a sentinel was told at run time is in its file, and there after
/// a restart: which primary it follows, which others it knows. Data is not.
#[derive(Debug)]
pub struct Sentinels {
    sentinels: Vec<RedisServer>, // before the servers, which they would move about
    servers: Vec<RedisServer>,
}

impl Sentinels {
    /// Starts a primary, two replicas and three sentinels, and returns when every sentinel knows all of them, and the
    /// replicas have what the primary has.
    ///
    /// # Panics
    /// When redis-server is missing or the servers don't come together in time.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Passwords, another number of sentinels, other times.
    pub fn builder() -> SentinelsBuilder {
        let sentinel = ServerBuilder { sentinel: true, ..ServerBuilder::default() };
        let server = ServerBuilder { file: Some(String::new()), ..ServerBuilder::default() };
        SentinelsBuilder { sentinels: 3, replicas: 2, down_after: ms(3_000), server, sentinel }
    }

    /// Starts a sentinel that knows no other, and watches over one server under the same name.
    ///
    /// # Panics
    /// When redis-server is missing or the sentinel doesn't come up in time.
    pub async fn alone(server: &RedisServer) -> RedisServer {
        Self::of_configuration(server, 0).await
    }

    /// The same, with the number of a configuration.
    ///
    /// # Panics
    /// As [`alone`](Self::alone).
    pub async fn of_configuration(server: &RedisServer, number: u64) -> RedisServer {
        let (service, port) = (Self::SERVICE, server.port());
        let file = format!("sentinel monitor {service} 127.0.0.1 {port} 1\nsentinel config-epoch {service} {number}\n");
        ServerBuilder { sentinel: true, file: Some(file), ..ServerBuilder::default() }.start().await
    }

    /// `redis+sentinel://HOST:PORT,…/SERVICE` with the sentinels' addresses, and the password of the servers in it if
    /// there is one.
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.sentinels.iter().map(RedisServer::address).collect();
        let url = self.servers[0].url_at(&addresses.join(",")).replacen("redis", "redis+sentinel", 1);
        format!("{url}/{}", Self::SERVICE)
    }

    /// The servers that have data, in an order that never changes.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// The same, to be stopped and started.
    pub fn servers_mut(&mut self) -> &mut [RedisServer] {
        &mut self.servers
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// The same, to be stopped and started.
    pub fn sentinels_mut(&mut self) -> &mut [RedisServer] {
        &mut self.sentinels
    }

    /// Which of the servers is the primary, as a majority of the sentinels says.
    ///
    /// # Panics
    /// When they do not agree in time.
    pub async fn primary(&self) -> usize {
        eventually_some(SOON, "most sentinels name the same primary", async || self.named().await).await
    }

    /// Asks a sentinel to make a replica the primary, and returns when it has begun.
    ///
    /// # Panics
    /// When no sentinel does so in time, as when no replica is fit for it.
    pub async fn failover(&self) {
        eventually(SOON, "a sentinel begins to switch over", async || {
            for sentinel in &self.sentinels {
                let answer = sentinel.ask(&["SENTINEL", "FAILOVER", Self::SERVICE]).await;
                if answer == Some(Reply::Status("OK".to_owned())) {
                    return true;
                }
            }
            false
        })
        .await;
    }

    /// Waits until a majority of the sentinels names another server than `from` and that is a primary. Returns how
    /// long this is after `since`.
    ///
    /// # Panics
    /// When it takes longer than half a minute.
    pub async fn await_switch(&self, from: usize, since: Instant) -> Duration {
        eventually_some(SWITCHED_WITHIN, "another server is the primary", async || {
            let primary = self.named().await.filter(|primary| *primary != from)?;
            replication::is_primary(&self.servers[primary]).await.then(|| since.elapsed())
        })
        .await
    }

    /// Has the sentinels wait for a minute from now on until they find a server down: a primary that a busy machine holds up for
    /// a second is not replaced, as after the one switch that a test is about.
    ///
    /// # Panics
    /// When a sentinel that runs refuses.
    pub async fn be_patient(&self) {
        let minute = LONG.as_millis().to_string();
        for sentinel in self.sentinels.iter().filter(|sentinel| sentinel.is_running()) {
            let answer = sentinel.call(&["SENTINEL", "SET", Self::SERVICE, "down-after-milliseconds", &minute]).await;
            assert_eq!(answer, Reply::Status("OK".to_owned()));
        }
    }

    /// Waits until every sentinel sees every server and every other sentinel in order, and the replicas are linked with
    /// the primary, as at the start.
    ///
    /// # Panics
    /// When it takes longer than half a minute.
    pub async fn await_whole(&self) {
        eventually(SWITCHED_WITHIN, "every sentinel sees all in order", async || self.is_whole().await).await;
    }

    /// Whether every replica that was not stopped is linked with the primary, and has what it has.
    pub async fn is_replicated(&self) -> bool {
        let Some(primary) = self.named().await else { return false };
        replication::is_replicated(&self.servers[primary], &self.others(primary)).await
    }

    /// Keeps all servers up and lets nothing written from now on reach a replica.
    ///
    /// # Panics
    /// When a server does not answer.
    pub async fn stop_replication(&self) {
        let primary = self.primary().await;
        replication::forbid(&self.servers[primary], &self.others(primary)).await;
    }

    /// What a majority of the sentinels says.
    async fn named(&self) -> Option<usize> {
        let mut votes = HashMap::new();
        for sentinel in &self.sentinels {
            let answer = sentinel.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::SERVICE]).await;
            let parts: Vec<_> = answer.iter().flat_map(Reply::items).filter_map(Reply::text).collect();
            *votes.entry(parts.join(":")).or_insert(0) += 1;
        }
        let (address, _) = votes.into_iter().find(|(_, count)| *count > self.sentinels.len() / 2)?;
        self.servers.iter().position(|server| server.address() == address)
    }

    async fn is_whole(&self) -> bool {
        let Some(primary) = self.named().await else { return false };
        for sentinel in &self.sentinels {
            let replicas = listed(sentinel, "REPLICAS").await;
            let others = listed(sentinel, "SENTINELS").await;
            let is_whole = replicas.len() == self.servers.len() - 1
                && replicas.iter().all(|replica| replica.field("flags").as_deref() == Some("slave"))
                && replicas.iter().all(|replica| replica.field("master-link-status").as_deref() == Some("ok"))
                && others.len() == self.sentinels.len() - 1
                && others.iter().all(|other| other.field("flags").as_deref() == Some("sentinel"));
            if !is_whole {
                return false;
            }
        }
        replication::is_replicated(&self.servers[primary], &self.others(primary)).await
    }

    /// The servers that were not stopped, but the primary.
    fn others(&self, primary: usize) -> Vec<&RedisServer> {
        let running = self.servers.iter().enumerate().filter(|(_, server)| server.is_running());
        let others = running.filter(|(server, _)| *server != primary);
        others.map(|(_, server)| server).collect()
    }

    /// What the sentinels call the primary and its replicas.
    pub const SERVICE: &str = "goods";
}

/// The replicas or the other sentinels, as a sentinel sees them.
async fn listed(sentinel: &RedisServer, what: &str) -> Vec<Reply> {
    let answer = sentinel.ask(&["SENTINEL", what, Sentinels::SERVICE]).await;
    answer.iter().flat_map(Reply::items).cloned().collect()
}

/// How long a switch may take on a busy machine: the first try may fail, and the next one waits.
const SWITCHED_WITHIN: Duration = SOON;
