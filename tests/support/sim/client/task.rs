//! What the tasks of a client do with locks.

mod guard;
mod odd;
#[cfg(test)]
mod tests;
mod under;

use std::{
    cmp::Ordering,
    future::{Future, poll_fn},
    pin::Pin,
    sync::{Arc, PoisonError},
    task::Poll,
    time::Duration,
};

use lock_core::{Error, ErrorKind, Lease, LossReason};

use self::{guard::Guard, under::Under};
use super::{Client, Watched};
use crate::{
    Dice,
    history::{Event, Mode, Op, Outcome, outcome},
    sim::{
        mix,
        world::{micros, ms},
    },
};

/// One task: it does one thing at a time.
#[derive(Debug)]
pub(in crate::sim) struct Task {
    client: Client,
    process: String,
    dice: Dice,
}

/// A lease that is held, or several at once.
struct Held {
    guard: Guard,
    parts: Vec<Part>,
    extras: Extras,
}

/// One lease as the history knows it.
struct Part {
    lease: Lease,
    /// Whose it is: of several leases each has a process of its own.
    process: String,
    /// Where it stands among the watched.
    index: usize,
    key: String,
    token: String,
    mode: Mode,
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

impl Task {
    pub(in crate::sim) fn new(client: &Client, name: &str, dice: Dice) -> Self {
        Self { client: client.clone(), process: format!("c{}/{name}", client.number), dice }
    }

    pub(super) async fn work(mut self) {
        let plan = &Arc::clone(&self.client.world).plan;
        for _ in 0..plan.rounds {
            let think = self.dice.below(if plan.hot { 500 } else { 40_000 });
            self.pause(think).await;
            let keys = self.keys();
            let ttl = plan.ttls[self.dice.below(2) as usize];
            let Some(held) = self.acquire(&keys, ttl).await else { continue };
            let Some(held) = self.downgrade(held, ttl).await else { continue };
            self.hold(held, ttl).await;
        }
    }

    /// What to ask for: one key, or several in any order, each in a mode.
    fn keys(&mut self) -> Vec<(String, Mode)> {
        let world = Arc::clone(&self.client.world);
        let plan = &world.plan;
        let all = plan.keys as u64;
        let several = all > 1 && plan.several > 0 && self.dice.below(100) < plan.several;
        let count = if several { 2 + self.dice.below(all - 1) } else { 1 };
        let first = self.dice.below(all);
        (first..first + count).map(|key| (format!("k{}", key % all), plan.mix.mode(&mut self.dice))).collect()
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

    async fn acquire(&mut self, keys: &[(String, Mode)], ttl: Duration) -> Option<Held> {
        let world = Arc::clone(&self.client.world);
        let wait = match self.dice.below(6) {
            0 => Duration::ZERO,
            1 => Duration::from_micros(self.dice.below(50_000)),
            2 => Duration::from_micros(self.dice.below(500_000)),
            // Where each waited for what the other has, they would do so for ever.
            3 if keys.len() > 1 => Duration::MAX,
            _ => Duration::from_micros(3_000_000 + self.dice.below(3_000_000)),
        };
        let extras = self.extras();
        let mut unders: Vec<_> = keys
            .iter()
            .map(|(key, mode)| {
                let process = if keys.len() > 1 { format!("{}/{key}", self.process) } else { self.process.clone() };
                let mut event = self.event(process, Op::Acquire, key);
                event.ttl = Some(ttl.as_secs_f64() * 1_000.0);
                event.only_tries = wait.is_zero();
                event.several = keys.len() > 1;
                event.mode = *mode;
                Under::new(&self.client, event)
            })
            .collect();
        unders.sort_by(|a, b| a.key().cmp(b.key()));
        let cut = self.dice.below(100) < world.plan.drops;
        let mut aside = false;
        let answered = match keys {
            [(key, mode)] => {
                let request = mode.ask(self.client.manager.lock(key));
                let acquire = extras.request(request, ttl, wait).acquire();
                self.awaited(acquire, cut, &mut aside).await.map(|answer| answer.map(Guard::One))
            }
            _ => {
                let keys = keys.iter().map(|(key, mode)| mix::key(key, *mode));
                let acquire = extras.request(self.client.manager.lock_all(keys), ttl, wait).acquire();
                self.awaited(acquire, cut, &mut aside).await.map(|answer| answer.map(Guard::All))
            }
        };
        unders.iter_mut().for_each(|under| under.event().only_tries |= aside);
        let answered = answered?;
        self.client.judge(&answered, aside);
        match answered {
            Ok(guard) => {
                let mut leases: Vec<_> = guard.leases().collect();
                leases.sort_by(|a, b| a.key().cmp(b.key()));
                let parts = unders.into_iter().zip(leases).map(|(under, lease)| self.got(under, lease, extras, aside));
                let parts = parts.collect();
                Some(Held { guard, parts, extras })
            }
            Err(error) => {
                let first = unders[0].key().to_owned();
                for under in unders {
                    let result = of_several(&error, &first, under.key());
                    under.end(result);
                }
                None
            }
        }
    }

    /// Awaits a future, or drops it before it is done.
    async fn awaited<F: Future>(&mut self, future: F, cut: bool, aside: &mut bool) -> Option<F::Output> {
        if cut { self.cut(future, aside).await } else { Some(future.await) }
    }

    /// Records a lease, of a future that may have been kept `aside`.
    fn got(&self, mut under: Under, lease: &Lease, extras: Extras, aside: bool) -> Part {
        let key = lease.key().to_owned();
        let (_, deadline) = self.client.deadline(lease);
        self.client.judge_deadline(lease, deadline);
        let last = self.client.world.moment();
        let event = under.event();
        let (process, mode) = (event.process.clone(), event.mode);
        // Those who share a key have one number.
        let index = self.client.watched.lock().unwrap_or_else(PoisonError::into_inner).len();
        let beside = if mode == Mode::Shared { format!(".{index}") } else { String::new() };
        let token = format!("c{}:{key}:{}{beside}/1", self.client.number, lease.fencing_token());
        event.token = Some(token.clone());
        event.fence = Some(lease.fencing_token().get());
        event.deadline = Some(ms(deadline));
        event.t_return = Some(last);
        let ttl = Duration::from_micros((event.ttl.unwrap_or(0.0) * 1_000.0) as u64);
        // A vote that a future kept aside drives late counts from its first sending: little may be left of the ttl.
        let counts_from_long_ago =
            self.client.world.plan.store.is_quorum() && aside && deadline < self.client.world.now() + micros(ttl) / 3;
        // A future that nobody polled counts from its first sending, too: if less is left of it than a renewal takes, no engine can
        // keep it.
        let plan = &self.client.world.plan;
        let moves = if plan.has_slots() { micros(plan.longest_move()) } else { 0 };
        let last_in_time = self.client.world.now() + 2 * plan.latency.1 + moves;
        let renews = match extras {
            _ if counts_from_long_ago => None,
            Extras::Fixed => None,
            Extras::OftenRenewed => Some(ttl / 2),
            _ => Some(ttl / 3),
        };
        under.end(Outcome::Ok);
        let watched = Watched {
            lease: lease.clone(),
            key: key.clone(),
            token: token.clone(),
            deadline,
            last,
            moved: 0,
            got: last,
            renews,
            hopeless_until: (aside && deadline <= last_in_time).then_some(deadline),
            over: false,
            extending: false,
        };
        let mut all = self.client.watched.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(watched);
        drop(all);
        let part = Part { lease: lease.clone(), process, index, key, token, mode };
        self.watch(&part);
        part
    }

    /// Has it written down when the holder is told of a loss.
    fn watch(&self, part: &Part) {
        let (client, process) = (self.client.clone(), part.process.clone());
        let (key, token, index) = (part.key.clone(), part.token.clone(), part.index);
        let ended = part.lease.ended();
        let plan = &self.client.world.plan;
        // What was extended by a third of its ttl has no time for a slot that moves.
        let expected = plan.is_calm() || plan.is_sound() && plan.odd == 0;
        self.client.spawn(async move {
            let end = ended.await;
            let mut watched = client.watched.lock().unwrap_or_else(PoisonError::into_inner);
            let watched = &mut watched[index];
            watched.over = true;
            let Some(reason) = end.loss() else { return };
            let now = client.world.now();
            let at = client.world.moment();
            client.note(Event::new(process, Op::Lost, at).until(at).on(&key).of(&token));
            let mut state = client.world.state();
            state.log(|| format!("lost: {reason:?}"));
            if state.links[client.number].dead {
                return;
            }
            if reason == LossReason::ShutDown {
                let link = &mut state.links[client.number];
                link.cut_short += 1;
                if link.ends.is_none_or(|ends| now < ends) {
                    state.breach("cut-early", || format!("{} is cut short too early", watched.token));
                }
            }
            let is_false = expected && watched.renews.is_some() && !watched.is_hopeless(reason);
            if is_false && matches!(reason, LossReason::Expired | LossReason::Taken) {
                state.breach("false-loss", || format!("{} is told of a loss ({reason:?})", watched.token));
            }
            if let Some(interval) = watched.renews.filter(|_| state.is_told_of_loss(&client.world.plan))
                && matches!(reason, LossReason::Expired | LossReason::Taken)
            {
                // It takes one renewal and its answer.
                let most = ms(micros(interval * 101 / 100) + 4 * client.world.plan.latency.1) + 20.0;
                let vanished = state.vanished_since(&watched.lease, watched.got, most);
                if let Some(vanished) = vanished.filter(|vanished| at > vanished + most) {
                    let token = &watched.token;
                    state.breach("loss-not-told", || format!("{token} vanished at {vanished} ms, told at {at} ms"));
                }
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
            _ if world.plan.hot => self.dice.below(1_000),
            0..5 if held.extras != Extras::Fixed => self.dice.below(30_000),
            0..3 => self.dice.below(30_000),
            3..7 => self.dice.below(micros(ttl)),
            _ => self.dice.below(micros(ttl) * 2),
        };
        for _ in 0..1 + self.dice.below(3) {
            self.pause(work / 2).await;
            held.parts.iter().for_each(|part| self.check(part));
        }
        if self.dice.below(100) < world.plan.odd {
            let extended = self.extend(&mut held, ttl).await;
            // Half of them hold on, some for longer than they may.
            if self.dice.below(2) == 0 {
                let more = self.dice.below(micros(extended) * 5 / 4);
                for _ in 0..2 {
                    self.pause(more / 2).await;
                    held.parts.iter().for_each(|part| self.check(part));
                }
            }
        }
        self.look(&held);
        let Some(held) = self.odd(held, ttl).await else { return };
        self.look(&held);
        let unders = self.begin_all(Op::Release, &held);
        if self.dice.below(100) < world.plan.drops / 2 {
            drop(held.guard);
            unders.into_iter().for_each(|under| under.end(Outcome::Info));
            return;
        }
        let cut = self.dice.below(100) < world.plan.drops;
        let mut aside = false;
        let Some(released) = self.awaited(held.guard.release(), cut, &mut aside).await else { return };
        self.client.judge(&released, aside);
        for (under, part) in unders.into_iter().zip(&held.parts) {
            under.end(match &released {
                // Its key stays busy for a while.
                Ok(()) if held.extras == Extras::AtLeast => Outcome::Info,
                Ok(()) => Outcome::Ok,
                Err(error) if error.key() == Some(&part.key) => outcome(error),
                Err(_) => Outcome::Info,
            });
        }
    }

    fn check(&self, part: &Part) {
        self.look_at(part);
        let mut event = self.event_of(Op::Check, part);
        event.valid = Some(part.lease.is_held());
        event.t_return = Some(self.client.world.moment());
        self.client.note(event);
    }

    /// Extends it, and returns by how much.
    async fn extend(&mut self, held: &mut Held, ttl: Duration) -> Duration {
        self.look(held);
        let ttl = [ttl / 3, ttl, ttl * LONGEST_EXTEND][self.dice.below(3) as usize];
        let mut unders = self.begin_all(Op::Extend, held);
        unders.iter_mut().for_each(|under| under.event().ttl = Some(ttl.as_secs_f64() * 1_000.0));
        self.extending(held, true);
        let extended = held.guard.extend(ttl).await;
        self.extending(held, false);
        for (mut under, part) in unders.into_iter().zip(&held.parts) {
            let event = under.event();
            let (now, deadline) = self.client.deadline(&part.lease);
            let last = self.client.world.moment();
            event.t_return = Some(last);
            if deadline > now {
                event.deadline = Some(ms(deadline));
            }
            under.end(match &extended {
                Ok(()) => Outcome::Ok,
                Err(error) if error.key() == Some(&part.key) => outcome(error),
                Err(_) => Outcome::Info,
            });
            let mut watched = self.client.watched.lock().unwrap_or_else(PoisonError::into_inner);
            let watched = &mut watched[part.index];
            (watched.last, watched.deadline) = (last, deadline);
            self.client.judge_deadline(&part.lease, deadline);
        }
        self.client.judge(&extended, false);
        ttl
    }

    /// Says whether the holder moves the deadlines.
    fn extending(&self, held: &Held, extending: bool) {
        let mut watched = self.client.watched.lock().unwrap_or_else(PoisonError::into_inner);
        held.parts.iter().for_each(|part| watched[part.index].extending = extending);
    }

    fn look(&self, held: &Held) {
        held.parts.iter().for_each(|part| self.look_at(part));
    }

    fn look_at(&self, part: &Part) {
        let mut watched = self.client.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let watched = &mut watched[part.index];
        if !watched.over {
            self.client.look_at(part.index, watched);
        }
    }

    fn event(&self, process: String, op: Op, key: &str) -> Event {
        Event::new(process, op, self.client.world.moment()).on(key)
    }

    fn event_of(&self, op: Op, part: &Part) -> Event {
        self.event(part.process.clone(), op, &part.key).of(&part.token)
    }

    /// Begins the same with each lease.
    fn begin_all(&self, op: Op, held: &Held) -> Vec<Under> {
        held.parts.iter().map(|part| Under::new(&self.client, self.event_of(op, part))).collect()
    }

    /// Polls a future, and drops it after a few polls or a while; or leaves it `aside` for a time that may cost its turn.
    pub(in crate::sim) async fn cut<F: Future>(&mut self, future: F, aside: &mut bool) -> Option<F::Output> {
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

/// What is known of one of several keys, which were asked for from the first one on, after an error.
pub(in crate::sim) fn of_several(error: &Error, first: &str, key: &str) -> Outcome {
    let named = error.key().unwrap_or_default();
    match key.cmp(named) {
        // It may have been held meanwhile.
        _ if matches!(error.kind(), ErrorKind::Lost(_)) => Outcome::Info,
        Ordering::Less => Outcome::Info,
        Ordering::Equal => outcome(error),
        // All may have been asked for in one call, whose error names the first.
        Ordering::Greater if named == first => outcome(error),
        Ordering::Greater => Outcome::Fail,
    }
}

/// How many ttls an extend asks for at most.
pub(in crate::sim) const LONGEST_EXTEND: u32 = 2;
/// How long after the deadline the holder is told at the latest, in µs.
const TOLD: u64 = 50_000;
