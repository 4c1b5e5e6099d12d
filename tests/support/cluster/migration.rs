//! Slots that move to another node while they are used.

use super::{
    Cluster, slot_of,
    view::{Node, nodes_seen_by},
};
use crate::resp::Reply;

impl Cluster {
    /// Moves `slot` with all its keys to the primary `to`.
    ///
    /// # Panics
    /// As the steps do.
    pub async fn migrate(&self, slot: u16, to: usize) {
        self.begin_migration(slot, to).await;
        self.move_keys(slot).await;
        self.end_migration(slot).await;
    }

    /// Begins to move `slot` to the primary `to`: from now on, its present node answers `ASK` for keys that it does not
    /// have, and `to` takes them from those who were told so.
    ///
    /// # Panics
    /// When a node refuses, as a replica does, and the one that serves the slot.
    pub async fn begin_migration(&self, slot: u16, to: usize) {
        let from = self.primary_of(slot).await;
        self.set_slot(to, slot, "IMPORTING", from).await;
        self.set_slot(from, slot, "MIGRATING", to).await;
    }

    /// Moves the keys of a slot whose move was [begun](Self::begin_migration); returns how many there were.
    ///
    /// # Panics
    /// When the slot is not on its way, or a node refuses.
    pub async fn move_keys(&self, slot: u16) -> usize {
        let (from, _) = self.under_way(slot).await;
        let mut moved = 0;
        loop {
            let answer = self.nodes[from].call(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "100"]).await;
            let keys: Vec<_> = answer.items().iter().filter_map(Reply::text).collect();
            if keys.is_empty() {
                return moved;
            }
            self.send_keys(slot, &keys).await;
            moved += keys.len();
        }
    }

    /// Moves one key whose slot is on its way.
    ///
    /// # Panics
    /// When the slot is not on its way, there is no such key, or a node refuses.
    pub async fn move_key(&self, key: &str) {
        self.send_keys(slot_of(key), &[key.to_owned()]).await;
    }

    /// Ends the move of a slot: its new node serves it, and all primaries know. Replicas are told later.
    ///
    /// # Panics
    /// When the slot is not on its way, or a node refuses, as the former one does while it still has keys of the slot.
    pub async fn end_migration(&self, slot: u16) {
        let (from, to) = self.under_way(slot).await;
        // The new node first: if it were to fail between two of these, the former one would still answer for the slot.
        self.set_slot(to, slot, "NODE", to).await;
        self.set_slot(from, slot, "NODE", to).await;
        for primary in self.primaries().await {
            if primary != from && primary != to {
                self.set_slot(primary, slot, "NODE", to).await;
            }
        }
    }

    async fn send_keys(&self, slot: u16, keys: &[String]) {
        let (from, to) = self.under_way(slot).await;
        let port = self.nodes[to].port().to_string();
        let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000"];
        if let Some(password) = &self.nodes[to].setup.password {
            command.extend(["AUTH", password]);
        }
        command.push("KEYS");
        command.extend(keys.iter().map(String::as_str));
        let answer = self.nodes[from].call(&command).await;
        assert_eq!(answer, Reply::Status("OK".to_owned()), "{keys:?} move from node {from} to node {to}");
    }

    /// From which node and to which one `slot` is on its way.
    async fn under_way(&self, slot: u16) -> (usize, usize) {
        let from = self.primary_of(slot).await;
        let seen = nodes_seen_by(&self.nodes[from]).await.unwrap_or_default();
        let leaving = seen.into_iter().filter(Node::is_asked).flat_map(|node| node.leaving);
        let to = leaving.filter(|(leaving, _)| *leaving == slot).map(|(_, id)| self.index(&id)).next();
        (from, to.unwrap_or_else(|| panic!("slot {slot} is not on its way")))
    }

    async fn set_slot(&self, told: usize, slot: u16, state: &str, node: usize) {
        let answer = self.nodes[told].call(&["CLUSTER", "SETSLOT", &slot.to_string(), state, &self.ids[node]]).await;
        assert_eq!(answer, Reply::Status("OK".to_owned()), "node {told} is told {state} {node} of slot {slot}");
    }
}
