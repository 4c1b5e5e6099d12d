//! The suite that every backend passes, on the memory backend; `lock-tests` runs it on real servers.

#![cfg(feature = "test-util")]

use std::{sync::Arc, time::Duration};

use lock_core::{
    backend::{Acquire, Answer, Backend, Batch, MemoryBackend, Operation, Reply},
    clock::SystemClock,
    conformance,
};

#[tokio::test(start_paused = true)]
async fn the_memory_backend_conforms_in_virtual_time() {
    conformance::run(MemoryBackend::new()).await;
}

#[tokio::test]
async fn the_memory_backend_conforms_in_real_time() {
    conformance::run(MemoryBackend::with_clock(Arc::new(SystemClock))).await;
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

    fn list(&self, prefix: String) -> Reply<Vec<lock_core::key::LockKey>> {
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
}
