//! Nodes in the process that can fail in several ways.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use futures_util::FutureExt;
use tokio::sync::oneshot;

use crate::{
    ErrorKind, LeaseOptions, LockManager,
    backend::{Answer, Backend, BackendError, Batch, Calls, MemoryBackend, Operation, QuorumBackend, Reply},
    clock::{Clock, Moment, Sleep, TokioClock},
    key::LockKey,
};

/// A node that can fail in several ways.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) store: Arc<Mutex<MemoryBackend>>,
    /// It executes nothing, and says so after a limit.
    silent: Arc<AtomicBool>,
    /// It executes nothing until it goes on, and then everything that it was asked; also what nobody waits for.
    stopped: Arc<Mutex<Option<Vec<Stopped>>>>,
    /// How long requests are on their way to it, in ms.
    pub(super) far: Arc<AtomicU64>,
    /// How long its answers take, in ms.
    pub(super) slow: Arc<AtomicU64>,
    /// The identity that it gives, once it was asked for anything.
    identity: Arc<Mutex<Option<Arc<str>>>>,
    asked: Arc<AtomicBool>,
    /// How many acquires it was asked for.
    pub(super) acquires: Arc<AtomicU64>,
    /// Its connections break as soon as they have carried an answer.
    pub(super) hangs_up: Arc<AtomicBool>,
    pub(super) epoch: Arc<AtomicU64>,
}

pub(super) type Stopped = (Batch, oneshot::Sender<Reply<Answer>>);

pub(super) const LIMIT: Duration = Duration::from_millis(300);
pub(super) const TTL: Duration = Duration::from_secs(2);

impl Backend for Node {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        if !self.silent.load(Ordering::Relaxed) {
            self.asked.store(true, Ordering::Relaxed);
            let acquires = batch.iter().filter(|operation| matches!(operation, Operation::Acquire(_))).count();
            self.acquires.fetch_add(acquires as u64, Ordering::Relaxed);
            if let Some(stopped) = &mut *self.stopped.lock().unwrap() {
                let (sender, reply) = oneshot::channel();
                stopped.push((batch, sender));
                return Reply::new(async {
                    let silence = |_| BackendError::new(ErrorKind::Backend, "silence");
                    tokio::time::timeout(LIMIT, reply).await.map_err(silence)?.unwrap().await
                });
            }
            let far = Duration::from_millis(self.far.load(Ordering::Relaxed));
            let store = self.store();
            let reply = if far.is_zero() {
                store.call(batch)
            } else {
                Reply::new(async move {
                    tokio::time::sleep(far).await;
                    store.call(batch).await
                })
            };
            let way = Duration::from_millis(self.slow.load(Ordering::Relaxed));
            let by = self.identity.lock().unwrap().as_deref().map(|by| Arc::new(by.to_owned()));
            let by = by.filter(|_| self.hangs_up.load(Ordering::Relaxed));
            return Reply::new(async move {
                tokio::time::sleep(way).await;
                reply.await.map(|answer| Answer { by, ..answer })
            });
        }
        Reply::new(async {
            tokio::time::sleep(LIMIT).await;
            Err(BackendError::new(ErrorKind::Backend, "silence"))
        })
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        if self.silent.load(Ordering::Relaxed) {
            return Reply::ready(Err(BackendError::new(ErrorKind::Backend, "silence").did_not_happen()));
        }
        self.store().list(prefix)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(OnceReady(self.store().clock()))
    }

    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    fn identity(&self) -> Option<Arc<str>> {
        let is_connected = self.asked.load(Ordering::Relaxed) && !self.hangs_up.load(Ordering::Relaxed);
        self.identity.lock().unwrap().clone().filter(|_| is_connected)
    }

    fn driver(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.store().driver(calls)
    }
}

impl Node {
    /// A node with the same store.
    pub(super) fn again(&self) -> Self {
        Self { store: Arc::clone(&self.store), ..Self::default() }
    }

    pub(super) fn store(&self) -> MemoryBackend {
        self.store.lock().unwrap().clone()
    }

    pub(super) fn stop(&self) {
        *self.stopped.lock().unwrap() = Some(Vec::new());
    }

    pub(super) fn go_on(&self) {
        for (batch, sender) in self.stopped.lock().unwrap().take().unwrap() {
            let _ = sender.send(self.store().call(batch));
        }
    }

    pub(super) fn is_server(&self, identity: &str) {
        *self.identity.lock().unwrap() = Some(identity.into());
    }

    pub(super) fn restart_empty(&self) {
        *self.store.lock().unwrap() = MemoryBackend::new();
    }

    pub(super) fn is_silent(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }

    pub(super) async fn has(&self, prefix: &str) -> bool {
        !self.store().list(prefix.to_owned()).await.unwrap().is_empty()
    }
}

/// A clock whose timers must not be polled once they were ready, as those of other programs may be.
#[derive(Debug)]
struct OnceReady(Arc<dyn Clock>);

impl Clock for OnceReady {
    fn now(&self) -> Moment {
        self.0.now()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(self.0.sleep(duration).map(|()| ()))
    }
}

/// Their wall clocks agree, however long the machine takes to make them.
pub(super) fn nodes<const N: usize>() -> [Node; N] {
    let now = SystemTime::now();
    let store = || MemoryBackend::with_clock_at(Arc::new(TokioClock::new()), now);
    std::array::from_fn(|_| Node { store: Arc::new(Mutex::new(store())), ..Node::default() })
}

pub(super) fn quorum(nodes: &[Node]) -> QuorumBackend {
    QuorumBackend::new(nodes.iter().map(|node| Arc::new(node.clone()) as Arc<dyn Backend>)).unwrap()
}

pub(super) fn manager(nodes: &[Node]) -> LockManager {
    LockManager::builder().backend(quorum(nodes)).defaults(LeaseOptions::new().ttl(TTL)).build().unwrap()
}

pub(super) async fn a_while() {
    tokio::time::sleep(Duration::from_millis(20)).await;
}
