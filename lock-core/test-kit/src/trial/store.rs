use std::{future::Future, pin::Pin, sync::Arc};

use lock_core::{
    NodeHealth,
    backend::{Answer, Backend, BackendError, Batch, Calls, Operation, Reply},
    clock::Clock,
    key::LockKey,
};

use super::{plan::Kind, watch::Trial};

/// The store in memory, which executes every request and loses the answer that the trial wants to be lost.
#[derive(Debug)]
pub(super) struct Store(pub(super) Arc<Trial>);

impl Backend for Store {
    fn sends_at_once(&self) -> bool {
        true
    }

    fn call(&self, batch: Batch) -> Reply<Answer> {
        let keys = |kind| -> Vec<_> { batch.iter().filter_map(|operation| key_of(operation, kind)).collect() };
        // Each is counted, also where both are in one batch.
        let lost = [Kind::Acquire, Kind::Release].map(|kind| self.0.calls(kind, &keys(kind)));
        let reply = self.0.memory().call(batch);
        if lost.contains(&true) { Reply::ready(Err(BackendError::unavailable(LOST))) } else { reply }
    }

    fn waits_for_replicas(&self) -> Result<(), BackendError> {
        self.0.memory().waits_for_replicas()
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        self.0.memory().list(prefix)
    }

    fn health(&self) -> Vec<NodeHealth> {
        self.0.memory().health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.0.memory().clock()
    }

    fn driver(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.0.memory().driver(calls)
    }
}

/// The key of an operation of this kind.
fn key_of(operation: &Operation, kind: Kind) -> Option<&LockKey> {
    match (operation, kind) {
        (Operation::Acquire(acquire), Kind::Acquire) => Some(&acquire.key),
        (Operation::Release(release), Kind::Release) => Some(&release.key),
        _ => None,
    }
}

const LOST: &str = "the test lost the answer; what was asked for was done";
