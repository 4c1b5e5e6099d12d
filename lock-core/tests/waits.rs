//! How long a request waits, in virtual time.

use std::sync::Arc;

use lock_core::{
    ErrorKind, LockManager,
    backend::MemoryBackend,
    clock::{Clock, Moment, Sleep, TokioClock},
};
use tokio::time::{Instant, sleep};

use crate::support::{ms, secs};

#[tokio::test(start_paused = true)]
async fn several_keys_are_waited_for_no_longer_than_the_wait_in_all() {
    let store = MemoryBackend::new();
    let [one, other] = [(); 2].map(|()| LockManager::builder().backend(store.clone()).build().unwrap());
    let (first, _second) = (other.lock("a").await.unwrap(), other.lock("b").await.unwrap());
    let begun = Instant::now();
    let waiting = tokio::spawn(one.lock_all(["a", "b"]).wait(secs(1)).acquire());
    sleep(ms(900)).await;
    first.release().await.unwrap();
    sleep(ms(50)).await;
    assert!(one.is_locked("a").await.unwrap() && !waiting.is_finished(), "it waits for the second key");
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Busy, Some("b")));
    assert!(error.to_string().contains("1s"), "the wait of the whole request: {error}");
    assert_eq!(begun.elapsed().as_millis() / 10, 100, "a second, and not a second for each key");
    assert!(!one.is_locked("a").await.unwrap(), "what it had is free again");
}

/// A clock whose timers go off after nine tenths of their time.
#[derive(Debug)]
struct Hasty(TokioClock);

impl Clock for Hasty {
    fn now(&self) -> Moment {
        self.0.now()
    }

    fn sleep(&self, duration: std::time::Duration) -> Sleep {
        self.0.sleep(duration * 9 / 10)
    }
}

#[tokio::test(start_paused = true)]
async fn a_timer_that_goes_off_early_neither_shortens_nor_restarts_a_wait() {
    let store = MemoryBackend::new();
    let other = LockManager::builder().backend(store.clone()).build().unwrap();
    let manager = LockManager::builder().backend(store).clock(Arc::new(Hasty(TokioClock::new()))).build().unwrap();
    let _busy = other.lock("k").ttl(secs(60)).await.unwrap();
    let begun = Instant::now();
    let waits = manager.lock("k").wait(secs(1)).acquire();
    let ended = tokio::time::timeout(secs(30), waits).await.expect("a wait ends");
    assert!(ended.unwrap_err().is_busy());
    assert_eq!(begun.elapsed().as_millis() / 10, 100, "{:?}", begun.elapsed());
}
