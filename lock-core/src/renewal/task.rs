//! The one task of a manager: renews what is due, releases what is over, and polls the backend's upkeep.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::schedule;
use crate::{
    backend::{Answer, BackendError, Operation, Outcome},
    cleanup::Try,
    clock::Moment,
    engine::{Core, State},
    error::ErrorKind,
    lease::Wakers,
    metrics,
    queue::tenure::Renewing,
};

/// The task's hold on the core: says that the task has ended, however it ends.
pub(crate) struct Running {
    core: Arc<Core>,
}

impl Running {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.core.stopped();
    }
}

/// What one call to the backend is for.
enum Work {
    Renew(Vec<Renewing>),
    CleanUp(Vec<Try>),
}

impl Work {
    fn batch(&self) -> Vec<Operation> {
        match self {
            Self::Renew(renewals) => renewals.iter().map(|renewal| Operation::Renew(renewal.request.clone())).collect(),
            Self::CleanUp(tries) => tries.iter().map(|entry| Operation::Release(entry.release.clone())).collect(),
        }
    }
}

/// What the state decided to do next.
struct Step {
    work: Vec<Work>,
    /// Until when to sleep.
    until: Moment,
    /// Whether there is nothing left to do, now or later.
    finished: bool,
    /// To be dropped when the state is unlocked.
    wakers: Vec<Wakers>,
}

/// A call that ended: when it was sent, what for, and its answer.
type Done = (Moment, Work, Result<Answer, BackendError>);

/// Works until the last handle of the manager is gone and everything is cleaned up.
pub(crate) async fn run(running: Running) {
    let core = &running.core;
    let mut upkeep = core.backend.upkeep();
    let mut calls = FuturesUnordered::<Pin<Box<dyn Future<Output = Done> + Send>>>::new();
    let mut renewing = 0;
    loop {
        let now = core.clock.now();
        let Step { work, until, finished, wakers } = core.state().step(core, now, &mut renewing);
        drop(wakers);
        for work in work {
            let reply = core.backend.call(work.batch());
            calls.push(Box::pin(async move { (now, work, reply.await) }));
        }
        if finished && calls.is_empty() {
            break;
        }
        let timer = async {
            match until {
                Moment::NEVER => std::future::pending().await,
                until => core.clock.sleep(until.since(now)).await,
            }
        };
        tokio::select! {
            biased;
            Some((sent, work, result)) = calls.next() => {
                let now = core.clock.now();
                if matches!(work, Work::Renew(_)) {
                    renewing -= 1;
                }
                let wakers = core.state().take_answer(core, sent, work, result, now);
                drop(wakers);
            }
            () = core.wake.notified() => {}
            () = timer => {}
            () = &mut upkeep => upkeep = Box::pin(std::future::pending()),
        }
    }
}

impl State {
    /// Decides what to send now, until when to sleep, and whether there is nothing left to do.
    fn step(&mut self, core: &Core, now: Moment, renewing: &mut usize) -> Step {
        let ended = self.tenures.advance(now);
        let wakers = core.bury(self, ended);
        if self.closed {
            self.cleanup.forget_expired(now);
        }
        let mut work = Vec::new();
        while *renewing < schedule::CALLS && self.tenures.has_renewals() {
            let renewals = self.tenures.renewals(schedule::BATCH, now);
            if renewals.is_empty() {
                break;
            }
            work.push(Work::Renew(renewals));
            *renewing += 1;
        }
        loop {
            let tries = self.cleanup.due(now, schedule::BATCH);
            if tries.is_empty() {
                break;
            }
            work.push(Work::CleanUp(tries));
        }
        let nap = if self.tenures.len() > 0 { now + NAP } else { Moment::NEVER };
        let next = self.tenures.next().into_iter().chain(self.cleanup.next()).fold(nap, Moment::min);
        self.asleep_until = next;
        let finished = self.closed && self.tenures.len() == 0 && self.cleanup.is_empty();
        Step { work, until: next, finished, wakers }
    }

    fn take_answer(
        &mut self,
        core: &Core,
        sent: Moment,
        work: Work,
        result: Result<Answer, BackendError>,
        now: Moment,
    ) -> Vec<Wakers> {
        match work {
            Work::Renew(renewals) => {
                if let Err(error) = &result {
                    metrics::renewal_failed();
                    tracing::warn!(renewals = renewals.len(), %error, "renewals failed and will be tried again");
                }
                let mut outcomes = result.ok().into_iter().flat_map(|answer| answer.outcomes);
                let mut all_ended = Vec::new();
                for renewal in renewals {
                    let outcome = match outcomes.next() {
                        Some(Ok(outcome)) => Some(outcome),
                        // Something else stands at the key: it is not ours any more.
                        Some(Err(error)) if error.kind() == ErrorKind::WrongType => Some(Outcome::Gone),
                        Some(Err(_)) | None => None,
                    };
                    let ended = self.tenures.renewed(&renewal, outcome, sent, now, core.jitter());
                    all_ended.extend(ended);
                }
                core.bury(self, all_ended)
            }
            Work::CleanUp(tries) => {
                let epoch = core.backend.epoch();
                let mut outcomes = result.ok().into_iter().flat_map(|answer| answer.outcomes);
                for Try { entry, .. } in tries {
                    // A wrong type answers too: the token is not there.
                    let answered = outcomes.next().is_some_and(|outcome| match outcome {
                        Ok(_) => true,
                        Err(error) => error.kind() == ErrorKind::WrongType,
                    });
                    self.cleanup.tried(entry, answered.then_some(epoch), sent, now);
                }
                core.settled.notify_waiters();
                Vec::new()
            }
        }
    }
}

/// How long the task sleeps at most while leases are held: the timers of the runtime do not count the time that the
/// machine was suspended, the lease clock does.
const NAP: Duration = Duration::from_millis(250);
