//! The future of a request.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{
    core::{Core, Timer},
    responder::{Responder, Slot},
};
use crate::{
    backend::{Answer, BackendError, Replied},
    clock::Moment,
    error::ErrorKind,
};

/// The future of a request that the engine sends. Dropping it cancels the request if it was not sent yet.
pub(crate) struct Response<T = Answer> {
    core: Arc<Core>,
    slot: Arc<Slot<T>>,
    /// The limit of the wait, made by the first poll that finds no answer: the engine has one of its own, but its task may
    /// not be run.
    timer: Option<Timer>,
    /// How much longer than usual that limit is; `None` for no limit.
    more_time: Option<Duration>,
}

impl<T> Response<T> {
    /// Makes the two ends of a request that is made at `now`.
    pub(super) fn new(core: &Arc<Core>, now: Moment) -> (Responder<T>, Self) {
        let responder = Responder::new(now);
        let (core, slot) = (Arc::clone(core), Arc::clone(&responder.slot));
        (responder, Self { core, slot, timer: None, more_time: Some(Duration::ZERO) })
    }

    /// Fails when the engine should have answered long ago. Without a runtime there is no timer.
    fn poll_limit(&mut self, cx: &mut Context<'_>) -> Poll<Replied<T>> {
        let Some((limit, more)) = self.core.patience().zip(self.more_time) else { return Poll::Pending };
        let limit = limit.saturating_add(more);
        if self.timer.is_none() && self.core.has_timers() {
            self.timer = Some(self.core.sleep(limit));
        }
        let Some(timer) = &mut self.timer else { return Poll::Pending };
        ready!(Pin::new(timer).poll(cx))?;
        Poll::Ready(Err(BackendError::unattended(limit)))
    }

    /// Leaves the limit of the wait to the backend: connecting may take longer than a request.
    pub(super) fn without_limit(mut self) -> Self {
        self.more_time = None;
        self
    }

    /// Waits for so much longer than for other requests: the backend has to wait, too.
    pub(crate) fn with_more_time(mut self, more: Duration) -> Self {
        self.more_time = Some(more);
        self
    }
}

impl<T> Future for Response<T> {
    type Output = Replied<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.slot.lock();
        if let Some(answer) = slot.answer.take() {
            drop(slot);
            if answer.is_err() {
                // The task may have ended with its runtime, and have left what only the next one cleans up.
                let _ = self.core.admit();
            }
            return Poll::Ready(answer);
        }
        let unused = match &slot.waker {
            Some(waker) if waker.will_wake(cx.waker()) => None,
            _ => slot.waker.replace(cx.waker().clone()),
        };
        // The lock is released before the old waker is dropped: a waker may own a task, and that task a guard of this manager.
        drop(slot);
        drop(unused);
        // The engine's task ends with its runtime. The next task sends what has waited, and each waiting future tries to start it.
        match self.core.admit() {
            Ok(()) => self.poll_limit(cx),
            Err(ErrorKind::ShutDown) if self.core.state().is_running() => self.poll_limit(cx),
            // The task may have answered and ended after the slot was checked above.
            Err(kind) => {
                let answer = self.slot.lock().answer.take();
                Poll::Ready(answer.unwrap_or_else(|| Err(self.core.ended(kind))))
            }
        }
    }
}
