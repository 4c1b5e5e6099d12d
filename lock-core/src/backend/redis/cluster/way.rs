//! The way to whichever node has a slot.

use std::{sync::Arc, time::Duration};

use redis::{ErrorKind as RedisErrorKind, RedisError, ServerErrorKind};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{
    super::{
        connection::{Connection, LEAST_SILENCE},
        connector::Connector,
        names,
        pauses::drawn,
        slot::Tag,
        stream::Address,
    },
    Cluster, map,
};
use crate::backend::{Answer, BackendError, Operation, Place, Replied};

/// A slot, and the node that a batch was sent to last.
#[derive(Clone)]
pub(in super::super) struct SlotWay {
    cluster: Arc<Cluster>,
    slot: u16,
    node: Arc<Connector>,
    /// The node that said it may be asked though the slot is not its own yet.
    asks: Option<Arc<Connector>>,
    /// How often the batch was sent elsewhere.
    redirections: u32,
    /// How often it has paused.
    pauses: u32,
    /// The channel of the process, as the engine names it.
    channel: Option<Arc<str>>,
}

/// The next step of a batch after a refusal that is not about the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Redirection {
    /// Go to another node, or to the same a moment later.
    Again,
    /// Go again, key by key: the keys of the slot are at two nodes.
    Apart,
    /// Its time is over.
    TooLate,
}

impl SlotWay {
    pub(in super::super) fn new(cluster: Arc<Cluster>, slot: u16) -> Self {
        let map = cluster.map();
        let node = map.owner(slot).or_else(|| map.nodes().first()).cloned();
        // Before any is known, it stands for the node that is waited for.
        let node = node.unwrap_or_else(|| cluster.nodes.make(cluster.nodes.settings.address.clone()));
        Self { cluster, slot, node, asks: None, redirections: 0, pauses: 0, channel: None }
    }

    pub(in super::super) fn tag(&self) -> Tag {
        Tag::of(self.slot)
    }

    pub(in super::super) fn node(&self) -> &Connector {
        &self.node
    }

    /// Returns the node if it has the slot.
    pub(in super::super) fn owner(&self) -> Option<&Connector> {
        self.is_owner().then_some(&*self.node)
    }

    pub(in super::super) fn least_silence(&self) -> Duration {
        self.cluster.map().owner(self.slot).map_or(LEAST_SILENCE, |node| node.link.least_silence())
    }

    /// Returns a connection to the node that has the slot, newer than `after` if it is the node of before.
    pub(in super::super) async fn connection(&mut self, after: &mut u64, limit: Instant) -> Replied<Connection> {
        if let Some(asked) = self.asks.clone() {
            (self.node, *after) = (asked, 0);
            return self.node.connection(0, limit).await;
        }
        loop {
            let map = self.cluster.map();
            let Some(owner) = map.owner(self.slot).cloned() else {
                self.cluster.doubted.notify_one();
                if map.is_known() && Instant::now() >= limit {
                    return Err(self.uncovered());
                }
                self.owned(limit).await?;
                continue;
            };
            if !Arc::ptr_eq(&owner, &self.node) {
                (self.node, *after) = (owner, 0);
            }
            tokio::select! {
                biased;
                connection = self.node.connection(*after, limit) => match connection {
                    // It may have moved while that was waited for.
                    Err(_) if !self.is_owner() => {}
                    Err(error) => {
                        self.cluster.doubted.notify_one();
                        return Err(error);
                    }
                    Ok(connection) => return Ok(connection),
                },
                () = self.moved() => {}
            }
        }
    }

    pub(in super::super) fn ask_again(&mut self) {
        if !self.is_owner() {
            self.asks = Some(Arc::clone(&self.node));
        }
    }

    /// Whether the next command has to be announced by `ASKING`.
    pub(in super::super) fn takes_up_asking(&mut self) -> bool {
        self.asks.take().is_some()
    }

    /// Sets the channel of each place in a batch, or an empty one if the server cannot notify waiters. Returns the channel if it is to
    /// be subscribed to now.
    pub(in super::super) fn listen(&mut self, connection: &Connection, batch: &mut [Operation]) -> Option<Arc<str>> {
        let mut places = batch.iter_mut().filter_map(|operation| match operation {
            Operation::Acquire(acquire) => acquire.place.as_mut(),
            _ => None,
        });
        let first = places.next()?;
        let channel = self.channel.get_or_insert_with(|| Arc::clone(&first.channel));
        let is_told = connection.can_listen() && !channel.is_empty();
        let name: Arc<str> = if is_told { names::channel(Tag::of(self.slot), channel).into() } else { "".into() };
        let listens = is_told && self.cluster.nodes.shared.listeners.has(channel);
        let set = |place: &mut Place| place.channel = Arc::clone(&name);
        set(first);
        places.for_each(set);
        (listens && connection.note_listening(&name)).then_some(name)
    }

    pub(in super::super) fn note(&self, answer: &Replied<Answer>) {
        if let Some(node) = self.cluster.map().owner(self.slot) {
            node.status.note_all(answer);
        }
    }

    /// Records that a batch has failed. The commands before it may have failed too, so the channel is subscribed to again.
    pub(in super::super) fn not_executed(&self, connection: &Connection) {
        if let Some(channel) = &self.channel {
            connection.forget_channel(&names::channel(self.tag(), channel));
        }
    }

    /// Returns what a refusal says of the slot; `None` if it says nothing.
    pub(in super::super) async fn redirected(&mut self, error: &RedisError, limit: Instant) -> Option<Redirection> {
        let RedisErrorKind::Server(kind) = error.kind() else { return None };
        let asked = &self.node.settings.address;
        let address = error.redirect_node().and_then(|(text, _)| map::address(text, asked));
        match (kind, address) {
            (ServerErrorKind::Moved, Some(address)) => self.cluster.note_moved(self.slot, &address),
            (ServerErrorKind::Ask, Some(address)) => self.asks = Some(self.cluster.node_at(&address)),
            (ServerErrorKind::TryAgain, _) => return Some(self.pause(limit, Redirection::Apart).await),
            (
                ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::BusyLoading
                | ServerErrorKind::ReadOnly,
                _,
            ) => {
                self.cluster.doubted.notify_one();
                return Some(self.pause(limit, Redirection::Again).await);
            }
            _ => return None,
        }
        self.redirections += 1;
        // Two nodes that redirect to one another do not know the same map yet.
        if self.redirections <= BEFORE_PAUSE {
            return Some(Redirection::Again);
        }
        Some(self.pause(limit, Redirection::Again).await)
    }

    /// Waits a moment, and returns what comes `then`; or that it is too late, if no time is left for an answer by then.
    ///
    /// A command that is sent just before the limit would run out of time and be reported as a silent server, and
    /// the engine gives up on the call at the same moment. So the last answer of the cluster is returned a little earlier.
    async fn pause(&mut self, limit: Instant, then: Redirection) -> Redirection {
        let limit = limit - (self.node.limit() / 10).min(FOR_AN_ANSWER);
        self.pauses = (self.pauses + 1).min(LONGEST_PAUSE);
        let until = Instant::now() + drawn(PAUSE * self.pauses);
        sleep_until(until.min(limit)).await;
        if until < limit { then } else { Redirection::TooLate }
    }

    fn is_owner(&self) -> bool {
        self.cluster.map().owner(self.slot).is_some_and(|owner| Arc::ptr_eq(owner, &self.node))
    }

    /// Returns when another node has the slot.
    async fn moved(&self) {
        let elsewhere = |map: &Arc<map::Map>| map.owner(self.slot).is_some_and(|owner| !Arc::ptr_eq(owner, &self.node));
        let _ = self.cluster.map.subscribe().wait_for(elsewhere).await.map(drop);
    }

    /// Waits until the map is known or, if it is known already, until a node has the slot.
    async fn owned(&self, limit: Instant) -> Replied<()> {
        if !self.cluster.map().is_known() {
            return self.cluster.known_map(limit).await.map(drop);
        }
        let mut map = self.cluster.map.subscribe();
        let owned = map.wait_for(|map| map.owner(self.slot).is_some());
        timeout_at(limit, owned).await.map(drop).map_err(|_| self.uncovered())
    }

    fn uncovered(&self) -> BackendError {
        let message = format!(
            "no node of {} has slot {}, to which the key belongs; give the slot to a node (redis-cli --cluster fix)",
            self.cluster.name(),
            self.slot
        );
        BackendError::unavailable(message).did_not_happen()
    }
}

impl Cluster {
    /// The node at an address, for one batch; it stays if the map says so later.
    fn node_at(&self, address: &Address) -> Arc<Connector> {
        let mut found = None;
        self.map.send_if_modified(|map| {
            if let Some(node) = map.node_at(address) {
                found = Some(Arc::clone(node));
                return false;
            }
            let node = found.insert(self.nodes.make(address.clone()));
            *map = Arc::new(map.with_guest(Arc::clone(node)));
            true
        });
        found.unwrap_or_else(|| self.nodes.make(address.clone()))
    }
}

/// How often a batch goes elsewhere before it pauses.
const BEFORE_PAUSE: u32 = 4;
/// The longest first pause before a batch is sent again.
const PAUSE: Duration = Duration::from_millis(40);
/// How many times as long it becomes.
const LONGEST_PAUSE: u32 = 4;
/// The longest time before its limit at which a batch is not sent again.
const FOR_AN_ANSWER: Duration = Duration::from_millis(100);
