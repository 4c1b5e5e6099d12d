//! Places and grants.

use std::{collections::BTreeMap, sync::Arc};

use lock_core::{
    backend::{Acquire, Grant, Place, Token},
    key::LockKey,
};

use super::{Call, Entry, Holder, Node, NodeMutant, Push, ms};
use crate::sim::audit::What;

#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    /// The bounds of its tickets.
    pub(super) first: u64,
    pub(super) next: u64,
    /// The token that the key was granted to last, until it has come.
    pub(super) granted: Option<Token>,
    pub(super) places: BTreeMap<u64, Waiting>,
    pub(super) expires: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Waiting {
    token: Token,
    ends: u64,
    place: Place,
    block: u64,
}

/// What a look at the queue has led to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Granted {
    /// Whether somebody got the key.
    pub(super) is_given: bool,
    /// Whether a live place is left that does not fit.
    pub(super) is_late: bool,
}

impl Waiting {
    fn is_live(&self, now: u64, endless: bool) -> bool {
        now < self.ends && (endless || self.ends - now <= ms(self.place.life))
    }
}

impl Node {
    fn is_live(&self, waiting: &Waiting, now: u64) -> bool {
        waiting.is_live(now, self.has(NodeMutant::PlaceEndless))
    }

    pub(super) fn keep_place(&mut self, acquire: &Acquire, call: &Call) -> Option<u32> {
        let Acquire { key, token, .. } = acquire;
        let place = acquire.place.clone()?;
        let ends = call.now + ms(place.life);
        self.refuses.more().ok()?;
        if ends > self.waiting && !(call.now < self.waiting && self.has(NodeMutant::WNotRaised)) {
            self.waiting = ends + 500;
        }
        let waiting = Waiting { token: *token, ends, place, block: u64::from(acquire.block) };
        let queue = self.queues.entry(key.clone()).or_default();
        if queue.expires < call.now {
            *queue = Queue::default();
        }
        let ticket = queue.places.iter().find(|(_, waiting)| waiting.token == *token).map(|(ticket, _)| *ticket);
        let ticket = ticket.unwrap_or(queue.next);
        // Positions count from the first who is there still.
        let there = queue.places.range(queue.first..).next().map_or(ticket, |(first, _)| *first);
        queue.first = there.min(ticket);
        queue.next = queue.next.max(ticket + 1);
        queue.places.insert(ticket, waiting);
        queue.expires = self.waiting + 1_000;
        let first = queue.places.first_key_value().map_or(ticket, |(first, _)| *first);
        u32::try_from(ticket + 1 - first).ok()
    }

    /// Whether a token has a place.
    pub(super) fn has_place(&self, key: &LockKey, token: Token, now: u64) -> bool {
        let queue = self.queues.get(key).filter(|queue| queue.expires >= now);
        queue.is_some_and(|queue| queue.places.values().any(|waiting| waiting.token == token))
    }

    pub(super) fn remove_place(&mut self, key: &LockKey, token: Token) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.places.retain(|_, waiting| waiting.token != token);
        }
    }

    /// Removes the place of a token, unless that is refused.
    pub(super) fn leave(&mut self, key: &LockKey, token: Token) -> Result<(), lock_core::backend::BackendError> {
        let places = self.queues.get(key).into_iter().flat_map(|queue| queue.places.values());
        if places.into_iter().any(|waiting| waiting.token == token) {
            self.refuses.less()?;
        }
        self.remove_place(key, token);
        Ok(())
    }

    /// Whether somebody with a live place comes before a token.
    pub(super) fn comes_later(&self, key: &LockKey, mine: Token, now: u64) -> bool {
        let queue = self.queues.get(key).filter(|queue| queue.expires >= now);
        let places = queue.into_iter().flat_map(|queue| queue.places.values());
        places.take_while(|waiting| waiting.token != mine).any(|waiting| {
            let Place { channel, .. } = &waiting.place;
            self.is_live(waiting, now) && (channel.is_empty() || self.channels.contains_key(channel))
        })
    }

    /// Grants a key to the live places that come before `mine`, in their order, for as long as they fit; see the script.
    pub(super) fn grant(&mut self, key: &LockKey, mine: Option<Token>, call: &mut Call) -> Granted {
        let now = call.now;
        let (mut is_set, mut is_given) = (false, false);
        let queue = self.queues.get(key).filter(|queue| queue.expires >= now);
        let is_empty = queue.is_none_or(|queue| queue.first >= queue.next);
        let places: Vec<_> = queue.into_iter().flat_map(|queue| queue.places.clone()).collect();
        let mut is_last = !is_empty;
        for (ticket, waiting) in places {
            if Some(waiting.token) == mine {
                is_last = false;
                break;
            }
            // One that has a share has come, unseen by its place.
            if !self.is_live(&waiting, now) || self.end_of_share(key, waiting.token, now).is_some() {
                self.drop_place(key, ticket);
                continue;
            }
            let Waiting { token, ends, place, block } = waiting;
            let mode = token.mode();
            if is_set {
                if !mode.is_exclusive() {
                    self.keys.remove(key);
                    is_set = false;
                }
            } else if let Some(group) = self.group(key, now)
                && !self.has_room(group, mode, now)
            {
                return Granted { is_given, is_late: true };
            }
            let heard = place.channel.is_empty() || self.channels.contains_key(&place.channel);
            let is_told = heard || self.has(NodeMutant::DeadPlacesLive);
            if self.has(NodeMutant::ToldBeforeSet) && self.refuses.more().is_err() && is_told {
                self.tell(key, token, &place, (0, 1));
            }
            let mut lasts = if self.has(NodeMutant::GrantWithoutEnd) { ms(place.life) * 100 } else { ms(place.lasts) };
            if self.mute && !place.channel.is_empty() {
                // Its next check finds the grant, and comes before the place would have ended.
                lasts = lasts.max(ends - now);
            }
            let entry = Entry { reserved: true, ..Entry::new(token, now + lasts, None) };
            let Ok((fence, size)) = self.give(key, entry, block, call) else {
                is_last = false;
                break;
            };
            call.mute |= self.mute && !place.channel.is_empty();
            is_set = mode.is_exclusive();
            if !is_told || !self.has(NodeMutant::PlaceKeptOnGrant) {
                self.drop_place(key, ticket);
            }
            if let Some(queue) = self.queues.get_mut(key) {
                (queue.first, queue.granted) = (ticket + 1, Some(token));
            }
            if !is_told && !self.mute {
                if !is_set {
                    self.end_share(key, token, None, now);
                }
                continue;
            }
            is_given = true;
            self.audit.does(key, entry.holder, What::Set(entry.expires));
            self.audit.granted(key, token, (now, lasts), (fence, size), self.mute, &self.channels);
            if !self.mute {
                self.tell(key, token, &place, (fence, size));
            }
            if is_set || self.has(NodeMutant::OneReaderAtATime) {
                return Granted { is_given, is_late: false };
            }
        }
        if is_set {
            self.keys.remove(key);
        }
        if is_last
            && !is_given
            && let Some(queue) = self.queues.get_mut(key)
        {
            // Nothing is left of it.
            queue.granted = None;
        }
        Granted { is_given, is_late: false }
    }

    /// Gives a key to a place: alone, or a share. Returns its fencing tokens.
    fn give(
        &mut self,
        key: &LockKey,
        entry: Entry,
        block: u64,
        call: &mut Call,
    ) -> Result<(u64, u64), lock_core::backend::BackendError> {
        let clock = if self.has(NodeMutant::GrantWithoutClock) { 0 } else { self.count_from_clock(call.now) };
        match entry.token() {
            Some(token) if !token.mode().is_exclusive() => Ok((self.join(key, token, entry, clock, call)?, 1)),
            _ => {
                let fences = self.take_fences_from(clock, key, block, call)?;
                self.refuses.more()?;
                self.groups.remove(key);
                self.keys.insert(key.clone(), entry);
                Ok(fences)
            }
        }
    }

    fn tell(&mut self, key: &LockKey, token: Token, place: &Place, (fence, size): (u64, u64)) {
        if place.channel.is_empty() {
            return;
        }
        let holder = Holder::Ours(token);
        let is_set = self.keys.get(key).is_some_and(|entry| entry.holder == holder)
            || self.groups.get(key).is_some_and(|group| group.share_with(holder).is_some());
        self.audit.told(key, is_set);
        let fences = (fence, u32::try_from(size).unwrap_or(u32::MAX));
        let grant = Grant::new(key.clone(), token, place.sent, place.lasts, fences);
        self.pushes.push(Push { channel: Arc::clone(&place.channel), grant });
    }

    fn drop_place(&mut self, key: &LockKey, ticket: u64) {
        if self.refuses.less().is_ok()
            && let Some(queue) = self.queues.get_mut(key)
        {
            queue.places.remove(&ticket);
        }
    }

    /// Places that are live still, and where they are called.
    pub(in crate::sim) fn places(&self, micros: u64) -> impl Iterator<Item = (&LockKey, &Arc<str>)> {
        let now = micros / 1_000;
        self.queues.iter().flat_map(move |(key, queue)| {
            queue
                .places
                .values()
                .filter(move |waiting| waiting.is_live(now, false))
                .map(move |waiting| (key, &waiting.place.channel))
        })
    }

    /// Forgets until when somebody may be waiting, as when that was evicted.
    pub fn forget_waiting(&mut self) {
        self.waiting = 0;
        self.audit.all_lapsed(None);
    }

    /// Forgets who waits for a key, as when that was evicted.
    pub(in crate::sim) fn forget_queue(&mut self, key: &LockKey) {
        self.queues.remove(key);
        self.audit.all_lapsed(Some(key));
    }
}
