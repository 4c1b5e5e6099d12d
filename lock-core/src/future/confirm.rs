//! Waiting until replicas have leases that were just acquired.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::release::ReleaseAll;
use crate::{
    backend::{Answer, BackendError, Batch, Operation, Outcome, Replied},
    clock::Moment,
    engine::{Response, tenure::Renewing},
    error::{ACQUIRE, Error, ErrorKind},
    guard::LockGuard,
    replicas::{OTHERS_WAIT, Replicas},
};

/// Waits until replicas have some leases. If they do not in time, it releases all leases before it returns the error.
///
/// Dropping it releases the leases.
pub(super) struct Confirm {
    /// `None` if nothing was to be asked. Declared before the guards, and so dropped before them: their drop wakes the engine, which
    /// must find then that no future waits for the replicas.
    response: Option<Response>,
    confirmations: Vec<Confirmation>,
    guards: Vec<LockGuard>,
    /// The releases after a failure.
    failed: Option<(ReleaseAll, Error)>,
}

/// A request for one of the leases.
struct Confirmation {
    /// The index of the guard.
    guard: usize,
    request: Renewing,
    sent: Moment,
}

impl Confirm {
    /// Asks for all leases at once.
    pub(super) fn new(mut guards: Vec<LockGuard>, replicas: Replicas) -> Self {
        for guard in &mut guards {
            guard.unfinished = true;
            guard.durability = Some(replicas);
        }
        let mut confirmations = Vec::new();
        let mut batch = Batch::new();
        for (guard, held) in guards.iter().enumerate() {
            let Some(engine) = held.engine() else { continue };
            let sent = engine.now();
            if let Some(request) = held.confirmation(replicas, sent) {
                batch.push(Operation::Renew(request.request.clone()));
                confirmations.push(Confirmation { guard, request, sent });
            }
        }
        let engine = guards.first().and_then(LockGuard::engine).filter(|_| !batch.is_empty());
        let more = replicas.timeout() + OTHERS_WAIT;
        let response = engine.map(|engine| engine.call(batch).with_more_time(more));
        Self { response, confirmations, guards, failed: None }
    }

    /// Waits for the answer. The guards come back in their order.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<LockGuard>, Error>> {
        if self.failed.is_none() {
            let mut failed = None;
            if let Some(response) = &mut self.response {
                let outcomes = Answer::each(ready!(Pin::new(response).poll(cx)));
                for (confirmation, outcome) in self.confirmations.iter().zip(outcomes) {
                    if let Err(error) = confirmation.answered(&self.guards[confirmation.guard], outcome) {
                        failed.get_or_insert(error);
                    }
                }
            }
            let guards = std::mem::take(&mut self.guards);
            let Some(error) = failed.or_else(|| guards.iter().find_map(|guard| guard.check(ACQUIRE).err())) else {
                return Poll::Ready(Ok(guards));
            };
            self.failed = Some((ReleaseAll::new(guards.into_iter().map(LockGuard::release_at_once)), error));
        }
        let Some((releases, error)) = &mut self.failed else { unreachable!("it was set above") };
        // The engine retries a release that fails, so the error of the acquire is returned in any case.
        let _ = ready!(Pin::new(releases).poll(cx));
        Poll::Ready(Err(error.clone()))
    }
}

impl Confirmation {
    fn answered(&self, guard: &LockGuard, outcome: Replied<Outcome>) -> Result<(), Error> {
        let key = &guard.lease().hold().key;
        let error = match outcome {
            Ok(Outcome::Renewed { .. }) => {
                if let Some(engine) = guard.engine() {
                    engine.with(|state| state.queues.replicated(&self.request, self.sent));
                }
                return Ok(());
            }
            Ok(Outcome::Gone) => return Err(Error::ended(ACQUIRE, key, guard.taken())),
            Ok(outcome) => BackendError::unexpected(outcome),
            Err(error) => error,
        };
        if error.kind() == ErrorKind::WrongType {
            guard.taken();
        }
        let said = match error.kind() {
            ErrorKind::NotReplicated => None,
            _ => Some(format!("the lease was held, but no replica was known to have it, so it was released: {error}")),
        };
        // The backend grants its keys: a caller that works without a lock if the backend fails would work beside holders.
        let error = if error.kind() == ErrorKind::Backend { error.of_kind(ErrorKind::NotReplicated) } else { error };
        let error = Error::backend(ACQUIRE, Some(key), error);
        Err(match said {
            Some(said) => error.detail(said),
            None => error,
        })
    }
}
