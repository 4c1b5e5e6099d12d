//! What the store in memory knows, and what its operations do.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use smallvec::SmallVec;

use super::entry::{Entry, Share};
use crate::{
    backend::{AIMS_WITHIN, Acquire, Batch, Calls, Grant, Operation, Outcome, Outcomes, Place, Release, Token},
    clock::Moment,
    key::{HashOfKey, LockKey},
    mode::Mode,
};

#[derive(Default)]
pub(super) struct State {
    pub(super) entries: HashMap<LockKey, Entry, HashOfKey>,
    /// The waiters of each key, in order; no queue is empty.
    queues: HashMap<LockKey, VecDeque<Waiting>, HashOfKey>,
    /// The listeners, by channel.
    pub(super) listeners: HashMap<Arc<str>, Calls>,
    /// The grants of the batch in progress; waiters are notified of them when the store is unlocked.
    pub(super) grants: Vec<(Calls, Grant)>,
    /// The last fencing token given out, for all keys.
    last_fence: u64,
    /// Entries are swept for expired ones when they have become more than this.
    sweep_above: usize,
}

/// A place in a queue.
struct Waiting {
    token: Token,
    place: Place,
    /// How many fencing tokens it wants.
    block: u32,
    ends: Moment,
}

impl State {
    pub(super) fn execute(&mut self, operation: &Operation, now: Moment, time: u64) -> Outcome {
        match operation {
            Operation::Acquire(acquire) => self.acquire(acquire, now, time),
            Operation::Renew(renew) => match self.share(&renew.key, renew.token, now) {
                Some(share) => {
                    share.expires = share.expires.max(now + renew.ttl);
                    let remaining = share.expires.since(now);
                    let fence = (renew.block > 0).then(|| self.fences(renew.block, time, renew.floor, renew.aim));
                    Outcome::Renewed { remaining, fence, block: renew.block }
                }
                None => Outcome::Gone,
            },
            Operation::Release(release) => self.release(release, now, time),
            Operation::Inspect { key } => match self.held(key, now) {
                Some(entry) => entry.inspected(now),
                None => Outcome::Gone,
            },
            Operation::Force { key, .. } => {
                let held = self.held(key, now).is_some();
                self.entries.remove(key);
                self.grant(key, None, now, time);
                if held { Outcome::Released } else { Outcome::Gone }
            }
        }
    }

    /// Gives back what a batch has taken, unless all of it is held.
    pub(super) fn give_back_unless_all(&mut self, batch: &Batch, outcomes: &mut Outcomes, now: Moment, time: u64) {
        if outcomes.iter().all(|outcome| matches!(outcome, Ok(Outcome::Held { .. }))) {
            return;
        }
        for (operation, outcome) in batch.iter().zip(outcomes.iter_mut()) {
            if let (Operation::Acquire(acquire), Ok(Outcome::Held { was_free: true, .. })) = (operation, &outcome) {
                self.release(&Release::new(acquire.key.clone(), acquire.token), now, time);
                *outcome = Ok(Outcome::Gone);
            }
        }
    }

    fn release(&mut self, release: &Release, now: Moment, time: u64) -> Outcome {
        let Release { key, token, .. } = release;
        // First, since the key might be granted to it.
        self.remove_place(key, *token);
        let outcome = match self.share(key, *token, now) {
            Some(share) if !release.after.is_zero() => {
                share.expires = now + release.after;
                Outcome::Released
            }
            Some(_) => {
                self.end_share(key, *token);
                Outcome::Released
            }
            None => Outcome::Gone,
        };
        if !release.quiet {
            self.grant(key, None, now, time);
        }
        outcome
    }

    fn acquire(&mut self, acquire: &Acquire, now: Moment, time: u64) -> Outcome {
        let Acquire { key, token, from, .. } = acquire;
        let mine = self.share(key, *token, now).map(|share| share.expires);
        let is_late = from.is_none() && mine.is_none() && self.grant(key, Some(*token), now, time);
        let taken = from.and_then(|from| self.share(key, from, now).map(|share| share.token));
        // An exclusive lease may go on in any mode: nobody comes in between.
        let taken = taken.filter(|from| from.mode().is_exclusive() || from.mode() == token.mode());
        let is_held = match self.held(key, now) {
            _ if mine.is_some() || taken.is_some() => true,
            _ if from.is_some() => return Outcome::Gone,
            Some(entry) => {
                let has_room = entry.has_room(token.mode());
                if is_late || !has_room {
                    let position = self.keep_place(acquire, now);
                    return self.entries[key].busy(now, token.mode(), has_room, position);
                }
                false
            }
            None => false,
        };
        self.sweep(now);
        self.remove_place(key, *token);
        let numbers = (acquire.block, acquire.floor, acquire.aim);
        // It may be late, and the lease extended since.
        let expires = mine.map_or(now + acquire.ttl, |expires| expires.max(now + acquire.ttl));
        if let Some(over) = taken {
            self.end_share(key, over);
        }
        let (fence, block) = self.join(key, Share { token: *token, expires, reserved: false }, numbers, time);
        if !token.mode().is_exclusive() {
            // Those behind it may share the key now: it was exclusive, or none of them has found that it has expired.
            self.grant(key, None, now, time);
        }
        Outcome::Held { fence, block, was_free: !is_held }
    }

    /// Gives a token its share of a key, which has room for it. Returns its fencing tokens.
    fn join(&mut self, key: &LockKey, share: Share, (block, floor, aim): (u32, u64, u64), time: u64) -> (u64, u32) {
        let mode = share.token.mode();
        let known = self.entries.get(key).map(|entry| entry.fence).filter(|fence| *fence >= floor.max(1));
        let block = if mode.is_exclusive() { block } else { 1 };
        let fence = match known {
            Some(fence) if mode == Mode::Shared => fence,
            _ => self.fences(block, time, floor, aim),
        };
        let entry = self.entries.entry(key.clone()).or_insert_with(|| Entry { shares: SmallVec::new(), fence });
        entry.fence = fence;
        match entry.share(share.token) {
            Some(known) => *known = share,
            None => entry.shares.push(share),
        }
        (fence, block)
    }

    /// Ends the share of a token that has one.
    fn end_share(&mut self, key: &LockKey, token: Token) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.shares.retain(|share| share.token != token);
            if entry.shares.is_empty() {
                self.entries.remove(key);
            }
        }
    }

    /// Takes a block of fencing tokens, counted from the clock, or from `floor` or a near `aim` if these are ahead.
    fn fences(&mut self, block: u32, time: u64, floor: u64, aim: u64) -> u64 {
        let next = time.max(self.last_fence.saturating_add(1));
        let is_near = aim <= next.saturating_add(micros(AIMS_WITHIN));
        let first = next.max(floor).max(if is_near { aim } else { 0 });
        self.last_fence = first.saturating_add(u64::from(block)).saturating_sub(1);
        first
    }

    /// Gives a token a place at the end of the queue, or refreshes the one that it has.
    fn keep_place(&mut self, acquire: &Acquire, now: Moment) -> Option<u32> {
        let place = acquire.place.as_ref()?;
        let Acquire { token, block, .. } = *acquire;
        let waiting = Waiting { token, place: place.clone(), block, ends: now + place.life };
        let queue = self.queues.entry(acquire.key.clone()).or_default();
        let index = match queue.iter().position(|waiting| waiting.token == token) {
            Some(index) => {
                queue[index] = waiting;
                index
            }
            None => {
                queue.push_back(waiting);
                queue.len() - 1
            }
        };
        u32::try_from(index + 1).ok()
    }

    fn remove_place(&mut self, key: &LockKey, token: Token) {
        if self.queues.is_empty() {
            return;
        }
        if let Some(queue) = self.queues.get_mut(key) {
            queue.retain(|waiting| waiting.token != token);
            if queue.is_empty() {
                self.queues.remove(key);
            }
        }
    }

    /// Grants a key to the first live place and to those that follow, in their order, for as long as they fit, up to the place that is
    /// `mine`. Places on the way that are not live are dropped. Returns whether a live place is left that does not fit.
    fn grant(&mut self, key: &LockKey, mine: Option<Token>, now: Moment, time: u64) -> bool {
        if self.queues.is_empty() {
            return false;
        }
        let mut is_left = false;
        while let Some(first) = self.queues.get_mut(key).and_then(VecDeque::pop_front) {
            let listener = self.listeners.get(&first.place.channel).cloned();
            let is_mine = Some(first.token) == mine;
            if !is_mine && (now >= first.ends || (listener.is_none() && !first.place.channel.is_empty())) {
                continue;
            }
            is_left = !is_mine && self.held(key, now).is_some_and(|entry| !entry.has_room(first.token.mode()));
            if is_mine || is_left {
                self.queues.entry(key.clone()).or_default().push_front(first);
                break;
            }
            let Waiting { token, place, block, .. } = first;
            let share = Share { token, expires: now + place.lasts, reserved: true };
            let fences = self.join(key, share, (block, 0, 0), time);
            if let Some(listener) = listener {
                let grant = Grant::new(key.clone(), token, place.sent, place.lasts, fences);
                self.grants.push((listener, grant));
            }
        }
        if self.queues.get(key).is_some_and(VecDeque::is_empty) {
            self.queues.remove(key);
        }
        is_left
    }

    /// Those who hold a key: not those whose time is over.
    fn held(&mut self, key: &LockKey, now: Moment) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(key)?;
        entry.shares.retain(|share| share.expires > now);
        if entry.shares.is_empty() {
            self.entries.remove(key);
        }
        self.entries.get_mut(key)
    }

    /// The share of a token, if it has one that is not over.
    fn share(&mut self, key: &LockKey, token: Token, now: Moment) -> Option<&mut Share> {
        self.held(key, now)?.share(token)
    }

    /// Removes expired entries, at a cost that spreads over the acquires: each time the number of entries has doubled.
    fn sweep(&mut self, now: Moment) {
        if self.entries.len() > self.sweep_above {
            self.entries.retain(|_, entry| entry.expires() > now);
            self.sweep_above = (self.entries.len() * 2).max(64);
            self.entries.shrink_to(self.sweep_above * 2);
            self.queues.retain(|_, queue| {
                queue.retain(|waiting| waiting.ends > now);
                !queue.is_empty()
            });
        }
    }
}

pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
