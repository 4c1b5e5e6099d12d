//! The node: what `lock.lua` does, line by line, in memory. Times are the node's own wall clock.
//!
//! A test holds it against the script in a real Redis. Deliberate bugs are switched on by [`NodeMutant`].

mod copy;
mod foreign;
pub(super) mod free;
mod mutant;
mod numbers;
mod queue;
mod refusal;
mod slot;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use lock_core::{
    backend::{Acquire, BackendError, Grant, Operation, Outcome, Release, Renew, Token},
    key::LockKey,
};

pub(super) use self::copy::Copied;
pub use self::mutant::NodeMutant;
use self::queue::Queue;
pub(super) use self::{refusal::Refuses, slot::Redirect};
use super::{
    audit::{Audit, What},
    plan::Plan,
};

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
    /// Whether it was renewed, by whoever it was granted to.
    pub(super) renewed: bool,
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
    /// What it refuses to write at present.
    pub(super) refuses: Refuses,
    /// Whether it lets nobody publish at present.
    pub(super) mute: bool,
    /// Whether it has taken over from another.
    is_copy: bool,
    /// The keys whose slots it has, where it is one of several.
    pub(super) slots: BTreeSet<LockKey>,
}

/// What became of a batch.
#[derive(Debug)]
pub(super) struct Executed {
    pub(super) outcomes: Vec<Result<Outcome, BackendError>>,
    pub(super) pushes: Vec<Push>,
    /// Whether a message was refused.
    pub(super) mute: bool,
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
    /// Keys that are deleted when all else is done; a bug fills it.
    deleted_last: Vec<LockKey>,
    mute: bool,
}

type Reply = Result<Outcome, BackendError>;

impl Node {
    /// An empty one, with a bug of its own or none.
    #[must_use]
    pub fn new(mutant: Option<NodeMutant>) -> Self {
        Self { mutant, ..Self::default() }
    }

    /// The same, and what the schedule allows.
    pub(super) fn judged_by(mut self, plan: &Plan) -> Self {
        self.audit.longest = plan.longest_reserved();
        // What a block leads the clock by, and what an aim does in a quorum.
        self.audit.lead = if plan.store.is_quorum() { 11_000 } else { 1_000 };
        self
    }

    pub(super) fn has(&self, mutant: NodeMutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Forgets everything but who listens, at `micros` by its own clock. That takes to the end of the millisecond: numbers of
    /// the same one would be given again, as the guarantees say.
    pub(super) fn forget(&mut self, micros: u64) {
        let now = micros / 1_000;
        self.keys.clear();
        self.waiting = 0;
        self.last_fence = if self.last_fence / 1_000 == now { now * 1_000 + 999 } else { 0 };
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

    /// Executes a batch at `micros` by its own clock. Returns the answers, and what was told to whom.
    pub fn call(&mut self, batch: &[Operation], micros: u64) -> (Vec<Reply>, Vec<(Arc<str>, Grant)>) {
        let Executed { outcomes, pushes, .. } = self.execute(batch, micros, None);
        (outcomes, pushes.into_iter().map(|Push { channel, grant }| (channel, grant)).collect())
    }

    /// Executes a batch at `micros` by its own clock. `sender` is who sent it, and how long ago it was begun
    /// in ms.
    pub(super) fn execute(&mut self, batch: &[Operation], micros: u64, sender: Option<(usize, u64)>) -> Executed {
        let now = micros / 1_000;
        let numbers = batch.iter().map(|operation| match operation {
            Operation::Acquire(acquire) => (acquire.floor, acquire.aim),
            Operation::Renew(renew) => (renew.floor, renew.aim),
            _ => (0, 0),
        });
        let (floor, aim) = numbers.fold((0, 0), |most, these| (most.0.max(these.0), most.1.max(these.1)));
        let mut call =
            Call { now, floor, aim, drawn: None, have_drawn: BTreeSet::new(), deleted_last: Vec::new(), mute: false };
        let (batch, free) = batch.split_at(free::begin(batch));
        let mut outcomes: Vec<_> = batch.iter().map(|operation| self.one(operation, &mut call, sender)).collect();
        for key in std::mem::take(&mut call.deleted_last) {
            self.keys.remove(&key);
        }
        outcomes.extend(self.acquire_free(free, &mut call, sender));
        let pushes = std::mem::take(&mut self.pushes);
        Executed { outcomes, pushes, mute: call.mute }
    }

    fn one(&mut self, operation: &Operation, call: &mut Call, sender: Option<(usize, u64)>) -> Reply {
        if let Operation::Acquire(Acquire { key, .. })
        | Operation::Release(Release { key, .. })
        | Operation::Force { key, .. } = operation
        {
            self.audit.look(key, call.now, &self.channels);
        }
        match operation {
            Operation::Acquire(acquire) => {
                let found = (self.held(&acquire.key, call.now).is_none(), call.now < self.waiting);
                let reply = self.acquire(acquire, call, sender);
                if let Ok(outcome) = &reply {
                    self.audit.acquired(acquire, found, *outcome, call.now, &self.channels);
                }
                reply
            }
            Operation::Renew(renew) => {
                let reply = self.renew(renew, call);
                self.came(renew, &reply, sender);
                reply
            }
            Operation::Release(release) => {
                let reply = self.release(release, call);
                self.audit.released(release);
                reply
            }
            Operation::Inspect { key } => Ok(match self.held(key, call.now) {
                Some(entry) => busy(&Entry { reserved: false, ..entry }, call.now, None),
                None => Outcome::Gone,
            }),
            Operation::Force { key, foreign } => self.force(key, *foreign, call),
            _ => Ok(Outcome::Gone),
        }
    }

    /// Takes note of who renews what was granted to it: it holds without having asked for it.
    fn came(&mut self, renew: &Renew, reply: &Reply, sender: Option<(usize, u64)>) {
        if let (Ok(Outcome::Renewed { .. }), Some(entry)) = (reply, self.keys.get_mut(&renew.key)) {
            entry.renewed = true;
            entry.setter = entry.setter.or_else(|| setter(sender, renew.ttl));
        }
    }

    fn force(&mut self, key: &LockKey, foreign: bool, call: &mut Call) -> Reply {
        match self.held(key, call.now) {
            Some(Entry { holder: Holder::Foreign(_), .. }) if !foreign => Ok(Outcome::Gone),
            Some(_) => {
                self.refuses.less()?;
                self.keys.remove(key);
                if call.now < self.waiting {
                    self.grant(key, None, call);
                }
                Ok(Outcome::Released)
            }
            None => Ok(Outcome::Gone),
        }
    }

    fn acquire(&mut self, acquire: &Acquire, call: &mut Call, sender: Option<(usize, u64)>) -> Reply {
        let Acquire { key, token, ttl, block, from, .. } = acquire;
        let looks = call.now < self.waiting && !self.has(NodeMutant::Barging);
        if looks && from.is_none() && self.held(key, call.now).is_none() {
            if self.has(NodeMutant::NoGrantInAcquire) {
                if self.comes_later(key, *token, call.now) {
                    let position = self.keep_place(acquire, call);
                    let remaining = Some(Duration::ZERO);
                    return Ok(Outcome::Busy { remaining, foreign: false, reserved: false, position });
                }
            } else {
                self.grant(key, Some(*token), call);
            }
        }
        let held = self.held(key, call.now);
        let mine = held.is_some_and(|entry| {
            entry.holder == Holder::Ours(*token) || from.is_some_and(|from| entry.holder == Holder::Ours(from))
        });
        if mine || (held.is_none() && from.is_none()) {
            let own = held.filter(|entry| entry.holder == Holder::Ours(*token));
            let own = own.filter(|_| !self.has(NodeMutant::OwnAcquireShortens));
            let expires = own.map_or(0, |entry| entry.expires).max(call.now + ms(*ttl));
            let setter = setter(sender, *ttl);
            let holder = Holder::Ours(*token);
            let entry = Entry { holder, expires, setter, kept: false, reserved: false, renewed: false };
            if self.has(NodeMutant::DrawnLast) && self.refuses.more().is_ok() {
                self.put(key, entry);
            }
            let (fence, size) = self.take_fences(key, u64::from(*block), call)?;
            self.refuses.more()?;
            self.put(key, entry);
            if call.now < self.waiting && !self.has(NodeMutant::PlaceKeptOnTaking) {
                self.remove_place(key, *token);
            }
            return Ok(Outcome::Held {
                fence,
                block: u32::try_from(size).unwrap_or(u32::MAX),
                was_free: held.is_none(),
            });
        }
        match held {
            Some(entry) if from.is_none() => {
                let position = self.keep_place(acquire, call);
                Ok(busy(&entry, call.now, position))
            }
            _ => Ok(Outcome::Gone),
        }
    }

    fn renew(&mut self, renew: &Renew, call: &mut Call) -> Reply {
        let Some(entry) = self.held(&renew.key, call.now) else { return Ok(Outcome::Gone) };
        if entry.holder != Holder::Ours(renew.token) && !self.has(NodeMutant::RenewWithoutTokenCheck) {
            return Ok(Outcome::Gone);
        }
        let (left, ttl) = (entry.expires - call.now, ms(renew.ttl));
        if left < ttl || self.has(NodeMutant::RenewalShortens) {
            self.refuses.less()?;
            self.set_expiry(&renew.key, call.now + ttl);
        }
        self.audit.does(&renew.key, entry.holder, What::Set(entry.expires.max(call.now + ttl)));
        let drawn = match renew.block {
            0 => None,
            block => self.take_fences(&renew.key, u64::from(block), call).ok(),
        };
        if let Some(numbers) = drawn {
            self.audit.gives(&renew.key, renew.token, numbers);
        }
        let (fence, block) = (drawn.map(|(fence, _)| fence), drawn.map_or(0, |(_, size)| size));
        let block = u32::try_from(block).unwrap_or(u32::MAX);
        Ok(Outcome::Renewed { remaining: Duration::from_millis(left.max(ttl)), fence, block })
    }

    fn release(&mut self, release: &Release, call: &mut Call) -> Reply {
        let Release { key, token, .. } = release;
        let waits = call.now < self.waiting;
        let (grants, late) = (
            waits && (!release.quiet || self.has(NodeMutant::QuietGrants)) && !self.has(NodeMutant::NoGrantInRelease),
            self.has(NodeMutant::ReleaseGrantsToItself),
        );
        let mut left = Ok(());
        if waits {
            if !late {
                left = self.leave(key, *token);
            }
            if left.is_ok() {
                self.audit.left(key, *token);
            }
        } else {
            self.audit.lapsed(key, *token);
        }
        let held = self.held(key, call.now);
        let mine = held.is_some_and(|entry| {
            entry.holder == Holder::Ours(*token) || self.has(NodeMutant::ReleaseWithoutTokenCheck)
        });
        if mine {
            self.refuses.less()?;
            match ms(release.after) {
                0 if !waits && self.has(NodeMutant::DeletedLast) => {
                    self.keys.remove(key);
                    call.deleted_last.push(key.clone());
                }
                0 => drop(self.keys.remove(key)),
                after => {
                    self.set_expiry(key, call.now + after);
                    self.keys.entry(key.clone()).and_modify(|entry| entry.kept = true);
                }
            }
        }
        if grants && self.held(key, call.now).is_none() {
            self.grant(key, None, call);
        }
        if waits && late {
            left = self.leave(key, *token);
        }
        if mine { Ok(Outcome::Released) } else { left.map(|()| Outcome::Gone) }
    }

    /// What stands at a key, if it has not expired: Redis takes a key for expired when its time is *before* now.
    fn held(&self, key: &LockKey, now: u64) -> Option<Entry> {
        self.keys.get(key).copied().filter(|entry| entry.expires >= now)
    }

    /// Whether a key was left to expire, and has, or was deleted by another library.
    fn has_expired(&self, key: &LockKey, now: u64) -> bool {
        self.keys.contains_key(key) && self.held(key, now).is_none()
    }

    /// What stands at a key by name, at `micros`.
    pub(super) fn entry(&self, key: &str, micros: u64) -> Option<Entry> {
        let (_, entry) = self.keys.iter().find(|(name, _)| name.as_str() == key)?;
        (entry.expires >= micros / 1_000).then_some(*entry)
    }

    /// Has a key hold something, of which the journal takes note.
    fn put(&mut self, key: &LockKey, entry: Entry) {
        self.audit.does(key, entry.holder, What::Set(entry.expires));
        self.keys.insert(key.clone(), entry);
    }

    fn set_expiry(&mut self, key: &LockKey, expires: u64) {
        if let Some(entry) = self.keys.get_mut(key) {
            entry.expires = expires;
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
}

/// Who answers for what a request has set: its sender, if it was executed within its own ttl, and within a second. Releases of what
/// is executed later come up to ten seconds apart, and it ends by itself.
fn setter(sender: Option<(usize, u64)>, ttl: Duration) -> Option<usize> {
    sender.filter(|(_, age)| *age < ms(ttl).min(1_000)).map(|(client, _)| client)
}

fn busy(entry: &Entry, now: u64, position: Option<u32>) -> Outcome {
    let remaining = Some(Duration::from_millis(entry.expires - now));
    let foreign = matches!(entry.holder, Holder::Foreign(_));
    Outcome::Busy { remaining, foreign, reserved: entry.reserved, position }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
