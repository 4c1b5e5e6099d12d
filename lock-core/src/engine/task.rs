//! The one task of a manager: renews what is due, releases what is over, asks for contenders, and polls the backend's
//! upkeep.
//!
//! Requests that come while others are under way share a call (group commit, as of a database's log).

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::schedule;
use crate::{
    backend::{self, Answer, BackendError, Batch, Notice, Operation, Outcome, Outcomes},
    clock::{Moment, Sleep},
    engine::{
        Core, State, UnderWay,
        cleanup::Try,
        metrics,
        queues::{Purpose, Trip, no_answer},
        tenure::Renewing,
    },
    error::ErrorKind,
};

/// The task's hold on the core: says that the task has ended, however it ends.
pub(crate) struct Running {
    core: Arc<Core>,
    /// Whether the task was polled.
    begun: bool,
}

impl Running {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core, begun: false }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.core.stopped(self.begun);
    }
}

/// What one call to the backend is for.
pub(crate) enum Work {
    Renew(Vec<Renewing>),
    /// Clean-ups, then what waited to be sent; together they count as under way.
    Send(Vec<Try>, Vec<Purpose>, UnderWay),
}

/// What the state decided to do next.
pub(crate) struct Step {
    pub(crate) work: Vec<(Batch, Work)>,
    /// Until when to sleep.
    until: Moment,
    /// Whether there is nothing left to do, now or later.
    finished: bool,
}

/// A call that ended: when it was sent, what for, and its answer.
type Done = (Moment, Work, Result<Answer, BackendError>);

/// The calls under way, by kind.
#[derive(Default)]
pub(crate) struct Calls {
    renewing: usize,
    sending: usize,
}

/// What the calls in flight leave room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Any,
    /// Nothing less than a whole call.
    WholeCalls,
    Nothing,
}

impl Room {
    fn of(sending: usize) -> Self {
        match sending {
            0..SENDING => Self::Any,
            SENDING..MOST_SENDING => Self::WholeCalls,
            _ => Self::Nothing,
        }
    }

    /// Whether another call is sent while so many requests wait.
    pub(crate) fn takes(self, waiting: usize) -> bool {
        match self {
            Self::Any => true,
            Self::WholeCalls => waiting >= BATCH,
            Self::Nothing => false,
        }
    }
}

/// Works until the last handle of the manager is gone and everything is cleaned up.
pub(crate) async fn run(mut running: Running) {
    running.begun = true;
    let core = &running.core;
    let (told, mut notices) = backend::Calls::new(Arc::clone(core.state().queues.channel()));
    let mut upkeep = core.backend.upkeep(told);
    let mut calls = FuturesUnordered::<Pin<Box<dyn Future<Output = Done> + Send>>>::new();
    let mut counted = Calls::default();
    let mut timer = Timer::default();
    let mut complaint = Moment::from_origin(Duration::ZERO);
    let mut answers = 0_usize;
    loop {
        let now = core.clock.now();
        let (epoch, settled) = (core.backend.epoch(), core.backend.is_settled());
        let Step { work, until, finished } = core.with(|state| state.step(core, now, epoch, settled, &mut counted));
        for (batch, work) in work {
            let reply = core.backend.call(batch);
            calls.push(Box::pin(async move { (now, work, reply.await) }));
        }
        if finished && calls.is_empty() {
            break;
        }
        tokio::select! {
            biased;
            Some((sent, work, result)) = calls.next() => {
                let (now, epoch) = (core.clock.now(), core.backend.epoch());
                if let (Work::Renew(renewals), Err(error)) = (&work, &result) {
                    metrics::renewal_failed();
                    if now >= complaint {
                        tracing::warn!(renewals = renewals.len(), %error, "renewals failed and will be tried again");
                        complaint = now + COMPLAINTS;
                    }
                }
                core.with(|state| state.take_answer(work, result, (sent, now, epoch), &mut counted));
                answers += 1;
                // Calls to a server that is known to be down are answered at once, and there may be no end of them. The
                // upkeep still has to connect anew, and the runtime to see to its timers and sockets.
                if answers.is_multiple_of(ANSWERS) {
                    tokio::select! {
                        biased;
                        () = &mut upkeep => upkeep = Box::pin(std::future::pending()),
                        () = tokio::task::yield_now() => {}
                    }
                }
            }
            // Before the notices that it gives.
            () = &mut upkeep => upkeep = Box::pin(std::future::pending()),
            Some(notice) = notices.recv() => {
                let now = core.clock.now();
                core.with(|state| match notice {
                    Notice::Called { key, token } => state.queues.called(key, token, now),
                    Notice::Listening(listening) => state.queues.listen(listening),
                });
            }
            () = core.wake.notified() => {}
            () = timer.until(core, until, now) => {}
        }
    }
}

/// One timer, which is kept for as long as its time stays the same.
#[derive(Default)]
struct Timer {
    set: Option<(Moment, Sleep)>,
}

impl Timer {
    async fn until(&mut self, core: &Core, until: Moment, now: Moment) {
        if until == Moment::NEVER {
            return std::future::pending().await;
        }
        if self.set.as_ref().is_none_or(|(at, _)| *at != until) {
            self.set = Some((until, core.clock.sleep(until.since(now))));
        }
        if let Some((_, sleep)) = &mut self.set {
            sleep.await;
        }
        self.set = None;
    }
}

impl State {
    /// Decides what to send now, until when to sleep, and whether there is nothing left to do.
    pub(crate) fn step(&mut self, core: &Core, now: Moment, epoch: u64, settled: bool, calls: &mut Calls) -> Step {
        let queues = &mut self.queues;
        let ended = queues.tenures.advance(now);
        queues.bury(ended, now);
        queues.advance(now);
        if self.closed {
            queues.cleanup.forget_expired(now, |_| {});
        }
        let mut work = Vec::new();
        while calls.renewing < schedule::CALLS && queues.tenures.has_renewals() {
            let renewals = queues.tenures.renewals(schedule::BATCH, now);
            if renewals.is_empty() {
                break;
            }
            let batch = renewals.iter().map(|renewal| Operation::Renew(renewal.request.clone())).collect();
            work.push((batch, Work::Renew(renewals)));
            calls.renewing += 1;
        }
        while Room::of(calls.sending).takes(queues.waiting_to_be_sent()) {
            // Releases first: waiters are called the sooner, and the next contender of the same key comes after it. At most
            // half of a call, so that a mass of releases does not hold up the requests.
            let room = BATCH - queues.waiting_to_be_sent().min(BATCH / 2);
            let tries = queues.cleanup.due(now, room);
            let mut batch: Batch = tries.iter().map(|entry| Operation::Release(entry.release.clone())).collect();
            let (operations, purposes) = queues.send(BATCH - batch.len(), now, epoch);
            batch.extend(operations);
            if batch.is_empty() {
                break;
            }
            work.push((batch, Work::Send(tries, purposes, core.under_way())));
            calls.sending += 1;
        }
        self.room = Room::of(calls.sending);
        let mut until = self.next();
        let settled = !self.closed || settled;
        if until < Moment::NEVER || !settled {
            until = until.min(now + NAP);
        }
        self.asleep_until = until;
        Step { work, until, finished: self.closed && settled && self.queues.is_done() && core.owes_nothing() }
    }

    fn take_answer(
        &mut self,
        work: Work,
        result: Result<Answer, BackendError>,
        (sent, now, epoch): (Moment, Moment, u64),
        calls: &mut Calls,
    ) {
        let queues = &mut self.queues;
        match work {
            Work::Renew(renewals) => {
                calls.renewing -= 1;
                let mut outcomes = result.ok().into_iter().flat_map(|answer| answer.outcomes);
                for renewal in renewals {
                    let outcome = match outcomes.next() {
                        Some(Ok(outcome)) => Some(outcome),
                        // Something else stands at the key: it is not ours any more.
                        Some(Err(error)) if error.kind() == ErrorKind::WrongType => Some(Outcome::Gone),
                        Some(Err(_)) | None => None,
                    };
                    queues.renewed(&renewal, outcome, sent, now);
                }
            }
            Work::Send(tries, purposes, _under_way) => {
                calls.sending -= 1;
                self.room = Room::of(calls.sending);
                let repeated = result.as_ref().is_ok_and(|answer| answer.repeated);
                let out_of_order = result.as_ref().is_ok_and(|answer| answer.out_of_order);
                if result.as_ref().is_ok_and(|answer| answer.calls_refused) {
                    queues.calls_refused();
                }
                let (outcomes, error) = match result {
                    Ok(answer) => (answer.outcomes, None),
                    Err(error) => (Outcomes::new(), Some(error)),
                };
                let mut outcomes = outcomes.into_iter();
                for Try { entry, .. } in tries {
                    let answered = outcomes.next().is_some_and(|outcome| Try::answered(&outcome));
                    queues.cleanup.tried(entry, answered.then_some(epoch), sent, now);
                }
                let trip = Trip { sent, now, epoch, repeated };
                for purpose in purposes {
                    let missing = || error.clone().unwrap_or_else(no_answer);
                    let outcome = outcomes.next().unwrap_or_else(|| Err(missing()));
                    let late = match &purpose {
                        Purpose::Ask(key, token) if out_of_order => Some((key.clone(), *token)),
                        _ => None,
                    };
                    queues.answered(purpose, outcome, trip);
                    // Its release, if there was one, may have been executed and answered before it.
                    if let Some((key, token)) = late {
                        queues.disown(key, token, now);
                    }
                }
            }
        }
    }
}

/// How long the task sleeps at most while anything is to come: the timers of the runtime do not count the time that the
/// machine was suspended, the lease clock does. (Also without a lease: one that is acquired after the machine has woken
/// up would not be looked at before the old timer.)
const NAP: Duration = Duration::from_millis(250);

/// How often failing renewals are complained of in the log.
const COMPLAINTS: Duration = Duration::from_secs(1);

/// After so many answers the upkeep is polled, even if more are there.
const ANSWERS: usize = 16;

/// The most operations in one call, but for renewals.
const BATCH: usize = 256;

/// The calls in flight at once, except renewals: what comes meanwhile shares the next one.
const SENDING: usize = 2;

/// The most calls in flight at once if there is a whole call more to send: over a long way, requests would be out of time
/// before they are sent.
const MOST_SENDING: usize = 16;
