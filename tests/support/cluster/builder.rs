//! Nodes become a cluster.

use std::time::Duration;

use super::{
    Cluster,
    view::{COUNT, nodes_seen_by},
};
use crate::{SOON, ServerBuilder, eventually, resp::Reply, server::RedisServer};

/// What is special about a cluster of three primaries.
#[derive(Debug)]
pub struct ClusterBuilder {
    pub(super) replicas: usize,
    pub(super) node: ServerBuilder,
}

impl ClusterBuilder {
    /// How many replicas each primary has: one by default.
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    /// How long a node is silent before others find it down: one and a half seconds by default.
    pub fn node_timeout(self, node_timeout: Duration) -> Self {
        self.option("--cluster-node-timeout", &node_timeout.as_millis().to_string())
    }

    /// Asks every client for this password.
    pub fn password(mut self, password: &str) -> Self {
        self.node = self.node.password(password).option("--masterauth", password);
        self
    }

    /// Goes on with the slots that are served when others are not.
    pub fn without_full_coverage(self) -> Self {
        self.option("--cluster-require-full-coverage", "no")
    }

    /// Sets one option of every node, as on the command line.
    pub fn option(mut self, name: &str, value: &str) -> Self {
        self.node = self.node.option(name, value);
        self
    }

    /// Starts the nodes and returns when every one of them knows all slots and all replicas.
    ///
    /// # Panics
    /// When redis-server is missing or the nodes don't come together in time.
    pub async fn start(self) -> Cluster {
        let mut nodes = Vec::new();
        for _ in 0..PRIMARIES * (1 + self.replicas) {
            nodes.push(self.node.clone().start().await);
        }
        let mut ids = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            ids.push(node.call(&["CLUSTER", "MYID"]).await.text().expect("a node has an id"));
            // While they don't know one another, so that they need not settle later whose word counts.
            told(node, &["SET-CONFIG-EPOCH", &(index + 1).to_string()]).await;
        }
        meet(&nodes).await;
        let cluster = Cluster { nodes, ids };
        for primary in 0..PRIMARIES {
            give_slots(&cluster.nodes[primary], primary).await;
        }
        for replica in PRIMARIES..cluster.nodes.len() {
            let primary = (replica - PRIMARIES) / self.replicas;
            told(&cluster.nodes[replica], &["REPLICATE", &cluster.ids[primary]]).await;
        }
        cluster.await_whole().await;
        cluster
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

/// Gives a primary its part of the slots, one by one: Redis 6 does not know ranges.
async fn give_slots(node: &RedisServer, part: usize) {
    let bound = |part: usize| usize::from(COUNT) * part / PRIMARIES;
    let slots: Vec<_> = (bound(part)..bound(part + 1)).map(|slot| slot.to_string()).collect();
    let words: Vec<_> = ["ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str)).collect();
    told(node, &words).await;
}

async fn told(node: &RedisServer, words: &[&str]) {
    let command: Vec<_> = ["CLUSTER"].into_iter().chain(words.iter().copied()).collect();
    let answer = node.call(&command).await;
    assert_eq!(answer, Reply::Status("OK".to_owned()), "CLUSTER {}", words[0]);
}

const PRIMARIES: usize = 3;
