//! The state behind one lock, shared by the engine's task and its handles, and the flags around it.
//!
//! Every change goes through [`Core::with`]. If it leaves something to send, its thread becomes the sender: it takes a batch under the lock
//! and calls the backend without it. Other threads only register their requests meanwhile, and the sender takes them along, so requests
//! leave in one order, and no task stands between a caller and the socket.

use std::{
    collections::VecDeque,
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    sync::{Arc, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{
    runtime::{self, Handle},
    sync::Notify,
};

use super::{
    deferred::Deferred,
    gathering::Gathering,
    pulse::Pulse,
    question::Message,
    queues::{
        Queues,
        in_flight::{CallId, List, Transmits},
    },
    sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering},
};
use crate::{
    backend::{Answer, Backend, BackendError, Replied, Reply},
    caught::caught,
    clock::{Clock, Moment, Sleep},
    error::ErrorKind,
};

/// The part of the engine that the task and the handles share.
pub(crate) struct Core {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    /// When the task has to look at the clock.
    pub(super) pulse: Arc<Pulse>,
    /// After which wait the engine asks who holds a key.
    pub(super) explain_after: Option<Duration>,
    /// The runtime of the builder; else the task runs on that of the first request.
    runtime: Option<Handle>,
    state: Mutex<State>,
    /// Tokens that futures of the user's have to hand to the clean-up; see [`KeepAlive`].
    kept_alive: AtomicUsize,
    /// Whether requests are taken and the task runs, to be seen without the lock.
    open: AtomicBool,
    /// Wakes the task before the moment it sleeps until.
    pub(crate) wake: Notify,
    /// Tells `shutdown` that something has changed.
    pub(crate) settled: Notify,
}

/// Everything that changes.
pub(crate) struct State {
    pub(crate) queues: Queues,
    /// Whether the task runs.
    running: bool,
    /// Whether the builder's runtime has ended.
    runtime_ended: bool,
    /// When the task looked last.
    looked_at: Moment,
    /// Until when the task sleeps unless it is woken.
    asleep_until: Moment,
    /// Whether a thread is in [`Core::transmit`].
    calling: bool,
    /// Whether the thread of a request sends it, as of the task's last step.
    sends_at_once: bool,
    /// The requests that wait for others, until the task has passed its turn.
    gathering: Gathering,
    /// Whether there is a call that leaves when the task polls its reply for the first time. No later round of calls may leave before it.
    pub(super) unsent: bool,
    /// The replies of calls in flight, on their way to the task.
    pub(super) replies: Vec<(CallId, Reply<Answer>)>,
    /// Whether something was sent since the task has looked.
    sent: bool,
    /// How many tasks have ended.
    pub(super) ended: u64,
    /// Requests are refused.
    pub(crate) shut_down: bool,
    /// No handle is left that could make a request: the task ends when it has cleaned up.
    pub(super) closed: bool,
}

impl Core {
    pub(super) fn new(
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        pulse: Arc<Pulse>,
        runtime: Option<Handle>,
        explain_after: Option<Duration>,
        queues: Queues,
    ) -> Arc<Self> {
        let state = State {
            queues,
            running: false,
            runtime_ended: false,
            looked_at: Moment::from_origin(Duration::ZERO),
            asleep_until: Moment::NEVER,
            calling: false,
            sends_at_once: backend.sends_at_once(),
            gathering: Gathering::default(),
            unsent: false,
            replies: Vec::new(),
            sent: false,
            ended: 0,
            shut_down: false,
            closed: false,
        };
        Arc::new(Self {
            backend,
            clock,
            pulse,
            explain_after,
            runtime,
            state: Mutex::new(state),
            kept_alive: AtomicUsize::new(0),
            open: AtomicBool::new(false),
            wake: Notify::new(),
            settled: Notify::new(),
        })
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Whether the task runs and takes requests, without a look at the state.
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Returns the runtime on which to start the task, or `None` if it runs. Refuses to after a shutdown.
    ///
    /// The task counts as running from now on.
    pub(super) fn begin_task(&self) -> Result<Option<Handle>, ErrorKind> {
        let mut state = self.state();
        if state.shut_down {
            return Err(ErrorKind::ShutDown);
        }
        if state.running {
            return Ok(None);
        }
        if state.runtime_ended {
            return Err(ErrorKind::NoRuntime);
        }
        let runtime = match &self.runtime {
            Some(runtime) => runtime.clone(),
            None => Handle::try_current().map_err(|_| ErrorKind::NoRuntime)?,
        };
        // Set before the task is spawned, under the lock: otherwise a second request would start a second task.
        state.running = true;
        self.open.store(true, Ordering::Release);
        Ok(Some(runtime))
    }

    /// Refuses requests from now on.
    pub(super) fn close(&self) {
        self.open.store(false, Ordering::SeqCst);
    }

    /// Why a request cannot go on without the task.
    pub(crate) fn ended(&self, kind: ErrorKind) -> BackendError {
        match (kind, &self.runtime) {
            (ErrorKind::NoRuntime, Some(_)) => BackendError::new(
                kind,
                "the runtime that the manager was given by `LockManager::builder().runtime(..)` has ended; use one that \
                 lives as long as the manager",
            ),
            _ => BackendError::new(kind, kind.to_string()),
        }
    }

    /// How long a future waits for the engine at most, or `None` for no limit. The engine fails a request that the backend does not
    /// answer in time; if that takes longer than this, the task does not run.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let limit = self.backend.time_limit();
        (limit < Duration::MAX).then(|| limit.saturating_add(2 * LONGEST_SLEEP))
    }

    /// Whether there is a runtime for a timer.
    pub(crate) fn has_timers(&self) -> bool {
        self.runtime.is_some() || Handle::try_current().is_ok()
    }

    /// Makes a timer of the clock, on the builder's runtime if one was given.
    pub(crate) fn sleep(self: &Arc<Self>, duration: Duration) -> Timer {
        let _entered = self.runtime.as_ref().map(Handle::enter);
        let until = self.clock.now() + duration;
        Timer { sleep: self.clock.sleep(duration), until, of: present_runtime(), core: Arc::clone(self) }
    }

    /// Polls a timer, which may belong to the builder's runtime.
    ///
    /// The timers of a runtime that has ended panic, and the runtime can end between a check and the poll. So the panic is caught. A
    /// runtime that has ended refuses tasks, which distinguishes such a panic from any other.
    fn in_runtime<R>(&self, poll: impl FnOnce() -> R) -> Replied<R> {
        let Some(runtime) = &self.runtime else { return Ok(poll()) };
        let _entered = runtime.enter();
        panic::catch_unwind(AssertUnwindSafe(poll)).map_err(|panic| {
            let probe = runtime.spawn(std::future::pending::<()>());
            if !probe.is_finished() {
                probe.abort();
                panic::resume_unwind(panic);
            }
            self.ended(ErrorKind::NoRuntime)
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and sends what there is to send now. Then, without the lock, does what was put off, and wakes the task if there
    /// is something for it to do sooner than it thought.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state();
        let result = change(&mut state);
        let mut deferred = Put::new();
        deferred.extend(state.queues.take_deferred());
        let mut due = false;
        let waiting = state.queues.waiting();
        state.gathering.look(waiting);
        if state.sends_at_once && !state.gathering.holds() && state.queues.can_send() {
            (state, due) = self.transmit(state, &mut deferred, None);
        }
        // The task sleeps until `asleep_until`, which it wrote under this lock in `step`. So a change either comes before that step and
        // is seen by it, or finds `asleep_until` here and wakes the task; no change can fall in between.
        due |= state.poll_timeout() < state.asleep_until;
        if due {
            // One wake-up is enough until the task has looked: the changes that follow find a moment that is never later than theirs.
            state.asleep_until = Moment::from_origin(Duration::ZERO);
        }
        let shut_down = state.shut_down;
        drop(state);
        if due {
            self.wake.notify_one();
        }
        self.finish(shut_down, deferred);
        result
    }

    /// Does what was put off, now that the lock is free. Wakers, log writers and recorders of metrics run in the drop of `deferred`: they
    /// are the user's code, may call the engine, and would deadlock under the lock.
    fn finish(&self, shut_down: bool, deferred: Put) {
        if shut_down {
            let _ = caught("waker", || self.settled.notify_waiters());
        }
        drop(deferred);
    }

    /// Gives the backend what waits to be sent, and handles the answers that are there at once. The task gets the other replies; returns
    /// whether it has to be woken for one. `known` are the present moment and epoch, if the task calls.
    ///
    /// One thread calls at a time, because requests must be executed in the order in which they leave. The others leave
    /// theirs to that thread, which looks again before it stops (flat combining: Hendler, Incze, Shavit and Tzafrir,
    /// 2010).
    fn transmit<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        deferred: &mut Put,
        mut known: Option<(Moment, u64)>,
    ) -> (MutexGuard<'a, State>, bool) {
        if state.calling {
            return (state, false);
        }
        state.calling = true;
        let (mut due, mut rounds) = (false, 0);
        // A thread that has served many others leaves the rest to the task, and so does one that comes behind a call that is not sent.
        while rounds < ROUNDS && !state.unsent && (known.is_some() || state.can_transmit()) {
            rounds += 1;
            let (now, epoch) = match known.take() {
                Some(known) => known,
                None => {
                    // The epoch of a request is read before the request is sent, and that of an answer after the answer has come. If a
                    // connection is replaced in between, the two differ, and the token stays in doubt. Read the other way round, a
                    // release over the new connection could seem to settle a request that the server may still execute over the old one.
                    drop(state);
                    let known = caught("clock or backend", || (self.clock.now(), self.backend.epoch()));
                    state = self.state();
                    let Some(known) = known else {
                        due = true;
                        break;
                    };
                    known
                }
            };
            let calls = state.poll_calls(now, epoch);
            if calls.is_empty() {
                break;
            }
            state.sent = true;
            let ended = state.ended;
            drop(state);
            let call = |batch| {
                let reply = caught("backend", || self.backend.call(batch));
                let mut reply = reply.unwrap_or_else(|| Reply::ready(Err(BackendError::panicked())));
                (reply.take(), reply)
            };
            let replies: SmallVec<[_; 1]> = calls.into_iter().map(|(number, batch)| (number, call(batch))).collect();
            let is_answered = replies.iter().any(|(_, (answer, _))| answer.is_some());
            let epoch = if is_answered { caught("backend", || self.backend.epoch()).unwrap_or(epoch) } else { epoch };
            state = self.state();
            if state.ended != ended {
                // The requests have failed when the task ended, and the numbers of the calls may belong to others by now.
                drop(state);
                let _ = caught("backend", || drop(replies));
                state = self.state();
                continue;
            }
            for (call, (answer, reply)) in replies {
                match answer {
                    Some(answer) => state.queues.handle_response(call, answer, now, epoch),
                    None => {
                        // An answer may have been read before the task knew of the call, which nothing shows it then. And it has to
                        // know of the call's time limit soon.
                        state.unsent |= reply.is_unsent();
                        due |= reply.is_unsent() || reply.is_overtaken() || now + LONGEST_SLEEP < state.asleep_until;
                        state.replies.push((call, reply));
                    }
                }
            }
            deferred.extend(state.queues.take_deferred());
        }
        state.calling = false;
        (state, due || rounds == ROUNDS)
    }

    /// Takes the replies of calls in flight that the task does not have yet. It has read what has arrived before.
    pub(super) fn take_replies(&self, replies: &mut Vec<(CallId, Reply<Answer>)>) {
        replies.append(&mut self.state().replies);
    }

    /// Whether there are any of them.
    pub(super) fn has_replies(&self) -> bool {
        !self.state().replies.is_empty()
    }

    /// Records that the replies which the task has taken were polled, so that their calls have left. After a panic of the task, `replies`
    /// may still hold some that were not. Returns whether something waits that can leave now.
    pub(super) fn note_sent(&self) -> bool {
        let mut state = self.state();
        state.unsent = state.replies.iter().any(|(_, reply)| reply.is_unsent());
        !state.unsent && !state.calling && state.can_transmit()
    }

    /// Handles answers, on behalf of the task. If requests are `gathering`, they wait for one another from now on; see [`Gathering`].
    pub(super) fn handle_answers(&self, answers: &mut VecDeque<(CallId, Replied<Answer>)>, gathering: bool) {
        // Read after the answers have come; see `transmit`.
        let (now, epoch) = (self.clock.now(), self.backend.epoch());
        self.with(|state| {
            let outcomes =
                answers.iter().flat_map(|(_, result)| result).map(|answer| answer.outcomes.len()).sum::<usize>();
            // One at a time: if the clock panics at one of them, the others are left.
            while let Some((call, result)) = answers.pop_front() {
                state.queues.handle_response(call, result, now, epoch);
            }
            if gathering {
                let queues = &state.queues;
                state.gathering.expect(outcomes, queues.waiting(), queues.takes_two_calls());
            }
            // The task is awake, and looks again soon.
            state.asleep_until = Moment::from_origin(Duration::ZERO);
        });
    }

    /// Decides what to do now, sends what there is to send, and decides until when to sleep. Requests that are `gathering` are not sent
    /// yet; renewals are.
    pub(super) fn step(&self, gathering: bool) -> Step {
        let (now, epoch, settled) = (self.clock.now(), self.backend.epoch(), self.backend.is_settled());
        let (calls_at_once, sends_at_once) = (self.backend.calls_at_once(), self.backend.sends_at_once());
        // Before the leases that have lapsed are ended: they are told whether that was why.
        self.pulse.beat(now);
        let mut deferred = Put::new();
        let mut state = self.state();
        state.queues.calls_at_once = calls_at_once;
        state.sends_at_once = sends_at_once;
        if gathering {
            state.gathering.go_on();
        } else {
            state.gathering.end();
        }
        state.handle_timeout(now);
        deferred.extend(state.queues.take_deferred());
        let (mut state, _) = self.transmit(state, &mut deferred, Some((now, epoch)));
        let step = state.rest(self, now, settled);
        let shut_down = state.shut_down;
        drop(state);
        self.finish(shut_down, deferred);
        step
    }

    /// Counts a token that a future of the user's is to hand to the clean-up before it drops this.
    pub(crate) fn keep_alive(self: &Arc<Self>) -> KeepAlive {
        self.kept_alive.fetch_add(1, Ordering::SeqCst);
        KeepAlive(Arc::clone(self))
    }

    /// Whether a future of the user's has a token left to release.
    pub(super) fn is_kept_alive(&self) -> bool {
        self.kept_alive.load(Ordering::SeqCst) != 0
    }

    /// Records that the task has ended: the leases that it renewed are lost. `begun` says whether it was ever polled. If the
    /// builder's runtime drops a task before its first poll, that runtime has ended, and no waiter tries it again.
    pub(super) fn stopped(&self, begun: bool) {
        // The engine may end because the clock has panicked. What it last showed will do: the next task looks again.
        let now = caught("clock", || self.clock.now());
        self.pulse.rest(Moment::NEVER);
        // All of it under one lock: a request that sees `running == false` starts the next task, and must find the requests of this one
        // failed, and its leases ended.
        let mut state = self.state();
        state.running = false;
        self.open.store(false, Ordering::Release);
        let now = now.unwrap_or(state.looked_at);
        state.asleep_until = Moment::NEVER;
        state.runtime_ended |= !begun && self.runtime.is_some();
        state.queues.restart(now);
        state.gathering.end();
        state.unsent = false;
        state.ended += 1;
        let replies = std::mem::take(&mut state.replies);
        let deferred = state.queues.take_deferred();
        drop(state);
        let _ = caught("backend", || drop(replies));
        drop(deferred);
        let _ = caught("waker", || self.settled.notify_waiters());
    }
}

/// The next actions of the task, as the state decided.
pub(super) struct Step {
    /// The moment of the decision.
    pub(super) now: Moment,
    pub(super) lists: Vec<List>,
    pub(super) messages: Vec<Message>,
    /// Until when to sleep.
    pub(super) until: Moment,
    /// Whether there is nothing left to do, now or later.
    pub(super) finished: bool,
}

impl State {
    /// Whether the task runs.
    pub(super) fn is_running(&self) -> bool {
        self.running
    }

    /// Returns when the task has something to do. A thread that [calls](Core::transmit) sends what waits, and then wakes the task for what
    /// is left.
    fn poll_timeout(&self) -> Moment {
        if self.calling { self.queues.next_timer() } else { self.queues.poll_timeout() }
    }

    /// Whether there is something to send.
    fn can_transmit(&self) -> bool {
        self.queues.can_renew() || (!self.gathering.holds() && self.queues.can_send())
    }

    /// Takes what is to be sent now.
    fn poll_calls(&mut self, now: Moment, epoch: u64) -> Transmits {
        // Renewals leave before requests: a lease ends if its renewal comes too late, while a request may wait.
        let mut calls = self.queues.poll_renewals(now);
        if !self.gathering.holds() {
            self.gathering.left(self.queues.waiting());
            calls.extend(self.queues.poll_transmit(now, epoch));
        }
        calls
    }

    /// Ends what is over.
    fn handle_timeout(&mut self, now: Moment) {
        self.looked_at = now;
        let queues = &mut self.queues;
        // First, since it ends the leases that have lapsed and collects the renewals that are due: a lapsed lease must not be renewed.
        queues.handle_timeout(now);
        if self.closed {
            queues.cleanup.forget_expired(now, |_| {});
            if queues.is_done() {
                queues.questions.forget_others();
            }
        }
    }

    /// Decides until when the task sleeps.
    fn rest(&mut self, core: &Core, now: Moment, settled: bool) -> Step {
        let queues = &mut self.queues;
        let (lists, messages) = (std::mem::take(&mut queues.lists), queues.poll_messages(now));
        let mut until = self.poll_timeout();
        let settled = !self.closed || settled;
        // While there are requests, the task does not sleep without an end between them: the next one would have to wake it for its timers.
        if until < Moment::NEVER || !settled || std::mem::take(&mut self.sent) {
            // Tokio's timers do not count suspended time, but the lease clock does. After a suspension a deadline has passed while its
            // timer still waits; a bounded sleep notices that within a quarter of a second.
            until = until.min(now + LONGEST_SLEEP);
        }
        // While requests gather, the task is about to look again.
        self.asleep_until = if self.gathering.is_on() { now } else { until };
        core.pulse.rest(until.max(now));
        let finished = self.closed && settled && self.queues.is_done() && !core.is_kept_alive();
        Step { now, lists, messages, until, finished }
    }
}

/// A timer that ends with an error if the builder's runtime does, and otherwise belongs to the runtime that polls it.
pub(crate) struct Timer {
    sleep: Sleep,
    until: Moment,
    of: Option<runtime::Id>,
    core: Arc<Core>,
}

fn present_runtime() -> Option<runtime::Id> {
    Handle::try_current().ok().map(|runtime| runtime.id())
}

impl Future for Timer {
    type Output = Replied<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let here = present_runtime();
        if self.core.runtime.is_none() && here.is_some() && here != self.of {
            // The other runtime may have ended, and its timers panic then.
            *self = self.core.sleep(self.until.since(self.core.clock.now()));
        }
        let Self { sleep, core, .. } = &mut *self;
        let polled = match here {
            // Without a runtime, it may be the timer of one that has ended.
            None if core.runtime.is_none() => panic::catch_unwind(AssertUnwindSafe(|| sleep.as_mut().poll(cx)))
                .map_err(|_| core.ended(ErrorKind::NoRuntime)),
            _ => core.in_runtime(|| sleep.as_mut().poll(cx)),
        };
        match polled {
            Ok(polled) => polled.map(Ok),
            Err(ended) => Poll::Ready(Err(ended)),
        }
    }
}

/// A token that only a future of the user's knows. Until that future is done or dropped, even if it is not polled, the task of a
/// manager that was shut down stays, so that it can clean the token up.
pub(crate) struct KeepAlive(Arc<Core>);

impl Drop for KeepAlive {
    fn drop(&mut self) {
        // This thread counts down and then reads `open`; a shutdown clears `open` and then reads the count. As all four are sequentially
        // consistent, either the shutdown sees the new count, or this thread sees that it has to wake the shutdown.
        self.0.kept_alive.fetch_sub(1, Ordering::SeqCst);
        if !self.0.open.load(Ordering::SeqCst) {
            self.0.wake.notify_one();
            self.0.settled.notify_waiters();
        }
    }
}

shows!(Core, backend);

/// How long the task sleeps at most while any timer is set: the timers of the runtime do not count the time for which the machine
/// was suspended, but the lease clock does. (This is also true without a lease: a lease that is acquired after the machine has
/// woken up would otherwise be renewed only when the old timer fires.)
const LONGEST_SLEEP: Duration = Duration::from_millis(250);

/// What was put off until the lock is free.
type Put = SmallVec<[Deferred; 2]>;

/// How often a thread calls the backend before it leaves the rest to the task.
const ROUNDS: usize = 64;

/// What a model does in place of the task.
#[cfg(all(test, lock_loom))]
mod by_hand {
    use super::*;

    impl Core {
        /// Takes the place of the task.
        pub(in crate::engine) fn run_by_hand(&self) {
            self.state().running = true;
            self.open.store(true, Ordering::Release);
        }
    }

    impl State {
        /// Has no timer wake the task.
        pub(in crate::engine) fn ignore_timers(&mut self) {
            self.asleep_until = Moment::from_origin(Duration::ZERO);
        }
    }
}
