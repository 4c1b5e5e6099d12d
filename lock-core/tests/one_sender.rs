//! What one sender owes to those who wait: limits, fairness, and no lock held over code of the user's.

use std::{
    future::{Future, pending},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Wake, Waker},
    thread,
    time::Duration,
};

use lock_core::{
    LockManager,
    backend::{Answer, Backend, Batch, MemoryBackend, Operation, Reply},
    clock::Clock,
    key::LockKey,
};
use tokio::{runtime, task::JoinSet, time::sleep};

use crate::support::{ms, secs};

#[derive(Clone, Debug)]
struct Slow {
    store: MemoryBackend,
    limit: Duration,
    round_trip: fn(&Batch) -> Option<Duration>,
    panics: Arc<AtomicBool>,
    at_once: bool,
    calls: Arc<AtomicUsize>,
}

impl Slow {
    fn new(limit: Duration, round_trip: fn(&Batch) -> Option<Duration>) -> Self {
        let (panics, calls) = (Arc::default(), Arc::default());
        Self { store: MemoryBackend::new(), limit, round_trip, panics, at_once: false, calls }
    }

    fn manager(self) -> (LockManager, Self) {
        (LockManager::builder().backend(self.clone()).build().expect("a sound configuration"), self)
    }
}

impl Backend for Slow {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let inspects = batch.iter().any(|operation| matches!(operation, Operation::Inspect { .. }));
        if inspects && self.panics.load(Ordering::SeqCst) {
            if self.at_once {
                self.panics.store(false, Ordering::SeqCst);
            }
            panic!("a bug of the backend's");
        }
        if self.at_once {
            return self.store.call(batch);
        }
        let round_trip = (self.round_trip)(&batch);
        let store = self.store.clone();
        match round_trip {
            Some(Duration::ZERO) => store.call(batch),
            Some(round_trip) => Reply::new(async move {
                sleep(round_trip).await;
                store.call(batch).await
            }),
            None => Reply::new(pending()),
        }
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        self.store.list(prefix)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.store.clock()
    }

    fn time_limit(&self) -> Duration {
        self.limit
    }

    fn sends_at_once(&self) -> bool {
        self.at_once
    }
}

#[tokio::test(start_paused = true)]
async fn a_sign_of_life_may_take_as_long_as_connecting_may() {
    // As the Redis backend: an empty batch waits for the connection, for up to the connect timeout of five seconds.
    let slow = Slow::new(secs(1), |batch| Some(if batch.is_empty() { secs(2) } else { ms(1) }));
    LockManager::builder().backend(slow).connect().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn requests_with_calls_of_their_own_do_not_wait_for_each_other() {
    let (manager, _) = Slow::new(secs(1), |_| Some(ms(50))).manager();
    let began = tokio::time::Instant::now();
    let mut tasks = JoinSet::new();
    for index in 0..200 {
        let manager = manager.clone();
        tasks.spawn(async move { manager.is_locked(format!("k{index}")).await.map(|_| ()) });
    }
    tokio::task::yield_now().await;
    let acquired = manager.lock("other").await.map(drop);
    let waited = began.elapsed();
    let failed = tasks.join_all().await.into_iter().filter(Result::is_err).count();
    assert!(failed == 0 && waited < ms(300), "{failed} failed; an acquire took {waited:?}: {acquired:?}");
}

#[test]
fn a_list_is_asked_for_while_answers_come_without_end() {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (manager, _) = Slow::new(secs(1), |_| Some(Duration::ZERO)).manager();
        let mut tasks = JoinSet::new();
        for index in 0..64 {
            let manager = manager.clone();
            tasks.spawn(async move {
                loop {
                    manager.is_locked(format!("k{index}")).await.unwrap();
                }
            });
        }
        sleep(ms(50)).await;
        let listed = tokio::time::timeout(secs(60), manager.force_release_all("x")).await;
        assert!(listed.is_ok(), "it was not asked for in a minute");
    });
}

#[tokio::test(start_paused = true)]
async fn a_list_is_asked_for_while_calls_go_unanswered() {
    let (manager, _) = Slow::new(secs(3600), |_| None).manager();
    for key in ["a", "b"] {
        let manager = manager.clone();
        tokio::spawn(async move { manager.is_locked(key).await });
    }
    sleep(ms(10)).await;
    let began = tokio::time::Instant::now();
    let listed = tokio::time::timeout(secs(3), manager.force_release_all("x")).await;
    assert!(listed.is_ok() && began.elapsed() < ms(20), "{:?}", began.elapsed());
}

#[test]
fn a_backend_that_panics_once_leaves_the_others_alone() {
    let (manager, backend) = Slow { at_once: true, ..Slow::new(secs(1), |_| None) }.manager();
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        drop(manager.lock("a").await.unwrap());
        backend.panics.store(true, Ordering::SeqCst);
        let error = manager.is_locked("a").await.expect_err("it panicked");
        assert!(error.to_string().contains("panicked"), "{error}");
        drop(tokio::time::timeout(secs(60), manager.lock("b").acquire()).await.expect("requests are sent").unwrap());
    });
}

#[test]
fn a_backend_that_panics_at_a_request_costs_no_leases() {
    let (manager, backend) = Slow::new(secs(1), |_| Some(ms(1))).manager();
    let runtime = runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let held = manager.lock("a").await.unwrap();
        backend.panics.store(true, Ordering::SeqCst);
        let theirs = manager.clone();
        let before = backend.calls.load(Ordering::SeqCst);
        let asks = tokio::spawn(async move { theirs.is_locked("a").await });
        sleep(ms(1_000)).await;
        let calls = backend.calls.load(Ordering::SeqCst) - before;
        asks.abort();
        assert!(held.is_held() && calls < 10, "held: {}; {calls} calls", held.is_held());
    });
}

/// A task that lives only as long as its wakers, as of a simple executor.
#[expect(dead_code, reason = "it only owns")]
struct OwnedTask(Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>);

impl Wake for OwnedTask {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn the_waker_of_a_request_that_was_cancelled_is_dropped_without_a_lock() {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (manager, _) = Slow::new(secs(10), |_| Some(ms(100))).manager();
            let guard = manager.lock("mine").await.unwrap();
            for key in ["a", "b"] {
                let manager = manager.clone();
                tokio::spawn(async move { manager.is_locked(key).await });
            }
            sleep(ms(10)).await;
            // Both calls that may be in flight are; this one waits for its turn, and is cancelled.
            let task = Arc::new(OwnedTask(Mutex::new(Some(Box::pin(async move {
                let _guard = guard;
                pending().await
            })))));
            let waker = Waker::from(task);
            let theirs = manager.clone();
            let mut asks = Box::pin(async move { theirs.is_locked("c").await });
            assert!(asks.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            drop((waker, asks));
            sleep(ms(300)).await;
            drop(manager.lock("mine").wait(secs(3)).await.expect("the guard was dropped with its task"));
        });
        let _ = done.send(());
    });
    is_done.recv_timeout(secs(60)).expect("it waits for itself");
}

#[test]
fn a_request_is_told_when_the_runtime_of_the_engine_stands_still() {
    let (manager, _) = Slow::new(secs(1), |_| Some(ms(5))).manager();
    let first = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    first.block_on(manager.is_locked("a")).unwrap();
    let second = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    second.block_on(async {
        let inspected = tokio::time::timeout(secs(60), manager.is_locked("b")).await;
        let acquired = tokio::time::timeout(secs(60), manager.lock("b").wait(secs(1)).acquire()).await;
        assert!(inspected.is_ok() && acquired.is_ok(), "inspect {inspected:?}, acquire {acquired:?}");
    });
    drop(first);
}
