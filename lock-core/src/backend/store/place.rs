//! The places of those who wait for a key.

use std::{collections::VecDeque, time::Duration};

use crate::backend::{Place, Token};

/// The waiters of a key.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    /// Their places, by their tickets.
    pub places: VecDeque<Waiting>,
    /// The bounds of the tickets.
    pub(super) first: u64,
    pub(super) next: u64,
    /// The token that the key was granted to last, until it has come, and until when that keeps the key.
    pub granted: Option<(Token, u64)>,
    /// When all of it is forgotten.
    pub expires: u64,
}

/// A place in a queue.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub(super) ticket: u64,
    /// Whose it is.
    pub token: Token,
    /// The place, as it was asked for.
    pub place: Place,
    /// How many fencing tokens it wants.
    pub(super) block: u32,
    /// When it ends, by the clock of that time.
    pub ends: u64,
}

/// What a look at the queue has led to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Granted {
    /// Whether somebody got the key.
    pub(super) is_given: bool,
    /// Whether a live place is left that does not fit.
    pub(super) is_late: bool,
}

impl Queue {
    /// Numbers the places again if most tickets before that of a place, or before the next one, belong to waiters that have gone.
    pub(super) fn renumber(&mut self, known: Option<usize>) {
        let Some(first) = self.places.front().map(|first| first.ticket) else { return };
        let ticket = known.map_or(self.next, |known| self.places[known].ticket);
        // In Redis each place has two fields, and `first`, `next` and `granted` are others.
        let fields = 2 * self.places.len() + 2 + usize::from(self.granted.is_some());
        if ticket - first > SPARE + 2 * fields as u64 {
            let numbered = (first..).zip(&mut self.places);
            numbered.for_each(|(number, waiting)| waiting.ticket = number);
            self.next = first + self.places.len() as u64;
        }
    }
}

impl Waiting {
    /// Whether the place lasts still: its end may have been written before the clock was set back.
    #[must_use]
    pub fn is_live(&self, now: u64) -> bool {
        now < self.ends && self.ends - now <= micros(self.place.life)
    }
}

pub(in crate::backend) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// By how much an expiry may differ from what was written beside it: in Redis, of which the clock of keys stands still within a call.
pub(super) const APART: u64 = 50_000;

/// How many tickets without a place a queue may have beside as many as Redis has fields of it.
const SPARE: u64 = 16;
