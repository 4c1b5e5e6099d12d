//! The managers that share connections: what comes over one may be for another manager than the one that has made it.

use std::sync::{Mutex, PoisonError};

use super::names;
use crate::{
    backend::{Calls, Grant},
    key::LockKey,
};

/// The managers that share the connections to a server or a cluster. All requests take the newest connection, so a grant on the channel of a
/// slot, or the word that a watched key has changed, may come over one that another manager has made.
#[derive(Debug, Default)]
pub(super) struct Listeners(Mutex<Vec<Calls>>);

impl Listeners {
    pub(super) fn add(&self, calls: Calls) {
        self.with(|listeners| listeners.push(calls));
    }

    pub(super) fn remove(&self, channel: &str) {
        self.with(|listeners| {
            // The next task of the same manager may be there already.
            let first = listeners.iter().position(|calls| **calls.channel() == *channel);
            first.map(|first| listeners.remove(first))
        });
    }

    pub(super) fn count(&self) -> usize {
        self.with(|listeners| listeners.len())
    }

    /// Whether a manager of this process listens to a channel.
    pub(super) fn has(&self, channel: &str) -> bool {
        self.with(|listeners| listeners.iter().any(|calls| **calls.channel() == *channel))
    }

    /// Tells the manager whose channel it is; `of_slot` is that channel with the tag of a slot, `{TAG}CHANNEL`.
    pub(super) fn granted(&self, of_slot: &[u8], grant: Grant) {
        let calls = names::channel_of(of_slot).and_then(|channel| {
            self.with(|listeners| listeners.iter().find(|calls| **calls.channel() == *channel).cloned())
        });
        if let Some(calls) = calls {
            calls.granted(grant);
        }
    }

    /// Tells all of them that keys have changed: they know which they hold.
    pub(super) fn changed(&self, keys: &Option<Vec<LockKey>>) {
        let all = self.with(|listeners| listeners.clone());
        all.iter().for_each(|calls| calls.changed(keys.clone()));
    }

    fn with<T>(&self, look: impl FnOnce(&mut Vec<Calls>) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
