//! Nodes become a cluster.

use std::time::Duration;

use super::{Cluster, slot, view::nodes_seen_by};
use crate::{
    SOON, eventually, ms,
    resp::Reply,
    server::{RedisServer, ServerBuilder},
};

/// What is special about a cluster.
#[derive(Debug)]
pub struct ClusterBuilder {
    primaries: usize,
    replicas: usize,
    node_timeout: Duration,
    password: Option<String>,
    options: Vec<(String, String)>,
}

impl ClusterBuilder {
    /// How many primaries there are: three by default.
    pub fn primaries(mut self, count: usize) -> Self {
        self.primaries = count;
        self
    }

    /// How many replicas each primary has: one by default.
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    /// How long a node is silent before others find it down: one and a half seconds by default.
    pub fn node_timeout(mut self, node_timeout: Duration) -> Self {
        self.node_timeout = node_timeout;
        self
    }

    /// Asks every client for this password.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Goes on with the slots that are served when others are not.
    pub fn without_full_coverage(self) -> Self {
        self.option("--cluster-require-full-coverage", "no")
    }

    /// Sets one option of every node, as on the command line.
    pub fn option(mut self, name: &str, value: &str) -> Self {
        self.options.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the nodes and returns when every one of them knows all slots and all replicas.
    ///
    /// # Panics
    /// When redis-server is missing or the nodes don't come together in time.
    pub async fn start(self) -> Cluster {
        let mut nodes = Vec::new();
        for _ in 0..self.primaries * (1 + self.replicas) {
            nodes.push(self.node().start().await);
        }
        let mut ids = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            ids.push(node.call(&["CLUSTER", "MYID"]).await.text().expect("a node has an id"));
            // While they don't know one another, so that they need not settle later whose word counts.
            told(node, &["SET-CONFIG-EPOCH", &(index + 1).to_string()]).await;
        }
        meet(&nodes).await;
        let cluster = Cluster { nodes, ids, password: self.password };
        for primary in 0..self.primaries {
            give_slots(&cluster.nodes[primary], primary, self.primaries).await;
        }
        for replica in self.primaries..cluster.nodes.len() {
            let primary = (replica - self.primaries) / self.replicas;
            told(&cluster.nodes[replica], &["REPLICATE", &cluster.ids[primary]]).await;
        }
        cluster.await_whole().await;
        cluster
    }

    fn node(&self) -> ServerBuilder {
        let timeout = self.node_timeout.as_millis().to_string();
        let mut node = RedisServer::builder().cluster().option("--cluster-node-timeout", &timeout);
        for (name, value) in &self.options {
            node = node.option(name, value);
        }
        if let Some(password) = &self.password {
            node = node.password(password).option("--masterauth", password);
        }
        node
    }
}

impl Default for ClusterBuilder {
    fn default() -> Self {
        Self { primaries: 3, replicas: 1, node_timeout: ms(1_500), password: None, options: Vec::new() }
    }
}

/// Each meets each: to hear of the others from one of them would take longer.
async fn meet(nodes: &[RedisServer]) {
    for (index, node) in nodes.iter().enumerate() {
        for other in &nodes[index + 1..] {
            told(node, &["MEET", "127.0.0.1", &other.port().to_string()]).await;
        }
    }
    for node in nodes {
        eventually(SOON, "the nodes have met", async || {
            let seen = nodes_seen_by(node).await.unwrap_or_default();
            seen.len() == nodes.len() && seen.iter().all(|node| node.is_in_order())
        })
        .await;
    }
}

/// Gives a node the slots of the `part` of so many `parts`, one by one: Redis 6 does not know ranges.
async fn give_slots(node: &RedisServer, part: usize, parts: usize) {
    let bound = |part: usize| usize::from(slot::COUNT) * part / parts;
    let slots: Vec<_> = (bound(part)..bound(part + 1)).map(|slot| slot.to_string()).collect();
    let words: Vec<_> = ["ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str)).collect();
    told(node, &words).await;
}

async fn told(node: &RedisServer, words: &[&str]) {
    let command: Vec<_> = ["CLUSTER"].into_iter().chain(words.iter().copied()).collect();
    let answer = node.call(&command).await;
    assert_eq!(answer, Reply::Status("OK".to_owned()), "CLUSTER {}", words[0]);
}
