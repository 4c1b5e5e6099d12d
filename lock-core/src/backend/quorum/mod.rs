//! Several independent nodes as one store: a lease is held while a majority of them has it.

mod aim;
mod asked;
mod ballot;
mod call;
mod driver;
mod ledger;
mod majority;
mod node;
mod places;
mod request;
mod seat;
mod shared;
#[cfg(test)]
mod tests;
mod verdict;
mod voters;

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use futures_util::{
    future::join_all,
    stream::{FuturesUnordered, StreamExt},
};

use self::{
    majority::{majority, too_few},
    shared::Quorum,
};
use super::{Answer, Backend, BackendError, Batch, Calls, EVERYONE, Replied, Reply};
use crate::{clock::Clock, error::BuildError, health::NodeHealth, key::LockKey};

/// A lease store on several independent nodes, none of which is a single point of failure: Redlock with fencing tokens.
///
/// A lease is held while a majority of the nodes has it, so it survives the failure of the others. It can be acquired while a
/// majority answers. All nodes are asked at once, and a node that is slower than usual is not waited for. Fencing tokens keep rising
/// from holder to holder, even if each had another majority.
///
/// The nodes must not share anything: two databases of one server are one node, and so are a primary and its replica.
/// Nodes with the same [`identity`](Backend::identity) have one vote, and a manager does not connect to them.
/// They may be of any kind, usually `RedisBackend`s, which
/// [`LockManagerBuilder::quorum`](crate::LockManagerBuilder::quorum) makes from URLs. Every process must name the same
/// nodes, preferably in the same order. Three nodes survive the loss of one, five the loss of two. An even number survives no
/// more failures than one node less.
///
/// **Limit.** A node that comes back *without its data* has forgotten its leases, and may grant them again. If
/// it makes a majority together with nodes that the first holder did not reach, there are two holders. The fencing token of the
/// second is larger only if the nodes' clocks differ by less than the time for which the node was away. Let nodes write their
/// data (`appendfsync always`), or keep a node that restarted empty out for the longest ttl.
///
/// The set of nodes must not change while leases are held: majorities of the old and of the new one need not share a
/// node. Stop all processes first, or wait for the longest ttl. Clocks of the nodes that differ by more than 10 ms cost a second
/// round trip for an acquire.
///
/// A manager has a `QuorumBackend` of its own; nodes may be shared. If it is dropped or shut down while a node does not
/// answer, its task keeps sending releases to that node until the node has answered or its leases have expired.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use lock_core::{LockManager, backend::{Backend, MemoryBackend, QuorumBackend}};
///
/// let nodes = (0..3).map(|_| Arc::new(MemoryBackend::new()) as Arc<dyn Backend>);
/// let manager = LockManager::builder().backend(QuorumBackend::new(nodes)?).build()?;
/// let guard = manager.lock("goods:1").await?;
/// # guard.release().await?; Ok(()) }
/// ```
pub struct QuorumBackend {
    quorum: Arc<Quorum>,
}

impl QuorumBackend {
    /// Makes the store of these nodes. With a single node this behaves exactly like that node.
    ///
    /// # Errors
    /// [`BuildError`] for no nodes, and for two nodes: a majority of two is both, so the failure of either would stop the lock.
    pub fn new(nodes: impl IntoIterator<Item = Arc<dyn Backend>>) -> Result<Self, BuildError> {
        let nodes: Vec<_> = nodes.into_iter().collect();
        let Some(first) = nodes.first() else {
            return Err(BuildError::new("a quorum of no nodes holds nothing; name three or five independent ones"));
        };
        if nodes.len() == 2 {
            return Err(BuildError::new(
                "a quorum of two nodes needs both, and fails when either does; name one, or three",
            ));
        }
        let clock = first.clock();
        Ok(Self { quorum: Arc::new(Quorum::new(nodes, clock)) })
    }
}

impl Backend for QuorumBackend {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        let quorum = Arc::clone(&self.quorum);
        Reply::new(async move { quorum.call(batch).await })
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        let quorum = Arc::clone(&self.quorum);
        Reply::new(async move { list(&quorum, prefix).await })
    }

    /// Publishes over all nodes, since each may be connected to other managers.
    fn publish(&self, channel: Arc<str>, message: String) -> Reply<Option<usize>> {
        let is_question = *channel == *EVERYONE;
        let published = self.quorum.nodes.iter().map(|node| node.publish(Arc::clone(&channel), message.clone()));
        let mut published: FuturesUnordered<_> = published.collect();
        Reply::new(async move {
            let (mut counts, mut errors) = (Vec::new(), Vec::new());
            while let Some(result) = published.next().await {
                match result {
                    // An answer has arrived. A node that hangs must not hold up the next one.
                    Ok(Some(reached @ 1..)) if !is_question => return Ok(Some(reached)),
                    Ok(reached) => counts.push(reached),
                    Err(error) => errors.push(error),
                }
            }
            match counts.split_first() {
                // All managers are connected to all nodes that answer if these have the same number of them.
                Some((first, others)) => Ok(first.filter(|_| others.iter().all(|other| other == first))),
                None => {
                    let error = errors.into_iter().max_by_key(BackendError::may_have_happened);
                    Err(error.unwrap_or_else(|| BackendError::unavailable("the quorum has no nodes").did_not_happen()))
                }
            }
        })
    }

    fn counts_permits(&self) -> Replied<()> {
        Err(BackendError::unsupported(
            "a quorum gives no permits: each holder needs a majority of the nodes, and three nodes have room for half as many \
             holders again; use one server, Sentinel or a cluster for this key",
        )
        .did_not_happen())
    }

    fn waits_for_replicas(&self) -> Replied<()> {
        let why = "a quorum keeps a lease on a majority of its nodes, and does not wait for their replicas; leave `durability` out";
        Err(BackendError::unsupported(why).did_not_happen())
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.quorum.clock)
    }

    /// That of the nodes together.
    fn epoch(&self) -> u64 {
        self.quorum.nodes.iter().fold(0, |sum, node| sum.wrapping_add(node.epoch()))
    }

    /// As many as the nodes of a majority allow: a call is over when they have answered.
    fn calls_at_once(&self) -> usize {
        let nodes = &self.quorum.nodes;
        let mut calls: Vec<_> = nodes.iter().map(|node| node.calls_at_once()).collect();
        calls.sort_unstable();
        calls[majority(nodes.len()) - 1]
    }

    fn time_limit(&self) -> Duration {
        self.quorum.nodes.iter().map(|node| node.time_limit()).max().unwrap_or(Duration::MAX)
    }

    /// Returns the state of all nodes. A node that is the same server as another one has no vote, and counts as down.
    fn health(&self) -> Vec<NodeHealth> {
        let of_node = |(number, node): (usize, &Arc<dyn Backend>)| {
            let same = self.quorum.same_server(number, node.identity().as_deref());
            node.health().into_iter().map(move |health| match &same {
                Some(error) => health.without_vote(error.to_string()),
                None => health,
            })
        };
        self.quorum.nodes.iter().enumerate().flat_map(of_node).collect()
    }

    fn is_settled(&self) -> bool {
        self.quorum.ledger().is_settled()
    }

    fn is_held_up(&self) -> bool {
        self.quorum.ledger().is_held_up()
    }

    fn driver(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let quorum = Arc::clone(&self.quorum);
        Box::pin(async move { quorum.keep(calls).await })
    }
}

impl fmt::Debug for QuorumBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumBackend").field("nodes", &self.quorum.nodes).finish_non_exhaustive()
    }
}

/// The keys that a majority may have.
async fn list(quorum: &Quorum, prefix: String) -> Replied<Vec<LockKey>> {
    let lists = join_all(quorum.nodes.iter().map(|node| node.list(prefix.clone()))).await;
    let most = majority(quorum.nodes.len());
    let mut found = Vec::new();
    let mut failed = Vec::new();
    for (node, list) in lists.into_iter().enumerate() {
        match quorum.same_server(node, quorum.nodes[node].identity().as_deref()).map_or(list, Err) {
            Ok(keys) => found.extend(keys),
            Err(error) => failed.push(error),
        }
    }
    quorum.tell_of_twins();
    if failed.len() > quorum.nodes.len() - most {
        return Err(too_few(quorum.nodes.len(), &failed, false));
    }
    found.sort_unstable();
    let listed = found.chunk_by(PartialEq::eq).filter(|same| same.len() + failed.len() >= most);
    Ok(listed.filter_map(|same| same.first().cloned()).collect())
}
