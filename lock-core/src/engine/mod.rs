//! The engine, shared by a manager, its requests and its guards: backend, clock, randomness, and the state that the
//! one engine task works on.
//!
//! An [`Engine`] is held by everything a user holds; when the last one goes, the task finishes what is left and ends.
//! The task itself holds only the [`Core`].

mod core;
pub(crate) mod deferred;
#[cfg(test)]
#[path = "tests/fixture.rs"]
pub(crate) mod fixture;
mod gathering;
pub(crate) mod hold;
mod late;
pub(crate) mod limits;
#[cfg(all(test, lock_loom))]
#[path = "tests/models.rs"]
mod models;
pub(crate) mod pulse;
pub(crate) mod question;
pub(crate) mod queues;
mod responder;
mod response;
pub(crate) mod schedule;
pub(crate) mod slack;
pub(crate) mod sync;
mod task;
pub(crate) mod tenure;
pub(crate) mod terms;
pub(crate) mod trust;
mod turn;
pub(crate) mod wheel;

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rand::{SeedableRng, rngs::StdRng};
use tokio::runtime::Handle;

use self::{
    core::Core,
    limits::Limits,
    pulse::Pulse,
    question::{Asker, Heard, explanations::Found, message::Subject},
    queues::{
        Departure, Queues,
        in_flight::List,
        line::{Newcomer, WaiterId},
    },
    tenure::{HoldId, TenureId},
};
pub(crate) use self::{
    core::{KeepAlive, Timer},
    question::Looks,
    response::Response,
};
use crate::{
    backend::{
        Backend, Batch, Token,
        cleanup::{Doubt, PendingRelease},
    },
    clock::{Clock, Moment},
    error::{ACQUIRE, Error, ErrorKind, LossReason},
    health::Health,
    key::LockKey,
    lost::Observer,
    ttl::Ttl,
};

/// A handle that keeps the engine alive.
pub(crate) struct Engine {
    core: Arc<Core>,
    /// Whether the log has the warning of a ttl below the command timeout.
    has_warned_of_ttl: AtomicBool,
}

impl Engine {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        runtime: Option<Handle>,
        seed: Option<u64>,
        looks: Looks,
        limits: Limits,
        observer: Option<Observer>,
    ) -> Arc<Self> {
        let random = seed.map_or_else(rand::make_rng, StdRng::seed_from_u64);
        let limits = Limits { answer: backend.time_limit(), ..limits };
        let pulse = Pulse::new(Arc::clone(&clock), observer);
        let explain_after = looks.explain_after;
        let mut queues = Queues::new(Arc::clone(&pulse), random, limits, looks);
        // A store in the process is copied with it.
        queues.is_seeded = seed.is_some() || limits.answer == Duration::MAX;
        let core = Core::new(backend, clock, pulse, runtime, explain_after, queues);
        Arc::new(Self { core, has_warned_of_ttl: AtomicBool::new(false) })
    }

    /// Warns of a ttl below the time that the backend has for an answer, once: of the default, or of the first request that has one.
    pub(crate) fn warn_of_ttl(&self, ttl: Ttl, key: Option<&LockKey>) {
        let (ttl, limit) = (ttl.get(), self.core.backend.time_limit());
        // It is read before it is written: a write for each request would be one that all threads share.
        if ttl >= limit
            || limit == Duration::MAX
            || self.has_warned_of_ttl.load(Ordering::Relaxed)
            || self.has_warned_of_ttl.swap(true, Ordering::Relaxed)
        {
            return;
        }
        log!(warn, key = key.map(tracing::field::display), ?ttl, command_timeout = ?limit,
            "the ttl is below the command timeout, so a slow answer to an acquire comes when its lease has expired, and the acquire \
             fails; raise the ttl, or lower `command_timeout`");
    }

    /// Identifies the manager: the same key of another manager is another lock.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.core) as usize
    }

    pub(crate) fn token(&self) -> Token {
        self.core.state().queues.token()
    }

    /// Returns the health of the manager and its backend, as far as it is known in this process.
    pub(crate) fn health(&self) -> Health {
        // The task connects. A service that gets requests only when it is ready would never start the task otherwise.
        let admits = self.core.admit().is_ok();
        let nodes = self.core.backend.health();
        let now = self.now();
        let queues = &mut self.core.state().queues;
        let (busy, tenures) = (queues.busy, &mut queues.tenures);
        let (slack, losses, acquired) = (tenures.slack.least(now), tenures.losses, tenures.acquired);
        Health { admits, nodes, held: tenures.len(), slack, losses, acquired, busy }
    }

    /// Begins a request: refuses it after a shutdown, and starts the task if it does not run.
    pub(crate) fn admit(&self, attempt: &'static str) -> Result<(), Error> {
        self.core.admit().map_err(|kind| Error::backend(attempt, None, self.core.ended(kind)))
    }

    /// Begins a request of a holder, which is not refused while a shutdown waits for holders.
    pub(crate) fn admit_holder(&self, attempt: &'static str) -> Result<(), Error> {
        self.admit(attempt).or_else(|error| if error.kind() == ErrorKind::ShutDown { Ok(()) } else { Err(error) })
    }

    /// Sends a batch in a call of its own.
    pub(crate) fn call(&self, batch: Batch) -> Response {
        let (responder, response) = Response::new(&self.core, self.now());
        // A sign of life, which waits for the connection.
        let response = if batch.is_empty() { response.without_limit() } else { response };
        self.core.with(|state| state.queues.request(batch, responder));
        response
    }

    /// Lists the keys that begin with `prefix` and are held by a lease of this library.
    pub(crate) fn list(&self, prefix: String) -> Response<Vec<LockKey>> {
        let (responder, response) = Response::new(&self.core, self.now());
        self.core.with(|state| state.queues.lists.push(List { prefix, responder }));
        // It takes many calls, each of which has a limit of its own.
        response.without_limit()
    }

    /// Asks all managers of the store who holds and who waits. Those that can be reached answer in a quarter of a second, or
    /// are left out.
    pub(crate) fn ask_managers(&self, subject: Subject) -> Response<Heard> {
        let now = self.now();
        let (responder, response) = Response::new(&self.core, now);
        self.core.with(|state| state.queues.ask_managers(subject, Asker::Request(responder), now));
        response.with_more_time(question::LONGEST)
    }

    /// Returns who was found to hold the key of a request that has waited since `began`, if that was asked.
    pub(crate) fn explained(&self, key: &LockKey, began: Moment, now: Moment) -> Option<Found> {
        // Most requests do not wait, and need not take the lock for this.
        self.core.explain_after.filter(|after| now.since(began) >= *after)?;
        self.core.state().queues.explanations.of(key, began)
    }

    /// The tenures that the process has of a key now.
    pub(crate) fn tenures_of(&self, key: &LockKey) -> Vec<TenureId> {
        self.core.state().queues.tenures_of(key).collect()
    }

    /// Begins an acquire of one key.
    pub(crate) fn arrive(&self, newcomer: Newcomer<'_>, now: Moment) -> Result<WaiterId, Error> {
        self.core.with(|state| {
            // Checked again under the lock: a shutdown that came after `admit` has failed all waiters, and would never fail this one.
            if state.shut_down {
                return Err(Error::new(ErrorKind::ShutDown, ACQUIRE).on(newcomer.key));
            }
            state.queues.arrive(newcomer, now)
        })
    }

    /// Ends a hold as its holder wishes, and says what is left to do.
    pub(crate) fn release(&self, hold: HoldId, now: Moment) -> Departure<Response> {
        self.core.with(|state| state.queues.release(hold, now, || Response::new(&self.core, now)))
    }

    /// Releases a token until that is known to have worked.
    pub(crate) fn clean_up(&self, pending: PendingRelease, doubt: Doubt) {
        let now = self.now();
        self.core.with(|state| state.queues.cleanup.push(pending, doubt, now));
    }

    /// Ends a hold because an answer said that the key no longer holds its token.
    pub(crate) fn taken(&self, hold: HoldId) {
        let now = self.now();
        self.core.with(|state| {
            let ended = state.queues.tenures.lose(hold, LossReason::Taken, now);
            state.queues.clean_up_ended(ended, now);
        });
    }

    /// Refuses new requests and fails the waiters. Holders go on.
    pub(crate) fn stop_waiting(&self) {
        let now = self.now();
        // The runtime of the task may have ended before everything was released. Then the task starts again on this one, and that has
        // to be now, because `admit` starts no task after the flag is set.
        if !self.core.state().queues.is_released() {
            let _ = self.core.admit();
        }
        // Flag and waiters change under one lock: a request that joined a line in between would be failed by nobody.
        self.core.with(|state| {
            state.shut_down = true;
            self.core.close();
            state.queues.shut_down(now);
        });
    }

    /// Refuses new requests and waits at most `grace` for the holders. Then ends the leases that are left, and waits at most `last`
    /// for their release. Then waits as long again for the end of the task, unless only nodes that do not answer keep the task.
    /// Returns how many leases were cut short.
    pub(crate) async fn shut_down(&self, grace: Duration, last: Duration) -> usize {
        self.stop_waiting();
        self.wait_until(grace, |core| core.state().queues.tenures.len() == 0).await;
        let now = self.now();
        let cut = self.core.with(|state| {
            let ended = state.queues.tenures.lose_all(LossReason::ShutDown, now);
            let cut = ended.len();
            state.queues.clean_up_ended(ended, now);
            cut
        });
        let is_released = |core: &Core| core.state().queues.is_released() && !core.is_kept_alive();
        self.wait_until(last, |core| is_released(core) || !core.state().is_running()).await;
        // Only now: a task of a closed manager forgets tokens whose time is over, and ends when no work is left.
        self.core.state().closed = true;
        self.core.wake.notify_one();
        let is_held_up = |core: &Core| core.backend.is_held_up() && is_released(core);
        self.wait_until(last, |core| is_held_up(core) || !core.state().is_running()).await;
        cut
    }

    async fn wait_until(&self, most: Duration, done: impl Fn(&Core) -> bool) {
        let mut timer = self.sleep(most);
        loop {
            let mut settled = std::pin::pin!(self.core.settled.notified());
            // Registered before the condition is checked: `notify_waiters` leaves no permit, so a change that came between the check
            // and the wait would be missed.
            settled.as_mut().enable();
            if done(&self.core) {
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

/// Futures and guards change the state themselves, by [`Core::with`].
impl Deref for Engine {
    type Target = Arc<Core>;

    fn deref(&self) -> &Arc<Core> {
        &self.core
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.core.state().closed = true;
        self.core.wake.notify_one();
    }
}

shows!(Engine, backend);
