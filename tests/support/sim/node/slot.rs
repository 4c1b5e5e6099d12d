//! Slots: which a node has, and what goes with one that moves. Each key has a slot of its own. Where there are slots, all leases
//! are exclusive.

use lock_core::{
    backend::{Token, store::Queue},
    key::LockKey,
};

use super::{Node, Note};
use crate::sim::audit::Moved as Seen;

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
    /// The holder of the key, for how many ms more, and what is known of that.
    holder: Option<(Token, u64, Note)>,
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
        let holder = self.alone(key, now).map(|(token, note)| {
            let ends = self.store.end_of(key, token, now * 1_000).unwrap_or(0);
            (token, ends / 1_000 - now, note)
        });
        self.store.keys.remove(key);
        Moved {
            key: key.clone(),
            holder,
            queue: self.store.queues.remove(key).filter(|queue| queue.expires >= now * 1_000),
            last_fence: self.store.last_fence,
            waiting: self.store.waiting.saturating_sub(now * 1_000),
            seen: self.audit.give(key),
            micros,
        }
    }

    /// Takes a slot over, at `micros` by its own clock.
    pub(in crate::sim) fn take_slot(&mut self, moved: Moved, micros: u64) {
        let Moved { key, holder, queue, last_fence, waiting, seen, micros: there } = moved;
        let now = micros / 1_000;
        let apart = now.cast_signed() - (there / 1_000).cast_signed();
        // The end of a place is written in it by the clock of the node that made it.
        self.audit.take(&key, seen, apart, micros != there);
        if let Some((token, left, note)) = holder {
            self.put(&key, token, now + left, note);
        }
        if let Some(mut queue) = queue {
            queue.expires = queue.expires.saturating_add_signed(apart * 1_000);
            self.store.queues.insert(key.clone(), queue);
        }
        self.store.last_fence = self.store.last_fence.max(last_fence);
        self.store.waiting = self.store.waiting.max(now * 1_000 + waiting);
        self.slots.insert(key);
    }

    /// Forgets what it has of slots that are not its own: what its copy had before they moved away.
    pub(in crate::sim) fn drop_strangers(&mut self) {
        self.store.keys.retain(|key, _| self.slots.contains(key));
        self.store.queues.retain(|key, _| self.slots.contains(key));
        self.audit.drop_strangers(|key| self.slots.contains(key));
    }

    /// Whether it answers for a key.
    pub(in crate::sim) fn has_slot(&self, key: &LockKey) -> bool {
        self.slots.contains(key)
    }
}
