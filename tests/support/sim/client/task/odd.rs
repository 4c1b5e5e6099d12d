//! What a holder may do beside working and releasing: scoped work, a hand-over, a release by force.

use std::{
    future::{Future, poll_fn},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use lock_core::{Error, Handover, Lease, LockGuard};

use super::{Extras, Guard, Held, Part, Task, Under};
use crate::{
    history::{Mode, Op, Outcome, outcome},
    sim::nemesis,
};

impl Task {
    /// Does something odd with the lease, or gives it back to be used as usual.
    pub(super) async fn odd(&mut self, held: Held, ttl: Duration) -> Option<Held> {
        if self.dice.below(100) >= self.client.world.plan.odd {
            return Some(held);
        }
        match self.dice.below(4) {
            0 => {
                self.protect(held).await;
                None
            }
            1 => match held.guard {
                Guard::One(guard) => self.hand_over(guard, held.parts, ttl).await,
                Guard::All(_) => Some(held),
            },
            2 if !self.client.world.plan.is_sound() => {
                // Two holders are possible now; the node marks when.
                nemesis::excuse_loss(&self.client.world);
                let part = self.dice.below(held.parts.len() as u64) as usize;
                let forced = self.client.manager.force_release(&held.parts[part].key).await;
                self.client.world.log(|| format!("forced: {forced:?}"));
                Some(held)
            }
            _ => Some(held),
        }
    }

    /// Has work done for as long as the lease is held: it must not run on without.
    async fn protect(&mut self, held: Held) {
        let (world, client) = (Arc::clone(&self.client.world), self.client.number);
        let leases: Vec<_> = held.guard.leases().cloned().collect();
        let (steps, step) = (1 + self.dice.below(4), Duration::from_micros(self.dice.below(100_000)));
        let mut unders = self.begin_all(Op::Release, &held);
        // Each use of the key is over when the last step is.
        let over =
            |unders: &mut Vec<Under>| unders.iter_mut().for_each(|under| under.event().t_invoke = world.moment());
        let work = async {
            for _ in 0..steps {
                world.sleep(step).await;
                if !leases.iter().all(Lease::is_held) && !world.state().links[client].dead {
                    world.state().breach("ran-on", || "work goes on without its lease".to_owned());
                }
            }
            over(&mut unders);
        };
        let done = held.guard.protect(work).await;
        self.client.judge(&done, false);
        if done.is_err() {
            over(&mut unders);
        }
        // It is not told whether the release worked.
        unders.into_iter().for_each(|under| under.end(Outcome::Info));
    }

    /// Lets others share an exclusive lease now and then, or gives it back to be used as usual.
    pub(super) async fn downgrade(&mut self, held: Held, ttl: Duration) -> Option<Held> {
        let world = Arc::clone(&self.client.world);
        let is_one = matches!((&held.guard, &held.parts[..]), (Guard::One(_), [part]) if part.mode == Mode::Exclusive);
        if world.plan.mix.is_plain() || !is_one || self.dice.below(3) > 0 {
            return Some(held);
        }
        let Held { guard: Guard::One(guard), parts, extras } = held else { return None };
        let work = self.dice.below(20_000);
        self.pause(work).await;
        let part = parts.first()?;
        self.look_at(part);
        Under::new(&self.client, self.event_of(Op::Release, part)).end(Outcome::Info);
        let mut event = self.event(self.process.clone(), Op::Acquire, &part.key);
        event.ttl = Some(ttl.as_secs_f64() * 1_000.0);
        event.mode = Mode::Shared;
        event.only_tries = true;
        event.from = Some(part.token.clone());
        let under = Under::new(&self.client, event);
        let cut = self.dice.below(100) < world.plan.drops;
        let mut aside = false;
        let mut future = Box::pin(guard.downgrade());
        // From its first poll on, the lease is no longer exclusive.
        let answered = match poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await {
            Poll::Ready(answered) => answered,
            Poll::Pending => self.awaited(future, cut, &mut aside).await?,
        };
        self.client.judge(&answered, aside);
        self.holds(answered, under, extras, aside)
    }

    /// Goes on with the lease that it has got, if it has.
    fn holds(&self, got: Result<LockGuard, Error>, under: Under, extras: Extras, aside: bool) -> Option<Held> {
        match got {
            Ok(guard) => {
                let parts = vec![self.got(under, guard.lease(), extras, aside)];
                Some(Held { guard: Guard::One(guard), parts, extras })
            }
            Err(error) => {
                under.end(outcome(&error));
                None
            }
        }
    }

    /// Gives the lease away, and takes it up again as another tenure.
    async fn hand_over(&mut self, guard: LockGuard, parts: Vec<Part>, ttl: Duration) -> Option<Held> {
        let world = Arc::clone(&self.client.world);
        let key = guard.key().to_owned();
        let release = Under::new(&self.client, self.event_of(Op::Release, parts.first()?));
        let left = guard.remaining();
        let handed = guard.hand_over();
        release.end(Outcome::Info);
        let handover: Handover = handed.ok()?.reveal().parse().expect("what it wrote itself");
        // Nobody releases it if it is not taken up.
        world.state().handed_over.push(key.clone());
        let way = self.dice.below(20_000);
        self.pause(way).await;
        let mut event = self.event(self.process.clone(), Op::Acquire, &key);
        event.ttl = Some(ttl.as_secs_f64() * 1_000.0);
        event.mode = parts.first()?.mode;
        event.only_tries = true;
        let under = Under::new(&self.client, event);
        let request = self.client.manager.take_up(handover).ttl(ttl).acquire();
        let cut = self.dice.below(100) < world.plan.drops;
        let mut aside = false;
        let answered = self.awaited(request, cut, &mut aside).await?;
        // It ends by itself if it is not taken up in time: a node has to execute that, and the others of a quorum, too.
        let takes = Duration::from_micros(way + 8 * world.plan.latency.1) + Duration::from_millis(10);
        if left > takes {
            self.client.judge(&answered, aside);
        }
        self.holds(answered, under, Extras::None, aside)
    }
}
