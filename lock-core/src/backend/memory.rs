use std::{
    collections::HashMap,
    future::ready,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{Acquire, Answer, Backend, BackendError, Operation, Outcome, Reply};
use crate::{
    clock::{Clock, Moment, TokioClock},
    key::LockKey,
    token::Token,
};

/// A store in the process: the same semantics as Redis, without a server.
///
/// Clones share the store, so that several managers of one process exclude each other. It is meant for tests, for
/// programs of one process, and for trying things out; it excludes nobody outside the process.
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

#[derive(Debug)]
struct Store {
    clock: Arc<dyn Clock>,
    /// Wall clock at the origin of `clock`, in µs: what a server would answer to TIME counts from here.
    unix_origin: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<LockKeyText, Entry>,
    /// The last fencing token given out, for all keys.
    last_fence: u64,
    /// Entries are swept for expired ones when they have become more than this.
    sweep_above: usize,
}

type LockKeyText = Box<str>;

#[derive(Debug)]
struct Entry {
    token: Token,
    expires: Moment,
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

    /// Returns the store of that name, which lives for as long as somebody has it.
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.store.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend for MemoryBackend {
    fn call(&self, batch: Vec<Operation>) -> Reply<Answer> {
        let now = self.store.clock.now();
        let time = self.store.unix_origin.saturating_add(micros(now.since_origin()));
        let mut state = self.state();
        let outcomes = batch.iter().map(|operation| Ok(state.execute(operation, now, time))).collect();
        drop(state);
        Box::pin(ready(Ok(Answer::new(outcomes))))
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        let now = self.store.clock.now();
        let keys = self
            .state()
            .entries
            .iter()
            .filter(|(key, entry)| key.starts_with(&prefix) && entry.expires > now)
            .filter_map(|(key, _)| LockKey::new(key).ok())
            .collect();
        Box::pin(ready(Ok::<_, BackendError>(keys)))
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.store.clock)
    }
}

impl State {
    fn execute(&mut self, operation: &Operation, now: Moment, time: u64) -> Outcome {
        match operation {
            Operation::Acquire(acquire) => self.acquire(acquire, now, time),
            Operation::Renew(renew) => match self.held(&renew.key, now) {
                Some(entry) if entry.token == renew.token => {
                    entry.expires = entry.expires.max(now + renew.ttl);
                    Outcome::Renewed { remaining: entry.expires.since(now) }
                }
                _ => Outcome::Gone,
            },
            Operation::Release(release) => match self.held(&release.key, now) {
                Some(entry) if entry.token == release.token => {
                    if release.after.is_zero() {
                        return self.remove(&release.key);
                    }
                    entry.expires = now + release.after;
                    Outcome::Released
                }
                _ => Outcome::Gone,
            },
            Operation::Inspect { key } => match self.held(key, now) {
                Some(entry) => Outcome::Busy { remaining: Some(entry.expires.since(now)), foreign: false },
                None => Outcome::Gone,
            },
            Operation::Force { key, .. } => match self.held(key, now) {
                Some(_) => self.remove(key),
                None => Outcome::Gone,
            },
        }
    }

    fn acquire(&mut self, acquire: &Acquire, now: Moment, time: u64) -> Outcome {
        let held = self.held(&acquire.key, now).map(|entry| (entry.token, entry.expires));
        let takes = match (held, acquire.from) {
            (None, None) => true,
            (None, Some(_)) => false,
            (Some((token, _)), from) => token == acquire.token || Some(token) == from,
        };
        if !takes {
            return match held {
                Some((_, expires)) if acquire.from.is_none() => {
                    Outcome::Busy { remaining: Some(expires.since(now)), foreign: false }
                }
                _ => Outcome::Gone,
            };
        }
        self.sweep(now);
        let fence = time.max(self.last_fence + 1);
        self.last_fence = fence + u64::from(acquire.block) - 1;
        let entry = Entry { token: acquire.token, expires: now + acquire.ttl };
        self.entries.insert(acquire.key.wire().into(), entry);
        Outcome::Held { fence, block: acquire.block }
    }

    /// The entry of a key, if it has not expired.
    fn held(&mut self, key: &LockKey, now: Moment) -> Option<&mut Entry> {
        self.entries.get_mut(key.wire()).filter(|entry| entry.expires > now)
    }

    fn remove(&mut self, key: &LockKey) -> Outcome {
        self.entries.remove(key.wire());
        Outcome::Released
    }

    /// Removes expired entries, at a cost that spreads over the acquires: each time the number of entries has doubled.
    fn sweep(&mut self, now: Moment) {
        if self.entries.len() > self.sweep_above {
            self.entries.retain(|_, entry| entry.expires > now);
            self.sweep_above = (self.entries.len() * 2).max(64);
            self.entries.shrink_to(self.sweep_above * 2);
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
