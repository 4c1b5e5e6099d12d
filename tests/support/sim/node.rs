//! The node: what `lock.lua` does, line by line, in memory. Times are the node's own wall clock.
//!
//! A test holds it against the script in a real Redis. Deliberate bugs are switched on by [`NodeMutant`].

mod acquire;
mod batch;
mod copy;
mod foreign;
pub(super) mod free;
mod group;
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
    backend::{BackendError, BusyReason, Grant, Operation, Outcome, Token},
    key::LockKey,
};

pub(super) use self::copy::Copied;
pub use self::mutant::NodeMutant;
use self::{group::Group, queue::Queue};
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
    /// Keys that one holder has, of this library or another.
    keys: BTreeMap<LockKey, Entry>,
    /// Keys that several may have.
    groups: BTreeMap<LockKey, Group>,
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
    /// Keys that have expired, and were looked at since: they are gone also if the clock is set back.
    lapsed: BTreeSet<LockKey>,
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

impl Entry {
    fn new(token: Token, expires: u64, setter: Option<usize>) -> Self {
        Self { holder: Holder::Ours(token), expires, setter, kept: false, reserved: false, renewed: false }
    }

    fn token(&self) -> Option<Token> {
        match self.holder {
            Holder::Ours(token) => Some(token),
            Holder::Foreign(_) => None,
        }
    }
}

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
        self.groups.clear();
        self.waiting = 0;
        self.last_fence = if self.last_fence / 1_000 == now { now * 1_000 + 999 } else { 0 };
        self.queues.clear();
        self.lapsed.clear();
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
        // Before the clock was set back, it was written that somebody might be waiting until then. (Calls of renewals do not look.)
        let looks = batch.iter().any(|operation| !matches!(operation, Operation::Renew(_)));
        if looks && self.waiting > now + MOST_AHEAD && self.refuses.more().is_ok() {
            self.waiting = now + MOST_AHEAD;
        }
        let mut outcomes = self.script(batch, &mut call, sender);
        outcomes.extend(self.acquire_free(free, &mut call, sender));
        for operation in batch.iter().chain(free) {
            self.drop_expired(operation, now);
        }
        let pushes = std::mem::take(&mut self.pushes);
        Executed { outcomes, pushes, mute: call.mute }
    }

    /// What stands at a key, if it has not expired: Redis takes a key for expired when its time is *before* now.
    fn held(&self, key: &LockKey, now: u64) -> Option<Entry> {
        self.keys.get(key).copied().filter(|entry| entry.expires >= now)
    }

    /// Whether a key was left to expire, and has, or was deleted by another library.
    fn has_expired(&self, key: &LockKey, now: u64) -> bool {
        let was_there = self.keys.contains_key(key) || self.groups.contains_key(key) || self.lapsed.contains(key);
        was_there && !self.is_there(key, now)
    }

    /// Removes what has expired and is looked at by an operation, as the server does.
    fn drop_expired(&mut self, operation: &Operation, now: u64) {
        let key = operation.key();
        if self.is_there(key, now) {
            self.lapsed.remove(key);
        } else if self.has_expired(key, now) {
            self.lapsed.insert(key.clone());
        }
        self.keys.retain(|name, entry| name != key || entry.expires >= now);
        self.groups.retain(|name, group| name != key || group.expires >= now);
        if !matches!(operation, Operation::Renew(_) | Operation::Inspect { .. }) && now < self.waiting {
            self.queues.retain(|name, queue| name != key || queue.expires >= now);
        }
        if !matches!(operation, Operation::Renew(_)) && self.waiting < now {
            self.waiting = 0;
        }
    }

    /// Whether anything stands at a key.
    fn is_there(&self, key: &LockKey, now: u64) -> bool {
        self.held(key, now).is_some() || self.groups.get(key).is_some_and(|group| group.expires >= now)
    }

    /// What each holder has of a key by name, at `micros`.
    pub(super) fn entries(&self, key: &str, micros: u64) -> impl Iterator<Item = Entry> {
        let of_key = move |(name, _, _): &(&LockKey, Entry, u64)| name.as_str() == key;
        self.leftovers(micros).filter(of_key).map(|(_, entry, _)| entry)
    }

    /// Has a key hold something, of which the journal takes note.
    fn put(&mut self, key: &LockKey, entry: Entry) {
        self.audit.does(key, entry.holder, What::Set(entry.expires));
        self.groups.remove(key);
        self.keys.insert(key.clone(), entry);
    }

    fn set_expiry(&mut self, key: &LockKey, expires: u64) {
        if let Some(entry) = self.keys.get_mut(key) {
            entry.expires = expires;
        }
    }

    /// What is left at `micros`: what each holder has of a key, and for how long.
    pub(super) fn leftovers(&self, micros: u64) -> impl Iterator<Item = (&LockKey, Entry, u64)> {
        let now = micros / 1_000;
        let shares = self.groups.iter().flat_map(|(key, group)| {
            let until = |share: &Entry| Entry { expires: share.expires.min(group.expires), ..*share };
            group.shares.iter().map(move |share| (key, until(share)))
        });
        let all = self.keys.iter().map(|(key, entry)| (key, *entry)).chain(shares);
        all.filter(move |(_, entry)| entry.expires >= now).map(move |(key, entry)| (key, entry, entry.expires - now))
    }
}

/// How far ahead the time may be until when somebody may be waiting, in ms.
const MOST_AHEAD: u64 = 60_000;

/// Who answers for what a request has set: its sender, if it was executed within its own ttl, and within a second. Releases of what
/// is executed later come up to ten seconds apart, and it ends by itself.
fn setter(sender: Option<(usize, u64)>, ttl: Duration) -> Option<usize> {
    sender.filter(|(_, age)| *age < ms(ttl).min(1_000)).map(|(client, _)| client)
}

fn busy(entry: &Entry, now: u64, position: Option<u32>) -> Outcome {
    let remaining = Some(Duration::from_millis(entry.expires - now));
    let by = match entry.holder {
        Holder::Foreign(_) => BusyReason::Foreign,
        _ if entry.reserved => BusyReason::Waiters,
        _ => BusyReason::Holder,
    };
    Outcome::Busy { remaining, by, position }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
