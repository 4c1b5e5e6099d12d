//! The nodes of a cluster, and what is known of them.

use std::{
    fmt,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{
    super::{
        connector::{Connector, Shared},
        link::Link,
        settings::Settings,
        stream::Address,
    },
    map::{Map, Nodes},
};
use crate::{
    backend::{BackendError, Replied},
    health::NodeHealth,
};

/// The nodes of a cluster, and what is known of them.
pub(in super::super) struct Cluster {
    /// The nodes that the URL names, from which the others are found.
    pub(super) seeds: Vec<Arc<Connector>>,
    pub(super) nodes: Nodes,
    pub(super) map: watch::Sender<Arc<Map>>,
    /// Whether the cluster takes commands, as the nodes said last; `None` if they have not.
    pub(super) is_ok: watch::Sender<Option<bool>>,
    /// Told when the map may be wrong.
    pub(super) doubted: Notify,
    /// When the nodes of the URL were asked last, although others answered.
    pub(super) seeds_asked: Mutex<Option<Instant>>,
    /// Since when and why the map is not known. Never up, and of no meaning when the map is known.
    pub(super) search: Link,
}

impl Cluster {
    /// Makes a cluster of which nothing is known yet. There is at least one seed.
    pub(in super::super) fn new(seeds: Vec<Address>, settings: Settings) -> Self {
        let nodes = Nodes { settings, shared: Shared::default(), seeds };
        let seeds = nodes.seeds.iter().map(|seed| nodes.make(seed.clone())).collect();
        let (map, is_ok) = (watch::Sender::new(Arc::new(Map::unknown())), watch::Sender::new(None));
        let (doubted, seeds_asked, search) = (Notify::new(), Mutex::default(), Link::new(Arc::default()));
        Self { seeds, nodes, map, is_ok, doubted, seeds_asked, search }
    }

    /// Returns a number that changes when a connection to any node is made, and when a slot has moved.
    pub(in super::super) fn epoch(&self) -> u64 {
        self.nodes.shared.epoch.load(Ordering::Acquire)
    }

    pub(in super::super) fn limit(&self) -> Duration {
        self.nodes.settings.access.limit
    }

    pub(in super::super) fn is_reachable(&self) -> bool {
        let map = self.map();
        map.is_known() && map.nodes().iter().all(|node| node.link.is_up())
    }

    /// Whether the commands of any slot can be put on a connection by any thread.
    pub(in super::super) fn sends_at_once(&self) -> bool {
        let map = self.map();
        map.is_known() && map.nodes().iter().all(|node| node.sends_at_once())
    }

    pub(in super::super) fn health(&self) -> Vec<NodeHealth> {
        self.map().nodes().iter().map(|node| node.health()).collect()
    }

    pub(super) fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.borrow())
    }

    /// Returns the map, waiting for it until `limit`.
    ///
    /// Fails sooner as [`Link::connection`] does: at once while the cluster is known to be down, or if the nodes refuse for a reason
    /// that waiting does not remove.
    pub(super) async fn known_map(&self, limit: Instant) -> Replied<Arc<Map>> {
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
    pub(super) fn unknown(&self) -> BackendError {
        if let Some(seed) = self.seeds.iter().find(|seed| seed.asks_for_credentials()) {
            return seed.out_of_time();
        }
        let message = format!(
            "{} did not say within {:?} which node has which keys; check that its nodes run and can be reached",
            self.name(),
            self.limit()
        );
        BackendError::unavailable(message)
    }

    /// Records that a slot is at another address.
    pub(super) fn note_moved(&self, slot: u16, address: &Address) {
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
    pub(super) fn name(&self) -> String {
        format!("the cluster at {}", self.addresses())
    }

    pub(super) fn addresses(&self) -> String {
        let seeds: Vec<_> = self.seeds.iter().map(|seed| seed.address()).collect();
        seeds.join(", ")
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("seeds", &self.name()).finish_non_exhaustive()
    }
}
