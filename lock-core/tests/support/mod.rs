//! A backend that counts, holds, loses and fails, around the memory backend.

#![allow(clippy::unwrap_used, reason = "test code")]

pub(crate) mod log;

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use lock_core::{
    LockManager,
    backend::{Answer, Backend, BackendError, Batch, Calls, MemoryBackend, Operation, Reply},
    clock::Clock,
    key::LockKey,
};
use tokio::{sync::Notify, time::sleep};

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// What becomes of a call to the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Executed and answered.
    Answer,
    /// Not executed, and answered with a transport error.
    Fail,
    /// Executed, and answered with a transport error.
    LoseReply,
    /// Neither executed nor answered until [`Faulty::let_go`]; then executed.
    Hold,
    /// Executed, and answered only after [`Faulty::let_go`].
    HoldReply,
    /// Executed, out of order, and answered after [`Faulty::let_go`].
    Overtaken,
    /// Given up after [`Faulty::let_go`], and still on its way.
    GiveUp,
}

#[derive(Clone, Debug)]
pub(crate) struct Faulty {
    pub(crate) store: MemoryBackend,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    calls: AtomicUsize,
    drivers: AtomicUsize,
    forces: AtomicUsize,
    largest: AtomicUsize,
    log: Mutex<Vec<Vec<&'static str>>>,
    fates: Mutex<VecDeque<Fate>>,
    always: Mutex<Fate>,
    epoch: AtomicU64,
    calls_at_once: AtomicUsize,
    let_go: Notify,
    /// The batch of the last call that was held, for as long as somebody may still execute it.
    held: Mutex<Batch>,
}

/// A request that is still on its way after its sender has given it up.
pub(crate) struct Stolen {
    store: MemoryBackend,
    batch: Batch,
}

impl Stolen {
    pub(crate) async fn execute(self) {
        self.store.call(self.batch).await.unwrap();
    }
}

impl Faulty {
    pub(crate) fn new() -> Self {
        let shared = Shared {
            calls: AtomicUsize::new(0),
            drivers: AtomicUsize::new(0),
            forces: AtomicUsize::new(0),
            largest: AtomicUsize::new(0),
            log: Mutex::default(),
            fates: Mutex::default(),
            always: Mutex::new(Fate::Answer),
            epoch: AtomicU64::new(1),
            calls_at_once: AtomicUsize::new(2),
            let_go: Notify::new(),
            held: Mutex::default(),
        };
        Self { store: MemoryBackend::new(), shared: Arc::new(shared) }
    }

    /// Decides the next calls; those after them are answered as [`always`](Self::always) says.
    pub(crate) fn next(&self, fates: impl IntoIterator<Item = Fate>) {
        self.shared.fates.lock().unwrap().extend(fates);
    }

    pub(crate) fn always(&self, fate: Fate) {
        *self.shared.always.lock().unwrap() = fate;
    }

    /// Allows so many calls of requests in flight from now on.
    pub(crate) fn allow(&self, calls: usize) {
        self.shared.calls_at_once.store(calls, Ordering::SeqCst);
    }

    pub(crate) fn let_go(&self) {
        self.shared.let_go.notify_waiters();
    }

    /// Takes the request that is held, to execute it later.
    pub(crate) fn steal_held_request(&self) -> Stolen {
        Stolen { store: self.store.clone(), batch: std::mem::take(&mut self.shared.held.lock().unwrap()) }
    }

    /// As if the connection had been replaced.
    pub(crate) fn replace_connection(&self) {
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn calls(&self) -> usize {
        self.shared.calls.load(Ordering::SeqCst)
    }

    /// How many calls of forced releases there were.
    pub(crate) fn forces(&self) -> usize {
        self.shared.forces.load(Ordering::SeqCst)
    }

    /// How many engine tasks have begun.
    pub(crate) fn drivers(&self) -> usize {
        self.shared.drivers.load(Ordering::SeqCst)
    }

    pub(crate) fn largest_batch(&self) -> usize {
        self.shared.largest.load(Ordering::SeqCst)
    }

    /// The names of the operations of each call so far.
    pub(crate) fn log(&self) -> Vec<Vec<&'static str>> {
        self.shared.log.lock().unwrap().clone()
    }
}

impl Backend for Faulty {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        // Looking is the test's own doing.
        if batch.iter().all(|operation| matches!(operation, Operation::Inspect { .. } | Operation::Force { .. })) {
            let forces = batch.iter().any(|operation| matches!(operation, Operation::Force { .. }));
            self.shared.forces.fetch_add(usize::from(forces), Ordering::SeqCst);
            return self.store.call(batch);
        }
        let this = self.clone();
        Reply::new(async move {
            this.shared.calls.fetch_add(1, Ordering::SeqCst);
            this.shared.largest.fetch_max(batch.len(), Ordering::SeqCst);
            this.shared.log.lock().unwrap().push(batch.iter().map(name).collect());
            let scripted = this.shared.fates.lock().unwrap().pop_front();
            let fate = scripted.unwrap_or_else(|| *this.shared.always.lock().unwrap());
            let failed = BackendError::unavailable("the test broke the connection");
            match fate {
                Fate::Answer => this.store.call(batch).await,
                Fate::Fail => Err(failed),
                Fate::LoseReply => this.store.call(batch).await.and(Err(failed)),
                Fate::Hold => {
                    this.shared.held.lock().unwrap().clone_from(&batch);
                    this.shared.let_go.notified().await;
                    this.store.call(batch).await
                }
                Fate::Overtaken => {
                    this.shared.let_go.notified().await;
                    let mut answer = this.store.call(batch).await?;
                    answer.out_of_order = true;
                    Ok(answer)
                }
                Fate::GiveUp => {
                    this.shared.held.lock().unwrap().clone_from(&batch);
                    this.shared.let_go.notified().await;
                    Err(failed)
                }
                Fate::HoldReply => {
                    let answer = this.store.call(batch).await;
                    this.shared.let_go.notified().await;
                    answer
                }
            }
        })
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        self.store.list(prefix)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.store.clock()
    }

    fn epoch(&self) -> u64 {
        self.shared.epoch.load(Ordering::SeqCst)
    }

    fn calls_at_once(&self) -> usize {
        self.shared.calls_at_once.load(Ordering::SeqCst)
    }

    fn driver(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.shared.drivers.fetch_add(1, Ordering::SeqCst);
        self.store.driver(calls)
    }
}

fn name(operation: &Operation) -> &'static str {
    match operation {
        Operation::Acquire(_) => "acquire",
        Operation::Renew(_) => "renew",
        Operation::Release(_) => "release",
        _ => "other",
    }
}

/// A manager over a backend that the test commands.
pub(crate) fn counted() -> (LockManager, Faulty) {
    let backend = Faulty::new();
    (LockManager::builder().backend(backend.clone()).build().unwrap(), backend)
}

/// Waits for a minute at most, by the clock of the machine, until nobody holds a key. Its lease must have a ttl that is far longer.
pub(crate) fn really_free(runtime: &tokio::runtime::Runtime, manager: &LockManager, key: &str) {
    let limit = std::time::Instant::now() + secs(60);
    while runtime.block_on(manager.is_locked(key)).unwrap() {
        assert!(std::time::Instant::now() < limit, "{key:?} is still held");
        std::thread::sleep(ms(1));
    }
}

/// Waits until nobody holds a key, for a second of virtual time at most.
pub(crate) async fn eventually_free(manager: &LockManager, key: &str) {
    for _ in 0..1_000 {
        if !manager.is_locked(key).await.unwrap() {
            return;
        }
        sleep(ms(1)).await;
    }
    panic!("{key:?} is still held");
}
