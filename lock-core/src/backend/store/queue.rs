//! What becomes of places: they are kept, removed, and granted keys.

use super::{
    Call, Holders, Share, Store,
    place::{APART, Granted, Queue, Waiting},
};
use crate::{
    backend::{Acquire, Grant, Place, Token},
    key::LockKey,
};

impl Store {
    /// Whether a token has a place.
    #[must_use]
    pub fn has_place(&self, key: &LockKey, token: Token) -> bool {
        self.queues.get(key).is_some_and(|queue| queue.places.iter().any(|waiting| waiting.token == token))
    }

    /// Gives a token a place at the end of the queue, or refreshes the one that it has. Returns its position.
    pub(super) fn keep_place(&mut self, acquire: &Acquire, now: u64) -> Option<u32> {
        let place = acquire.place.clone()?;
        let Acquire { key, token, block, .. } = acquire;
        let ends = self.end(now, place.life);
        let waited = self.waits(now);
        if ends > self.waiting {
            // Somewhat later, so that not every place writes it.
            self.waiting = ends.saturating_add(LATER);
        }
        let (least, waiting) = (self.least(now), self.waiting);
        let queue = self.queues.entry(key.clone()).or_default();
        if queue.expires < least {
            *queue = Queue::default();
        }
        queue.expires = waiting.saturating_add(OUTLASTS);
        // What was granted before that time had come is confirmed, or over.
        queue.granted = queue.granted.filter(|_| waited);
        let known = queue.places.iter().position(|waiting| waiting.token == *token);
        queue.renumber(known);
        let ticket = known.map_or(queue.next, |known| queue.places[known].ticket);
        let waiting = Waiting { ticket, token: *token, place, block: *block, ends };
        match known {
            Some(known) => queue.places[known] = waiting,
            None => queue.places.push_back(waiting),
        }
        // Positions count from the first who is there still.
        queue.first = queue.places.front().map_or(ticket, |first| first.ticket);
        queue.next = queue.next.max(ticket + 1);
        u32::try_from(ticket + 1 - queue.first).ok()
    }

    /// Removes the place of a token. Returns whether the key was granted to the token last.
    pub(super) fn remove_place(&mut self, key: &LockKey, token: Token) -> bool {
        let Some(queue) = self.queues.get_mut(key) else { return false };
        queue.places.retain(|waiting| waiting.token != token);
        let was_granted = queue.granted.is_some_and(|(granted, _)| granted == token);
        self.drop_if_empty(key);
        was_granted
    }

    /// Forgets that a token waits, or was granted the key.
    pub(super) fn leave(&mut self, key: &LockKey, token: Token) {
        if self.remove_place(key, token) {
            self.forget_grant(key);
        }
    }

    /// The token that a key is kept for: it was granted it, exclusively, and has not come yet.
    #[must_use]
    pub fn reserved_for(&self, key: &LockKey, now: u64) -> Option<Token> {
        let (granted, until) = self.queues.get(key)?.granted.filter(|_| self.waits(now) && self.is_exclusive(key))?;
        // What lasts longer was confirmed.
        self.end_of(key, granted, now).filter(|ends| *ends <= until + APART).map(|_| granted)
    }

    /// Forgets to which token the key was granted last.
    pub(super) fn forget_grant(&mut self, key: &LockKey) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.granted = None;
            self.drop_if_empty(key);
        }
    }

    fn drop_if_empty(&mut self, key: &LockKey) {
        if self.queues.get(key).is_some_and(|queue| queue.places.is_empty() && queue.granted.is_none()) {
            self.queues.remove(key);
        }
    }

    /// Grants a key to the live places that come before `mine`, in their order, for as long as they fit. The key is free, or others
    /// share it. Places that are not live are dropped; one whose channel has no subscriber is passed over, and is dropped, too.
    pub(super) fn grant(&mut self, key: &LockKey, mine: Option<Token>, call: &mut Call<'_>) -> Granted {
        if !self.waits(call.now) {
            return Granted::default();
        }
        let Some((name, mut queue)) = self.queues.remove_entry(key) else { return Granted::default() };
        let granted = self.grant_to(key, &mut queue, mine, call);
        if !queue.places.is_empty() || queue.granted.is_some() {
            self.queues.insert(name, queue);
        }
        granted
    }

    fn grant_to(&mut self, key: &LockKey, queue: &mut Queue, mine: Option<Token>, call: &mut Call<'_>) -> Granted {
        let now = call.now;
        let has_any = queue.first < queue.next;
        let (mut is_set, mut is_given) = (false, false);
        while let Some(waiting) = queue.places.pop_front() {
            let token = waiting.token;
            if Some(token) == mine {
                queue.places.push_front(waiting);
                break;
            }
            // One that has a share has come, unseen by its place.
            if !waiting.is_live(now) || self.end_of(key, token, now).is_some() {
                continue;
            }
            let mode = token.mode();
            let least = self.least(now);
            if is_set && !mode.is_exclusive() {
                self.keys.remove(key);
                is_set = false;
            }
            if !is_set && !self.keys.get(key).is_none_or(|holders: &Holders| holders.has_room(mode, least)) {
                queue.places.push_front(waiting);
                return Granted { is_given, is_late: true };
            }
            let Waiting { ticket, place: Place { channel, lasts, sent, .. }, block, .. } = waiting;
            let ends = self.end(now, lasts);
            let fences = self.join(key, Share { token, ends }, block, call);
            is_set = mode.is_exclusive();
            (queue.first, queue.granted) = (ticket + 1, Some((token, ends)));
            if channel.is_empty() || (call.hears)(&channel) {
                is_given = true;
                call.grants.push((channel, Grant::new(key.clone(), token, sent, lasts, fences)));
                if is_set {
                    return Granted { is_given, is_late: false };
                }
            } else if !is_set {
                self.end_share(key, token, now);
            }
        }
        if is_set {
            self.keys.remove(key);
        }
        if has_any && !is_given && queue.places.is_empty() {
            queue.granted = None;
        }
        Granted { is_given, is_late: false }
    }
}

/// By how much the time until when somebody may be waiting outlasts the place that ends last.
const LATER: u64 = 500_000;
/// By how much a queue outlasts that.
const OUTLASTS: u64 = 1_000_000;
