//! The suite that every backend passes, on stores in memory; `lock-tests` runs it on real servers.

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use lock_core::{
    backend::{Acquire, Answer, Backend, Batch, Calls, MemoryBackend, Operation, QuorumBackend, Reply},
    clock::{Clock, Moment, Sleep, SystemClock},
    key::LockKey,
};
use lock_test::conformance;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn the_memory_backend_conforms_in_virtual_time() {
    conformance::run(MemoryBackend::new()).await;
}

#[tokio::test]
async fn the_memory_backend_conforms_in_real_time() {
    conformance::run(MemoryBackend::with_clock(Arc::new(SystemClock))).await;
}

/// A node of a quorum, whose answers need a turn of the runtime.
#[derive(Debug)]
struct Node(MemoryBackend);

impl Backend for Node {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        let reply = self.0.call(batch);
        Reply::new(async {
            sleep(Duration::ZERO).await;
            reply.await
        })
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        self.0.list(prefix)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(OnceReady(self.0.clock()))
    }

    fn driver(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.0.driver(calls)
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
        let sleep = self.0.sleep(duration);
        // Polled again, it panics.
        Box::pin(async {
            sleep.await;
        })
    }
}

/// Nodes whose wall clocks agree: each store reads the clock of the machine when it is made, which may stand still between two.
fn nodes(size: usize) -> Vec<Arc<dyn Backend>> {
    loop {
        let begun = Instant::now();
        let nodes = (0..size).map(|_| Arc::new(Node(MemoryBackend::new())) as Arc<dyn Backend>).collect();
        if begun.elapsed() < Duration::from_millis(5) {
            return nodes;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn quorums_of_one_to_five_conform() {
    for size in [1, 3, 4, 5] {
        conformance::run(QuorumBackend::new(nodes(size)).expect("a number of nodes that makes a quorum")).await;
    }
}

/// Breaks one rule of the contract.
#[derive(Debug)]
struct Broken {
    store: MemoryBackend,
    breach: fn(Operation) -> Operation,
}

impl Backend for Broken {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        self.store.call(batch.into_iter().map(self.breach).collect())
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        self.store.list(prefix)
    }
}

async fn is_caught(breach: fn(Operation) -> Operation) -> bool {
    let suite = conformance::run(Broken { store: MemoryBackend::new(), breach });
    tokio::spawn(suite).await.is_err_and(|error| error.is_panic())
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_breaks_a_rule_is_caught() {
    assert!(!is_caught(|operation| operation).await);
    let releases_for_anybody = |operation| match operation {
        Operation::Release(release) => Operation::Force { key: release.key, foreign: true },
        operation => operation,
    };
    assert!(is_caught(releases_for_anybody).await);
    let never_expires = |operation| match operation {
        Operation::Acquire(acquire) => {
            Operation::Acquire(Acquire::new(acquire.key, acquire.token, Duration::from_secs(3_600)))
        }
        operation => operation,
    };
    assert!(is_caught(never_expires).await);
    let never_renews = |operation| match operation {
        Operation::Renew(renew) => Operation::Inspect { key: renew.key },
        operation => operation,
    };
    assert!(is_caught(never_renews).await);
    let keeps_for_a_moment = |operation| match operation {
        Operation::Release(mut release) if release.after > Duration::from_secs(10) => {
            release.after = Duration::from_millis(10);
            Operation::Release(release)
        }
        operation => operation,
    };
    assert!(is_caught(keeps_for_a_moment).await);
}
