//! One look at the store for all who ask at about the same time.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use lock_core::{Error, KeyInfo, LockManager};
use tokio::{sync::Mutex, time::Instant};

/// Looks at all keys of a manager, one look at a time.
#[derive(Clone, Debug)]
pub(super) struct Looks {
    pub(super) manager: LockManager,
    /// The last look. Locked while the next one is taken, so that all who ask meanwhile share it.
    last: Arc<Mutex<Option<Arc<Look>>>>,
}

/// What a look has found.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) at: SystemTime,
    /// All keys of the manager in the order of their bytes, or what went wrong.
    pub(super) keys: Result<Vec<KeyInfo>, String>,
    until: Instant,
}

impl Looks {
    pub(super) fn new(manager: LockManager) -> Self {
        Self { manager, last: Arc::default() }
    }

    /// Returns the last look if it is new enough, and takes another one otherwise.
    ///
    /// The look goes on if the caller no longer waits for it: a client that reloads or hangs up cannot have the next one begin
    /// before this one has ended.
    pub(super) async fn look(&self) -> Arc<Look> {
        let mut last = Arc::clone(&self.last).lock_owned().await;
        if let Some(look) = last.as_ref().filter(|look| Instant::now() < look.until) {
            return Arc::clone(look);
        }
        let manager = self.manager.clone();
        let task = tokio::spawn(async move {
            let look = Arc::new(Look::take(&manager).await);
            *last = Some(Arc::clone(&look));
            look
        });
        // The task ends early only if its runtime does.
        task.await.unwrap_or_else(|error| Arc::new(Look::failed(error.to_string())))
    }

    /// Looks at one key, which a list may lack: one that another library holds. No other look is taken meanwhile.
    pub(super) async fn inspect(&self, key: &str) -> Result<KeyInfo, Error> {
        let _last = self.last.lock().await;
        self.manager.inspect(key).await
    }

    /// Forgets the last look, since a key was changed after it.
    pub(super) async fn forget(&self) {
        *self.last.lock().await = None;
    }
}

impl Look {
    async fn take(manager: &LockManager) -> Self {
        let began = Instant::now();
        // All keys, whatever the prefix of the page is, so that pages of different prefixes share the look.
        let keys = manager.list("").await.map_err(|error| error.to_string());
        let now = Instant::now();
        // A look at very many keys takes long: the store has a rest before the next one.
        let until = now + FRESH.max((now - began) * 4);
        Self { at: SystemTime::now(), keys, until }
    }

    fn failed(error: String) -> Self {
        Self { at: SystemTime::now(), keys: Err(error), until: Instant::now() }
    }
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
        looks.forget().await;
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
}
