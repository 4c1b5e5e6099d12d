//! A client of another library on the same keys: `SET NX PX`, polling, compare-and-delete.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use lock_core::key::LockKey;

use super::{
    link::Command,
    world::{World, micros},
};
use crate::{
    Dice,
    history::{Event, Op, Outcome},
};

/// Asks for keys, holds them, and gives them back.
pub(super) async fn run(world: Arc<World>, mut dice: Dice) {
    for round in 0..world.plan.rounds {
        world.sleep(Duration::from_micros(dice.below(100_000))).await;
        let name = format!("k{}", dice.below(world.plan.keys as u64));
        let key = LockKey::new(&name).expect("a sound key");
        let ttl = micros(world.plan.ttls[1]) / 1_000;
        let token = format!("foreign-{round}");
        let mut event = Event::new("foreign", Op::Acquire, world.moment()).on(&name).of(&token);
        event.foreign = true;
        event.ttl = Some(ttl as f64);
        let until = world.now() + dice.below(1_000_000);
        let (sent, set) = loop {
            let sent = world.moment();
            let set = say(&world, key.clone(), Command::SetNx(round, ttl)).await;
            if set != Some(false) || world.now() > until {
                break (sent, set);
            }
            world.sleep(Duration::from_millis(15)).await;
        };
        event.t_return = Some(world.moment());
        event.deadline = Some(sent + ttl as f64);
        event.result = Outcome::of(set);
        world.state().note(event);
        if set != Some(true) {
            continue;
        }
        world.sleep(Duration::from_micros(dice.below(ttl * 500))).await;
        let mut event = Event::new("foreign", Op::Release, world.moment()).on(&name).of(&token);
        let deleted = say(&world, key, Command::DeleteIf(round)).await;
        event.t_return = Some(world.moment());
        event.result = Outcome::of(deleted);
        world.state().note(event);
    }
}

/// The answer; none where there is none within a second.
async fn say(world: &Arc<World>, key: LockKey, command: Command) -> Option<bool> {
    let id = world.state().command(&world.plan, 0, key, command);
    let mut limit = world.sleep(Duration::from_secs(1));
    poll_fn(|cx| {
        let mut state = world.state();
        if let Some(done) = state.requests[id].done.take() {
            return Poll::Ready(Some(done.is_some()));
        }
        state.requests[id].waker = Some(cx.waker().clone());
        drop(state);
        Pin::new(&mut limit).poll(cx).map(|()| None)
    })
    .await
}
