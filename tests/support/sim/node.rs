//! The node: what `lock.lua` does, line by line, in memory. Times are the node's own wall clock.
//!
//! A test holds it against the script in a real Redis. Deliberate bugs are switched on by [`NodeMutant`].

mod free;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use lock_core::{
    backend::{Acquire, Grant, Operation, Outcome, Place, Release, Renew, Token},
    key::LockKey,
};

use super::audit::Audit;

/// A deliberate bug of the node, each one that a script could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeMutant {
    /// A release deletes the key whoever holds it.
    ReleaseWithoutTokenCheck,
    /// A renewal pushes out the expiry whoever holds the key.
    RenewWithoutTokenCheck,
    /// A release grants the key to nobody.
    NoGrantInRelease,
    /// A grant leaves the place where it is.
    PlaceKeptOnGrant,
    /// Who takes the key keeps the place.
    PlaceKeptOnTaking,
    /// The counter of fencing tokens counts from zero, whatever the clock says.
    FenceByPlainIncr,
    /// An acquire looks at no queue.
    Barging,
    /// A grant keeps the key for as long as the place would have lasted a hundred times.
    GrantWithoutEnd,
    /// A renewal shortens what is left.
    RenewalShortens,
    /// A place without a subscriber counts as live.
    DeadPlacesLive,
}

impl NodeMutant {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::ReleaseWithoutTokenCheck,
        Self::RenewWithoutTokenCheck,
        Self::NoGrantInRelease,
        Self::PlaceKeptOnGrant,
        Self::PlaceKeptOnTaking,
        Self::FenceByPlainIncr,
        Self::Barging,
        Self::GrantWithoutEnd,
        Self::RenewalShortens,
        Self::DeadPlacesLive,
    ];
}

/// What stands at a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// A lease of this library.
    Ours(Token),
    /// Another library's.
    Foreign(u64),
}

/// The value of a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Whose.
    pub(super) holder: Holder,
    /// When it expires by the node's clock, in ms.
    pub(super) expires: u64,
    /// Who set it, if the request came within its own ttl.
    pub(super) setter: Option<usize>,
    /// Whether it was released, and is kept for a while.
    pub(super) kept: bool,
    /// Whether it was granted, and its owner has not come yet.
    pub(super) reserved: bool,
}

/// A message to a channel.
#[derive(Clone, Debug)]
pub(super) struct Push {
    pub(super) channel: Arc<str>,
    pub(super) grant: Grant,
}

/// One server.
#[derive(Debug, Default)]
pub struct Node {
    keys: BTreeMap<LockKey, Entry>,
    /// The last fencing token given out.
    last_fence: u64,
    /// Until when somebody may be waiting.
    waiting: u64,
    queues: BTreeMap<LockKey, Queue>,
    /// Channels that somebody listens on.
    pub(super) channels: BTreeMap<Arc<str>, usize>,
    mutant: Option<NodeMutant>,
    pub(super) audit: Audit,
    pushes: Vec<Push>,
}

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    places: BTreeMap<u64, Waiting>,
    expires: u64,
}

#[derive(Clone, Debug)]
struct Waiting {
    token: Token,
    ends: u64,
    place: Place,
    block: u64,
}

impl Waiting {
    fn is_live(&self, now: u64) -> bool {
        now < self.ends && self.ends - now <= ms(self.place.life)
    }
}

/// The local variables of one run of the script.
struct Call {
    now: u64,
    floor: u64,
    aim: u64,
    /// The fencing tokens that were drawn last: the first, and how many.
    drawn: Option<(u64, u64)>,
    /// The keys that have had some of this call.
    have_drawn: BTreeSet<LockKey>,
}

impl Node {
    /// An empty one, with a bug of its own or none.
    #[must_use]
    pub fn new(mutant: Option<NodeMutant>) -> Self {
        Self { mutant, ..Self::default() }
    }

    fn has(&self, mutant: NodeMutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Forgets everything but who listens.
    pub(super) fn forget(&mut self) {
        self.keys.clear();
        (self.last_fence, self.waiting) = (0, 0);
        self.queues.clear();
        self.audit.forget();
    }

    /// Takes `last` for the fencing token that was given out last.
    pub fn count_from(&mut self, last: u64) {
        self.last_fence = last;
    }

    /// Takes somebody for a listener of a channel.
    pub fn listen(&mut self, channel: &Arc<str>) {
        *self.channels.entry(Arc::clone(channel)).or_default() += 1;
    }

    /// Executes a batch at `micros` by its own clock.
    pub fn call(&mut self, batch: &[Operation], micros: u64) -> Vec<Outcome> {
        self.execute(batch, micros, None).0
    }

    /// Executes a batch at `micros` by its own clock. `sender` is who sent it, and how long ago it was begun
    /// in ms.
    pub(super) fn execute(
        &mut self,
        batch: &[Operation],
        micros: u64,
        sender: Option<(usize, u64)>,
    ) -> (Vec<Outcome>, Vec<Push>) {
        let now = micros / 1_000;
        let numbers = batch.iter().map(|operation| match operation {
            Operation::Acquire(acquire) => (acquire.floor, acquire.aim),
            Operation::Renew(renew) => (renew.floor, renew.aim),
            _ => (0, 0),
        });
        let (floor, aim) = numbers.fold((0, 0), |most, these| (most.0.max(these.0), most.1.max(these.1)));
        let mut call = Call { now, floor, aim, drawn: None, have_drawn: BTreeSet::new() };
        let (batch, free) = batch.split_at(free::begin(batch));
        let mut outcomes: Vec<_> = batch.iter().map(|operation| self.one(operation, &mut call, sender)).collect();
        outcomes.extend(self.acquire_free(free, &call, sender));
        (outcomes, std::mem::take(&mut self.pushes))
    }

    fn one(&mut self, operation: &Operation, call: &mut Call, sender: Option<(usize, u64)>) -> Outcome {
        if let Operation::Acquire(Acquire { key, .. })
        | Operation::Release(Release { key, .. })
        | Operation::Force { key, .. } = operation
        {
            self.audit.look(key, call.now, &self.channels);
        }
        match operation {
            Operation::Acquire(acquire) => {
                let was_free = self.held(&acquire.key, call.now).is_none();
                let outcome = self.acquire(acquire, call, sender);
                self.audit.acquired(acquire, was_free, outcome, call.now, &self.channels);
                outcome
            }
            Operation::Renew(renew) => self.renew(renew, call),
            Operation::Release(release) => self.release(release, call),
            Operation::Inspect { key } => match self.held(key, call.now) {
                Some(entry) => busy(&Entry { reserved: false, ..entry }, call.now, None),
                None => Outcome::Gone,
            },
            Operation::Force { key, foreign } => match self.held(key, call.now) {
                Some(Entry { holder: Holder::Foreign(_), .. }) if !foreign => Outcome::Gone,
                Some(_) => {
                    self.keys.remove(key);
                    if call.now < self.waiting {
                        self.grant(key, None, call);
                    }
                    Outcome::Released
                }
                None => Outcome::Gone,
            },
            _ => Outcome::Gone,
        }
    }

    fn acquire(&mut self, acquire: &Acquire, call: &mut Call, sender: Option<(usize, u64)>) -> Outcome {
        let Acquire { key, token, ttl, block, from, .. } = acquire;
        let looks = call.now < self.waiting && !self.has(NodeMutant::Barging);
        if looks && from.is_none() && self.held(key, call.now).is_none() {
            self.grant(key, Some(*token), call);
        }
        let held = self.held(key, call.now);
        let mine = held.is_some_and(|entry| {
            entry.holder == Holder::Ours(*token) || from.is_some_and(|from| entry.holder == Holder::Ours(from))
        });
        if mine || (held.is_none() && from.is_none()) {
            let (fence, size) = self.take_fences(key, u64::from(*block), call);
            let own = held.filter(|entry| entry.holder == Holder::Ours(*token));
            let expires = own.map_or(0, |entry| entry.expires).max(call.now + ms(*ttl));
            let setter = sender.filter(|(_, age)| *age < ms(*ttl)).map(|(client, _)| client);
            let holder = Holder::Ours(*token);
            self.keys.insert(key.clone(), Entry { holder, expires, setter, kept: false, reserved: false });
            if call.now < self.waiting && !self.has(NodeMutant::PlaceKeptOnTaking) {
                self.remove_place(key, *token);
            }
            return Outcome::Held { fence, block: u32::try_from(size).unwrap_or(u32::MAX) };
        }
        match held {
            Some(entry) if from.is_none() => {
                let position = self.keep_place(acquire, call);
                busy(&entry, call.now, position)
            }
            _ => Outcome::Gone,
        }
    }

    fn renew(&mut self, renew: &Renew, call: &mut Call) -> Outcome {
        let Some(entry) = self.held(&renew.key, call.now) else { return Outcome::Gone };
        if entry.holder != Holder::Ours(renew.token) && !self.has(NodeMutant::RenewWithoutTokenCheck) {
            return Outcome::Gone;
        }
        let (left, ttl) = (entry.expires - call.now, ms(renew.ttl));
        if left < ttl || self.has(NodeMutant::RenewalShortens) {
            self.set_expiry(&renew.key, call.now + ttl);
        }
        let (fence, block) = match renew.block {
            0 => (None, 0),
            block => {
                let (fence, size) = self.take_fences(&renew.key, u64::from(block), call);
                (Some(fence), u32::try_from(size).unwrap_or(u32::MAX))
            }
        };
        Outcome::Renewed { remaining: Duration::from_millis(left.max(ttl)), fence, block }
    }

    fn release(&mut self, release: &Release, call: &mut Call) -> Outcome {
        let Release { key, token, .. } = release;
        let waits = call.now < self.waiting;
        if waits {
            self.remove_place(key, *token);
            self.audit.left(key, *token);
        } else {
            self.audit.lapsed(key, *token);
        }
        let held = self.held(key, call.now);
        let mine = held.is_some_and(|entry| {
            entry.holder == Holder::Ours(*token) || self.has(NodeMutant::ReleaseWithoutTokenCheck)
        });
        if mine {
            match ms(release.after) {
                0 => drop(self.keys.remove(key)),
                after => {
                    self.set_expiry(key, call.now + after);
                    self.keys.entry(key.clone()).and_modify(|entry| entry.kept = true);
                }
            }
        }
        let free = self.held(key, call.now).is_none();
        if free && waits && !release.quiet && !self.has(NodeMutant::NoGrantInRelease) {
            self.grant(key, None, call);
        }
        if mine { Outcome::Released } else { Outcome::Gone }
    }

    /// SET NX PX of another library; whether it was set.
    pub fn set_foreign(&mut self, key: &LockKey, value: u64, ttl: u64, micros: u64) -> bool {
        let now = micros / 1_000;
        let free = self.held(key, now).is_none();
        if free {
            let entry = Entry {
                holder: Holder::Foreign(value),
                expires: now + ttl,
                setter: None,
                kept: false,
                reserved: false,
            };
            self.keys.insert(key.clone(), entry);
        }
        free
    }

    /// Compare-and-delete of another library; whether it was deleted.
    pub(super) fn delete_foreign(&mut self, key: &LockKey, value: u64, micros: u64) -> bool {
        let mine = self.held(key, micros / 1_000).is_some_and(|entry| entry.holder == Holder::Foreign(value));
        if mine {
            self.keys.remove(key);
        }
        mine
    }

    /// DEL by somebody who should not; whether it was there.
    pub(super) fn delete(&mut self, key: &LockKey) -> bool {
        self.keys.remove(key).is_some()
    }

    /// What stands at a key, if it has not expired: Redis takes a key for expired when its time is *before* now.
    fn held(&self, key: &LockKey, now: u64) -> Option<Entry> {
        self.keys.get(key).copied().filter(|entry| entry.expires >= now)
    }

    /// What stands at a key by name, at `micros`.
    pub(super) fn entry(&self, key: &str, micros: u64) -> Option<Entry> {
        let (_, entry) = self.keys.iter().find(|(name, _)| name.as_str() == key)?;
        (entry.expires >= micros / 1_000).then_some(*entry)
    }

    fn set_expiry(&mut self, key: &LockKey, expires: u64) {
        if let Some(entry) = self.keys.get_mut(key) {
            entry.expires = expires;
        }
    }

    /// Draws a block of fencing tokens from the counter: its first, and its size.
    fn draw(&mut self, size: u64, call: &Call) -> (u64, u64) {
        let clock = if self.has(NodeMutant::FenceByPlainIncr) { 0 } else { call.now * 1_000 };
        let next = clock.max(self.last_fence + 1);
        let near = if call.aim <= next + 10_000 { call.aim } else { 0 };
        let first = next.max(near).max(call.floor);
        let size = size.min(1_000 - first % 1_000);
        self.last_fence = first + size - 1;
        (first, size)
    }

    /// The fencing tokens of an item; keys that have had none in this call share what was drawn last.
    fn take_fences(&mut self, key: &LockKey, size: u64, call: &mut Call) -> (u64, u64) {
        let is_new = call.have_drawn.insert(key.clone());
        if let Some((first, drawn)) = call.drawn
            && is_new
            && size <= drawn
        {
            return (first, size);
        }
        let drawn = self.draw(size, call);
        call.drawn = Some(drawn);
        drawn
    }

    fn keep_place(&mut self, acquire: &Acquire, call: &Call) -> Option<u32> {
        let Acquire { key, token, .. } = acquire;
        let place = acquire.place.clone()?;
        let ends = call.now + ms(place.life);
        if ends > self.waiting {
            self.waiting = ends + 500;
        }
        let waiting = Waiting { token: *token, ends, place, block: u64::from(acquire.block) };
        let queue = self.queues.entry(key.clone()).or_default();
        if queue.expires < call.now {
            *queue = Queue::default();
        }
        let ticket = queue.places.iter().find(|(_, waiting)| waiting.token == *token).map(|(ticket, _)| *ticket);
        let ticket = ticket.unwrap_or(queue.next);
        queue.next = queue.next.max(ticket + 1);
        queue.places.insert(ticket, waiting);
        queue.expires = self.waiting + 1_000;
        let first = queue.places.first_key_value().map_or(ticket, |(first, _)| *first);
        u32::try_from(ticket + 1 - first).ok()
    }

    fn remove_place(&mut self, key: &LockKey, token: Token) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.places.retain(|_, waiting| waiting.token != token);
        }
    }

    /// Grants a free key to the first live place, unless that is `mine`; see the script.
    fn grant(&mut self, key: &LockKey, mine: Option<Token>, call: &mut Call) {
        let now = call.now;
        let mut is_set = false;
        loop {
            let queue = self.queues.get(key).filter(|queue| queue.expires >= now);
            let Some((ticket, first)) = queue.and_then(|queue| queue.places.first_key_value()) else { break };
            let (ticket, Waiting { token, place, block, .. }) = (*ticket, first.clone());
            if Some(token) == mine {
                break;
            }
            let heard = place.channel.is_empty() || self.channels.contains_key(&place.channel);
            let is_told = heard || self.has(NodeMutant::DeadPlacesLive);
            if !first.is_live(now) {
                self.drop_place(key, ticket);
                continue;
            }
            let (fence, size) = self.take_fences(key, block, call);
            let lasts = if self.has(NodeMutant::GrantWithoutEnd) { place.life * 100 } else { place.lasts };
            let (holder, expires) = (Holder::Ours(token), now + ms(lasts));
            self.keys.insert(key.clone(), Entry { holder, expires, setter: None, kept: false, reserved: true });
            is_set = true;
            if !is_told || !self.has(NodeMutant::PlaceKeptOnGrant) {
                self.drop_place(key, ticket);
            }
            if !is_told {
                continue;
            }
            self.audit.granted(key, token, now, &self.channels);
            if !place.channel.is_empty() {
                let fences = (fence, u32::try_from(size).unwrap_or(u32::MAX));
                let grant = Grant::new(key.clone(), token, place.sent, place.lasts, fences);
                self.pushes.push(Push { channel: place.channel, grant });
            }
            return;
        }
        if is_set {
            self.keys.remove(key);
        }
    }

    fn drop_place(&mut self, key: &LockKey, ticket: u64) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.places.remove(&ticket);
        }
    }

    /// What is left at `micros`: keys, and places of tokens.
    pub(super) fn leftovers(&self, micros: u64) -> impl Iterator<Item = (&LockKey, &Entry, u64)> {
        let now = micros / 1_000;
        self.keys
            .iter()
            .filter(move |(_, entry)| entry.expires >= now)
            .map(move |(key, entry)| (key, entry, entry.expires - now))
    }

    /// Places that are live still, and where they are called.
    pub(super) fn places(&self, micros: u64) -> impl Iterator<Item = (&LockKey, &Arc<str>)> {
        let now = micros / 1_000;
        self.queues.iter().flat_map(move |(key, queue)| {
            queue
                .places
                .values()
                .filter(move |waiting| waiting.is_live(now))
                .map(move |waiting| (key, &waiting.place.channel))
        })
    }
}

fn busy(entry: &Entry, now: u64, position: Option<u32>) -> Outcome {
    let remaining = Some(Duration::from_millis(entry.expires - now));
    let foreign = matches!(entry.holder, Holder::Foreign(_));
    Outcome::Busy { remaining, foreign, reserved: entry.reserved, position }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
