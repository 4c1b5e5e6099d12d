//! What a manager, its requests and its guards share: the backend, the clock, the randomness, and the state that the
//! one engine task works on.
//!
//! An [`Engine`] is held by everything a user holds; when the last one goes, the task finishes what is left and ends.
//! The task itself holds only the [`Core`].

pub(crate) mod cleanup;
pub(crate) mod deferred;
#[cfg(test)]
pub(crate) mod fixture;
pub(crate) mod hold;
pub(crate) mod limits;
pub(crate) mod metrics;
#[cfg(all(test, lock_loom))]
mod models;
pub(crate) mod queues;
pub(crate) mod schedule;
pub(crate) mod slack;
pub(crate) mod sync;
pub(crate) mod task;
pub(crate) mod tenure;
pub(crate) mod wheel;

use std::{
    fmt,
    future::Future,
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    sync::{Arc, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use rand::{SeedableRng, rngs::StdRng};
use tokio::{runtime::Handle, sync::Notify};

use crate::{
    backend::{Answer, Backend, BackendError, Batch, Renew, Reply},
    clock::{Clock, Moment, Sleep},
    engine::{
        cleanup::{Doubt, Parting},
        limits::Limits,
        queues::{Arrival, Departure, Newcomer, Queues, Trip, line::WaiterId},
        sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering},
        task::Room,
        tenure::{Acquired, HoldId, Offer, Terms},
    },
    error::{ACQUIRE, Error, ErrorKind, LossReason},
    health::Health,
    key::LockKey,
    mutants::Mutant,
    token::Token,
    ttl::Ttl,
};

/// A handle that keeps the engine alive.
pub(crate) struct Engine {
    core: Arc<Core>,
}

/// What the task and the handle share.
pub(crate) struct Core {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    /// The runtime of the builder; else the task runs on that of the first request.
    runtime: Option<Handle>,
    state: Mutex<State>,
    /// Each call to the backend that is under way has a clone.
    under_way: Arc<()>,
    /// Tokens that futures of the user's have to release or to hand to the clean-up; see [`Owed`].
    owed: AtomicUsize,
    /// Whether requests are taken and the task runs, to be seen without the lock.
    open: AtomicBool,
    /// Wakes the task before the moment it sleeps until.
    pub(crate) wake: Notify,
    /// Tells `shutdown` that something has changed.
    pub(crate) settled: Notify,
}

pub(crate) struct State {
    pub(crate) queues: Queues,
    /// Whether the task runs.
    running: bool,
    /// Whether the builder's runtime has ended.
    runtime_ended: bool,
    /// Until when the task sleeps unless it is woken.
    pub(crate) asleep_until: Moment,
    /// What the calls in flight leave room for: what is to be sent waits until there is some.
    pub(crate) room: Room,
    /// Requests are refused.
    shut_down: bool,
    /// Nobody is left who could ask for anything: the task ends when it has cleaned up.
    pub(crate) closed: bool,
}

impl Engine {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        runtime: Option<Handle>,
        seed: Option<u64>,
        limits: Limits,
    ) -> Arc<Self> {
        let random = seed.map_or_else(rand::make_rng, StdRng::seed_from_u64);
        let limits = Limits { answer: backend.time_limit(), ..limits };
        let state = State {
            queues: Queues::new(Arc::clone(&clock), random, limits),
            running: false,
            runtime_ended: false,
            asleep_until: Moment::NEVER,
            room: Room::Any,
            shut_down: false,
            closed: false,
        };
        let core = Core {
            backend,
            clock,
            runtime,
            state: Mutex::new(state),
            under_way: Arc::new(()),
            owed: AtomicUsize::new(0),
            open: AtomicBool::new(false),
            wake: Notify::new(),
            settled: Notify::new(),
        };
        Arc::new(Self { core: Arc::new(core) })
    }

    /// Identifies the manager: the same key of another manager is another lock.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.core) as usize
    }

    pub(crate) fn now(&self) -> Moment {
        self.core.clock.now()
    }

    /// The time within which the backend answers every call.
    pub(crate) fn time_limit(&self) -> Duration {
        self.core.backend.time_limit()
    }

    /// A timer of the clock, of the builder's runtime if one was given.
    pub(crate) fn sleep(&self, duration: Duration) -> Timer {
        let _entered = self.core.runtime.as_ref().map(Handle::enter);
        Timer { sleep: self.core.clock.sleep(duration), core: Arc::clone(&self.core) }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.core.backend.epoch()
    }

    pub(crate) fn token(&self) -> Token {
        self.core.state().queues.token()
    }

    /// Says how everything is doing, as far as is known here.
    pub(crate) fn health(&self) -> Health {
        // The task connects. A service that gets requests only when it is ready would never start it otherwise.
        let admits = self.core.admit().is_ok();
        let nodes = self.core.backend.health();
        let now = self.now();
        let tenures = &mut self.core.state().queues.tenures;
        Health::new(admits, nodes, tenures.len(), tenures.slack.least(now))
    }

    /// Begins a request: refuses it after a shutdown, and starts the task where it does not run.
    pub(crate) fn admit(&self, attempt: &'static str) -> Result<(), Error> {
        self.core.admit().map_err(|kind| Error::backend(attempt, None, self.core.ended(kind)))
    }

    /// Begins a request of a holder, which is not refused while a shutdown waits for holders.
    pub(crate) fn admit_holder(&self, attempt: &'static str) -> Result<(), Error> {
        match self.core.admit() {
            Err(ErrorKind::ShutDown) | Ok(()) => Ok(()),
            Err(kind) => Err(Error::backend(attempt, None, self.core.ended(kind))),
        }
    }

    /// Sends a batch by the caller's own future.
    pub(crate) fn call(&self, batch: Batch) -> Call {
        let call = self.ask(self.core.backend.call(batch));
        let under_way = (!call.reply.is_ready()).then(|| self.core.under_way());
        Call { _under_way: under_way, ..call }
    }

    pub(crate) fn list(&self, prefix: String) -> Call<Vec<LockKey>> {
        self.ask(self.core.backend.list(prefix))
    }

    fn ask<T>(&self, reply: Reply<T>) -> Call<T> {
        Call { reply, core: Arc::clone(&self.core), _under_way: None }
    }

    /// Begins an acquire of one key.
    pub(crate) fn arrive(&self, newcomer: Newcomer<'_>, now: Moment) -> Result<Arrival, Error> {
        let (idle, epoch) = (self.core.is_idle(), self.epoch());
        self.core.with(|state| {
            if state.shut_down {
                return Err(Error::new(ErrorKind::ShutDown, ACQUIRE).on(newcomer.key));
            }
            state.queues.arrive(newcomer, idle, now, epoch)
        })
    }

    /// Asks how a waiter stands; see [`Queues::poll`].
    pub(crate) fn poll_waiter(&self, waiter: WaiterId, waker: &Waker, now: Moment) -> Poll<Result<Offer, Error>> {
        self.core.with(|state| state.queues.poll(waiter, waker, now))
    }

    /// Whether a waiter asks for its key with this token.
    pub(crate) fn is_contender(&self, waiter: WaiterId, token: Token) -> bool {
        self.core.state().queues.is_contender(waiter, token)
    }

    /// Ends the wait of a waiter, if that can be; see [`Queues::give_up`].
    pub(crate) fn give_up(&self, waiter: WaiterId, now: Moment) -> Poll<Error> {
        self.core.with(|state| state.queues.give_up(waiter, now))
    }

    /// Forgets a waiter whose future is dropped.
    pub(crate) fn leave(&self, waiter: WaiterId) {
        let now = self.now();
        self.core.with(|state| state.queues.leave(waiter, now));
    }

    /// Takes the answer to an acquire that its own future sent, and says how its waiter stands then.
    pub(crate) fn acquired(
        &self,
        key: &LockKey,
        waiter: WaiterId,
        waker: &Waker,
        token: Token,
        result: Result<Answer, BackendError>,
        trip: Trip,
    ) -> Poll<Result<Offer, Error>> {
        let trip = Trip { repeated: result.as_ref().is_ok_and(|answer| answer.repeated), ..trip };
        let calls_refused = result.as_ref().is_ok_and(|answer| answer.calls_refused);
        let result = result.and_then(Answer::single);
        self.core.with(|state| {
            if calls_refused {
                state.queues.calls_refused();
            }
            // It is being polled: nobody has to wake it.
            state.queues.forget_waker(waiter);
            state.queues.acquired(key, token, result, trip, Some(waiter));
            state.queues.poll(waiter, waker, trip.now)
        })
    }

    /// Enters the tenure of a lease that was taken up, and begins its hold.
    pub(crate) fn take_up(
        &self,
        key: &LockKey,
        terms: &Terms,
        acquired: Acquired,
        now: Moment,
    ) -> Result<Offer, Error> {
        self.core.with(|state| {
            if state.shut_down {
                return Err(Error::new(ErrorKind::ShutDown, "take up").on(key));
            }
            Ok(state.queues.enter(key, terms, acquired, now))
        })
    }

    /// Ends a hold and hands its key on: what a dropped guard does.
    pub(crate) fn abandon(&self, hold: HoldId, now: Moment) {
        self.core.with(|state| state.queues.depart(hold, now));
    }

    /// Ends a hold as its holder wishes, and says what is left to do.
    pub(crate) fn release(&self, hold: HoldId, now: Moment) -> Departure {
        let idle = self.core.is_idle();
        self.core.with(|state| state.queues.release(hold, idle, now))
    }

    /// Ends a hold and gives its token to the caller, who hands it on.
    pub(crate) fn hand_over(&self, hold: HoldId) -> Option<(Parting, Ttl)> {
        let now = self.now();
        self.core.with(|state| state.queues.hand_over(hold, now))
    }

    /// Counts a token that a future of the user's is to release, or to [clean up](Self::clean_up) before it drops this.
    pub(crate) fn owe(&self) -> Owed {
        self.core.owed.fetch_add(1, Ordering::SeqCst);
        Owed(Arc::clone(&self.core))
    }

    /// Releases a token until that is known to have worked.
    pub(crate) fn clean_up(&self, parting: Parting, doubt: Doubt) {
        let now = self.now();
        self.core.with(|state| state.queues.cleanup.push(parting, doubt, now));
    }

    /// The request that renews a hold by the user's own wish; none if the hold is over.
    pub(crate) fn renewal_of(&self, hold: HoldId, ttl: Ttl, now: Moment) -> Option<Renew> {
        let state = self.core.state();
        Some(state.queues.tenures.of_hold(hold)?.renew(ttl, now))
    }

    /// Takes note of what a request sent at `sent` found to be left at the key.
    pub(crate) fn found(&self, hold: HoldId, remaining: Duration, sent: Moment) {
        self.core.with(|state| state.queues.tenures.found(hold, remaining, sent));
    }

    /// Takes note that the deadline of a hold was moved by a request sent at `sent`.
    pub(crate) fn extended(&self, hold: HoldId, sent: Moment, ttl: Ttl) {
        self.core.with(|state| state.queues.tenures.extended(hold, sent, ttl));
    }

    /// Ends a hold because an answer said that the key is not its own any more.
    pub(crate) fn taken(&self, hold: HoldId) {
        let now = self.now();
        self.core.with(|state| {
            let ended = state.queues.tenures.lose(hold, LossReason::Taken);
            state.queues.bury(ended, now);
        });
    }

    /// Ends the local holds of a key that was released by force.
    pub(crate) fn forced(&self, key: &LockKey) {
        let now = self.now();
        self.core.with(|state| state.queues.forced(key, now));
    }

    /// Whether new requests are refused as the manager was shut down.
    pub(crate) fn is_shut_down(&self) -> bool {
        self.core.with(|state| state.shut_down)
    }

    /// Refuses new requests, waits at most `grace` for the holders, ends what is left and waits for its release at
    /// most `last` longer. Returns how many leases were cut short.
    pub(crate) async fn shut_down(&self, grace: Duration, last: Duration) -> usize {
        let now = self.now();
        // The runtime of the task may have ended: then this one does what it left.
        if !self.core.state().queues.is_released() {
            let _ = self.core.admit();
        }
        self.core.with(|state| {
            state.shut_down = true;
            self.core.open.store(false, Ordering::SeqCst);
            state.queues.shut_down(now);
        });
        let grace = if Mutant::ShutDownAtOnce.is_on() { Duration::ZERO } else { grace };
        self.wait_until(grace, |state| state.queues.tenures.len() == 0).await;
        let now = self.now();
        let cut = self.core.with(|state| {
            let ended = state.queues.tenures.lose_all(LossReason::ShutDown);
            let cut = ended.len();
            if !Mutant::ShutDownKeeps.is_on() {
                state.queues.bury(ended, now);
            }
            cut
        });
        let is_released = |state: &State| state.queues.is_released() && self.core.owes_nothing();
        self.wait_until(last, |state| is_released(state) || !state.running).await;
        self.core.state().closed = true;
        self.core.wake.notify_one();
        self.wait_until(last, |state| !state.running).await;
        cut
    }

    async fn wait_until(&self, most: Duration, done: impl Fn(&State) -> bool) {
        let mut timer = self.sleep(most);
        loop {
            let mut settled = std::pin::pin!(self.core.settled.notified());
            settled.as_mut().enable();
            if done(&self.core.state()) {
                return;
            }
            tokio::select! {
                biased;
                () = settled => {}
                _ = &mut timer => return,
            }
        }
    }
}

impl State {
    /// Returns when the task has something to do. Requests wait until there is room for a call.
    pub(crate) fn next(&self) -> Moment {
        let sends = self.room.takes(self.queues.waiting_to_be_sent());
        if sends { self.queues.next_timer().min(self.queues.next_to_send()) } else { self.queues.next_timer() }
    }
}

/// A request that its caller's own future sends, in whatever runtime it is polled.
pub(crate) struct Call<T = Answer> {
    reply: Reply<T>,
    core: Arc<Core>,
    /// Unless it is answered already, or leaves the queues alone.
    _under_way: Option<UnderWay>,
}

impl<T> Future for Call<T> {
    type Output = Result<T, BackendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { reply, core, .. } = &mut *self;
        if reply.is_ready() {
            return Pin::new(reply).poll(cx);
        }
        // The task keeps the connection, and ends with its runtime. Without it nobody would connect, and a timer of the
        // builder's runtime panics once that has ended.
        if let Err(kind) = core.admit()
            && !(kind == ErrorKind::ShutDown && core.state().running)
        {
            return Poll::Ready(Err(core.ended(kind)));
        }
        core.in_runtime(|| Pin::new(reply).poll(cx)).unwrap_or_else(|ended| Poll::Ready(Err(ended)))
    }
}

/// A timer that ends with an error if its runtime does.
pub(crate) struct Timer {
    sleep: Sleep,
    core: Arc<Core>,
}

impl Future for Timer {
    type Output = Result<(), BackendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { sleep, core } = &mut *self;
        match core.in_runtime(|| sleep.as_mut().poll(cx)) {
            Ok(polled) => polled.map(Ok),
            Err(ended) => Poll::Ready(Err(ended)),
        }
    }
}

/// Counts a call for as long as it is under way.
pub(crate) struct UnderWay(#[expect(dead_code, reason = "it counts while it is there")] Arc<()>);

/// A token that only a future of the user's knows of, polled or not: until it is done, or dropped, the task of a manager
/// that was shut down stays for what it may leave.
pub(crate) struct Owed(Arc<Core>);

impl Drop for Owed {
    fn drop(&mut self) {
        self.0.owed.fetch_sub(1, Ordering::SeqCst);
        if !self.0.open.load(Ordering::SeqCst) {
            self.0.wake.notify_one();
            self.0.settled.notify_waiters();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.core.state().closed = true;
        self.core.wake.notify_one();
    }
}

impl Core {
    /// Starts the task where it does not run; refuses to after a shutdown.
    fn admit(self: &Arc<Self>) -> Result<(), ErrorKind> {
        if self.open.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut state = self.state();
        if state.shut_down {
            return Err(ErrorKind::ShutDown);
        }
        if state.running {
            return Ok(());
        }
        if state.runtime_ended {
            return Err(ErrorKind::NoRuntime);
        }
        let runtime = match &self.runtime {
            Some(runtime) => runtime.clone(),
            None => Handle::try_current().map_err(|_| ErrorKind::NoRuntime)?,
        };
        state.running = true;
        self.open.store(true, Ordering::Release);
        drop(state);
        // A runtime that has ended drops the task at once, which then says that it does not run.
        runtime.spawn(task::run(task::Running::new(Arc::clone(self))));
        if self.state().running { Ok(()) } else { Err(ErrorKind::NoRuntime) }
    }

    /// Why a request cannot go on without the task.
    fn ended(&self, kind: ErrorKind) -> BackendError {
        match (kind, &self.runtime) {
            (ErrorKind::NoRuntime, Some(_)) => BackendError::new(
                kind,
                "the runtime that the manager was given by `LockManager::builder().runtime(..)` has ended; use one that \
                 lives as long as the manager",
            ),
            _ => BackendError::new(kind, kind.to_string()),
        }
    }

    /// Polls something that may have a timer or a connection of the builder's runtime.
    ///
    /// A runtime that has ended makes its timers panic, and it can end between any look at it and the poll. It refuses
    /// tasks by then, which tells such a panic from any other.
    fn in_runtime<R>(&self, poll: impl FnOnce() -> R) -> Result<R, BackendError> {
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

    /// Changes the state; then, without the lock, does what was put off, and wakes the task if there is something for it
    /// to do sooner than it thought.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state();
        let result = change(&mut state);
        let due = state.next() < state.asleep_until;
        if due {
            // Once is enough until it has looked.
            state.asleep_until = Moment::from_origin(Duration::ZERO);
        }
        let deferred = state.queues.take_deferred();
        let shut_down = state.shut_down;
        drop(state);
        if due {
            self.wake.notify_one();
        }
        if shut_down {
            self.settled.notify_waiters();
        }
        drop(deferred);
        result
    }

    /// Whether no call is under way: then the next one can leave at once, by its own future.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.under_way) == 1
    }

    /// Counts a call as under way for as long as what is returned is there.
    pub(crate) fn under_way(&self) -> UnderWay {
        UnderWay(Arc::clone(&self.under_way))
    }

    /// Whether no future of the user's has a token left to release.
    pub(crate) fn owes_nothing(&self) -> bool {
        self.owed.load(Ordering::SeqCst) == 0 || Mutant::ShutDownForgets.is_on()
    }

    /// Says that the task has ended: leases that it kept are lost. `begun` says whether it was ever polled: the builder's
    /// runtime, if it drops a task that was not, has ended for good, and is not asked again by each waiter.
    pub(crate) fn stopped(&self, begun: bool) {
        let now = self.clock.now();
        let mut state = self.state();
        state.running = false;
        self.open.store(false, Ordering::Release);
        state.asleep_until = Moment::NEVER;
        state.runtime_ended |= !begun && self.runtime.is_some();
        state.queues.restart(now);
        let deferred = state.queues.take_deferred();
        drop(state);
        drop(deferred);
        self.settled.notify_waiters();
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("backend", &self.core.backend).finish_non_exhaustive()
    }
}
