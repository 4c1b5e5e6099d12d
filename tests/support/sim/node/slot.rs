//! Slots: which a node has, and what goes with one that moves. Each key has a slot of its own. Where there are slots, all leases
//! are exclusive.

use lock_core::key::LockKey;

use super::{Entry, Node, NodeMutant, queue::Queue};
use crate::sim::audit::{Moved as Seen, What};

/// Why a node of several does not execute a request. Nothing of it has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum Redirect {
    /// Another node has the slot now.
    Moved(usize),
    /// The slot moves just now: some of its keys are here, and some elsewhere.
    TryAgain,
}

/// What one node has of a slot, on its way to another.
#[derive(Debug)]
pub(in crate::sim) struct Moved {
    key: LockKey,
    entry: Option<Entry>,
    queue: Option<Queue>,
    last_fence: u64,
    waiting: u64,
    seen: Seen,
    /// What the clock of the former node showed.
    micros: u64,
}

impl Node {
    /// Gives away what it has of the slot of a key, at `micros` by its own clock.
    pub(in crate::sim) fn give_slot(&mut self, key: &LockKey, micros: u64) -> Moved {
        self.slots.remove(key);
        // What moves is what is left of a ttl, so that clocks need not agree.
        let now = micros / 1_000;
        let entry = self.keys.remove(key).filter(|entry| entry.expires >= now);
        Moved {
            key: key.clone(),
            entry: entry.map(|entry| Entry { expires: entry.expires - now, ..entry }),
            queue: self.queues.remove(key).filter(|queue| queue.expires >= now),
            last_fence: self.last_fence,
            waiting: self.waiting.saturating_sub(now),
            seen: self.audit.give(key),
            micros,
        }
    }

    /// Takes a slot over, at `micros` by its own clock.
    pub(in crate::sim) fn take_slot(&mut self, moved: Moved, micros: u64) {
        let Moved { key, entry, queue, last_fence, waiting, seen, micros: there } = moved;
        let now = micros / 1_000;
        let apart = now.cast_signed() - (there / 1_000).cast_signed();
        // The end of a place is written in it by the clock of the node that made it.
        self.audit.take(&key, seen, apart, micros != there);
        if let Some(entry) = entry {
            let entry = Entry { expires: entry.expires + now, ..entry };
            self.audit.does(&key, entry.holder, What::Set(entry.expires));
            self.keys.insert(key.clone(), entry);
        }
        if let Some(queue) = queue.filter(|_| !self.has(NodeMutant::QueueStays)) {
            let expires = queue.expires.saturating_add_signed(apart);
            self.queues.insert(key.clone(), Queue { expires, ..queue });
        }
        if !self.has(NodeMutant::CounterStays) {
            self.last_fence = self.last_fence.max(last_fence);
        }
        self.waiting = self.waiting.max(now + waiting);
        self.slots.insert(key);
    }

    /// Forgets what it has of slots that are not its own: what its copy had before they moved away.
    pub(in crate::sim) fn drop_strangers(&mut self) {
        self.keys.retain(|key, _| self.slots.contains(key));
        self.queues.retain(|key, _| self.slots.contains(key));
        self.audit.drop_strangers(|key| self.slots.contains(key));
    }

    /// Whether it answers for a key.
    pub(in crate::sim) fn has_slot(&self, key: &LockKey) -> bool {
        self.slots.contains(key)
    }
}
