//! The world of one schedule: its time, what happens next, its nodes, its network, and what is written down.
//!
//! Time goes on when nobody has anything to do: the runtime is about to park, and [`World::step`] makes the next thing
//! happen. So a schedule is one sequence of events, and the seed decides it.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use lock_core::Lease;

use super::{
    journal::Journal,
    link::{Arriving, Conn, Link, Request},
    node::{Entry, Node},
    plan::{Plan, Trouble},
};
use crate::{
    Dice,
    history::{Event, Mark, Op},
};

/// What all parts of a schedule share.
#[derive(Debug)]
pub(super) struct World {
    pub(super) plan: Plan,
    state: Mutex<State>,
}

/// What changes.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The true time in µs.
    pub(super) now: u64,
    serial: u64,
    due: BTreeMap<(u64, u64), Due>,
    pub(super) dice: Dice,
    pub(super) servers: Vec<Server>,
    /// Slots that move just now.
    pub(super) moving: BTreeSet<usize>,
    pub(super) links: Vec<Link>,
    pub(super) conns: Vec<Conn>,
    pub(super) requests: Vec<Request>,
    /// Whether the network and the nemesis may break things.
    pub(super) faults: bool,
    pub(super) history: Vec<Event>,
    pub(super) marks: Vec<Mark>,
    /// What nodes have done, and what of it is undone now.
    pub(super) journal: Journal,
    /// Tokens whose releases some node has executed.
    pub(super) released: BTreeSet<String>,
    /// The limit of a request, in ms.
    pub(super) limit: f64,
    /// Keys of leases that were given away, which may be left to expire.
    pub(super) handed_over: Vec<String>,
    pub(super) breaches: Vec<(&'static str, String)>,
    /// Clients whose leases may have been renewed since they were looked at.
    pub(super) renewed: Vec<usize>,
    pub(super) sampler: Option<Waker>,
    log: Option<Vec<(u64, String)>>,
    root: Option<Waker>,
    steps: u64,
    looks: u64,
    /// When something was written down last, and how often at that time.
    noted: (u64, u64),
}

/// A node, and how it fares.
#[derive(Debug, Default)]
pub(super) struct Server {
    pub(super) node: Node,
    /// The one that it has taken over from, while that answers still.
    pub(super) former: Option<Node>,
    /// Down, or stopped with what has arrived meanwhile.
    pub(super) down: bool,
    pub(super) stopped: Option<Vec<Arriving>>,
    /// Whether keys are taken away from those who have just got them.
    pub(super) sniped: bool,
    /// How far its clock is ahead of the true time, in µs.
    pub(super) ahead: i64,
}

#[derive(Debug)]
enum Due {
    Wake(Waker),
    Arrive(Arriving),
}

/// For how long holds follow one another inside a process, in ms.
pub(super) const PASSED_ON: f64 = 100.0;
/// How long a connection and the next try of a renewal take at most in a sound network, in ms.
const CONNECTED: f64 = 250.0;
/// No schedule takes as many: one that does retries without a pause.
const MOST_STEPS: u64 = 200_000;
const MOST_LOOKS: u64 = 20_000_000;
/// The wall clock of the nodes at the beginning: in 2025, in µs.
const WALL: u64 = 1_750_000_000_000_000;

impl World {
    pub(super) fn new(plan: Plan, dice: Dice, servers: Vec<Server>, logs: bool) -> Arc<Self> {
        let state = State {
            dice,
            servers,
            faults: true,
            journal: Journal::new(plan.has_slots()),
            limit: ms(micros(plan.limit)),
            log: logs.then(Vec::new),
            ..State::default()
        };
        Arc::new(Self { plan, state: Mutex::new(state) })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The true time in µs. Who only looks at it again and again is in an endless loop.
    pub(super) fn now(&self) -> u64 {
        let mut state = self.state();
        state.looks += 1;
        assert!(state.looks < MOST_LOOKS, "somebody looks at the clock without end");
        state.now
    }

    /// The time for the history; see [`State::moment`].
    pub(super) fn moment(&self) -> f64 {
        self.state().moment()
    }

    /// A future that is done at a time.
    pub(super) fn at(self: &Arc<Self>, at: u64) -> Timer {
        Timer { world: Arc::clone(self), at, entry: None }
    }

    /// A future that is done after a while of true time.
    pub(super) fn sleep(self: &Arc<Self>, duration: Duration) -> Timer {
        self.at(self.state().now + micros(duration))
    }

    /// Makes the next thing happen. The runtime calls it when no task has anything to do.
    pub(super) fn step(&self) {
        let mut state = self.state();
        let mut wakers = Vec::new();
        loop {
            state.steps += 1;
            let over = state.steps > MOST_STEPS;
            match state.due.pop_first().filter(|_| !over) {
                Some(((at, _), due)) => {
                    state.now = state.now.max(at);
                    match due {
                        Due::Wake(waker) => wakers.push(waker),
                        Due::Arrive(arriving) => {
                            state.arrive(&self.plan, arriving, &mut wakers);
                            if wakers.is_empty() {
                                continue;
                            }
                        }
                    }
                }
                None => {
                    let why = if over { "it goes on without end" } else { "nobody has anything to wait for" };
                    if !state.breaches.iter().any(|(rule, _)| *rule == "stuck") {
                        state.breach("stuck", || why.to_owned());
                    }
                }
            }
            // It may be that what was woken is gone; then the root is there still.
            wakers.extend(state.root.clone());
            break;
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Says who is to be polled after each step. Ends the schedule when it cannot go on.
    pub(super) fn is_stuck(&self, cx: &Context<'_>) -> bool {
        let mut state = self.state();
        if state.root.is_none() {
            state.root = Some(cx.waker().clone());
        }
        state.breaches.iter().any(|(rule, _)| *rule == "stuck")
    }

    pub(super) fn log(&self, line: impl FnOnce() -> String) {
        self.state().log(line);
    }

    /// Drops every waker. A waker keeps its runtime, and the runtime keeps the world for [`step`](Self::step).
    pub(super) fn forget(&self) {
        let mut state = self.state();
        let wakers = (
            std::mem::take(&mut state.due),
            std::mem::take(&mut state.links),
            std::mem::take(&mut state.requests),
            (state.root.take(), state.sampler.take()),
        );
        drop(state);
        // Whatever a waker drops may look at the world.
        drop(wakers);
    }
}

impl State {
    pub(super) fn log(&mut self, line: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(log) = &mut self.log {
            log.push((now, line()));
        }
    }

    pub(super) fn take_log(&mut self) -> Vec<(u64, String)> {
        self.log.take().unwrap_or_default()
    }

    /// Has something arrive after a while.
    pub(super) fn later(&mut self, at: u64, arriving: Arriving) {
        self.serial += 1;
        self.due.insert((at, self.serial), Due::Arrive(arriving));
    }

    /// The time of a client's clock in µs, but for its rate.
    pub(super) fn own_time(&self, client: usize) -> u64 {
        self.now + self.links[client].leapt
    }

    /// A node's wall clock in µs.
    pub(super) fn wall(&self, server: usize) -> u64 {
        (WALL + self.now).saturating_add_signed(self.servers[server].ahead)
    }

    /// Whether two holders of a key are possible, since data was lost, say.
    pub(super) fn has_vanished(&self, key: &str) -> bool {
        self.marks_of(key).next().is_some()
    }

    fn marks_of(&self, key: &str) -> impl Iterator<Item = &Mark> {
        self.marks.iter().filter(move |mark| mark.key.as_deref().is_none_or(|marked| marked == key))
    }

    /// When a lease vanished that was got at a time of the history: the next renewal tells its holder, and `takes` so long.
    pub(super) fn vanished_since(&self, lease: &Lease, got: f64, takes: f64) -> Option<f64> {
        let mut marked = self.marks_of(lease.key()).map(|mark| mark.from).filter(|from| *from >= got);
        // What took it away may be undone, and something else may do so later.
        let marked = if self.journal.has_failovers() { marked.last() } else { marked.next() };
        // It takes a new connection.
        let undone = self.journal.askable_since(lease.key(), lease.fencing_token().get());
        let since = marked.into_iter().chain(undone).reduce(f64::max)?;
        let put_off = self.journal.put_off(since, takes + CONNECTED);
        Some(if undone.is_some() || put_off > since { put_off + CONNECTED } else { since })
    }

    /// Whether a lease that vanishes is told by its next renewal: nothing else breaks.
    pub(super) fn is_told_of_loss(&self, plan: &Plan) -> bool {
        plan.store.nodes() == 1
            && plan.has_sound_network()
            && plan
                .troubles
                .iter()
                .all(|trouble| matches!(trouble, Trouble::Flush | Trouble::Delete | Trouble::Failover))
    }

    /// Until when a node keeps a key that this client has set, in µs of true time; for ever if the request came so late
    /// that nobody can say whose it is.
    pub(super) fn kept_until(&self, server: usize, key: &str, client: usize) -> u64 {
        let Server { node, ahead, .. } = &self.servers[server];
        let until = |entry: Entry| match entry.note.setter {
            Some(setter) if setter != client => 0,
            // A grant names nobody who set the key. That another has it, too, shows in the history.
            None if !entry.note.reserved => u64::MAX,
            _ => ((entry.expires + 1) * 1_000).saturating_add_signed(-ahead).saturating_sub(WALL),
        };
        node.entries(key, self.wall(server)).map(until).max().unwrap_or(0)
    }

    /// By how much the node's clock is behind the true time that is behind most, in µs.
    pub(super) fn behind(&self) -> u64 {
        self.servers.iter().map(|server| server.ahead.min(0).unsigned_abs()).max().unwrap_or(0)
    }

    /// The longest time that a place and a grant to it may take together, of those that were asked for.
    pub(super) fn longest_place(&self) -> Duration {
        let longest = self.servers.iter().map(|server| server.node.audit.longest_place).max();
        Duration::from_millis(longest.unwrap_or(0))
    }

    /// Whether something goes wrong that does so in `chance` of a thousand cases.
    pub(super) fn is_unlucky(&mut self, chance: u64) -> bool {
        self.faults && chance > 0 && self.dice.below(1_000) < chance
    }

    pub(super) fn breach(&mut self, rule: &'static str, message: impl FnOnce() -> String) {
        let message = message();
        self.log(|| format!("BREACH of {rule}: {message}"));
        self.breaches.push((rule, message));
    }

    /// The time for the history: in ms, and later with each question, since what happens at one time has an order too.
    pub(super) fn moment(&mut self) -> f64 {
        if self.noted.0 != self.now {
            self.noted = (self.now, 0);
        }
        self.noted.1 += 1;
        ms(self.now) + self.noted.1 as f64 * 1e-6
    }

    /// Writes down an event of the history.
    pub(super) fn note(&mut self, event: Event) {
        self.log(|| format!("history: {}", event.to_json()));
        self.history.push(event);
    }

    /// Two holders are possible across this moment: data was lost, or a clock was set.
    pub(super) fn mark(&mut self, key: Option<String>) {
        let from = self.moment();
        // An answer may be under way for as long as its limit, and a process passes on what it took before, without asking
        // the node.
        let to = self.moment() + self.limit + PASSED_ON;
        self.marks.push(Mark { key, from, to });
    }

    /// Slow wake-ups are excused since `from` until `to`.
    pub(super) fn excuse(&mut self, from: u64, to: u64) {
        self.note(Event::new("nemesis", Op::Fault, ms(from)).until(ms(to)));
    }
}

/// Done at a time.
#[derive(Debug)]
pub(super) struct Timer {
    world: Arc<World>,
    at: u64,
    entry: Option<u64>,
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut state = this.world.state();
        if state.now >= this.at {
            return Poll::Ready(());
        }
        let entry = *this.entry.get_or_insert_with(|| {
            state.serial += 1;
            state.serial
        });
        match state.due.get_mut(&(this.at, entry)) {
            Some(Due::Wake(waker)) => waker.clone_from(cx.waker()),
            _ => drop(state.due.insert((this.at, entry), Due::Wake(cx.waker().clone()))),
        }
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            self.world.state().due.remove(&(self.at, entry));
        }
    }
}

pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX / 4)
}

/// A time of the history.
pub(super) fn ms(micros: u64) -> f64 {
    micros as f64 / 1_000.0
}
