use std::{
    collections::HashMap,
    fmt,
    future::pending,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{
    Answer, Backend, Batch, Calls, EVERYONE, Replied, Reply,
    store::{Call, Store, micros},
};
use crate::{
    caught::OnDrop,
    clock::{Clock, TokioClock},
    health::NodeHealth,
    key::LockKey,
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
    store: Arc<Shared>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    /// Wall clock at the origin of `clock`, in µs: what a server would answer to TIME counts from here.
    unix_origin: u64,
    state: Mutex<State>,
}

struct State {
    store: Store,
    /// The time of the last batch, by the clock of the store.
    last: u64,
    /// The listeners, by channel.
    listeners: HashMap<Arc<str>, Calls>,
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
        Self::with_clock_at(clock, SystemTime::now())
    }

    /// Makes one whose counter of fencing tokens begins with a time, which it is now.
    pub(crate) fn with_clock_at(clock: Arc<dyn Clock>, now: SystemTime) -> Self {
        let unix = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_origin = micros(unix.saturating_sub(clock.now().since_origin()));
        let state = State { store: Store::new(Duration::ZERO), last: 0, listeners: HashMap::new() };
        Self { store: Arc::new(Shared { clock, unix_origin, state: Mutex::new(state) }) }
    }

    /// Returns the store of that name. It lives until its last clone is dropped.
    pub(crate) fn named(name: &str) -> Self {
        static STORES: OnceLock<Mutex<HashMap<String, Weak<Shared>>>> = OnceLock::new();
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

impl Shared {
    fn now(&self) -> u64 {
        self.unix_origin.saturating_add(micros(self.clock.now().since_origin()))
    }

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
impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never waits for the lock.
        let keys = self.state.try_lock().map(|state| state.store.keys.len()).ok();
        f.debug_struct("Store").field("keys", &keys).finish_non_exhaustive()
    }
}

impl Backend for MemoryBackend {
    fn sends_at_once(&self) -> bool {
        true
    }

    fn call(&self, batch: Batch) -> Reply<Answer> {
        let now = self.store.now();
        let mut state = self.store.state();
        let State { store, last, listeners } = &mut *state;
        // The clock is read outside the lock, since it may be the user's, so a thread that has read it earlier may come here later. To the
        // store that would be a clock that was set back, after which it forgets places. One that is set back goes back by more.
        let now = if last.saturating_sub(now) <= micros(LATEST) { now.max(*last) } else { now };
        *last = now;
        let hears = |channel: &Arc<str>| listeners.contains_key(channel);
        // As a server counts: a thousand fencing tokens for each millisecond.
        let mut call = Call::new(&batch, (now, now / 1_000 * 1_000), &hears);
        let mut answer = Answer::new([]);
        answer.outcomes = store.execute(&batch, &mut call);
        answer.time = Some(now);
        let told =
            call.grants.into_iter().filter_map(|(channel, grant)| Some((listeners.get(&channel)?.clone(), grant)));
        let grants = told.collect::<Vec<_>>();
        drop(state);
        for (listener, grant) in grants {
            listener.granted(grant);
        }
        Reply::ready(Ok(answer))
    }

    // The store ends with all its holders, so there is no failover that a lease could be lost in.
    fn waits_for_replicas(&self) -> Replied<()> {
        Ok(())
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        let now = self.store.now();
        let state = self.store.state();
        let held = state.store.keys.iter().filter(|(_, holders)| holders.is_live(now + 1)).map(|(key, _)| key.wire());
        let keys = held.filter(|key| key.starts_with(&prefix)).filter_map(|key| LockKey::new(key).ok()).collect();
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

    fn driver(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let store = Arc::clone(&self.store);
        Box::pin(async move {
            let channel = Arc::clone(calls.channel());
            store.state().listeners.insert(Arc::clone(&channel), calls.clone());
            let _listening = OnDrop(|| drop(store.state().listeners.remove(&channel)));
            calls.listening(true);
            pending().await
        })
    }
}

/// How late a thread may come to the store after it has read the clock.
const LATEST: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
