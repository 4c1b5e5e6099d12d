//! A cluster: many nodes, each of which has some of the slots.
//!
//! A batch is cut by slot; each part goes to the node that has the slot, over the connection of that node. The node of a slot is
//! known from a map, which is learned from the nodes (`CLUSTER SLOTS`) and corrected by them (`MOVED`).

mod learn;
mod map;
mod search;
mod sign;
#[cfg(test)]
mod tests;
mod upkeep;
mod way;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use futures_util::future::{join, join_all};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use self::map::{Map, Nodes};
pub(super) use self::{
    upkeep::keep,
    way::{Redirection, SlotWay},
};
use super::{
    call,
    connector::{Connector, Shared},
    link::Link,
    publish, replicas,
    settings::Settings,
    slot,
    stream::Address,
    way::Way,
};
use crate::{
    backend::{Answer, BackendError, Batch},
    error::ErrorKind,
    health::NodeHealth,
    key::LockKey,
};

/// The nodes of a cluster, and what is known of them.
pub(super) struct Cluster {
    /// The nodes that the URL names, from which the others are found.
    seeds: Vec<Arc<Connector>>,
    nodes: Nodes,
    map: watch::Sender<Arc<Map>>,
    /// The map as it was learned last, without the corrections of redirections.
    learned: Mutex<Arc<Map>>,
    /// Whether the cluster takes commands, as the nodes said last; `None` if they have not.
    is_ok: watch::Sender<Option<bool>>,
    /// Told when the map may be wrong.
    doubted: Notify,
    /// Since when and why the map is not known. Never up, and of no meaning when the map is known.
    search: Link,
}

impl Cluster {
    /// Makes a cluster of which nothing is known yet. There is at least one seed.
    pub(super) fn new(seeds: Vec<Address>, settings: Settings) -> Self {
        let nodes = Nodes { settings, shared: Shared::default(), seeds };
        let unknown = Arc::new(Map::unknown());
        Self {
            seeds: nodes.seeds.iter().map(|seed| nodes.make(seed.clone())).collect(),
            nodes,
            map: watch::Sender::new(Arc::clone(&unknown)),
            learned: Mutex::new(unknown),
            is_ok: watch::Sender::new(None),
            doubted: Notify::new(),
            search: Link::new(Arc::default()),
        }
    }

    /// Returns a number that changes when a connection to any node is made, and when a slot has moved.
    pub(super) fn epoch(&self) -> u64 {
        self.nodes.shared.epoch.load(Ordering::Acquire)
    }

    pub(super) fn limit(&self) -> Duration {
        self.nodes.settings.access.limit
    }

    pub(super) fn is_reachable(&self) -> bool {
        let map = self.map();
        map.is_known() && map.nodes().iter().all(|node| node.link.is_up())
    }

    pub(super) fn health(&self) -> Vec<NodeHealth> {
        self.map().nodes().iter().map(|node| node.health()).collect()
    }

    /// Executes a batch, each slot's part at its node.
    pub(super) async fn call(&self, batch: Batch) -> Result<Answer, BackendError> {
        let slots: Vec<_> = batch.iter().map(|operation| slot::of(operation.key().wire())).collect();
        let first = slots[0];
        if slots.iter().all(|slot| *slot == first) {
            return self.part(first, batch).await;
        }
        let count = batch.len();
        let mut parts: Vec<(u16, Batch, Vec<usize>)> = Vec::new();
        let mut of_slot = HashMap::new();
        for (index, (operation, slot)) in batch.into_iter().zip(slots).enumerate() {
            let part = *of_slot.entry(slot).or_insert(parts.len());
            if part == parts.len() {
                parts.push((slot, Batch::new(), Vec::new()));
            }
            parts[part].1.push(operation);
            parts[part].2.push(index);
        }
        let indices: Vec<_> = parts.iter().map(|(_, _, indices)| indices.clone()).collect();
        // All leave at once, in this order.
        let calls = parts.into_iter().map(|(slot, part, _)| self.part(slot, part));
        let answers = join_all(calls).await;
        Ok(joined(count, indices.into_iter().zip(answers)))
    }

    /// Returns the keys that begin with `prefix` and are held, of all nodes.
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<LockKey>, BackendError> {
        let map = self.known_map(Instant::now() + self.limit()).await?;
        let mut found = Vec::new();
        for keys in join_all(map.nodes().iter().map(|node| super::list(node, prefix))).await {
            found.extend(keys?);
        }
        // A key whose slot moves meanwhile may be found at both nodes.
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// Publishes a message at any node that is connected; the nodes pass it on to each other. Returns how many subscribers there are
    /// if that is asked for and all nodes have the same number, as they do if each manager is connected to each node.
    pub(super) async fn publish(
        &self,
        channel: &str,
        message: &str,
        is_counted: bool,
    ) -> Result<Option<usize>, BackendError> {
        let map = self.known_map(Instant::now() + self.limit()).await?;
        let node = map.nodes().iter().find(|node| node.link.is_up()).or_else(|| map.nodes().first());
        let node = node.ok_or_else(|| self.unknown())?;
        let published = publish::at_node(node, channel, message);
        if !is_counted {
            return published.await.map(|_| None);
        }
        let others = map.nodes().iter().filter(|other| !Arc::ptr_eq(other, node));
        let (reached, counts) = join(published, join_all(others.map(|node| publish::subscribers(node, channel)))).await;
        let reached = reached?;
        Ok(counts.into_iter().all(|count| count.is_ok_and(|count| count == reached)).then_some(reached))
    }

    /// Executes the part of a batch that is about one slot.
    async fn part(&self, slot: u16, batch: Batch) -> Result<Answer, BackendError> {
        let mut way = Way::to_slot(SlotWay::new(self, slot));
        let answer = match replicas::are_asked(&batch) {
            true => {
                way.connection(Instant::now() + self.limit()).await?;
                let (node, tag) = (way.connector(), way.tag());
                node.replication.confirm(node, tag, batch).await
            }
            false => call::call(way, batch).await,
        };
        // If the slot has moved meanwhile, the node that has it now has answered.
        if let Some(node) = self.map().owner(slot) {
            node.status.note_all(&answer);
        }
        answer
    }

    fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.borrow())
    }

    /// Returns the map, waiting for it until `limit`.
    ///
    /// Fails sooner as [`Link::connection`] does: at once while the cluster is known to be down, or if the nodes refuse for a reason
    /// that waiting does not remove.
    async fn known_map(&self, limit: Instant) -> Result<Arc<Map>, BackendError> {
        let mut map = self.map.subscribe();
        if !map.borrow().is_known() {
            self.doubted.notify_one();
        }
        tokio::select! {
            biased;
            Ok(map) = map.wait_for(|map| map.is_known()) => Ok(Arc::clone(&map)),
            found = self.search.connection(0, limit) => {
                Err(found.err().flatten().unwrap_or_else(|| self.unknown()).did_not_happen())
            }
        }
    }

    /// The error of a request that ran out of time before any node has answered or failed.
    fn unknown(&self) -> BackendError {
        if let Some(seed) = self.seeds.iter().find(|seed| seed.asks_for_credentials()) {
            return seed.out_of_time();
        }
        let message = format!(
            "{} did not say within {:?} which node has which keys; check that its nodes run and can be reached",
            self.name(),
            self.limit()
        );
        BackendError::new(ErrorKind::Backend, message)
    }

    /// Takes note that a slot is at another address.
    fn note_moved(&self, slot: u16, address: &Address) {
        self.map.send_if_modified(|map| {
            let is_known = map.owner(slot).is_some_and(|node| node.settings.address == *address);
            if !is_known {
                self.nodes.reorder();
                *map = Arc::new(map.with(slot, address, &self.nodes));
            }
            !is_known
        });
        // As a rule, others have moved, too.
        self.doubted.notify_one();
    }

    /// The cluster in messages: by the nodes that the URL names.
    fn name(&self) -> String {
        format!("the cluster at {}", self.addresses())
    }

    fn addresses(&self) -> String {
        let seeds: Vec<_> = self.seeds.iter().map(|seed| seed.address()).collect();
        seeds.join(", ")
    }
}

/// Joins the answers to the parts of a batch of `count` operations.
fn joined(count: usize, parts: impl Iterator<Item = (Vec<usize>, Result<Answer, BackendError>)>) -> Answer {
    let mut whole = Answer::new([]);
    let mut outcomes: Vec<_> = (0..count).map(|_| None).collect();
    for (indices, answer) in parts {
        let answer = call::answered(answer, indices.len());
        whole.note(&answer);
        for (index, outcome) in indices.into_iter().zip(answer.outcomes) {
            outcomes[index] = Some(outcome);
        }
    }
    whole.outcomes =
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| Err(BackendError::missing()))).collect();
    whole
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("seeds", &self.name()).finish_non_exhaustive()
    }
}
