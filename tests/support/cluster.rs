//! A real cluster: primaries with a part of the slots each, and their replicas.

mod builder;
mod migration;
mod view;

use std::time::Duration;

use tokio::time::Instant;

use crate::{SOON, eventually, eventually_some, ms, replication, resp::Reply, server::RedisServer};

pub use builder::ClusterBuilder;
pub use view::slot_of;
use view::{Node, nodes_seen_by};

/// Servers in cluster mode; all are killed on drop or when the test process dies.
///
/// The first nodes begin as the primaries, then come the replicas of the first primary, of the second, and so on. A
/// node that is started again knows its cluster; its data is gone.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<RedisServer>,
    ids: Vec<String>,
}

impl Cluster {
    /// Starts three primaries with a replica each, and returns when every node knows all slots and all replicas.
    ///
    /// # Panics
    /// When redis-server is missing or the nodes don't come together in time.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Another number of nodes, a password, options.
    pub fn builder() -> ClusterBuilder {
        let node = RedisServer::builder().option("--cluster-enabled", "yes");
        ClusterBuilder { replicas: 1, node }.node_timeout(ms(3_000))
    }

    /// Starts a node that is in cluster mode, and knows no other and has no slots.
    ///
    /// # Panics
    /// When redis-server is missing or the node doesn't come up in time.
    pub async fn empty_node() -> RedisServer {
        RedisServer::builder().option("--cluster-enabled", "yes").start().await
    }

    /// `redis+cluster://HOST:PORT,…` with the addresses of all nodes, and the password in it if there is one.
    pub fn url(&self) -> String {
        self.nodes[0].url_at(&self.addresses().join(",")).replacen("redis", "redis+cluster", 1)
    }

    /// The addresses of all nodes.
    pub fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::address).collect()
    }

    /// All nodes, in an order that never changes.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// One node.
    pub fn node(&self, node: usize) -> &RedisServer {
        &self.nodes[node]
    }

    /// One node, to be stopped and started.
    pub fn node_mut(&mut self, node: usize) -> &mut RedisServer {
        &mut self.nodes[node]
    }

    /// The node that serves `slot`. If several say that they do, this is the one that was elected last.
    ///
    /// # Panics
    /// When none does in time.
    pub async fn primary_of(&self, slot: u16) -> usize {
        eventually_some(SOON, format!("a node serves slot {slot}"), async || self.serving(slot).await).await
    }

    /// The replicas of a primary, as it sees them itself.
    ///
    /// # Panics
    /// When the primary does not answer.
    pub async fn replicas_of(&self, primary: usize) -> Vec<usize> {
        let seen = nodes_seen_by(&self.nodes[primary]).await.expect("the primary answers");
        let id = self.ids[primary].as_str();
        let replicas = seen.iter().filter(|node| node.primary.as_deref() == Some(id));
        replicas.map(|node| self.index(&node.id)).collect()
    }

    /// Runs one command on the node that serves `slot`.
    ///
    /// # Panics
    /// When no node serves it, or that one doesn't answer within five seconds.
    pub async fn call_on(&self, slot: u16, command: &[&str]) -> Reply {
        self.nodes[self.primary_of(slot).await].call(command).await
    }

    /// The keys on all primaries that match `pattern`, in order.
    ///
    /// # Panics
    /// When a primary does not answer within five seconds.
    pub async fn keys(&self, pattern: &str) -> Vec<String> {
        let mut keys = Vec::new();
        for primary in self.primaries().await {
            keys.extend(self.nodes[primary].keys(pattern).await);
        }
        keys.sort();
        keys
    }

    /// The keys that stand there, but those that stay when nobody holds a lock or waits for one, see
    /// [`RedisServer::left`]; in a cluster there may be some of each tag.
    ///
    /// # Panics
    /// As [`keys`](Self::keys) does.
    pub async fn left(&self) -> Vec<String> {
        let mut keys = self.keys("*").await;
        keys.retain(|key| !stays(key));
        keys
    }

    /// Has a replica take the place of its primary, which lives, and returns when the replica has begun.
    ///
    /// # Panics
    /// When the node is not a replica.
    pub async fn failover(&self, replica: usize) {
        let answer = self.nodes[replica].call(&["CLUSTER", "FAILOVER"]).await;
        assert_eq!(answer, Reply::Status("OK".to_owned()));
    }

    /// Waits until another node than `from` serves `slot`. Returns how long this is after `since`.
    ///
    /// # Panics
    /// When it takes longer than half a minute.
    pub async fn await_failover(&self, slot: u16, from: usize, since: Instant) -> Duration {
        eventually_some(WHOLE_WITHIN, format!("another node than {from} serves slot {slot}"), async || {
            let primary = self.serving(slot).await.filter(|primary| *primary != from)?;
            is_well(&self.nodes[primary]).await.then(|| since.elapsed())
        })
        .await
    }

    /// Waits until every node sees every other one in order and all slots served, and the replicas are linked with
    /// their primaries, as at the start.
    ///
    /// # Panics
    /// When it takes longer than half a minute.
    pub async fn await_whole(&self) {
        eventually(WHOLE_WITHIN, "every node sees all in order", async || self.is_whole().await).await;
    }

    /// Whether every replica of the node that serves `slot` has what that one has.
    ///
    /// # Panics
    /// When no node serves the slot.
    pub async fn is_replicated(&self, slot: u16) -> bool {
        let primary = self.primary_of(slot).await;
        let replicas = self.replicas_of(primary).await;
        replication::is_replicated(&self.nodes[primary], &self.all(&replicas)).await
    }

    /// Keeps all nodes up and lets nothing that is written from now on in `slot` reach a replica.
    ///
    /// # Panics
    /// When a node does not answer.
    pub async fn stop_replication(&self, slot: u16) {
        let primary = self.primary_of(slot).await;
        let replicas = self.replicas_of(primary).await;
        replication::forbid(&self.nodes[primary], &self.all(&replicas)).await;
    }

    /// The node that says that it serves `slot`, the one elected last if there are several.
    async fn serving(&self, slot: u16) -> Option<usize> {
        let mut serving = None;
        for (index, server) in self.nodes.iter().enumerate() {
            let own = nodes_seen_by(server).await.and_then(|seen| seen.into_iter().find(Node::is_asked));
            serving = serving.max(own.filter(|own| own.serves(slot)).map(|own| (own.epoch, index)));
        }
        serving.map(|(_, index)| index)
    }

    /// The nodes that answer and have slots.
    async fn primaries(&self) -> Vec<usize> {
        let mut primaries = Vec::new();
        for (index, server) in self.nodes.iter().enumerate() {
            let seen = nodes_seen_by(server).await.unwrap_or_default();
            if seen.iter().any(|node| node.is_asked() && !node.slots.is_empty()) {
                primaries.push(index);
            }
        }
        primaries
    }

    async fn is_whole(&self) -> bool {
        for server in &self.nodes {
            if !is_well(server).await {
                return false;
            }
            let seen = nodes_seen_by(server).await.unwrap_or_default();
            let is_replica = seen.iter().any(|node| node.is_asked() && node.primary.is_some());
            if !self.are_all(&seen) || is_replica && !replication::is_linked(server).await {
                return false;
            }
        }
        true
    }

    /// Whether these are all nodes, in order and where they are found, each with slots or a primary.
    fn are_all(&self, seen: &[Node]) -> bool {
        let addresses = self.addresses();
        let is_sound = |node: &Node| {
            let has_part = node.primary.is_some() || !node.slots.is_empty();
            has_part && node.is_in_order() && addresses.contains(&node.address)
        };
        seen.len() == self.nodes.len() && seen.iter().all(is_sound)
    }

    fn all(&self, nodes: &[usize]) -> Vec<&RedisServer> {
        nodes.iter().map(|node| &self.nodes[*node]).collect()
    }

    fn index(&self, id: &str) -> usize {
        self.ids.iter().position(|own| own == id).expect("every node is one of ours")
    }
}

/// Whether a node takes commands: all slots that it needs for that are served, as far as it knows.
async fn is_well(server: &RedisServer) -> bool {
    let info = server.ask(&["CLUSTER", "INFO"]).await.and_then(|info| info.text());
    info.is_some_and(|info| info.contains("cluster_state:ok"))
}

/// Whether a key is a counter of fencing tokens or says until when somebody may be waiting, of any tag.
fn stays(key: &str) -> bool {
    let rest = key.strip_prefix('{').and_then(|key| key.split_once('}'));
    matches!(rest, Some((_, "lock-core:fence" | "lock-core:waiting")))
}

/// How long a change of primaries may take on a busy machine: the first try may fail, and the next one waits.
const WHOLE_WITHIN: Duration = SOON;
