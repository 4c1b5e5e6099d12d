use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::sync::oneshot;

use crate::{
    backend::{Answer, BackendError, Batch, Operation, Outcome},
    clock::Moment,
    engine::{
        Call, Engine, Owed, Timer,
        cleanup::{CleanUp, Doubt, Parting, Try},
        queues::{Departure, Released, unexpected},
        tenure::HoldId,
    },
    error::{Error, ErrorKind, LossReason, RELEASE},
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
    /// The next hold of the tenure has followed in the process.
    Passed,
    Begin(Pending),
    Calling(Pending, Call),
    /// The engine sends it, and cleans up what is not answered.
    Sent(Sent),
    Finished,
}

/// A release that the engine sends, and the limit of the wait for its answer.
struct Sent {
    key: LockKey,
    answer: oneshot::Receiver<Released>,
    /// Made by the first poll that finds no answer.
    timer: Option<Timer>,
}

/// What the engine must release if this future does not.
struct Pending {
    parting: Parting,
    doubt: Doubt,
    /// Dropped last, when the engine knows what is left.
    _owed: Owed,
}

impl Release {
    pub(crate) fn new(engine: Arc<Engine>, key: &LockKey, hold: HoldId, now: Moment) -> Self {
        // Before the tenure is over, so that a shutdown sees one or the other.
        let _owed = engine.owe();
        let step = match engine.release(hold, now) {
            Departure::Passed => Step::Passed,
            Departure::Over => Step::Lost(Error::lost(RELEASE, key, LossReason::Taken)),
            Departure::Send(parting, doubt) => Step::Begin(Pending { parting, doubt, _owed }),
            Departure::Sent(answer) => Step::Sent(Sent { key: key.clone(), answer, timer: None }),
        };
        Self { engine, step }
    }

    pub(crate) fn lost(engine: Arc<Engine>, key: &LockKey, reason: LossReason) -> Self {
        Self { engine, step: Step::Lost(Error::lost(RELEASE, key, reason)) }
    }

    fn finish(&mut self, pending: Pending, result: Result<Answer, BackendError>) -> Result<(), Error> {
        let repeated = result.as_ref().is_ok_and(|answer| answer.repeated);
        let result = result.and_then(Answer::single);
        let settled = match &result {
            // A request of before a reconnect may still be executed.
            Ok(_) => !repeated && CleanUp::settles(pending.doubt, self.engine.epoch()),
            Err(_) => Try::answered(&result),
        };
        let read = read(&pending.parting.key, result, repeated);
        if !settled {
            self.engine.clean_up(pending.parting, pending.doubt);
        }
        read
    }
}

fn read(key: &LockKey, result: Result<Outcome, BackendError>, repeated: bool) -> Result<(), Error> {
    match result {
        Ok(Outcome::Released) => Ok(()),
        // The first answer was lost: it may have been this release that removed the key.
        Ok(Outcome::Gone) if repeated => Err(Error::new(ErrorKind::Backend, RELEASE).on(key).detail(
            "the connection broke before the answer came; the key is no longer held, but whether it was released or \
             lost before is not known",
        )),
        Ok(Outcome::Gone) => Err(Error::lost(RELEASE, key, LossReason::Taken)),
        Ok(outcome) => Err(Error::backend(RELEASE, Some(key), unexpected(outcome))),
        Err(error) => Err(Error::backend(RELEASE, Some(key), error)),
    }
}

impl Future for Release {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            match std::mem::replace(&mut this.step, Step::Finished) {
                Step::Lost(error) => return Poll::Ready(Err(error)),
                Step::Passed => return Poll::Ready(Ok(())),
                Step::Begin(pending) => {
                    // The runtime of the engine may have ended since; after a shutdown the release still goes out.
                    if let Err(error) = this.engine.admit_holder(RELEASE) {
                        let key = pending.parting.key.clone();
                        this.engine.clean_up(pending.parting, pending.doubt);
                        return Poll::Ready(Err(error.on(&key)));
                    }
                    let release = pending.parting.release(pending.doubt, || this.engine.now());
                    let call = this.engine.call(Batch::from([Operation::Release(release)]));
                    this.step = Step::Calling(pending, call);
                }
                Step::Calling(pending, mut call) => {
                    let Poll::Ready(result) = Pin::new(&mut call).poll(cx) else {
                        this.step = Step::Calling(pending, call);
                        return Poll::Pending;
                    };
                    return Poll::Ready(this.finish(pending, result));
                }
                Step::Sent(mut sent) => {
                    let result = sent.poll(&this.engine, cx);
                    if result.is_pending() {
                        this.step = Step::Sent(sent);
                    }
                    return result;
                }
                Step::Finished => panic!("`Release` polled after completion"),
            }
        }
    }
}

impl Sent {
    fn poll(&mut self, engine: &Engine, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let failed = |detail| Poll::Ready(Err(Error::new(ErrorKind::Backend, RELEASE).on(&self.key).detail(detail)));
        if let Poll::Ready(released) = Pin::new(&mut self.answer).poll(cx) {
            return match released {
                Ok((result, repeated)) => Poll::Ready(read(&self.key, result, repeated)),
                Err(_) => failed(
                    "the runtime of the engine ended before the answer came; the key is free when its ttl is over, if \
                     not before"
                        .to_owned(),
                ),
            };
        }
        // If the runtime of the engine has ended, this one goes on with its work.
        engine.admit_holder(RELEASE).map_err(|error| error.on(&self.key))?;
        let limit = engine.time_limit();
        if limit < Duration::MAX {
            let ended = ready!(Pin::new(self.timer.get_or_insert_with(|| engine.sleep(limit))).poll(cx));
            ended.map_err(|error| Error::backend(RELEASE, Some(&self.key), error))?;
            return failed(format!(
                "the backend did not answer within {limit:?}; the release goes on in the background"
            ));
        }
        Poll::Pending
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
