//! Waiting for replicas, by a backend that waits, fails and hangs on command.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::support::{self, ms, secs};
use lock_core::{
    ErrorKind, LeaseOptions, LockManager, LossReason, Replicas,
    backend::{Answer, Backend, BackendError, Batch, Calls, MemoryBackend, Operation, Reply},
    clock::Clock,
    key::LockKey,
};
use tokio::time::{Instant, sleep, timeout};

/// What becomes of a call that waits for replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// They have the keys after so long.
    After(Duration),
    /// Too few have the keys when the timeout is over; but of all but the first key, all have.
    TooFew,
    /// The key is deleted before.
    Deleted,
    Never,
}

/// A store in memory that says what its replicas have.
#[derive(Clone, Debug)]
pub(crate) struct Replicated {
    store: MemoryBackend,
    fate: Fate,
    /// How many calls waited for replicas, and the operations in them.
    waits: Arc<Mutex<Vec<usize>>>,
    /// How many engine tasks run.
    tasks: Arc<AtomicUsize>,
}

struct Task(Arc<AtomicUsize>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Replicated {
    pub(crate) fn new(fate: Fate) -> (LockManager, Self) {
        let this = Self { store: MemoryBackend::new(), fate, waits: Arc::default(), tasks: Arc::default() };
        (LockManager::builder().backend(this.clone()).build().unwrap(), this)
    }

    fn waits(&self) -> Vec<usize> {
        self.waits.lock().unwrap().clone()
    }

    async fn is_locked(&self, key: &str) -> bool {
        let other = LockManager::builder().backend(self.store.clone()).build().unwrap();
        other.is_locked(key).await.unwrap()
    }
}

fn replicas_of(batch: &Batch) -> Option<Replicas> {
    batch.iter().find_map(|operation| match operation {
        Operation::Renew(renew) => renew.replicas,
        _ => None,
    })
}

impl Backend for Replicated {
    fn call(&self, mut batch: Batch) -> Reply<Answer> {
        let (store, fate) = (self.store.clone(), self.fate);
        let Some(replicas) = replicas_of(&batch) else { return Reply::new(async move { store.call(batch).await }) };
        self.waits.lock().unwrap().push(batch.len());
        for operation in batch.iter_mut() {
            if let Operation::Renew(renew) = operation {
                assert_eq!(renew.replicas.take(), Some(replicas));
            }
        }
        Reply::new(async move {
            match fate {
                Fate::After(time) => sleep(time).await,
                Fate::TooFew => sleep(replicas.timeout()).await,
                Fate::Deleted => {
                    let force = |key: &LockKey| Operation::Force { key: key.clone(), foreign: false };
                    store.call(batch.iter().map(|operation| force(operation.key())).collect()).await?;
                }
                Fate::Never => std::future::pending().await,
            }
            let mut answer = store.call(batch).await?;
            if fate == Fate::TooFew {
                answer.outcomes[0] = Err(BackendError::not_replicated(replicas, 0));
            }
            Ok(answer)
        })
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        self.store.list(prefix)
    }

    fn waits_for_replicas(&self) -> Result<(), BackendError> {
        Ok(())
    }

    fn time_limit(&self) -> Duration {
        secs(1)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.store.clock()
    }

    fn driver(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.tasks.fetch_add(1, Ordering::SeqCst);
        let (task, driver) = (Task(Arc::clone(&self.tasks)), self.store.driver(calls));
        Box::pin(async move {
            let _task = task;
            driver.await;
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_downgraded_lease_is_as_durable_as_the_exclusive_one_was() {
    let (manager, backend) = Replicated::new(Fate::After(ms(1)));
    let replicas = Replicas::new(1, ms(300));
    let reader = manager.lock("k").durability(replicas).await.unwrap().downgrade().await.unwrap();
    assert_eq!(backend.waits(), [1, 1]);
    reader.release().await.unwrap();
    let guard = manager.lock("k").await.unwrap().downgrade().await.unwrap();
    assert_eq!(backend.waits(), [1, 1]);
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn too_few_replicas_release_the_key_before_the_error_comes() {
    let (manager, backend) = Replicated::new(Fate::TooFew);
    let begun = Instant::now();
    let error = manager.lock("k").durability(Replicas::new(2, ms(300))).await.unwrap_err();
    assert_eq!(begun.elapsed(), ms(300));
    assert_eq!((error.kind(), error.key()), (ErrorKind::NotReplicated, Some("k")));
    assert!(error.to_string().starts_with("could not acquire \"k\": 0 of the 2 required replicas"), "{error}");
    assert_eq!(error.retry_after(), Some(secs(1)));
    assert!(!backend.is_locked("k").await);
    let error = manager.lock_all(["b", "a", "c"]).durability(Replicas::new(2, ms(300))).await.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::NotReplicated, Some("a")));
    for key in ["a", "b", "c"] {
        assert!(!backend.is_locked(key).await, "{key}");
    }
    assert_eq!(backend.waits(), [1, 3], "several keys in one call");
}

#[tokio::test(start_paused = true)]
async fn too_few_replicas_keep_no_key_busy() {
    for fate in [Fate::TooFew, Fate::Never] {
        let (manager, backend) = Replicated::new(fate);
        let replicas = Replicas::new(2, ms(300));
        let one = manager.lock("k").at_least(secs(60)).durability(replicas).acquire();
        let all = manager.lock_all(["a", "b"]).at_least(secs(60)).durability(replicas).acquire();
        // Of replicas that never answer, the futures are dropped.
        assert!(!timeout(ms(400), one).await.is_ok_and(|acquired| acquired.is_ok()), "{fate:?}");
        assert!(!timeout(ms(400), all).await.is_ok_and(|acquired| acquired.is_ok()), "{fate:?}");
        // What was dropped is released in the background.
        sleep(ms(10)).await;
        for key in ["k", "a", "b"] {
            assert!(!backend.is_locked(key).await, "{fate:?}: {key}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn wait_for_replicas_may_last_longer_than_a_request() {
    let (manager, _backend) = Replicated::new(Fate::After(secs(4)));
    let begun = Instant::now();
    let guard = manager.lock("k").fixed().ttl(secs(10)).durability(Replicas::new(1, secs(5))).await.unwrap();
    assert_eq!(begun.elapsed(), secs(4));
    assert!(guard.is_held() && guard.remaining() > secs(5), "{:?}", guard.remaining());
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn ttl_begins_anew_with_the_wait_for_replicas() {
    let (manager, backend) = Replicated::new(Fate::After(ms(1)));
    let elsewhere = LockManager::builder().backend(backend.store.clone()).build().unwrap();
    let before = elsewhere.lock("b").await.unwrap();
    let request = manager.lock_all(["a", "b"]).fixed().ttl(secs(10)).durability(Replicas::new(1, secs(1)));
    let both = tokio::spawn(request.acquire());
    sleep(secs(3)).await;
    before.release().await.unwrap();
    // The first one had less than seven seconds left.
    let both = both.await.unwrap().unwrap();
    assert!(both.remaining() > secs(9), "{:?}", both.remaining());
}

#[tokio::test(start_paused = true)]
async fn backend_that_never_answers_is_given_up_and_the_key_released() {
    let (manager, backend) = Replicated::new(Fate::Never);
    let begun = Instant::now();
    let error = manager.lock("k").durability(Replicas::new(1, ms(300))).await.unwrap_err();
    let took = begun.elapsed();
    // Not `Backend`, at which some callers work without a lock: the backend grants its keys.
    assert_eq!((error.kind(), error.nothing_was_done()), (ErrorKind::NotReplicated, true));
    assert!(error.to_string().contains("no replica was known to have it"), "{error}");
    assert!((ms(2_300)..secs(4)).contains(&took), "{took:?}");
    assert!(!backend.is_locked("k").await);
}

#[tokio::test(start_paused = true)]
async fn key_that_is_gone_by_then_is_lost_and_the_next_holder_is_left_alone() {
    let (manager, backend) = Replicated::new(Fate::Deleted);
    let error = manager.lock("k").durability(Replicas::new(1, ms(300))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost(LossReason::Taken));
    let next = manager.lock("k").await.unwrap();
    sleep(secs(20)).await;
    assert!(next.is_held() && backend.is_locked("k").await);
}

#[tokio::test(start_paused = true)]
async fn dropped_future_releases_the_key_and_the_task_does_not_wait_for_replicas() {
    let (manager, backend) = Replicated::new(Fate::Never);
    let mut request = Box::pin(manager.lock("k").durability(Replicas::new(1, secs(5))).acquire());
    assert!(tokio::time::timeout(ms(100), &mut request).await.is_err());
    assert!(backend.is_locked("k").await);
    drop(request);
    sleep(ms(10)).await;
    assert!(!backend.is_locked("k").await);
    drop(manager);
    sleep(secs(1)).await;
    assert_eq!(backend.tasks.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn hold_that_follows_on_one_that_replicas_have_asks_only_for_more() {
    let (manager, backend) = Replicated::new(Fate::After(ms(1)));
    let elsewhere = LockManager::builder().backend(backend.store.clone()).build().unwrap();
    let before = elsewhere.lock("k").await.unwrap();
    // All of them are in line when the key comes to this manager, so that there is a fencing token for each.
    let mut line = Vec::new();
    for replicas in [Some(2), None, Some(1), Some(3)] {
        let replicas = replicas.map(|min| Replicas::new(min, ms(300)));
        line.push(tokio::spawn(manager.lock("k").durability(replicas).acquire()));
        tokio::task::yield_now().await;
    }
    sleep(secs(1)).await;
    before.release().await.unwrap();
    let mut line = line.into_iter();
    for waits in [1, 1, 1] {
        line.next().unwrap().await.unwrap().unwrap().release().await.unwrap();
        assert_eq!(backend.waits().len(), waits, "the replicas have the key of the tenure");
    }
    assert!(line.next().unwrap().await.unwrap().is_ok());
    assert_eq!(backend.waits(), [1, 1], "but not so many");
}

#[tokio::test(start_paused = true)]
async fn backend_that_does_not_know_of_replicas_refuses_before_anything_is_sent() {
    let (manager, backend) = support::counted();
    let error = manager.lock("k").durability(Replicas::new(1, ms(300))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("leave `durability` out"), "{error}");
    assert_eq!(backend.calls(), 0);
    assert!(manager.lock("k").durability(None).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_store_in_memory_ignores_it() {
    let replicated = Replicas::new(2, ms(300));
    let builder = LockManager::builder().url("memory://").defaults(LeaseOptions::new().durability(replicated));
    let manager = builder.connect().await.expect("code that asks for replicas can be tested");
    let begun = Instant::now();
    manager.lock("k").await.expect("it is free").release().await.expect("it is held");
    drop(manager.lock_all(["k", "l"]).durability(replicated).await.expect("they are free"));
    assert_eq!(begun.elapsed(), ms(0), "nothing is waited for");
    let fixed = manager.lock("m").durability(replicated).fixed().ttl(secs(1)).await.expect("it is free");
    sleep(secs(1)).await;
    assert!(fixed.release().await.is_err(), "the ttl is that of the request");
}
