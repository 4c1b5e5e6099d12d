//! The future of a request.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use super::{
    asked::{Asked, Slot},
    core::Core,
};
use crate::{
    backend::{Answer, BackendError},
    clock::Moment,
    error::ErrorKind,
};

/// The future of a request that the engine sends. Dropping it cancels the request if it was not sent yet.
#[derive(Debug)]
pub(crate) struct Response<T = Answer> {
    core: Arc<Core>,
    slot: Arc<Slot<T>>,
}

impl<T> Response<T> {
    /// Makes the two ends of a request that is made at `now`.
    pub(super) fn new(core: &Arc<Core>, now: Moment) -> (Asked<T>, Self) {
        let asked = Asked::new(now);
        let response = Self { core: Arc::clone(core), slot: Arc::clone(&asked.slot) };
        (asked, response)
    }

    /// Cancels the request if it was not sent yet.
    pub(crate) fn cancel(&mut self) {
        self.slot = Arc::default();
    }
}

impl<T> Future for Response<T> {
    type Output = Result<T, BackendError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.slot.lock();
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
            // The task may have answered, and ended, since the look at the slot.
            Err(kind) => {
                let answer = self.slot.lock().answer.take();
                Poll::Ready(answer.unwrap_or_else(|| Err(self.core.ended(kind))))
            }
        }
    }
}
