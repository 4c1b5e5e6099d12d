//! What becomes of the exclusive lease and of its limits when it is downgraded; memory backend, virtual time.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
};

use lock_core::{
    End, ErrorKind, LockManager, LossReason,
    backend::{Answer, Backend, Batch, Calls, Grant, MemoryBackend, Operation, Reply, Token},
    clock::Clock,
    key::LockKey,
};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{self, Fate, ms, secs};

#[tokio::test(start_paused = true)]
async fn a_downgraded_lease_has_what_was_left_of_the_longest_hold() {
    let manager = LockManager::in_memory();
    let begun = Instant::now();
    let writer = manager.lock("k").ttl(secs(60)).max_hold(secs(1)).await.unwrap();
    sleep(ms(500)).await;
    let reader = writer.downgrade().await.unwrap();
    assert!(reader.is_held());
    // Without the limit, virtual time would run on for ever.
    let ended = timeout(secs(60), reader.ended()).await;
    assert_eq!(ended, Ok(End::Lost(LossReason::MaxHold)));
    assert_eq!(begun.elapsed().as_millis() / 10, 100, "{:?}", begun.elapsed());
    let unlimited = manager.lock("l").ttl(secs(60)).await.unwrap().downgrade().await.unwrap();
    sleep(secs(600)).await;
    assert!(unlimited.is_held(), "without a longest hold there is none after it");
}

#[tokio::test(start_paused = true)]
async fn the_time_that_a_downgrade_takes_is_a_part_of_the_longest_hold() {
    let (manager, backend) = support::counted();
    let begun = Instant::now();
    let writer = manager.lock("k").ttl(secs(60)).max_hold(secs(1)).await.unwrap();
    sleep(ms(500)).await;
    backend.next([Fate::HoldReply]);
    let answers = async {
        sleep(ms(300)).await;
        backend.let_go();
    };
    let (reader, ()) = tokio::join!(writer.downgrade(), answers);
    let reader = reader.unwrap();
    assert_eq!(timeout(secs(60), reader.ended()).await, Ok(End::Lost(LossReason::MaxHold)));
    assert_eq!(begun.elapsed().as_millis() / 10, 100, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_downgraded_lease_that_is_not_renewed_lasts_for_what_it_was_extended_by() {
    let manager = LockManager::in_memory();
    let mut writer = manager.lock("k").ttl(secs(10)).fixed().await.unwrap();
    writer.extend(secs(3_600)).await.unwrap();
    let reader = writer.downgrade().await.unwrap();
    assert!(secs(3_540) < reader.remaining() && reader.remaining() <= secs(3_600), "{:?}", reader.remaining());
    sleep(secs(3_500)).await;
    assert!(reader.is_held());
    let short = manager.lock("l").ttl(secs(10)).fixed().await.unwrap().downgrade().await.unwrap();
    assert!(short.remaining() <= secs(10));
}

/// A store that notes which tokens are acquired and released, and lets the test send messages as if they were its own.
#[derive(Clone, Debug, Default)]
struct Noting {
    store: MemoryBackend,
    noted: Arc<Mutex<Noted>>,
}

#[derive(Debug, Default)]
struct Noted {
    acquired: Vec<Token>,
    released: Vec<Token>,
    calls: Option<Calls>,
}

impl Noting {
    fn releases_of(&self, token: Token) -> usize {
        self.noted.lock().expect("not poisoned").released.iter().filter(|released| **released == token).count()
    }
}

impl Backend for Noting {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        let mut noted = self.noted.lock().expect("not poisoned");
        for operation in &batch {
            match operation {
                Operation::Acquire(acquire) => noted.acquired.push(acquire.token),
                Operation::Release(release) => noted.released.push(release.token),
                _ => {}
            }
        }
        drop(noted);
        self.store.call(batch)
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        self.store.list(prefix)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.store.clock()
    }

    fn driver(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.noted.lock().expect("not poisoned").calls = Some(calls.clone());
        self.store.driver(calls)
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_to_a_token_that_was_downgraded_is_given_back() {
    let store = Noting::default();
    let manager = LockManager::builder().backend(store.clone()).build().unwrap();
    let writer = manager.lock("k").ttl(secs(60)).await.unwrap();
    let exclusive = store.noted.lock().expect("not poisoned").acquired[0];
    let reader = writer.downgrade().await.unwrap();
    sleep(secs(1)).await;
    let before = store.releases_of(exclusive);
    // A message that was long on its way.
    let grant = Grant::new(LockKey::new("k").unwrap(), exclusive, store.clock().now(), secs(1), (1, 1));
    let calls = store.noted.lock().expect("not poisoned").calls.clone().expect("the manager runs");
    calls.granted(grant);
    sleep(secs(1)).await;
    assert_eq!(store.releases_of(exclusive), before + 1, "no lease of this process has the token");
    assert!(reader.is_held());
    reader.release().await.unwrap();
}

/// The holder has begun its work. If it were told that nothing was done, a proxy would repeat that work.
#[tokio::test]
async fn a_downgrade_that_fails_does_not_say_that_nothing_was_done() {
    let manager = LockManager::in_memory();
    let guard = manager.lock("k").await.unwrap();
    manager.stop_waiting();
    let error = guard.downgrade().await.unwrap_err();
    assert_eq!((error.kind(), error.nothing_was_done()), (ErrorKind::ShutDown, false), "{error}");
}
