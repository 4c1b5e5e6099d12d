use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use crate::{
    backend::{Answer, BackendError, Operation, Outcome, Reply},
    cleanup::{Doubt, Parting},
    engine::{self, Engine},
    error::{Error, ErrorKind, LossReason},
    key::LockKey,
};

/// The future of [`LockGuard::release`](crate::LockGuard::release).
///
/// # Cancel safety
/// Dropping it, polled or not, leaves the release to the engine.
#[must_use = "the answer of a release is lost unless it is awaited; drop the guard if it does not matter"]
pub struct Release {
    engine: Arc<Engine>,
    step: Step,
}

enum Step {
    /// It was lost before.
    Lost(Error),
    Begin(Pending),
    Calling(Pending, Reply<Answer>),
    Finished,
}

/// What the engine must release if this future does not.
struct Pending {
    parting: Parting,
    doubt: Doubt,
}

impl Release {
    pub(crate) fn new(engine: Arc<Engine>, parting: Parting, doubt: Doubt) -> Self {
        Self { engine, step: Step::Begin(Pending { parting, doubt }) }
    }

    pub(crate) fn lost(engine: Arc<Engine>, key: &LockKey, reason: LossReason) -> Self {
        Self { engine, step: Step::Lost(Error::lost(RELEASE, key, reason)) }
    }

    fn finish(&mut self, pending: Pending, result: Result<Answer, BackendError>) -> Result<(), Error> {
        let key = pending.parting.key.clone();
        let repeated = result.as_ref().is_ok_and(|answer| answer.repeated);
        match result.and_then(Answer::single) {
            Ok(Outcome::Released) => Ok(()),
            // The first answer was lost: it may have been this release that removed the key.
            Ok(Outcome::Gone) if repeated => Err(Error::new(ErrorKind::Backend, RELEASE).on(&key).detail(
                "the connection broke before the answer came; the key is no longer held, but whether it was \
                 released or lost before is not known",
            )),
            Ok(Outcome::Gone) => Err(Error::lost(RELEASE, &key, LossReason::Taken)),
            Ok(outcome) => Err(Error::backend(RELEASE, Some(&key), engine::unexpected(outcome))),
            Err(error) => {
                if error.kind() != ErrorKind::WrongType {
                    self.engine.clean_up(pending.parting, pending.doubt);
                }
                Err(Error::backend(RELEASE, Some(&key), error))
            }
        }
    }
}

impl Future for Release {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            match std::mem::replace(&mut this.step, Step::Finished) {
                Step::Lost(error) => return Poll::Ready(Err(error)),
                Step::Begin(pending) => {
                    // The runtime of the engine may have ended since; after a shutdown the release still goes out.
                    if let Err(error) = this.engine.admit(RELEASE)
                        && error.kind() != ErrorKind::ShutDown
                    {
                        let key = pending.parting.key.clone();
                        this.engine.clean_up(pending.parting, pending.doubt);
                        return Poll::Ready(Err(error.on(&key)));
                    }
                    let release = pending.parting.release(|| this.engine.now());
                    let reply = this.engine.call(vec![Operation::Release(release)]);
                    this.step = Step::Calling(pending, reply);
                }
                Step::Calling(pending, mut reply) => {
                    let engine = Arc::clone(&this.engine);
                    let Poll::Ready(result) = engine.enter(|| reply.as_mut().poll(cx)) else {
                        this.step = Step::Calling(pending, reply);
                        return Poll::Pending;
                    };
                    return Poll::Ready(this.finish(pending, result));
                }
                Step::Finished => panic!("`Release` polled after completion"),
            }
        }
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        if let Step::Begin(pending) | Step::Calling(pending, _) = std::mem::replace(&mut self.step, Step::Finished) {
            self.engine.clean_up(pending.parting, pending.doubt);
        }
    }
}

impl fmt::Debug for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Release").finish_non_exhaustive()
    }
}

/// The future of [`LockAllGuard::release`](crate::LockAllGuard::release).
///
/// # Cancel safety
/// Dropping it leaves the releases to the engine.
#[derive(Debug)]
#[must_use = "the answer of a release is lost unless it is awaited; drop the guard if it does not matter"]
pub struct ReleaseAll {
    releases: Vec<Release>,
    failed: Option<Error>,
}

impl ReleaseAll {
    pub(crate) fn new(releases: Vec<Release>) -> Self {
        Self { releases, failed: None }
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

const RELEASE: &str = "release";
