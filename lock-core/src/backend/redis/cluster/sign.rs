//! Whether a cluster can be worked with, which `connect` waits for.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::{
    super::{connect_limit, connector::Connector, patiently, sign_of_life},
    Cluster,
    map::Map,
};
use crate::{
    backend::{Answer, BackendError, Replied},
    error::ErrorKind,
};

/// A node that has given no sign of life, and why.
type Lost = (Arc<Connector>, BackendError);

impl Cluster {
    /// Returns when every node has given a sign of life, or when some have, and say that the cluster goes on without the
    /// others. If they say that it does not, as during a failover, it has until the limit of a connect.
    pub(in super::super) async fn sign_of_life(&self) -> Replied<Answer> {
        let until = Instant::now() + connect_limit(&self.nodes.settings);
        loop {
            let asks = || self.seeds.iter().any(|seed| seed.asks_for_credentials());
            let map = patiently(until, self.limit(), asks, || self.known_map(until)).await?;
            let uncovered = map.uncovered();
            if uncovered > 0 && !self.says_ok() {
                return Err(self.uncovered(uncovered));
            }
            let lost = tokio::select! {
                lost = lost(&map, until) => lost,
                () = self.replaced(&map) => continue,
            };
            // A problem that an operator has to solve is reported, although other nodes work.
            let lasting = lost.iter().find(|(_, error)| error.kind() != ErrorKind::Backend);
            match lasting.or_else(|| lost.first()) {
                None if uncovered == 0 && !self.says_fail() => return Ok(Answer::new([])),
                None if uncovered == 0 && Instant::now() >= until => return Err(self.failing()),
                Some((_, error)) if lasting.is_some() || lost.len() == map.nodes().len() => return Err(error.clone()),
                _ if self.says_ok() => {
                    self.warn_of_part(&lost, uncovered);
                    return Ok(Answer::new([]));
                }
                Some((_, error)) if !self.says_fail() || Instant::now() >= until => return Err(error.clone()),
                _ => self.recovered(&map, until).await,
            }
        }
    }

    /// Whether the nodes say that the cluster takes commands.
    fn says_ok(&self) -> bool {
        *self.is_ok.borrow() == Some(true)
    }

    /// Whether they say that it takes none.
    pub(super) fn says_fail(&self) -> bool {
        *self.is_ok.borrow() == Some(false)
    }

    fn failing(&self) -> BackendError {
        let message = format!(
            "{} says cluster_state:fail, so none of its keys can be locked; look at the cluster (redis-cli --cluster check)",
            self.name()
        );
        BackendError::unavailable(message).did_not_happen()
    }

    /// Returns when the nodes say that all is well, or that others have the slots, or at `limit`.
    async fn recovered(&self, map: &Map, limit: Instant) {
        let mut state = self.is_ok.subscribe();
        tokio::select! {
            _ = timeout_at(limit, state.wait_for(|is_ok| *is_ok == Some(true))) => {}
            () = self.replaced(map) => {}
        }
    }

    /// Returns when other nodes than those of a map have slots.
    async fn replaced(&self, map: &Map) {
        let others = |new: &Arc<Map>| !new.has_nodes_of(map);
        let _ = self.map.subscribe().wait_for(others).await.map(drop);
    }

    fn uncovered(&self, count: usize) -> BackendError {
        let message = format!(
            "{} has no node for {count} of its 16,384 slots, so keys of these slots cannot be locked; give the slots to a \
             node (redis-cli --cluster fix)",
            self.name()
        );
        BackendError::unsupported(message).did_not_happen()
    }

    /// Says which keys cannot be locked for now.
    fn warn_of_part(&self, lost: &[Lost], uncovered: usize) {
        let mut parts = Vec::new();
        if !lost.is_empty() {
            let addresses: Vec<_> = lost.iter().map(|(node, _)| node.address()).collect();
            parts.push(format!("{} gave no sign of life", addresses.join(", ")));
        }
        if uncovered > 0 {
            parts.push(format!("no node has {uncovered} of the 16,384 slots"));
        }
        log!(
            warn,
            address = self.addresses(),
            error = lost.first().map(|(_, error)| tracing::field::display(error)),
            "connected to a part of the cluster: {}; keys of these slots cannot be locked",
            parts.join(", and ")
        );
    }
}

/// The nodes of a map that give no sign of life until `limit`, or are known to be down.
async fn lost(map: &Map, limit: Instant) -> Vec<Lost> {
    let rest = limit.saturating_duration_since(Instant::now());
    let signs = join_all(map.nodes().iter().map(|node| sign_of_life(node, rest))).await;
    let lost = |(node, sign): (&Arc<Connector>, Result<_, _>)| Some((Arc::clone(node), sign.err()?));
    map.nodes().iter().zip(signs).filter_map(lost).collect()
}
