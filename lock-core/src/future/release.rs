use std::{
    pin::Pin,
    task::{Context, Poll},
};

use smallvec::SmallVec;

use crate::{
    backend::{Answer, BackendError, Outcome, Replied},
    clock::Moment,
    end::End,
    engine::{Engine, Response, hold::Hold, queues::Departure, tenure::HoldId},
    error::{Error, ErrorKind, LossReason, RELEASE},
    key::LockKey,
};

/// The future of [`LockGuard::release`](crate::LockGuard::release).
///
/// # Cancel safety
/// Dropping it, polled or not, leaves the release to the engine.
#[must_use = "the answer of a release is lost unless it is awaited; drop the guard if it does not matter"]
pub struct Release {
    step: Step,
}

enum Step {
    /// The lease was lost before, or the next hold of the tenure has followed in the process.
    Done(Result<(), Error>),
    Sent(LockKey, Response),
    Finished,
}

impl Release {
    pub(crate) fn new(engine: &Engine, key: &LockKey, hold: HoldId, now: Moment) -> Self {
        let step = match engine.release(hold, now) {
            Departure::Passed => Step::Done(Ok(())),
            Departure::Over => Step::Done(Err(Error::lost(RELEASE, key, LossReason::Taken))),
            Departure::Released(response) => Step::Sent(key.clone(), response),
        };
        Self { step }
    }

    pub(crate) fn lost(hold: &Hold, reason: LossReason) -> Self {
        Self { step: Step::Done(Err(hold.error(RELEASE, End::Lost(reason)))) }
    }
}

fn read(key: &LockKey, result: Replied<Answer>) -> Result<(), Error> {
    let repeated = result.as_ref().is_ok_and(|answer| answer.repeated);
    match result.and_then(Answer::single) {
        Ok(Outcome::Released) => Ok(()),
        // The first answer was lost: it may have been this release that removed the key.
        Ok(Outcome::Gone) if repeated => Err(Error::new(ErrorKind::Backend, RELEASE).on(key).detail(
            "the connection broke before the answer came; the key is no longer held, but whether it was released or \
             lost before is not known",
        )),
        Ok(Outcome::Gone) => Err(Error::lost(RELEASE, key, LossReason::Taken)),
        Ok(outcome) => Err(Error::backend(RELEASE, Some(key), BackendError::unexpected(outcome))),
        Err(error) if error.kind() == ErrorKind::NoRuntime => Err(Error::new(ErrorKind::Backend, RELEASE).on(key).detail(
            "the runtime of the engine ended before the answer came; the key is free when its ttl is over, if not before",
        )),
        Err(error) => Err(Error::backend(RELEASE, Some(key), error)),
    }
}

impl Future for Release {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match std::mem::replace(&mut self.step, Step::Finished) {
            Step::Done(result) => Poll::Ready(result),
            Step::Sent(key, mut response) => match Pin::new(&mut response).poll(cx) {
                Poll::Ready(result) => Poll::Ready(read(&key, result)),
                Poll::Pending => {
                    self.step = Step::Sent(key, response);
                    Poll::Pending
                }
            },
            Step::Finished => panic!("`Release` polled after completion"),
        }
    }
}

shows!(Release);

/// The future of [`LockAllGuard::release`](crate::LockAllGuard::release).
///
/// # Cancel safety
/// Dropping it leaves the releases to the engine.
#[derive(Debug)]
#[must_use = "the answer of a release is lost unless it is awaited; drop the guard if it does not matter"]
pub struct ReleaseAll {
    releases: SmallVec<[Release; 1]>,
    failed: Option<Error>,
}

impl ReleaseAll {
    pub(crate) fn new(releases: impl Iterator<Item = Release>) -> Self {
        Self { releases: releases.collect(), failed: None }
    }
}

impl Future for ReleaseAll {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { releases, failed } = &mut *self;
        releases.retain_mut(|release| match Pin::new(release).poll(cx) {
            Poll::Pending => true,
            Poll::Ready(result) => {
                if let Err(error) = result {
                    failed.get_or_insert(error);
                }
                false
            }
        });
        if releases.is_empty() { Poll::Ready(failed.take().map_or(Ok(()), Err)) } else { Poll::Pending }
    }
}
