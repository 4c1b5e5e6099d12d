//! A cluster: many nodes, each of which has some of the slots.
//!
//! A batch is cut by slot; each part goes to the node that has the slot, over the connection of that node. The node of a slot is
//! known from a map, which is learned from the nodes (`CLUSTER SLOTS`) and corrected by them (`MOVED`).

mod driver;
mod known;
mod learn;
mod map;
mod search;
mod sign;
#[cfg(test)]
mod tests;
mod way;

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, join, join_all};
use tokio::{task::coop::unconstrained, time::Instant};

pub(super) use self::{
    driver::keep,
    known::Cluster,
    way::{Redirection, SlotWay},
};
use super::{call, connection::Connection, is_real_time, publish, replicas, slot, way::Way};
use crate::{
    backend::{Answer, BackendError, Batch, Replied, Reply},
    key::LockKey,
};

impl Cluster {
    /// Executes a batch, each slot's part at its node.
    pub(super) fn call(self: &Arc<Self>, batch: Batch) -> Reply<Answer> {
        let (count, epoch, mut within) = (batch.len(), self.epoch(), call::within(&batch));
        let parts = self.parts(batch);
        if parts.len() > 1 {
            // The answer of each node is read with that of the slowest one, and is to come before a lease of any of them ends.
            within = within / 4 * 3;
        }
        // As the engine was told: an earlier call may wait for a node.
        let can_send =
            self.sends_at_once() && is_real_time() && !parts.iter().any(|part| replicas::are_asked(&part.batch));
        let connections: Option<Vec<_>> =
            if can_send { parts.iter().map(|part| part.way.up()).collect() } else { None };
        // All parts leave at once, in this order.
        let Some(connections) = connections else {
            let call = |part: Part| (part.indices, Box::pin(call_part(part.way, part.batch, within)) as Call);
            let calls = parts.into_iter().map(call);
            return Reply::new(unconstrained(whole(count, calls.collect())));
        };
        let counts = connections.iter().map(|connection| connection.wire.counts()).collect();
        let put = |(part, connection): (Part, &Connection)| {
            let limit = call::limit(&part.way, within);
            (part.indices, call::put(part.way, connection.clone(), part.batch, limit))
        };
        let calls = parts.into_iter().zip(&connections).map(put).collect();
        // Each is written, also if another one has ended.
        let ended = connections.iter().filter(|connection| !connection.wire.flush()).count();
        let is_sent = ended == 0 && self.sends_at_once() && self.epoch() == epoch;
        Reply::put(Box::pin(unconstrained(whole(count, calls))), is_sent.then_some(counts))
    }

    /// Cuts a batch by slot.
    fn parts(self: &Arc<Self>, batch: Batch) -> Vec<Part> {
        let way_to = |slot| Way::to_slot(SlotWay::new(Arc::clone(self), slot));
        if let [only] = &batch[..] {
            return vec![Part { way: way_to(slot::of(only.key().wire())), batch, indices: Vec::new() }];
        }
        let mut parts: Vec<Part> = Vec::new();
        let mut of_slot = HashMap::new();
        for (index, operation) in batch.into_iter().enumerate() {
            let slot = slot::of(operation.key().wire());
            let part = *of_slot.entry(slot).or_insert(parts.len());
            if part == parts.len() {
                parts.push(Part { way: way_to(slot), batch: Batch::new(), indices: Vec::new() });
            }
            parts[part].batch.push(operation);
            parts[part].indices.push(index);
        }
        parts
    }

    /// Returns the keys that begin with `prefix` and are held, of all nodes.
    pub(super) async fn list(&self, prefix: &str) -> Replied<Vec<LockKey>> {
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
    pub(super) async fn publish(&self, channel: &str, message: &str, is_counted: bool) -> Replied<Option<usize>> {
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
}

/// The part of a batch that is about one slot.
struct Part {
    way: Way,
    batch: Batch,
    /// Where its operations stand in the batch, if there are other parts.
    indices: Vec<usize>,
}

type Call = BoxFuture<'static, Replied<Answer>>;

async fn call_part(mut way: Way, batch: Batch, within: Duration) -> Replied<Answer> {
    if !replicas::are_asked(&batch) {
        return call::call(way, batch, within).await;
    }
    way.connection(Instant::now() + way.connector().limit()).await?;
    let (node, tag) = (way.connector(), way.tag());
    let answer = node.replication.confirm(node, tag, batch).await;
    way.note(&answer);
    answer
}

/// Waits for the answers to the parts of a batch of `count` operations.
async fn whole(count: usize, mut calls: Vec<(Vec<usize>, Call)>) -> Replied<Answer> {
    if let [(_, call)] = &mut calls[..] {
        return call.await;
    }
    let (indices, calls): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
    Ok(joined(count, indices.into_iter().zip(join_all(calls).await)))
}

/// Joins the answers to the parts of a batch of `count` operations.
fn joined(count: usize, parts: impl Iterator<Item = (Vec<usize>, Replied<Answer>)>) -> Answer {
    let mut whole = Answer::new([]);
    let mut outcomes: Vec<_> = (0..count).map(|_| None).collect();
    for (indices, answer) in parts {
        let answer = Answer::of(answer, indices.len());
        whole.note(&answer);
        for (index, outcome) in indices.into_iter().zip(answer.outcomes) {
            outcomes[index] = Some(outcome);
        }
    }
    whole.outcomes =
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| Err(BackendError::missing()))).collect();
    whole
}
