//! Clients: what each knows of its leases, and writes down of them.

mod task;

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use lock_core::{Error, ErrorKind, Lease, LockManager, LossReason};

#[cfg(test)]
pub(super) use self::task::of_several;
pub(super) use self::task::{LONGEST_EXTEND, Task};
use super::{
    clock::in_task,
    world::{World, micros, ms},
};
use crate::{
    Dice,
    history::{self, Event, Op, Outcome},
};

/// One process: a manager, and what its tasks share.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) world: Arc<World>,
    pub(super) number: usize,
    pub(super) manager: LockManager,
    pub(super) watched: Arc<Mutex<Vec<Watched>>>,
}

/// A lease as its client's history knows it.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) lease: Lease,
    key: String,
    token: String,
    /// The deadline that was written down last, in µs of true time.
    deadline: u64,
    /// When.
    last: f64,
    /// How many times the engine moved it.
    moved: u32,
    /// When it was acquired.
    got: f64,
    /// After what time its engine renews it.
    renews: Option<Duration>,
    /// The deadline that it was got with, if no renewal could come before.
    hopeless_until: Option<u64>,
    over: bool,
    /// Whether its holder moves the deadline at present.
    extending: bool,
}

impl Watched {
    /// Whether a loss is nobody's fault: the lease expired at the deadline that it was got with, which no renewal could move in time.
    fn is_hopeless(&self, reason: LossReason) -> bool {
        reason == LossReason::Expired && self.moved == 0 && self.hopeless_until == Some(self.deadline)
    }
}

impl Client {
    /// Has its tasks begin.
    pub(super) fn begin(&self, dice: &mut Dice) -> Vec<tokio::task::JoinHandle<()>> {
        let tasks = (0..self.world.plan.tasks).map(|task| Task::new(self, &format!("t{task}"), dice.split()));
        tasks.map(|task| self.spawn(task.work())).collect()
    }

    pub(super) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) -> tokio::task::JoinHandle<()> {
        tokio::spawn(in_task(Arc::clone(&self.world), self.number, future))
    }

    /// Writes down what has become of the deadlines.
    pub(super) fn look(&self) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, watched) in watched.iter_mut().enumerate().filter(|(_, watched)| !watched.over) {
            self.look_at(index, watched);
        }
    }

    fn look_at(&self, index: usize, watched: &mut Watched) {
        let (now, deadline) = self.deadline(&watched.lease);
        let at = self.world.moment();
        self.judge_deadline(&watched.lease, deadline);
        if deadline > now && now > watched.deadline + NEWS {
            let (token, end) = (&watched.token, watched.deadline);
            self.world.state().breach("revived", || format!("{token} had ended at {end} µs"));
        }
        // Only its holder lowers it, or its clock.
        if deadline > now && deadline + NEWS < watched.deadline && !watched.extending && self.is_steady() {
            let (token, end) = (&watched.token, watched.deadline);
            let message = || format!("{token} was to last until {end} µs, and now until {deadline} µs");
            self.world.state().breach("lowered", message);
        }
        // A leap may have ended it, before anybody in its process runs who could say so.
        let leapt_over = deadline <= now && watched.deadline > now + NEWS;
        if leapt_over || (deadline > now && deadline.abs_diff(watched.deadline) > NEWS) {
            // The answer that raised it may have been long under way.
            let sent = ms(deadline) - self.validity(watched.lease.ttl());
            let is_raised = deadline > watched.deadline;
            let asked = if is_raised { watched.last.min(sent).max(watched.got) } else { watched.last };
            watched.moved += 1;
            let name = format!("c{}/r{index}.{}", self.number, watched.moved);
            let mut event = Event::new(name, Op::Extend, asked).on(&watched.key).of(&watched.token).until(at);
            event.deadline = Some(ms(deadline));
            if deadline < watched.deadline {
                event.result = Outcome::Fail; // its clock leapt
            }
            (watched.last, watched.deadline) = (at, deadline);
            self.note(event);
        }
    }

    /// Whether it has run all the time.
    fn is_steady(&self) -> bool {
        let state = self.world.state();
        let link = &state.links[self.number];
        link.disturbed == 0 && !link.dead
    }

    /// For how long its client relies on a lease from the sending of its request on, in ms of true time.
    fn validity(&self, ttl: Duration) -> f64 {
        let rate = self.world.state().links[self.number].rate;
        history::validity(ttl) * 1e6 / (1e6 + rate as f64)
    }

    /// Now, and until when the client relies on the lease, in true time.
    fn deadline(&self, lease: &Lease) -> (u64, u64) {
        let remaining = i128::from(micros(lease.remaining()));
        let state = self.world.state();
        let rate = state.links[self.number].rate;
        let left = remaining * 1_000_000 / i128::from(1_000_000 + rate);
        (state.now, state.now + u64::try_from(left).unwrap_or(0))
    }

    /// Nobody relies on a lease for longer than a majority of the nodes keep its key, unless something has happened to it.
    fn judge_deadline(&self, lease: &Lease, deadline: u64) {
        let key = lease.key();
        let mut state = self.world.state();
        if deadline <= state.now || state.links[self.number].dead {
            return;
        }
        if state.has_vanished(key) || state.journal.is_undone(key, lease.fencing_token().get()) {
            return;
        }
        let nodes = state.servers.len();
        let keep = (0..nodes).filter(|server| state.kept_until(*server, key, self.number) >= deadline).count();
        let most = if self.world.plan.store.is_quorum() { nodes / 2 } else { 0 };
        if keep <= most {
            let now = state.now;
            let client = self.number;
            state.breach("beyond-expiry", || {
                format!("at {now} µs c{client} relies on {key} until {deadline} µs, and {keep} of {nodes} nodes keep it so long")
            });
        }
    }

    /// In a calm world the backend fails nobody, but for who has not polled the future in time.
    fn judge<T>(&self, answer: &Result<T, Error>, aside: bool) {
        if let Err(error) = answer
            && !aside
            && self.world.plan.is_sound()
            && (self.world.plan.mix.is_plain() || !matches!(error.kind(), ErrorKind::Invalid(_)))
            && !matches!(error.kind(), ErrorKind::Busy | ErrorKind::ShutDown | ErrorKind::Lost(_) | ErrorKind::NotHeld)
        {
            self.world.state().breach("failed", || format!("c{}: {error}", self.number));
        }
    }

    /// A dead client writes nothing.
    fn note(&self, event: Event) {
        let mut state = self.world.state();
        if !state.links[self.number].dead {
            state.note(event);
        }
    }
}

/// A deadline that moved by less was only rounded, in µs.
const NEWS: u64 = 20;
