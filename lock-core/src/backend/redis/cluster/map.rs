//! Which node has which slot.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use redis::{Value, from_redis_value};
use tokio::time::Instant;

use super::super::{
    connector::{Connector, Role, Shared},
    reply,
    settings::Settings,
    slot::SLOTS,
    stream::Address,
};

/// The nodes that have slots, and which.
#[derive(Clone)]
pub(in super::super) struct Map {
    nodes: Vec<Arc<Connector>>,
    /// For each slot, which of the nodes has it.
    owners: Vec<u16>,
    /// Nodes that a redirection named before they had a slot, and since when they are kept.
    guests: Vec<(Arc<Connector>, Instant)>,
    /// The ids of the nodes and of their replicas.
    pub(super) ids: Arc<HashSet<String>>,
}

/// A slot that no node has.
const NOBODY: u16 = u16::MAX;

/// The maker of nodes: how to reach them, and the state that they share.
pub(super) struct Nodes {
    pub(super) settings: Settings,
    pub(super) shared: Shared,
    /// The places that the URL names.
    pub(super) seeds: Vec<Address>,
}

/// A node's address, and the first and last slot of a range that it has.
pub(super) type Range = (Address, u16, u16);

impl Nodes {
    pub(super) fn make(&self, address: Address) -> Arc<Connector> {
        let is_announced = !self.seeds.contains(&address);
        let mut node = Connector::sharing(self.settings.at(address), Role::Node, self.shared.clone());
        node.is_announced = is_announced;
        Arc::new(node)
    }

    /// Records that requests may be executed in another order than they were sent in.
    pub(super) fn reorder(&self) {
        self.shared.epoch.fetch_add(1, Ordering::AcqRel);
    }
}

impl Map {
    /// The map before any node was asked.
    pub(super) fn unknown() -> Self {
        Self { nodes: Vec::new(), owners: vec![NOBODY; usize::from(SLOTS)], guests: Vec::new(), ids: Arc::default() }
    }

    /// Makes a map of what a node has said. Nodes that were known before stay the same.
    pub(super) fn of(ranges: &[Range], before: &Self, nodes: &Nodes) -> Self {
        let mut map = Self::unknown();
        for (address, first, last) in ranges {
            let node = map.number(address, before, nodes);
            for owner in map.owners.iter_mut().take(usize::from(*last) + 1).skip(usize::from(*first)) {
                *owner = node;
            }
        }
        let is_guest = |(node, since): &&(Arc<Connector>, Instant)| {
            since.elapsed() < GUESTS_STAY && !map.nodes.iter().any(|other| Arc::ptr_eq(other, node))
        };
        map.guests = before.guests.iter().filter(is_guest).cloned().collect();
        map
    }

    /// The same map, except that one slot is at `address`.
    pub(super) fn with(&self, slot: u16, address: &Address, nodes: &Nodes) -> Self {
        let mut map = self.clone();
        let node = map.number(address, self, nodes);
        if let Some(owner) = map.owners.get_mut(usize::from(slot)) {
            *owner = node;
        }
        map
    }

    /// The same map with a node that has no slot yet.
    pub(super) fn with_guest(&self, node: Arc<Connector>) -> Self {
        let mut map = self.clone();
        map.guests.push((node, Instant::now()));
        map
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<Connector>> {
        self.nodes.get(usize::from(*self.owners.get(usize::from(slot))?))
    }

    pub(super) fn nodes(&self) -> &[Arc<Connector>] {
        &self.nodes
    }

    /// The nodes that a connection is kept to.
    pub(super) fn kept(&self) -> impl Iterator<Item = &Arc<Connector>> {
        self.nodes.iter().chain(self.guests.iter().map(|(node, _)| node))
    }

    pub(super) fn node_at(&self, address: &Address) -> Option<&Arc<Connector>> {
        self.kept().find(|node| node.settings.address == *address)
    }

    /// Whether the map was learned from any node.
    pub(super) fn is_known(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// Whether the nodes that have slots are those of another map.
    pub(super) fn has_nodes_of(&self, other: &Self) -> bool {
        let has = |node: &Arc<Connector>| self.nodes.iter().any(|own| Arc::ptr_eq(own, node));
        self.nodes.len() == other.nodes.len() && other.nodes.iter().all(has)
    }

    /// Whether a connected node has a slot that another one had before, perhaps without its keys.
    pub(super) fn has_given(&self, before: &Self) -> bool {
        let is_given = |slot| {
            let [own, former] = [self, before].map(|map| map.owner(slot).map(Arc::as_ptr));
            own != former && self.owner(slot).is_some_and(|node| node.link.is_up())
        };
        (0..SLOTS).any(is_given)
    }

    /// How many slots no node has.
    pub(super) fn uncovered(&self) -> usize {
        self.owners.iter().filter(|owner| **owner == NOBODY).count()
    }

    /// Whether each slot has the same node as in another map, and as many nodes without a slot are kept.
    pub(super) fn is_as(&self, other: &Self) -> bool {
        let is_same = |slot| {
            let [own, others] = [self, other].map(|map| map.owner(slot).map(|node| &node.settings.address));
            own == others
        };
        let counts = |map: &Self| (map.nodes.len(), map.guests.len());
        counts(self) == counts(other) && (0..SLOTS).all(is_same)
    }

    /// The number of the node at an address, which is added if it is new.
    fn number(&mut self, address: &Address, before: &Self, nodes: &Nodes) -> u16 {
        let known = self.nodes.iter().position(|node| node.settings.address == *address);
        let number = known.unwrap_or_else(|| {
            let node = before.node_at(address).cloned().unwrap_or_else(|| nodes.make(address.clone()));
            self.nodes.push(node);
            self.nodes.len() - 1
        });
        u16::try_from(number).unwrap_or(NOBODY)
    }
}

/// Reads the reply to `CLUSTER SLOTS` of the node at an address; `None` if it makes no sense.
///
/// Each entry is `first last [host port id …] …`: the node that has the slots, then its replicas. A host that is empty or
/// unknown is the one that was asked.
pub(super) fn ranges(reply: Value, asked: &Address) -> Option<Vec<Range>> {
    let Value::Array(entries) = reply else { return None };
    let range = |entry: Value| {
        let Value::Array(parts) = entry else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(owner), ..] = &parts[..] else { return None };
        let [host, Value::Int(port), ..] = &owner[..] else { return None };
        let host = from_redis_value::<Option<String>>(host.clone()).ok()?.unwrap_or_default();
        let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
        (first <= last && last < SLOTS).then_some(())?;
        Some((at(&host, u16::try_from(*port).ok()?, asked), first, last))
    };
    entries.into_iter().map(range).collect()
}

/// Reads the ids of nodes and replicas from the same reply.
pub(super) fn ids(reply: &Value) -> HashSet<String> {
    let nodes = items(reply).iter().flat_map(|entry| items(entry).iter().skip(2));
    nodes.filter_map(|node| reply::text(items(node).get(2)?)).map(str::to_owned).collect()
}

fn items(value: &Value) -> &[Value] {
    if let Value::Array(items) = value { items } else { &[] }
}

/// Reads where an answer of the node at an address redirects to: `host:port`, with no host if it is the same.
pub(super) fn address(text: &str, asked: &Address) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    Some(at(host, port.parse().ok()?, asked))
}

fn at(host: &str, port: u16, asked: &Address) -> Address {
    let host = match (host, asked) {
        ("" | "?", Address::Tcp { host, .. }) => host.clone(),
        (host, _) => host.to_owned(),
    };
    Address::Tcp { host, port }
}

/// For how long a connection is kept to a node that has no slot.
const GUESTS_STAY: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn entry(first: i64, last: i64, host: Value, port: i64) -> Value {
        let node = Value::Array(vec![host, Value::Int(port), text("id"), Value::Array(Vec::new())]);
        Value::Array(vec![Value::Int(first), Value::Int(last), node.clone(), node])
    }

    #[test]
    fn a_node_without_a_host_is_the_one_that_was_asked() {
        let asked = tcp("10.0.0.1", 7000);
        let reply = Value::Array(vec![
            entry(0, 5_460, text("10.0.0.2"), 7001),
            entry(5_461, 10_922, text(""), 7002),
            entry(10_923, 10_923, Value::Nil, 7003),
            entry(10_924, 16_383, text("?"), 7004),
        ]);
        let found = ranges(reply, &asked).expect("this is what a node says");
        let expected = [
            (tcp("10.0.0.2", 7001), 0, 5_460),
            (tcp("10.0.0.1", 7002), 5_461, 10_922),
            (tcp("10.0.0.1", 7003), 10_923, 10_923),
            (tcp("10.0.0.1", 7004), 10_924, 16_383),
        ];
        assert_eq!(found, expected);
        assert_eq!(address("10.0.0.9:7009", &asked), Some(tcp("10.0.0.9", 7009)));
        assert_eq!(address(":7009", &asked), Some(tcp("10.0.0.1", 7009)));
        assert_eq!(address("::1:7009", &asked), Some(tcp("::1", 7009)));
    }

    #[test]
    fn replicas_are_known_by_their_ids_too() {
        let node = |id: &str| Value::Array(vec![text("a"), Value::Int(1), text(id), Value::Array(Vec::new())]);
        let entry = |primary: &str, replica: &str| {
            Value::Array(vec![Value::Int(0), Value::Int(1), node(primary), node(replica)])
        };
        let found = ids(&Value::Array(vec![entry("a", "b"), entry("c", "d")]));
        assert_eq!(found, ["a", "b", "c", "d"].map(str::to_owned).into());
        assert!(ids(&Value::Array(vec![Value::Okay, Value::Array(vec![Value::Nil; 3])])).is_empty());
    }

    #[test]
    fn nonsense_is_refused() {
        let asked = tcp("a", 1);
        let host = || text("b");
        for entry in [
            entry(0, 16_384, host(), 1),
            entry(-1, 5, host(), 1),
            entry(6, 5, host(), 1),
            entry(0, 5, host(), 65_536),
            Value::Array(vec![Value::Int(0), Value::Int(5)]),
            Value::Nil,
        ] {
            assert_eq!(ranges(Value::Array(vec![entry.clone()]), &asked), None, "{entry:?}");
        }
        assert_eq!(ranges(Value::Okay, &asked), None);
        for text in ["", "a", "a:", "a:x", "a:99999"] {
            assert_eq!(address(text, &asked), None, "{text}");
        }
    }
}
