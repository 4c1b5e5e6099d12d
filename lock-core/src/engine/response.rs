//! The answer to a request, on its way from the engine to the future that waits for it.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, PoisonError},
    task::{Context, Poll, Waker},
};

use super::{
    core::Core,
    sync::{Mutex, MutexGuard},
};
use crate::{
    backend::{Answer, BackendError},
    clock::Moment,
    error::ErrorKind,
};

/// A request as the engine sees it: when it was made, and where its answer goes.
#[derive(Debug)]
pub(crate) struct Asked<T = Answer> {
    pub(crate) at: Moment,
    /// Whether it may have been sent before, by a task that has ended.
    pub(crate) repeated: bool,
    slot: Arc<Mutex<Slot<T>>>,
}

#[derive(Debug)]
struct Slot<T> {
    answer: Option<Result<T, BackendError>>,
    waker: Option<Waker>,
}

/// The future of a request that the engine sends. Dropping it cancels the request if it was not sent yet.
#[derive(Debug)]
pub(crate) struct Response<T = Answer> {
    core: Arc<Core>,
    slot: Arc<Mutex<Slot<T>>>,
}

impl<T> Asked<T> {
    /// Makes the two ends of a request that is made at `now`.
    pub(super) fn new(core: &Arc<Core>, now: Moment) -> (Self, Response<T>) {
        let slot = Arc::new(Mutex::new(Slot { answer: None, waker: None }));
        let response = Response { core: Arc::clone(core), slot: Arc::clone(&slot) };
        (Self { at: now, repeated: false, slot }, response)
    }

    /// Makes a request whose answer nobody waits for.
    #[cfg(test)]
    pub(super) fn to_nobody(now: Moment) -> Self {
        Self { at: now, repeated: false, slot: Arc::new(Mutex::new(Slot { answer: None, waker: None })) }
    }

    /// Says that it may be sent once more.
    pub(crate) fn again(mut self) -> Self {
        self.repeated = true;
        self
    }

    /// Whether nobody waits for the answer any longer.
    pub(crate) fn is_cancelled(&self) -> bool {
        Arc::strong_count(&self.slot) == 1
    }

    /// Whether it has its answer.
    pub(crate) fn is_answered(&self) -> bool {
        lock(&self.slot).answer.is_some()
    }

    /// Puts the answer where its future finds it, unless an earlier one is there. Returns the task to wake, which must
    /// wait until no lock is held.
    pub(crate) fn answer(&self, answer: Result<T, BackendError>) -> Option<Waker> {
        let mut slot = lock(&self.slot);
        slot.answer.get_or_insert(answer);
        slot.waker.take()
    }

    /// Returns the task that waits, to be woken so that it starts the engine again.
    pub(crate) fn waker(&self) -> Option<Waker> {
        lock(&self.slot).waker.take()
    }
}

impl<T> Response<T> {
    /// Cancels the request if it was not sent yet.
    pub(crate) fn cancel(&mut self) {
        self.slot = Arc::new(Mutex::new(Slot { answer: None, waker: None }));
    }
}

impl<T> Future for Response<T> {
    type Output = Result<T, BackendError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = lock(&self.slot);
        if let Some(answer) = slot.answer.take() {
            return Poll::Ready(answer);
        }
        let unused = match &slot.waker {
            Some(waker) if waker.will_wake(cx.waker()) => None,
            _ => slot.waker.replace(cx.waker().clone()),
        };
        // The lock goes first: a waker may own a task, and that a guard.
        drop(slot);
        drop(unused);
        // The engine's task ends with its runtime. The next one goes on with the request, so somebody has to start it.
        match self.core.admit() {
            Ok(()) => Poll::Pending,
            Err(ErrorKind::ShutDown) if self.core.state().is_running() => Poll::Pending,
            Err(kind) => Poll::Ready(Err(self.core.ended(kind))),
        }
    }
}

fn lock<T>(slot: &Mutex<Slot<T>>) -> MutexGuard<'_, Slot<T>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}
