use std::{
    collections::{HashMap, VecDeque},
    fmt,
    future::{Future, pending},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{
    AIMS_WITHIN, Acquire, Answer, Backend, BackendError, Batch, Calls, EVERYONE, Grant, Operation, Outcome, Place,
    Release, Reply,
};
use crate::{
    backend::Token,
    clock::{Clock, Moment, TokioClock},
    health::NodeHealth,
    key::{HashOfKey, LockKey},
};

/// A store in the process: the same semantics as Redis, without a server.
///
/// Clones share the store, so that several managers of one process exclude each other. It is meant for tests, for
/// programs of one process, and for trying things out; other processes do not see it. A
/// [`durability`](crate::LockRequest::durability) is accepted and adds nothing: the store ends with its holders, so no failover
/// can lose a lease.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lock_core::{LockManager, backend::MemoryBackend};
///
/// let store = MemoryBackend::new();
/// let one = LockManager::builder().backend(store.clone()).build()?;
/// let two = LockManager::builder().backend(store).build()?;
/// let guard = one.lock("goods:1").await?;
/// assert!(two.lock("goods:1").try_acquire().await?.is_none());
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MemoryBackend {
    store: Arc<Store>,
}

struct Store {
    clock: Arc<dyn Clock>,
    /// Wall clock at the origin of `clock`, in µs: what a server would answer to TIME counts from here.
    unix_origin: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: HashMap<LockKey, Entry, HashOfKey>,
    /// The waiters of each key, in order; no queue is empty.
    queues: HashMap<LockKey, VecDeque<Waiting>, HashOfKey>,
    /// The listeners, by channel.
    listeners: HashMap<Arc<str>, Calls>,
    /// The grants of the batch in progress; waiters are notified of them when the store is unlocked.
    grants: Vec<(Calls, Grant)>,
    /// The last fencing token given out, for all keys.
    last_fence: u64,
    /// Entries are swept for expired ones when they have become more than this.
    sweep_above: usize,
}

#[derive(Clone, Copy)]
struct Entry {
    token: Token,
    expires: Moment,
    /// Whether the key was granted to the token, which has not come yet.
    reserved: bool,
}

/// A place in a queue.
struct Waiting {
    token: Token,
    place: Place,
    /// How many fencing tokens it wants.
    block: u32,
    ends: Moment,
}

/// Ends a subscription.
struct Listening {
    store: Arc<Store>,
    channel: Arc<str>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.store.state().listeners.remove(&self.channel);
    }
}

impl MemoryBackend {
    /// Makes an empty store in tokio's time.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(TokioClock::new()))
    }

    /// Makes an empty store that expires leases by a clock of its own.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_origin = micros(unix.saturating_sub(clock.now().since_origin()));
        Self { store: Arc::new(Store { clock, unix_origin, state: Mutex::default() }) }
    }

    /// Returns the store of that name. It lives until its last clone is dropped.
    pub(crate) fn named(name: &str) -> Self {
        static STORES: OnceLock<Mutex<HashMap<String, Weak<Store>>>> = OnceLock::new();
        let mut stores = STORES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        stores.retain(|_, store| store.strong_count() > 0);
        if let Some(store) = stores.get(name).and_then(Weak::upgrade) {
            return Self { store };
        }
        let this = Self::new();
        stores.insert(name.to_owned(), Arc::downgrade(&this.store));
        this
    }
}

impl Store {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryBackend {
    fn default() -> Self {
        Self::new()
    }
}

// Shows the number of keys, not the keys: a span of each call may show a value that holds the manager.
impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never waits for the lock.
        let keys = self.state.try_lock().map(|state| state.entries.len()).ok();
        f.debug_struct("Store").field("keys", &keys).finish_non_exhaustive()
    }
}

impl Backend for MemoryBackend {
    fn answers_at_once(&self) -> bool {
        true
    }

    fn call(&self, batch: Batch) -> Reply<Answer> {
        let now = self.store.clock.now();
        let time = self.store.unix_origin.saturating_add(micros(now.since_origin()));
        let mut state = self.store.state();
        let mut answer = Answer::new([]);
        for operation in &batch {
            answer.outcomes.push(Ok(state.execute(operation, now, time)));
        }
        answer.time = Some(time);
        let grants = std::mem::take(&mut state.grants);
        drop(state);
        for (listener, grant) in grants {
            listener.granted(grant);
        }
        Reply::ready(Ok(answer))
    }

    // The store ends with all its holders, so there is no failover that a lease could be lost in.
    fn waits_for_replicas(&self) -> Result<(), BackendError> {
        Ok(())
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        let now = self.store.clock.now();
        let keys = self
            .store
            .state()
            .entries
            .iter()
            .filter(|(key, entry)| key.wire().starts_with(&prefix) && entry.expires > now)
            .filter_map(|(key, _)| LockKey::new(key.wire()).ok())
            .collect();
        Reply::ready(Ok(keys))
    }

    fn publish(&self, channel: Arc<str>, message: String) -> Reply<Option<usize>> {
        let is_meant = |name: &Arc<str>| *channel == *EVERYONE || *name == channel;
        let listeners = {
            let state = self.store.state();
            let meant = state.listeners.iter().filter(|(name, _)| is_meant(name));
            meant.map(|(_, calls)| calls.clone()).collect::<Vec<_>>()
        };
        listeners.iter().for_each(|calls| calls.message(&message));
        Reply::ready(Ok(Some(listeners.len())))
    }

    fn health(&self) -> Vec<NodeHealth> {
        vec![NodeHealth::new("memory", true)]
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.store.clock)
    }

    fn upkeep(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let store = Arc::clone(&self.store);
        Box::pin(async move {
            let channel = Arc::clone(calls.channel());
            store.state().listeners.insert(Arc::clone(&channel), calls.clone());
            let _listening = Listening { store, channel };
            calls.listening(true);
            pending().await
        })
    }
}

impl Entry {
    fn busy(self, now: Moment, position: Option<u32>) -> Outcome {
        Outcome::Busy { remaining: Some(self.expires.since(now)), foreign: false, reserved: self.reserved, position }
    }
}

impl State {
    fn execute(&mut self, operation: &Operation, now: Moment, time: u64) -> Outcome {
        match operation {
            Operation::Acquire(acquire) => self.acquire(acquire, now, time),
            Operation::Renew(renew) => match self.held(&renew.key, now) {
                Some(entry) if entry.token == renew.token => {
                    let left = entry.expires.since(now);
                    let mends = renew.too_far.is_some_and(|found| left <= found && left + MENDS_WITHIN > found);
                    entry.expires = if mends { now + renew.ttl } else { entry.expires.max(now + renew.ttl) };
                    let remaining = entry.expires.since(now);
                    let fence = (renew.block > 0).then(|| self.fences(renew.block, time, renew.floor, renew.aim));
                    Outcome::Renewed { remaining, fence, block: renew.block }
                }
                _ => Outcome::Gone,
            },
            Operation::Release(release) => self.release(release, now, time),
            Operation::Inspect { key } => match self.held(key, now) {
                Some(entry) => Entry { reserved: false, ..*entry }.busy(now, None),
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

    fn release(&mut self, release: &Release, now: Moment, time: u64) -> Outcome {
        let Release { key, token, .. } = release;
        // First, since the key might be granted to it.
        self.remove_place(key, *token);
        let outcome = match self.held(key, now) {
            Some(entry) if entry.token == *token && !release.after.is_zero() => {
                entry.expires = now + release.after;
                Outcome::Released
            }
            Some(entry) if entry.token == *token => {
                self.entries.remove(key);
                Outcome::Released
            }
            _ => Outcome::Gone,
        };
        if !release.quiet {
            self.grant(key, None, now, time);
        }
        outcome
    }

    fn acquire(&mut self, acquire: &Acquire, now: Moment, time: u64) -> Outcome {
        let Acquire { key, token, .. } = acquire;
        if acquire.from.is_none() {
            self.grant(key, Some(*token), now, time);
        }
        let mut expires = now + acquire.ttl;
        let mut was_free = false;
        match (self.held(key, now), acquire.from) {
            (None, None) => was_free = true,
            // It may be late, and the lease extended since.
            (Some(entry), _) if entry.token == *token => expires = expires.max(entry.expires),
            (Some(entry), from) if Some(entry.token) == from => {}
            (Some(entry), None) => {
                let entry = *entry;
                return entry.busy(now, self.keep_place(acquire, now));
            }
            (_, Some(_)) => return Outcome::Gone,
        }
        self.sweep(now);
        self.remove_place(key, *token);
        let fence = self.fences(acquire.block, time, acquire.floor, acquire.aim);
        self.entries.insert(key.clone(), Entry { token: *token, expires, reserved: false });
        Outcome::Held { fence, block: acquire.block, was_free }
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

    /// Grants a key to the first live place, if the key is free, unless that place is `mine`. Places before it are dropped.
    fn grant(&mut self, key: &LockKey, mine: Option<Token>, now: Moment, time: u64) {
        if self.queues.is_empty() || self.held(key, now).is_some() {
            return;
        }
        while let Some(first) = self.queues.get_mut(key).and_then(VecDeque::pop_front) {
            if Some(first.token) == mine {
                self.queues.entry(key.clone()).or_default().push_front(first);
                return;
            }
            let Waiting { token, place, block, ends } = first;
            let listener = self.listeners.get(&place.channel).cloned();
            if now >= ends || (listener.is_none() && !place.channel.is_empty()) {
                continue;
            }
            let fence = self.fences(block, time, 0, 0);
            self.entries.insert(key.clone(), Entry { token, expires: now + place.lasts, reserved: true });
            if let Some(listener) = listener {
                let grant = Grant::new(key.clone(), token, place.sent, place.lasts, (fence, block));
                self.grants.push((listener, grant));
            }
            break;
        }
        if self.queues.get(key).is_some_and(VecDeque::is_empty) {
            self.queues.remove(key);
        }
    }

    /// The entry of a key, if it has not expired.
    fn held(&mut self, key: &LockKey, now: Moment) -> Option<&mut Entry> {
        self.entries.get_mut(key).filter(|entry| entry.expires > now)
    }

    /// Removes expired entries, at a cost that spreads over the acquires: each time the number of entries has doubled.
    fn sweep(&mut self, now: Moment) {
        if self.entries.len() > self.sweep_above {
            self.entries.retain(|_, entry| entry.expires > now);
            self.sweep_above = (self.entries.len() * 2).max(64);
            self.entries.shrink_to(self.sweep_above * 2);
            self.queues.retain(|_, queue| {
                queue.retain(|waiting| waiting.ends > now);
                !queue.is_empty()
            });
        }
    }
}

/// How long after an expiry was found to be too far ahead it is still known to be that one.
const MENDS_WITHIN: Duration = Duration::from_secs(2);

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
