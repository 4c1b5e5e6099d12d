//! One look at the store for all who ask at about the same time.

use std::{
    sync::{Arc, Mutex as StdMutex, PoisonError},
    time::{Duration, SystemTime},
};

use http::StatusCode;
use lock_core::{Error, KeyInfo, LockManager};
use tokio::{sync::Mutex, time::Instant};

use super::{
    processes::{Known, Missed},
    rates::{Counters, Rates, Samples},
};

/// Looks at all keys of a manager, one look at a time, and at single keys, one at a time.
///
/// A look at millions of keys takes long. What an operator does with one key does not wait for it.
#[derive(Clone, Debug)]
pub(super) struct Looks {
    pub(super) manager: LockManager,
    /// The last look. Locked while the next one is taken, so that all who ask meanwhile share it.
    last: Arc<Mutex<Option<Arc<Look>>>>,
    /// Locked while a single key is looked at.
    single: Arc<Mutex<()>>,
    /// What earlier looks have found of processes and counters.
    seen: Arc<StdMutex<Seen>>,
    /// When a key was changed last: a look that began before is no longer shared.
    changed: Arc<StdMutex<Option<Instant>>>,
}

/// What a look has found.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) at: SystemTime,
    /// All keys of the manager in the order of their bytes, or what went wrong.
    pub(super) keys: Result<Vec<KeyInfo>, String>,
    /// The status of an answer that shows the look.
    pub(super) status: StatusCode,
    /// The processes that answered an earlier look, and not this one.
    pub(super) missed: Vec<Missed>,
    /// What this process did since a look of about a minute ago, if there was one.
    pub(super) rates: Option<Rates>,
    began: Instant,
    until: Instant,
}

/// What is kept from look to look.
#[derive(Debug, Default)]
struct Seen {
    known: Known,
    samples: Samples,
}

impl Looks {
    pub(super) fn new(manager: LockManager) -> Self {
        Self { manager, last: Arc::default(), single: Arc::default(), seen: Arc::default(), changed: Arc::default() }
    }

    /// Returns the last look if it is new enough, and takes another one otherwise.
    ///
    /// The look goes on if the caller no longer waits for it: a client that reloads or hangs up cannot have the next one begin
    /// before this one has ended.
    pub(super) async fn look(&self) -> Arc<Look> {
        let mut last = Arc::clone(&self.last).lock_owned().await;
        if let Some(look) = last.as_ref().filter(|look| self.is_fresh(look)) {
            return Arc::clone(look);
        }
        let (manager, seen) = (self.manager.clone(), Arc::clone(&self.seen));
        let task = tokio::spawn(async move {
            let look = Arc::new(Look::take(&manager, &seen).await);
            *last = Some(Arc::clone(&look));
            look
        });
        // The task ends early only if its runtime does.
        task.await.unwrap_or_else(|error| Arc::new(Look::failed(error.to_string())))
    }

    /// Returns a key as the last look has found it, if that is new enough and whole and the key was held by this library, and looks at
    /// the key otherwise.
    pub(super) async fn key(&self, key: &str) -> Result<KeyInfo, Error> {
        let last = self.last.try_lock().ok().and_then(|last| last.clone()).filter(|look| self.is_fresh(look));
        let is_whole = |info: &&KeyInfo| info.is_locked() && !info.is_truncated() && !info.is_foreign();
        match last.as_ref().and_then(|look| look.key(key)).filter(is_whole) {
            Some(info) => Ok(info.clone()),
            None => self.inspect(key).await,
        }
    }

    /// Looks at one key. A list may lack it: one that another library holds.
    pub(super) async fn inspect(&self, key: &str) -> Result<KeyInfo, Error> {
        let _single = self.single.lock().await;
        self.manager.inspect(key).await
    }

    /// Forgets the last look and the one in flight, since a key was changed after they began.
    pub(super) fn forget(&self) {
        *self.changed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn is_fresh(&self, look: &Look) -> bool {
        let changed = *self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        Instant::now() < look.until && changed.is_none_or(|changed| changed < look.began)
    }
}

impl Look {
    async fn take(manager: &LockManager, seen: &StdMutex<Seen>) -> Self {
        let began = Instant::now();
        // All keys, whatever the prefix of the page is, so that pages of different prefixes share the look.
        let keys = manager.list("").await;
        let status = keys.as_ref().map_or_else(status_of, |_| StatusCode::OK);
        let keys = keys.map_err(|error| error.to_string());
        let now = Instant::now();
        // A look at very many keys takes long: the store has a rest before the next one.
        let until = now + FRESH.max((now - began) * 4);
        let counters = Counters::of(&manager.health());
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let missed = seen.known.look(keys.as_deref().unwrap_or_default(), now);
        let rates = seen.samples.take(now, counters);
        Self { at: SystemTime::now(), keys, status, missed, rates, began, until }
    }

    fn key(&self, key: &str) -> Option<&KeyInfo> {
        let keys = self.keys.as_ref().ok()?;
        keys.binary_search_by(|info| info.key().cmp(key)).ok().map(|index| &keys[index])
    }

    fn failed(error: String) -> Self {
        let now = Instant::now();
        let at = SystemTime::now();
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self { at, keys: Err(error), status, missed: Vec::new(), rates: None, began: now, until: now }
    }
}

/// Returns the status of an answer that says only what went wrong.
pub(super) fn status_of(error: &Error) -> StatusCode {
    StatusCode::from_u16(error.case().http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// For how long a look is shared, at least.
const FRESH: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::{
        future::Future as _,
        task::{Context, Waker},
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_look_is_shared_for_a_second_and_forgotten_on_demand() {
        let looks = Looks::new(LockManager::in_memory());
        let (one, other) = tokio::join!(looks.look(), looks.look());
        assert!(Arc::ptr_eq(&one, &other), "those that ask at once share it");
        tokio::time::advance(FRESH / 2).await;
        assert!(Arc::ptr_eq(&one, &looks.look().await));
        tokio::time::advance(FRESH).await;
        let next = looks.look().await;
        assert!(!Arc::ptr_eq(&one, &next));
        looks.forget();
        assert!(!Arc::ptr_eq(&next, &looks.look().await));
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_goes_on_when_its_asker_has_gone() {
        let looks = Looks::new(LockManager::in_memory());
        let mut asked = Box::pin(looks.look());
        let is_pending = asked.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
        drop(asked);
        assert!(is_pending && looks.last.try_lock().is_err(), "the next one has to wait for it");
        tokio::time::sleep(FRESH).await;
        assert!(looks.last.try_lock().unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_single_key_does_not_wait_for_a_long_look_which_is_forgotten() {
        let looks = Looks::new(LockManager::in_memory());
        let _guard = looks.manager.lock("k").await.unwrap();
        let in_flight = looks.last.lock().await;
        let single = async {
            let info = looks.key("k").await.unwrap();
            looks.forget();
            info
        };
        assert!(tokio::time::timeout(FRESH, single).await.unwrap().is_locked());
        drop(in_flight);
        let mut old = Look::take(&looks.manager, &looks.seen).await;
        tokio::time::advance(FRESH / 4).await;
        looks.forget();
        old.until = Instant::now() + FRESH;
        let old = Arc::new(old);
        *looks.last.lock().await = Some(Arc::clone(&old));
        assert!(!Arc::ptr_eq(&old, &looks.look().await), "it began before the change");
    }
}
