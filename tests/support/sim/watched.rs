//! What the engine of a client is given: a backend of one node or several, whose answers have leases looked at.

use std::{future::Future, pin::Pin, sync::Arc, task::Waker, time::Duration};

use lock_core::{
    backend::{Answer, Backend, BackendError, Batch, Calls, Outcome, Reply},
    clock::Clock,
    key::LockKey,
};

use super::world::World;

/// What a client's engine is given: one node or several.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) inner: Arc<dyn Backend>,
    pub(super) world: Arc<World>,
    pub(super) client: usize,
}

impl Backend for Watched {
    /// Has renewed leases looked at.
    fn call(&self, batch: Batch) -> Reply<Answer> {
        let (reply, world, client) = (self.inner.call(batch), Arc::clone(&self.world), self.client);
        Reply::new(async move {
            let result = reply.await;
            // A grant of a request that was sent again renews the lease that the first one began.
            let is_renewed = |outcome: &Result<Outcome, BackendError>| {
                matches!(outcome, Ok(Outcome::Renewed { .. } | Outcome::Held { .. }))
            };
            if result.iter().flat_map(|answer| &answer.outcomes).any(is_renewed) {
                let mut state = world.state();
                state.renewed.push(client);
                let sampler = state.sampler.take();
                drop(state);
                sampler.into_iter().for_each(Waker::wake);
            }
            result
        })
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        self.inner.list(prefix)
    }

    fn epoch(&self) -> u64 {
        self.inner.epoch()
    }

    fn grants_leases(&self) -> bool {
        self.inner.grants_leases()
    }

    fn sends_at_once(&self) -> bool {
        self.inner.sends_at_once()
    }

    fn calls_at_once(&self) -> usize {
        self.inner.calls_at_once()
    }

    fn is_reachable(&self) -> bool {
        self.inner.is_reachable()
    }

    fn time_limit(&self) -> Duration {
        self.inner.time_limit()
    }

    fn identity(&self) -> Option<Arc<str>> {
        self.inner.identity()
    }

    fn is_settled(&self) -> bool {
        self.inner.is_settled()
    }

    fn is_held_up(&self) -> bool {
        self.inner.is_held_up()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }

    fn driver(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.inner.driver(calls)
    }
}
