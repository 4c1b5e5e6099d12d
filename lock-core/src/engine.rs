//! What a manager, its requests and its guards share: the backend, the clock, the randomness, and the state that the
//! one engine task works on.
//!
//! An [`Engine`] is held by everything a user holds; when the last one goes, the task finishes what is left and ends.
//! The task itself holds only the [`Core`].

use std::{
    fmt,
    panic::Location,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{runtime::Handle, sync::Notify};

use crate::{
    backend::{Answer, Backend, Operation, Outcome, Renew, Reply},
    cleanup::{AT_ONCE, CleanUp, Doubt, Parting},
    clock::{Clock, Moment},
    error::{Error, ErrorKind, LossReason},
    key::LockKey,
    lease::{Hold, Wakers},
    queue::tenure::{Ended, HoldId, Tenures},
    renewal::task,
    token::{FencingToken, Token},
    validity::{Renewal, Ttl},
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
    random: Mutex<StdRng>,
    state: Mutex<State>,
    /// Wakes the task before the moment it sleeps until.
    pub(crate) wake: Notify,
    /// Tells `shutdown` that a tenure ended or a clean-up was answered.
    pub(crate) settled: Notify,
}

pub(crate) struct State {
    pub(crate) tenures: Tenures,
    pub(crate) cleanup: CleanUp,
    /// Whether the task runs.
    running: bool,
    /// Until when the task sleeps unless it is woken.
    pub(crate) asleep_until: Moment,
    /// Requests are refused.
    shut_down: bool,
    /// Nobody is left who could ask for anything: the task ends when it has cleaned up.
    pub(crate) closed: bool,
}

/// What an acquire that was answered is turned into a tenure with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Ttl,
    pub(crate) renewal: Renewal,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) at_least: Duration,
    pub(crate) since: &'static Location<'static>,
    pub(crate) label: &'static str,
}

impl Engine {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        runtime: Option<Handle>,
        seed: Option<u64>,
    ) -> Arc<Self> {
        let random = seed.map_or_else(rand::make_rng, StdRng::seed_from_u64);
        let state = State {
            tenures: Tenures::new(),
            cleanup: CleanUp::default(),
            running: false,
            asleep_until: Moment::NEVER,
            shut_down: false,
            closed: false,
        };
        let core = Core {
            backend,
            clock,
            runtime,
            random: Mutex::new(random),
            state: Mutex::new(state),
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

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.core.clock
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.core.backend.epoch()
    }

    pub(crate) fn token(&self) -> Token {
        Token::from_random(self.core.random().random())
    }

    pub(crate) fn jitter(&self) -> f64 {
        self.core.jitter()
    }

    /// Begins a request: refuses it after a shutdown, and starts the task where it does not run.
    pub(crate) fn admit(&self, attempt: &'static str) -> Result<(), Error> {
        let mut state = self.core.state();
        if state.shut_down {
            return Err(Error::new(ErrorKind::ShutDown, attempt));
        }
        if state.running {
            return Ok(());
        }
        let runtime = match &self.core.runtime {
            Some(runtime) => runtime.clone(),
            None => Handle::try_current().map_err(|_| Error::new(ErrorKind::NoRuntime, attempt))?,
        };
        state.running = true;
        drop(state);
        // A runtime that has ended drops the task at once, which then says that it does not run.
        runtime.spawn(task::run(task::Running::new(Arc::clone(&self.core))));
        if self.core.state().running { Ok(()) } else { Err(Error::new(ErrorKind::NoRuntime, attempt)) }
    }

    /// Runs `poll` inside the builder's runtime, where one was given, for its timers.
    pub(crate) fn enter<R>(&self, poll: impl FnOnce() -> R) -> R {
        let _entered = self.core.runtime.as_ref().map(Handle::enter);
        poll()
    }

    pub(crate) fn call(&self, batch: Vec<Operation>) -> Reply<Answer> {
        self.core.backend.call(batch)
    }

    pub(crate) fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        self.core.backend.list(prefix)
    }

    /// Turns an acquire that was sent at `sent` and is answered `now` into a tenure with its first hold.
    pub(crate) fn begin(
        &self,
        key: &LockKey,
        token: Token,
        fence: u64,
        terms: Terms,
        sent: Moment,
        now: Moment,
    ) -> Result<(HoldId, Arc<Hold>), Error> {
        let latest = terms.max_hold.map_or(Moment::NEVER, |max_hold| now + max_hold);
        let keep_until = if terms.at_least.is_zero() { AT_ONCE } else { now + terms.at_least };
        let hold = Arc::new(Hold::new(
            key.clone(),
            FencingToken::new(fence),
            terms.since,
            terms.label,
            Arc::clone(&self.core.clock),
            terms.ttl.deadline(sent),
            latest,
        ));
        let mut state = self.core.state();
        if state.shut_down {
            return Err(Error::new(ErrorKind::ShutDown, "acquire").on(key));
        }
        hold.begin(now);
        let id = state.tenures.enter(token, terms.ttl, terms.renewal, Arc::clone(&hold), sent, keep_until);
        self.core.wake_for_timers(state);
        Ok((id, hold))
    }

    /// Ends a hold and hands its token to the clean-up: what a dropped guard does.
    pub(crate) fn abandon(&self, hold: HoldId) {
        let mut state = self.core.state();
        if let Some(tenure) = state.tenures.leave(hold) {
            let doubt = tenure.doubt();
            state.cleanup.push(tenure.parting(), doubt, self.now());
            self.core.wake.notify_one();
            self.core.settled.notify_waiters();
        }
    }

    /// Ends a hold and gives its token to the caller, who must release it or hand it on.
    pub(crate) fn leave(&self, hold: HoldId) -> Option<(Parting, Doubt, Ttl)> {
        let tenure = self.core.state().tenures.leave(hold)?;
        self.core.settled.notify_waiters();
        let (doubt, ttl) = (tenure.doubt(), tenure.ttl);
        Some((tenure.parting(), doubt, ttl))
    }

    /// Releases a token until that is known to have worked.
    pub(crate) fn clean_up(&self, parting: Parting, doubt: Doubt) {
        self.core.state().cleanup.push(parting, doubt, self.now());
        self.core.wake.notify_one();
    }

    /// The request that renews a hold by the user's own wish; none if the hold is over.
    pub(crate) fn renewal_of(&self, hold: HoldId, ttl: Ttl) -> Option<Renew> {
        let state = self.core.state();
        let tenure = state.tenures.of_hold(hold)?;
        Some(Renew::new(tenure.key.clone(), tenure.token, ttl.get()))
    }

    /// Takes note that the deadline of a hold was moved by a request sent at `sent`.
    pub(crate) fn extended(&self, hold: HoldId, sent: Moment, ttl: Ttl) {
        let mut state = self.core.state();
        state.tenures.extended(hold, sent, ttl);
        self.core.wake_for_timers(state);
    }

    /// Ends a hold because an answer said that the key is not its own any more.
    pub(crate) fn taken(&self, hold: HoldId) {
        let mut state = self.core.state();
        let ended = state.tenures.lose(hold, LossReason::Taken);
        let wakers = self.core.bury(&mut state, ended);
        drop(state);
        drop(wakers);
    }

    /// Ends the local holds of a key that was released by force.
    pub(crate) fn forced(&self, key: &LockKey) {
        let mut state = self.core.state();
        let ended = state.tenures.lose_all(Some(key), LossReason::Forced);
        let wakers = self.core.bury(&mut state, ended);
        drop(state);
        drop(wakers);
    }

    /// Refuses new requests, waits at most `grace` for the holders, ends what is left and waits for its release at
    /// most `last` longer. Returns how many leases were cut short.
    pub(crate) async fn shut_down(&self, grace: Duration, last: Duration) -> usize {
        self.core.state().shut_down = true;
        self.wait_until(grace, |state| state.tenures.len() == 0).await;
        let cut = {
            let mut state = self.core.state();
            let ended = state.tenures.lose_all(None, LossReason::ShutDown);
            let cut = ended.len();
            let wakers = self.core.bury(&mut state, ended);
            drop(state);
            drop(wakers);
            cut
        };
        self.wait_until(last, |state| state.cleanup.is_empty() || !state.running).await;
        self.core.state().closed = true;
        self.core.wake.notify_one();
        self.wait_until(last, |state| !state.running).await;
        cut
    }

    async fn wait_until(&self, most: Duration, done: impl Fn(&State) -> bool) {
        let mut timer = self.core.clock.sleep(most);
        loop {
            let mut settled = std::pin::pin!(self.core.settled.notified());
            settled.as_mut().enable();
            if done(&self.core.state()) {
                return;
            }
            tokio::select! {
                biased;
                () = settled => {}
                () = &mut timer => return,
            }
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
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn random(&self) -> MutexGuard<'_, StdRng> {
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn jitter(&self) -> f64 {
        self.random().random()
    }

    /// Wakes the task if a timer was set that is earlier than the moment it sleeps until.
    fn wake_for_timers(&self, mut state: MutexGuard<'_, State>) {
        if state.tenures.next().is_some_and(|next| next < state.asleep_until) {
            state.asleep_until = Moment::from_origin(Duration::ZERO);
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Has the tokens of tenures that ended by themselves cleaned up. Who waits for their end is to be woken after the
    /// state was unlocked.
    pub(crate) fn bury(&self, state: &mut State, ended: impl IntoIterator<Item = Ended>) -> Vec<Wakers> {
        let mut all_wakers = Vec::new();
        for Ended { parting, doubt, reason, wakers } in ended {
            tracing::warn!(key = %parting.key, %reason, "lease lost");
            state.cleanup.push(parting, doubt, self.clock.now());
            all_wakers.push(wakers);
        }
        if !all_wakers.is_empty() {
            self.wake.notify_one();
            self.settled.notify_waiters();
        }
        all_wakers
    }

    /// Says that the task has ended: leases that it kept are lost.
    pub(crate) fn stopped(&self) {
        let mut state = self.state();
        state.running = false;
        state.asleep_until = Moment::NEVER;
        let ended = state.tenures.lose_all(None, LossReason::ShutDown);
        let wakers = self.bury(&mut state, ended);
        drop(state);
        drop(wakers);
        self.settled.notify_waiters();
    }
}

/// Reads the answer to an acquire, a renewal or a release of one.
pub(crate) fn unexpected(outcome: Outcome) -> crate::backend::BackendError {
    crate::backend::BackendError::new(
        ErrorKind::Backend,
        format!("the backend gave an answer that does not fit the request: {outcome:?}"),
    )
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("backend", &self.core.backend).finish_non_exhaustive()
    }
}
