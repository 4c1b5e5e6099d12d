//! A request as the engine sees it, and the slot in which its future finds the answer.

use std::{
    sync::{Arc, PoisonError},
    task::Waker,
};

use super::sync::{Mutex, MutexGuard};
use crate::{
    backend::{Answer, Replied},
    clock::Moment,
};

/// A request as the engine sees it: when it was made, and where its answer goes.
#[derive(Debug)]
pub(crate) struct Responder<T = Answer> {
    pub(crate) at: Moment,
    pub(super) slot: Arc<Slot<T>>,
}

impl<T> Responder<T> {
    pub(super) fn new(now: Moment) -> Self {
        Self { at: now, slot: Arc::new(Slot(Mutex::new(Waiting { answer: None, waker: None }))) }
    }

    /// Whether no future waits for the answer any longer.
    pub(crate) fn is_cancelled(&self) -> bool {
        Arc::strong_count(&self.slot) == 1
    }

    /// Whether it has its answer.
    pub(crate) fn is_answered(&self) -> bool {
        self.slot.lock().answer.is_some()
    }

    /// Puts the answer where its future finds it, unless an earlier one is there. Returns the task to wake, which must
    /// wait until no lock is held.
    pub(crate) fn answer(&self, answer: Replied<T>) -> Option<Waker> {
        let mut slot = self.slot.lock();
        slot.answer.get_or_insert(answer);
        slot.waker.take()
    }

    /// Returns the task that waits, to be woken so that it starts the engine again.
    pub(crate) fn waker(&self) -> Option<Waker> {
        self.slot.lock().waker.take()
    }
}

/// Where an answer waits for its future.
#[derive(Debug)]
pub(super) struct Slot<T>(Mutex<Waiting<T>>);

#[derive(Debug)]
pub(super) struct Waiting<T> {
    pub(super) answer: Option<Replied<T>>,
    pub(super) waker: Option<Waker>,
}

impl<T> Slot<T> {
    pub(super) fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
