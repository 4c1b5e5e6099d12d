//! What clients do with locks, and write down.

mod odd;

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::Poll,
    time::Duration,
};

use lock_core::{Error, ErrorKind, Lease, LockGuard, LockManager, LossReason};

use super::{
    backend::InTask,
    world::{World, micros, ms},
};
use crate::{
    Dice,
    history::{Event, Op, Outcome},
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
    lease: Lease,
    key: String,
    token: String,
    /// The deadline that was written down last, in µs of true time.
    deadline: u64,
    /// When.
    last: f64,
    /// Whether its engine renews it.
    renews: bool,
    over: bool,
}

/// One task: it does one thing at a time.
#[derive(Debug)]
pub(super) struct Task {
    client: Client,
    process: String,
    dice: Dice,
}

/// A lease that is held.
struct Held {
    guard: LockGuard,
    /// Where it stands among the watched.
    index: usize,
    key: String,
    token: String,
    extras: Extras,
}

/// What is asked for beside the ttl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extras {
    None,
    Fixed,
    OftenRenewed,
    MaxHold,
    AtLeast,
}

impl Client {
    /// Has its tasks begin.
    pub(super) fn begin(&self, dice: &mut Dice) -> Vec<tokio::task::JoinHandle<()>> {
        (0..self.world.plan.tasks)
            .map(|task| {
                let process = format!("c{}/t{task}", self.number);
                let task = Task { client: self.clone(), process, dice: dice.split() };
                self.spawn(task.work())
            })
            .collect()
    }

    pub(super) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) -> tokio::task::JoinHandle<()> {
        tokio::spawn(InTask { world: Arc::clone(&self.world), client: self.number, inner: Box::pin(future) })
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
        if deadline > now && now > watched.deadline + NEWS {
            let (token, end) = (&watched.token, watched.deadline);
            self.world.state().breach("revived", || format!("{token} had ended at {end} µs"));
        }
        if deadline > now && deadline.abs_diff(watched.deadline) > NEWS {
            let mut event = Event::new(format!("c{}/r{index}", self.number), Op::Extend, watched.last);
            event.key = Some(watched.key.clone());
            event.token = Some(watched.token.clone());
            event.t_return = Some(at);
            event.deadline = Some(ms(deadline));
            if deadline < watched.deadline {
                event.result = Outcome::Fail; // its clock leapt
            }
            (watched.last, watched.deadline) = (at, deadline);
            self.note(event);
        }
    }

    /// Now, and until when the client relies on the lease, in true time.
    fn deadline(&self, lease: &Lease) -> (u64, u64) {
        let remaining = i128::from(micros(lease.remaining()));
        let state = self.world.state();
        let rate = state.links[self.number].rate;
        let left = remaining * 1_000_000 / i128::from(1_000_000 + rate);
        (state.now, state.now + u64::try_from(left).unwrap_or(0))
    }

    /// A dead client writes nothing.
    fn note(&self, event: Event) {
        let mut state = self.world.state();
        if !state.links[self.number].dead {
            state.note(event);
        }
    }
}

/// An operation under way: one that is not ended has no known outcome, and never came back if its client was killed.
struct Under {
    client: Client,
    event: Option<Event>,
}

impl Under {
    fn event(&mut self) -> &mut Event {
        self.event.as_mut().expect("there until it ends")
    }

    fn end(mut self, result: Outcome) {
        let at = self.client.world.moment();
        self.event().t_return.get_or_insert(at);
        self.event().result = result;
        if let Some(event) = self.event.take() {
            self.client.note(event);
        }
    }
}

impl Drop for Under {
    fn drop(&mut self) {
        let Some(mut event) = self.event.take() else { return };
        event.result = Outcome::Info;
        let mut state = self.client.world.state();
        if !state.links[self.client.number].dead {
            event.t_return = Some(state.moment());
        }
        state.note(event);
    }
}

impl Task {
    async fn work(mut self) {
        let plan = &Arc::clone(&self.client.world).plan;
        for _ in 0..plan.rounds {
            let think = self.dice.below(40_000);
            self.pause(think).await;
            let key = format!("k{}", self.dice.below(plan.keys as u64));
            let ttl = plan.ttls[self.dice.below(2) as usize];
            let Some(held) = self.acquire(&key, ttl).await else { continue };
            self.hold(held, ttl).await;
        }
    }

    async fn pause(&self, micros: u64) {
        self.client.world.sleep(Duration::from_micros(micros)).await;
    }

    fn extras(&mut self) -> Extras {
        match self.dice.below(16) {
            0..3 => Extras::Fixed,
            3 => Extras::OftenRenewed,
            4 => Extras::MaxHold,
            5 if self.client.world.plan.odd > 0 => Extras::AtLeast,
            _ => Extras::None,
        }
    }

    async fn acquire(&mut self, key: &str, ttl: Duration) -> Option<Held> {
        let world = Arc::clone(&self.client.world);
        let wait = match self.dice.below(6) {
            0 => 0,
            1 => self.dice.below(50_000),
            2 => self.dice.below(500_000),
            _ => 3_000_000 + self.dice.below(3_000_000),
        };
        let request = self.client.manager.lock(key).wait(Duration::from_micros(wait));
        let extras = self.extras();
        let request = match extras {
            Extras::None => request.ttl(ttl),
            Extras::Fixed => request.ttl(ttl).fixed(),
            Extras::OftenRenewed => request.ttl(ttl).renew_every(ttl / 2),
            Extras::MaxHold => request.ttl(ttl).max_hold(ttl / 2),
            Extras::AtLeast => request.ttl(ttl).at_least(ttl / 10),
        };
        let mut event = self.event(Op::Acquire, key);
        event.ttl = Some(ttl.as_secs_f64() * 1_000.0);
        event.only_tries = wait == 0;
        let mut under = self.begin(event);
        let cut = self.dice.below(100) < world.plan.drops;
        let aside = &mut under.event().only_tries;
        let answered = if cut { self.cut(request.acquire(), aside).await } else { Some(request.await) };
        match answered? {
            Ok(guard) => Some(self.got(under, guard, extras)),
            Err(error) => {
                under.end(outcome(&error));
                None
            }
        }
    }

    fn begin(&self, event: Event) -> Under {
        Under { client: self.client.clone(), event: Some(event) }
    }

    fn got(&self, mut under: Under, guard: LockGuard, extras: Extras) -> Held {
        let key = guard.key().to_owned();
        let token = format!("c{}:{key}:{}/1", self.client.number, guard.fencing_token());
        let (_, deadline) = self.client.deadline(guard.lease());
        let last = self.client.world.moment();
        let event = under.event();
        event.token = Some(token.clone());
        event.fence = Some(guard.fencing_token().get());
        event.deadline = Some(ms(deadline));
        event.t_return = Some(last);
        under.end(Outcome::Ok);
        let lease = guard.lease().clone();
        let renews = extras != Extras::Fixed;
        let (of_key, of_token) = (key.clone(), token.clone());
        let watched = Watched { lease, key: of_key, token: of_token, deadline, last, renews, over: false };
        let mut all = self.client.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let index = all.len();
        all.push(watched);
        drop(all);
        let held = Held { guard, index, key, token, extras };
        self.watch(&held);
        held
    }

    /// Has it written down when the holder is told of a loss.
    fn watch(&self, held: &Held) {
        let (client, process) = (self.client.clone(), self.process.clone());
        let (key, token, index) = (held.key.clone(), held.token.clone(), held.index);
        let lost = held.guard.lost();
        let expected = self.client.world.plan.is_calm();
        self.client.spawn(async move {
            let reason = lost.await;
            let mut watched = client.watched.lock().unwrap_or_else(PoisonError::into_inner);
            let watched = &mut watched[index];
            watched.over = true;
            if reason == LossReason::Released {
                return;
            }
            let now = client.world.now();
            let at = client.world.moment();
            let mut event = Event::new(process, Op::Lost, at);
            event.t_return = Some(at);
            event.key = Some(key);
            event.token = Some(token);
            client.note(event);
            let mut state = client.world.state();
            state.log(|| format!("lost: {reason:?}"));
            if state.links[client.number].dead {
                return;
            }
            if expected && matches!(reason, LossReason::Expired | LossReason::Taken) && watched.renews {
                state.breach("false-loss", || format!("{} is told of a loss ({reason:?})", watched.token));
            }
            let disturbed = state.links[client.number].disturbed;
            if reason == LossReason::Expired
                && now > watched.deadline + TOLD
                && disturbed.saturating_add(TOLD) < watched.deadline
            {
                let deadline = watched.deadline;
                state.breach("told-late", || format!("{} ended at {deadline} µs, told at {now} µs", watched.token));
            }
        });
    }

    async fn hold(&mut self, mut held: Held, ttl: Duration) {
        let world = Arc::clone(&self.client.world);
        let work = match self.dice.below(8) {
            0..5 if held.extras != Extras::Fixed => self.dice.below(30_000),
            0..3 => self.dice.below(30_000),
            3..7 => self.dice.below(micros(ttl)),
            _ => self.dice.below(micros(ttl) * 2),
        };
        for _ in 0..1 + self.dice.below(3) {
            self.pause(work / 2).await;
            self.check(&held);
        }
        if self.dice.below(100) < world.plan.odd {
            self.extend(&mut held, ttl).await;
        }
        self.look(&held);
        let Some(held) = self.odd(held, ttl).await else { return };
        self.look(&held);
        if self.dice.below(100) < world.plan.drops / 2 {
            let mut event = self.event_of(Op::Release, &held);
            drop(held.guard);
            event.t_return = Some(world.moment());
            event.result = Outcome::Info;
            self.client.note(event);
            return;
        }
        let under = self.begin(self.event_of(Op::Release, &held));
        let cut = self.dice.below(100) < world.plan.drops;
        let (extras, release) = (held.extras, held.guard.release());
        let released = if cut { self.cut(release, &mut false).await } else { Some(release.await) };
        match released {
            // Its key stays busy for a while.
            Some(Ok(())) if extras == Extras::AtLeast => under.end(Outcome::Info),
            Some(Ok(())) => under.end(Outcome::Ok),
            Some(Err(error)) => under.end(outcome(&error)),
            None => {}
        }
    }

    fn check(&self, held: &Held) {
        self.look(held);
        let mut event = self.event_of(Op::Check, held);
        event.valid = Some(held.guard.is_held());
        event.t_return = Some(self.client.world.moment());
        self.client.note(event);
    }

    async fn extend(&mut self, held: &mut Held, ttl: Duration) {
        self.look(held);
        let ttl = [ttl / 3, ttl, ttl * LONGEST_EXTEND][self.dice.below(3) as usize];
        let mut event = self.event_of(Op::Extend, held);
        event.ttl = Some(ttl.as_secs_f64() * 1_000.0);
        let mut under = self.begin(event);
        let extended = held.guard.extend(ttl).await;
        let event = under.event();
        let (now, deadline) = self.client.deadline(held.guard.lease());
        let last = self.client.world.moment();
        event.t_return = Some(last);
        if deadline > now {
            event.deadline = Some(ms(deadline));
        }
        under.end(match extended {
            Ok(()) => Outcome::Ok,
            Err(error) => outcome(&error),
        });
        let mut watched = self.client.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let watched = &mut watched[held.index];
        (watched.last, watched.deadline) = (last, deadline);
    }

    fn look(&self, held: &Held) {
        let mut watched = self.client.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let watched = &mut watched[held.index];
        if !watched.over {
            self.client.look_at(held.index, watched);
        }
    }

    fn event(&self, op: Op, key: &str) -> Event {
        let mut event = Event::new(self.process.as_str(), op, self.client.world.moment());
        event.key = Some(key.to_owned());
        event
    }

    fn event_of(&self, op: Op, held: &Held) -> Event {
        let mut event = self.event(op, &held.key);
        event.token = Some(held.token.clone());
        event
    }

    /// Polls a future, and drops it after a few polls or a while; or leaves it `aside` for a time that may cost its turn.
    async fn cut<F: Future>(&mut self, future: F, aside: &mut bool) -> Option<F::Output> {
        let world = Arc::clone(&self.client.world);
        let mut future = Box::pin(future);
        let polls = match self.dice.below(4) {
            0 => self.dice.below(2),
            1 | 2 => self.dice.below(6),
            _ => u64::MAX,
        };
        let after = match self.dice.below(3) {
            0 => self.dice.below(2_000),
            1 => self.dice.below(50_000),
            _ => self.dice.below(1_000_000),
        };
        let mut timer = world.sleep(Duration::from_micros(after));
        let mut polled = 0;
        let cut = poll_fn(|cx| {
            if polled == polls {
                return Poll::Ready(None);
            }
            polled += 1;
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            Pin::new(&mut timer).poll(cx).map(|()| None)
        })
        .await;
        if cut.is_some() || !world.plan.asides || self.dice.below(2) > 0 {
            return cut;
        }
        // Awaited after all; whom nobody polls does not wait.
        *aside = true;
        let pause = self.dice.below(800_000);
        self.pause(pause).await;
        Some(future.await)
    }
}

/// What is known after an error.
fn outcome(error: &Error) -> Outcome {
    match error.kind() {
        ErrorKind::Busy | ErrorKind::Lost(_) | ErrorKind::Overloaded | ErrorKind::Invalid(_) => Outcome::Fail,
        ErrorKind::NotHeld | ErrorKind::WouldDeadlock => Outcome::Fail,
        _ => Outcome::Info,
    }
}

/// How many ttls an extend asks for at most.
pub(super) const LONGEST_EXTEND: u32 = 2;
/// A deadline that moved by less was only rounded, in µs.
const NEWS: u64 = 20;
/// How long after the deadline the holder is told at the latest, in µs.
const TOLD: u64 = 50_000;
