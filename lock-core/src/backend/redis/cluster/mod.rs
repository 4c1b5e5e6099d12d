//! A cluster: many nodes, each of which has some of the slots.
//!
//! A batch is cut by slot; each part goes to the node that has the slot, over the connection of that node. The node of a slot is
//! known from a map, which is learned from the nodes (`CLUSTER SLOTS`) and corrected by them (`MOVED`).

mod known;
mod learn;
mod map;
mod search;
mod sign;
#[cfg(test)]
mod tests;
mod upkeep;
mod way;

use std::{collections::HashMap, sync::Arc};

use futures_util::future::{join, join_all};
use tokio::time::Instant;

pub(super) use self::{
    known::Cluster,
    upkeep::keep,
    way::{Redirection, SlotWay},
};
use super::{call, publish, replicas, slot, way::Way};
use crate::{
    backend::{Answer, BackendError, Batch},
    key::LockKey,
};

impl Cluster {
    /// Executes a batch, each slot's part at its node.
    pub(super) async fn call(self: &Arc<Self>, batch: Batch) -> Result<Answer, BackendError> {
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
    async fn part(self: &Arc<Self>, slot: u16, batch: Batch) -> Result<Answer, BackendError> {
        let mut way = Way::to_slot(SlotWay::new(Arc::clone(self), slot));
        if !replicas::are_asked(&batch) {
            return call::call(way, batch).await;
        }
        way.connection(Instant::now() + self.limit()).await?;
        let (node, tag) = (way.connector(), way.tag());
        let answer = node.replication.confirm(node, tag, batch).await;
        way.note(&answer);
        answer
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
