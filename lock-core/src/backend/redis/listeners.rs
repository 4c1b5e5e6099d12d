//! The managers that receive grants on the channels of slots.

use std::sync::{Mutex, PoisonError};

use super::names;
use crate::backend::{Calls, Grant};

/// The managers that share the connections to a cluster. A grant may come over a connection that another of them has made.
#[derive(Debug, Default)]
pub(super) struct Listeners(Mutex<Vec<Calls>>);

impl Listeners {
    pub(super) fn add(&self, calls: Calls) {
        self.with(|listeners| listeners.push(calls));
    }

    pub(super) fn remove(&self, channel: &str) {
        self.with(|listeners| listeners.retain(|calls| **calls.channel() != *channel));
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

    fn with<T>(&self, look: impl FnOnce(&mut Vec<Calls>) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
