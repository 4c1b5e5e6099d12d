//! Keys, queues and fencing tokens, and what the operations do with them, step by step as `lock.lua` does it: the
//! [store in memory](super::MemoryBackend), and each simulated node.
//!
//! Nothing here fails, waits or reads a clock. Times are µs by the clock of the store, whose origin is its own.

mod holders;
mod place;
mod queue;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
    time::Duration,
};

pub(super) use self::place::micros;
pub use self::{
    holders::{Holders, Share},
    place::{Queue, Waiting},
};
use super::{AIMS_WITHIN, Acquire, Grant, Operation, Outcome, Outcomes, Release, Renew, Token};
use crate::{
    key::{HashOfKey, LockKey},
    mode::Mode,
};

/// The state of a store.
#[derive(Clone, Debug)]
pub struct Store {
    /// The holders of each key; those that have expired are removed when their key is looked at.
    pub keys: HashMap<LockKey, Holders, HashOfKey>,
    /// The waiters of each key.
    pub queues: HashMap<LockKey, Queue, HashOfKey>,
    /// Until when somebody may be waiting; before that, queues are not looked at.
    pub waiting: u64,
    /// The last fencing token given out, for all keys.
    pub last_fence: u64,
    /// The unit of the clock in which times are kept: a key is there until the unit in which it ends is over. Zero for exact times.
    tick: u64,
    /// Keys and queues are swept for expired ones when either have become more than this.
    sweep_above: usize,
}

/// One batch.
#[derive(Clone)]
pub struct Call<'a> {
    now: u64,
    /// The least number that the clock allows.
    pub clock: u64,
    /// The least number that the caller allows.
    pub floor: u64,
    aim: u64,
    /// The fencing tokens that were drawn last: the first, and how many.
    drawn: Option<(u64, u32)>,
    /// The keys that have had some of this call, unless it is about one.
    have_drawn: HashSet<LockKey, HashOfKey>,
    is_single: bool,
    /// Whether a channel has a subscriber.
    hears: &'a dyn Fn(&Arc<str>) -> bool,
    /// The grants so far, each with the channel of its place; that is empty if nobody is to be notified.
    pub grants: Vec<(Arc<str>, Grant)>,
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("now", &self.now).finish_non_exhaustive()
    }
}

impl<'a> Call<'a> {
    /// Begins a batch at `now`. `clock` is the wall clock of the store, from which fencing tokens are counted.
    pub fn new(batch: &[Operation], (now, clock): (u64, u64), hears: &'a dyn Fn(&Arc<str>) -> bool) -> Self {
        let (floor, aim) = Operation::numbers(batch);
        let (is_single, have_drawn) = (batch.len() == 1, HashSet::default());
        Self { now, clock, floor, aim, drawn: None, have_drawn, is_single, hears, grants: Vec::new() }
    }
}

impl Store {
    /// Makes an empty store; `tick` is the unit in which its keys expire.
    #[must_use]
    pub fn new(tick: Duration) -> Self {
        Self {
            keys: HashMap::default(),
            queues: HashMap::default(),
            waiting: 0,
            last_fence: 0,
            tick: micros(tick),
            sweep_above: LEAST_SWEPT,
        }
    }

    /// Executes a batch.
    pub fn execute(&mut self, batch: &[Operation], call: &mut Call<'_>) -> Outcomes {
        self.begin(batch, call.now);
        let all_or_none = batch.iter().any(Operation::is_all_or_none);
        let mut outcomes = Outcomes::with_capacity(batch.len());
        let mut is_refused = false;
        for operation in batch {
            let outcome = if is_refused { Outcome::Gone } else { self.perform(operation, call) };
            is_refused |= all_or_none && !matches!(outcome, Outcome::Held { .. });
            outcomes.push(Ok(outcome));
        }
        if is_refused {
            for (operation, outcome) in batch.iter().zip(outcomes.iter_mut()) {
                if let (Operation::Acquire(acquire), Ok(Outcome::Held { was_free: true, .. })) = (operation, &outcome) {
                    self.give_back(acquire, call);
                    *outcome = Ok(Outcome::Gone);
                }
            }
        }
        outcomes
    }

    /// Looks at all keys of a batch, and at until when somebody may be waiting. (Calls of renewals do not look at that.)
    pub fn begin(&mut self, batch: &[Operation], now: u64) {
        if batch.iter().any(|operation| !matches!(operation, Operation::Renew(_))) {
            if self.waiting < self.least(now) {
                self.waiting = 0;
            }
            // It was written before the clock was set back.
            self.waiting = self.waiting.min(now + MOST_AHEAD);
        }
        for operation in batch {
            self.look(operation, now);
        }
    }

    /// Executes one operation of a batch.
    pub fn perform(&mut self, operation: &Operation, call: &mut Call<'_>) -> Outcome {
        match operation {
            Operation::Acquire(acquire) => self.acquire(acquire, call),
            Operation::Renew(renew) => self.renew(renew, call),
            Operation::Release(release) => self.release(release, call),
            Operation::Inspect { key } => {
                self.keys.get(key).map_or(Outcome::Gone, |holders| holders.inspected(call.now, self.least(call.now)))
            }
            Operation::Force { key, .. } => {
                if self.keys.remove(key).is_none() {
                    return Outcome::Gone;
                }
                self.grant(key, None, call);
                Outcome::Released
            }
        }
    }

    /// Gives back what was taken with others that were not free.
    pub fn give_back(&mut self, acquire: &Acquire, call: &mut Call<'_>) {
        self.end_share(&acquire.key, acquire.token, call.now);
        self.grant(&acquire.key, None, call);
    }

    /// When the lease of a token ends, if it has one.
    #[must_use]
    pub fn end_of(&self, key: &LockKey, token: Token, now: u64) -> Option<u64> {
        self.keys.get(key)?.share(token, self.least(now)).map(|share| share.ends)
    }

    /// Whether somebody may be waiting.
    #[must_use]
    pub fn waits(&self, now: u64) -> bool {
        now < self.waiting
    }

    /// Draws a block of fencing tokens: the first, and how many. A block ends with its millisecond.
    pub fn draw(&mut self, size: u32, call: &Call<'_>) -> (u64, u32) {
        let next = call.clock.max(self.last_fence.saturating_add(1));
        let near = if call.aim <= next.saturating_add(micros(AIMS_WITHIN)) { call.aim } else { 0 };
        let first = next.max(near).max(call.floor);
        let size = u64::from(size).clamp(1, 1_000 - first % 1_000);
        self.last_fence = first.saturating_add(size - 1);
        (first, u32::try_from(size).unwrap_or(u32::MAX))
    }

    /// Ends the lease of a token at once. A group whose other shares end just now goes with it: the script leaves it for the rest of
    /// this millisecond if one of theirs has the larger token.
    fn end_share(&mut self, key: &LockKey, token: Token, now: u64) {
        if let Some(holders) = self.keys.get_mut(key) {
            holders.remove(token);
            if !holders.is_live(now + 1) {
                self.keys.remove(key);
            }
        }
    }

    fn acquire(&mut self, acquire: &Acquire, call: &mut Call<'_>) -> Outcome {
        let Acquire { key, token, from, .. } = acquire;
        let (now, mode) = (call.now, token.mode());
        let own = self.end_of(key, *token, now);
        // An exclusive lease may go on in any mode: nobody comes in between.
        let other = from.filter(|from| from != token && (from.mode().is_exclusive() || from.mode() == mode));
        let other = other.filter(|from| self.end_of(key, *from, now).is_some());
        let is_own = own.is_some() || other.is_some();
        let puts_back = *from == Some(*token);
        // Nobody can have a majority of nodes beside a lease that is put back: a grant that nobody has heard of gives way.
        let gives_way = puts_back && !is_own && self.reserved_for(key, now).is_some();
        if gives_way {
            self.keys.remove(key);
        }
        let (mut had_place, mut is_late) = (false, false);
        if from.is_none() && !is_own && self.waits(now) && !self.is_exclusive(key) {
            had_place = self.has_place(key, *token);
            is_late = self.grant(key, Some(*token), call).is_late;
        }
        let has_room = self.keys.get(key).is_none_or(|holders| holders.has_room(mode, self.least(now)));
        let is_taken = from.is_some() && !puts_back;
        if !is_own && (is_taken || is_late || !has_room) {
            if !is_taken && mode.is_exclusive() && !is_late && !self.is_exclusive(key) {
                // Only a server finds by its attempt that others share the key.
                self.take_fences(key, acquire.block, call);
            }
            return if from.is_some() { Outcome::Gone } else { self.busy(acquire, call) };
        }
        self.sweep(now);
        let was_exclusive = other.is_some_and(|other| other.mode().is_exclusive());
        if was_exclusive {
            self.keys.remove(key);
        }
        // It may be late, and the lease extended since.
        let ends = self.end(now, acquire.ttl).max(own.unwrap_or(0));
        let (fence, block) = self.join(key, Share { token: *token, ends }, acquire.block, call);
        if let Some(other) = other.filter(|_| !was_exclusive) {
            self.end_share(key, other, now);
        }
        if self.waits(now) {
            self.leave(key, *token);
            if !mode.is_exclusive() && (had_place || other.is_some() || gives_way) {
                // Those behind it may share the key now: it was exclusive, none of them has found that it has expired, or its place is
                // gone.
                self.grant(key, None, call);
            }
        }
        Outcome::Held { fence, block, was_free: !is_own }
    }

    fn busy(&mut self, acquire: &Acquire, call: &Call<'_>) -> Outcome {
        let Acquire { key, token, .. } = acquire;
        let position = self.keep_place(acquire, call.now);
        let looks = acquire.place.is_some() || self.waits(call.now);
        let granted = self.queues.get(key).filter(|_| looks).and_then(|queue| queue.granted);
        let holders = self.keys.get(key);
        let times = (call.now, self.least(call.now));
        holders.map_or(Outcome::Gone, |holders| holders.busy(times, token.mode(), granted, position))
    }

    fn renew(&mut self, renew: &Renew, call: &mut Call<'_>) -> Outcome {
        let Renew { key, token, .. } = renew;
        let (least, end) = (self.least(call.now), self.end(call.now, renew.ttl));
        let Some(holders) = self.keys.get_mut(key) else { return Outcome::Gone };
        let Some(share) = holders.share(*token, least) else { return Outcome::Gone };
        let ends = share.ends.max(end);
        if share.ends < end {
            holders.put(Share { token: *token, ends }, least);
        }
        let remaining = Duration::from_micros(ends - call.now);
        let numbers = (renew.block > 0).then(|| self.take_fences(key, renew.block, call));
        let (fence, block) = (numbers.map(|(fence, _)| fence), numbers.map_or(0, |(_, size)| size));
        Outcome::Renewed { remaining, fence, block }
    }

    fn release(&mut self, release: &Release, call: &mut Call<'_>) -> Outcome {
        let Release { key, token, .. } = release;
        let now = call.now;
        // First, since the key might be granted to it.
        let was_granted = self.waits(now) && self.remove_place(key, *token);
        let (least, end) = (self.least(now), self.end(now, release.after));
        let holders = self.keys.get_mut(key).filter(|holders| holders.share(*token, least).is_some());
        let outcome = if holders.is_some() { Outcome::Released } else { Outcome::Gone };
        match holders {
            Some(holders) if !release.after.is_zero() => holders.put(Share { token: *token, ends: end }, least),
            Some(_) => self.end_share(key, *token, now),
            None => {}
        }
        let is_given = !release.quiet && !self.is_exclusive(key) && self.grant(key, None, call).is_given;
        if was_granted && !is_given {
            self.forget_grant(key);
        }
        outcome
    }

    /// Gives a token its share of a key, which has room for it, or is its own. Returns its fencing tokens.
    fn join(&mut self, key: &LockKey, share: Share, block: u32, call: &mut Call<'_>) -> (u64, u32) {
        let mode = share.token.mode();
        let known = self.keys.get(key).filter(|_| mode == Mode::Shared).map(|holders| holders.fence);
        let (fence, size) = match known.filter(|fence| *fence >= call.floor) {
            Some(fence) => (fence, 1),
            None => self.take_fences(key, if mode.is_exclusive() { block } else { 1 }, call),
        };
        let least = self.least(call.now);
        match self.keys.get_mut(key).filter(|_| !mode.is_exclusive()) {
            Some(holders) => {
                holders.fence = fence;
                holders.put(share, least);
            }
            None => drop(self.keys.insert(key.clone(), Holders::new(share, fence))),
        }
        (fence, size)
    }

    /// The fencing tokens of an operation. Keys that have had none in this call share what was drawn last.
    fn take_fences(&mut self, key: &LockKey, size: u32, call: &mut Call<'_>) -> (u64, u32) {
        let is_first = !call.is_single && call.have_drawn.insert(key.clone());
        if let Some((first, drawn)) = call.drawn
            && is_first
            && size <= drawn
        {
            return (first, size);
        }
        let drawn = self.draw(size, call);
        call.drawn = Some(drawn);
        drawn
    }

    /// Removes what has expired of a key that an operation looks at.
    fn look(&mut self, operation: &Operation, now: u64) {
        let (key, least) = (operation.key(), self.least(now));
        if self.keys.get(key).is_some_and(|holders| !holders.is_live(least)) {
            self.keys.remove(key);
        }
        let waits = self.waits(now) && !matches!(operation, Operation::Renew(_) | Operation::Inspect { .. });
        if waits && self.queues.get(key).is_some_and(|queue| queue.expires < least) {
            self.queues.remove(key);
        }
    }

    /// Whether a key holds an exclusive token.
    fn is_exclusive(&self, key: &LockKey) -> bool {
        self.keys.get(key).is_some_and(|holders| holders.mode().is_exclusive())
    }

    /// When something ends that lasts for a while from now on.
    fn end(&self, now: u64, lasts: Duration) -> u64 {
        let unit = self.tick.max(1);
        now.saturating_add(micros(lasts) / unit * unit)
    }

    /// What ends then or later is there at `now`.
    fn least(&self, now: u64) -> u64 {
        (now + 1).saturating_sub(self.tick)
    }

    /// Removes what has expired, at a cost that spreads over the acquires: each time the number of keys or queues has doubled.
    fn sweep(&mut self, now: u64) {
        if self.keys.len().max(self.queues.len()) > self.sweep_above {
            let least = self.least(now);
            self.keys.retain(|_, holders| holders.is_live(least));
            self.queues.retain(|_, queue| queue.expires >= least);
            self.sweep_above = (self.keys.len().max(self.queues.len()) * 2).max(LEAST_SWEPT);
            self.keys.shrink_to(self.sweep_above * 2);
            self.queues.shrink_to(self.sweep_above * 2);
        }
    }
}

/// How far ahead the time may be until when somebody may be waiting.
const MOST_AHEAD: u64 = 60_000_000;
const LEAST_SWEPT: usize = 64;
