//! The node: the [`Store`] of the product, with all that may happen to a server. Times are the node's own wall clock.
//!
//! A test holds it against the script in a real Redis. Deliberate bugs are planted in a copy; see `tests/mutants`.

mod copy;
mod foreign;
pub(super) mod free;
mod judged;
mod refusal;
mod slot;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use lock_core::{
    backend::{
        BackendError, Grant, Operation, Outcome, Token,
        store::{Call, Store},
    },
    key::LockKey,
};

pub(super) use self::{refusal::Refuses, slot::Redirect};
use super::{audit::Audit, plan::Plan};

/// What stands at a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// A lease of this library.
    Ours(Token),
    /// Another library's.
    Foreign(u64),
}

/// What one holder has of a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Whose.
    pub(super) holder: Holder,
    /// When it expires by the node's clock, in ms.
    pub(super) expires: u64,
    pub(super) note: Note,
}

/// What the store does not say of a holder.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Note {
    /// The value, if it is another library's.
    foreign: Option<u64>,
    /// Who set the key, if the request came within its own ttl.
    pub(super) setter: Option<usize>,
    /// Whether it was released, and is kept for a while.
    pub(super) kept: bool,
    /// Whether it was granted, and its owner has not come yet.
    pub(super) reserved: bool,
    /// Whether it was renewed, by whoever it was granted to.
    pub(super) renewed: bool,
}

/// A message to a channel.
pub(super) type Push = (Arc<str>, Grant);

/// One server.
#[derive(Debug)]
pub struct Node {
    store: Store,
    notes: HashMap<(LockKey, Token), Note>,
    /// Channels that somebody listens on.
    pub(super) channels: BTreeMap<Arc<str>, usize>,
    pub(super) audit: Audit,
    /// What it refuses to write at present.
    pub(super) refuses: Refuses,
    /// Whether it lets nobody publish at present.
    pub(super) mute: bool,
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

/// One batch under way.
struct Run<'a> {
    /// The time in ms.
    now: u64,
    call: Call<'a>,
    /// Who sent it, and how long ago it was begun in ms.
    sender: Option<(usize, u64)>,
    pushes: Vec<Push>,
    mute: bool,
}

type Reply = Result<Outcome, BackendError>;

impl Default for Node {
    fn default() -> Self {
        Self::new()
    }
}

impl Node {
    /// An empty one.
    pub fn new() -> Self {
        Self {
            store: Store::new(Duration::from_millis(1)),
            notes: HashMap::new(),
            channels: BTreeMap::new(),
            audit: Audit::default(),
            refuses: Refuses::Nothing,
            mute: false,
            lapsed: BTreeSet::new(),
            slots: BTreeSet::new(),
        }
    }

    /// The same, and what the schedule allows.
    pub(super) fn judged_by(mut self, plan: &Plan) -> Self {
        self.audit.longest = plan.longest_reserved();
        // What a block leads the clock by, and what an aim does in a quorum.
        self.audit.lead = if plan.store.is_quorum() { 11_000 } else { 1_000 };
        self
    }

    /// Forgets everything but who listens, at `micros` by its own clock. That takes to the end of the millisecond: numbers of
    /// the same one would be given again, as the guarantees say.
    pub(super) fn forget(&mut self, micros: u64) {
        let (now, last) = (micros / 1_000, self.store.last_fence);
        self.store = Store::new(Duration::from_millis(1));
        self.store.last_fence = if last / 1_000 == now { now * 1_000 + 999 } else { 0 };
        self.lapsed.clear();
        self.audit.forget();
    }

    /// Takes `last` for the fencing token that was given out last.
    pub fn count_from(&mut self, last: u64) {
        self.store.last_fence = last;
    }

    /// Takes somebody for a listener of a channel.
    pub fn listen(&mut self, channel: &Arc<str>) {
        *self.channels.entry(Arc::clone(channel)).or_default() += 1;
    }

    /// Executes a batch at `micros` by its own clock. Returns the answers, and what was told to whom.
    pub fn call(&mut self, batch: &[Operation], micros: u64) -> (Vec<Reply>, Vec<(Arc<str>, Grant)>) {
        let Executed { outcomes, pushes, .. } = self.execute(batch, micros, None);
        (outcomes, pushes)
    }

    /// Executes a batch at `micros` by its own clock. `sender` is who sent it, and how long ago it was begun
    /// in ms.
    pub(super) fn execute(&mut self, batch: &[Operation], micros: u64, sender: Option<(usize, u64)>) -> Executed {
        let now = micros / 1_000;
        let (channels, mute) = (self.channels.clone(), self.mute);
        let hears = |channel: &Arc<str>| mute || channels.contains_key(channel);
        let call = Call::new(batch, (now * 1_000, now * 1_000), &hears);
        let mut run = Run { now, call, sender, pushes: Vec::new(), mute: false };
        let (batch, free) = batch.split_at(free::begin(batch));
        for key in batch.iter().map(Operation::key) {
            if self.has_expired(key, now) {
                self.lapsed.insert(key.clone());
            }
        }
        let mut outcomes = self.script(batch, &mut run);
        outcomes.extend(self.acquire_free(free, &mut run));
        for key in batch.iter().chain(free).map(Operation::key) {
            if self.is_there(key, now) {
                self.lapsed.remove(key);
            }
        }
        Executed { outcomes, pushes: run.pushes, mute: run.mute }
    }

    /// Whether anything stands at a key: Redis takes a key for expired when its time is *before* now.
    fn is_there(&self, key: &LockKey, now: u64) -> bool {
        self.store.keys.get(key).is_some_and(|holders| holders.ends() >= now * 1_000)
    }

    /// Whether a key was left to expire, and has, or was deleted by another library.
    fn has_expired(&self, key: &LockKey, now: u64) -> bool {
        (self.store.keys.contains_key(key) || self.lapsed.contains(key)) && !self.is_there(key, now)
    }

    /// The token that has a key alone, if one has, and what is known of it.
    fn alone(&self, key: &LockKey, now: u64) -> Option<(Token, Note)> {
        let holders = self.store.keys.get(key)?;
        let token = holders.live(now * 1_000).next()?.token;
        token.mode().is_exclusive().then(|| (token, self.note_of(key, token)))
    }

    fn note_of(&self, key: &LockKey, token: Token) -> Note {
        self.notes.get(&(key.clone(), token)).copied().unwrap_or_default()
    }

    fn note(&mut self, key: &LockKey, token: Token, note: Note) {
        self.notes.insert((key.clone(), token), note);
    }

    /// What each holder has of a key by name, at `micros`.
    pub(super) fn entries(&self, key: &str, micros: u64) -> impl Iterator<Item = Entry> {
        let of_key = move |(name, _, _): &(&LockKey, Entry, u64)| name.as_str() == key;
        self.leftovers(micros).filter(of_key).map(|(_, entry, _)| entry)
    }

    /// What is left at `micros`: what each holder has of a key, and for how long.
    pub(super) fn leftovers(&self, micros: u64) -> impl Iterator<Item = (&LockKey, Entry, u64)> {
        let now = micros / 1_000;
        let mut keys: Vec<_> = self.store.keys.iter().collect();
        keys.sort_by_key(|(key, _)| *key);
        let shares =
            keys.into_iter().flat_map(move |(key, holders)| holders.live(now * 1_000).map(move |it| (key, it)));
        shares.map(move |(key, share)| {
            let note = self.note_of(key, share.token);
            let holder = note.foreign.map_or(Holder::Ours(share.token), Holder::Foreign);
            let expires = share.ends / 1_000;
            (key, Entry { holder, expires, note }, expires - now)
        })
    }

    /// Places that are live still, and where they are called.
    pub(super) fn places(&self, micros: u64) -> impl Iterator<Item = (&LockKey, &Arc<str>)> {
        let now = micros / 1_000 * 1_000;
        let mut queues: Vec<_> = self.store.queues.iter().collect();
        queues.sort_by_key(|(key, _)| *key);
        let places = queues.into_iter().flat_map(|(key, queue)| queue.places.iter().map(move |it| (key, it)));
        places.filter(move |(_, waiting)| waiting.is_live(now)).map(|(key, waiting)| (key, &waiting.place.channel))
    }

    /// Forgets until when somebody may be waiting, as when that was evicted.
    pub fn forget_waiting(&mut self) {
        self.store.waiting = 0;
        self.audit.all_lapsed(None);
    }

    /// Forgets the waiters for a key, as when their queue was evicted.
    pub(super) fn forget_queue(&mut self, key: &LockKey) {
        self.store.queues.remove(key);
        self.audit.all_lapsed(Some(key));
    }

    /// Has the share of a token end now, as if its time were over. Returns whether it has one.
    pub fn lapse(&mut self, key: &LockKey, token: Token, micros: u64) -> bool {
        let now = micros / 1_000;
        if token.mode().is_exclusive() || self.store.end_of(key, token, now * 1_000).is_none() {
            return false;
        }
        self.audit.gives_up(key, token, now, None);
        let holders = self.store.keys.get_mut(key).expect("it has a share");
        holders.shares.iter_mut().filter(|share| share.token == token).for_each(|share| share.ends = 1);
        if holders.ends() <= now * 1_000 {
            self.store.keys.remove(key);
        }
        true
    }
}

/// Who answers for what a request has set: its sender, if it was executed within its own ttl, and within a second. Releases of what
/// is executed later come up to ten seconds apart, and it ends by itself.
fn setter(sender: Option<(usize, u64)>, ttl: Duration) -> Option<usize> {
    sender.filter(|(_, age)| *age < ms(ttl).min(1_000)).map(|(client, _)| client)
}

pub(super) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
