//! What breaks, and is mended again.

use std::{sync::Arc, time::Duration};

use lock_core::key::LockKey;

use super::{
    Stage,
    client::LONGEST_EXTEND,
    link::Command,
    node::Refuses,
    plan::{Plan, Trouble},
    world::{State, World, micros},
};
use crate::{
    Dice,
    history::{Event, Op},
};

/// Breaks something every now and then, until the faults are over; mends everything it broke.
pub(super) async fn run(stage: Arc<Stage>, mut dice: Dice) {
    let world = Arc::clone(&stage.world);
    while !world.plan.troubles.is_empty() && world.state().faults {
        let pace = world.plan.pace;
        world.sleep(dice.between(pace / 4, pace * 2)).await;
        if !world.state().faults {
            break;
        }
        let trouble = world.plan.troubles[dice.below(world.plan.troubles.len() as u64) as usize];
        world.log(|| format!("trouble: {trouble:?}"));
        strike(&stage, &world, trouble, &mut dice).await;
    }
}

async fn strike(stage: &Arc<Stage>, world: &Arc<World>, trouble: Trouble, dice: &mut Dice) {
    let from = world.now();
    let longest = world.plan.longest_ttl();
    let pause = dice.between(Duration::from_millis(10), (longest * 3 / 2).min(Duration::from_secs(2)));
    let servers = world.state().servers.len();
    let server = if servers > 1 { dice.below(servers as u64) as usize } else { 0 };
    match trouble {
        Trouble::NodeCrash | Trouble::NodeLoss => {
            {
                let mut state = world.state();
                state.hang_up_on_all(&world.plan, server);
                state.servers[server].down = true;
                if trouble == Trouble::NodeLoss {
                    let wall = state.wall(server);
                    state.servers[server].node.forget(wall);
                    state.mark(None);
                }
            }
            world.sleep(pause / 4).await;
            let mut state = world.state();
            state.servers[server].down = false;
            drop(state);
            excuse(world, from);
            if trouble == Trouble::NodeLoss {
                excuse_loss(world);
            }
        }
        Trouble::Flush => {
            let mut state = world.state();
            let wall = state.wall(server);
            state.servers[server].node.forget(wall);
            state.mark(None);
            drop(state);
            excuse_loss(world);
        }
        Trouble::Delete => {
            let key = LockKey::new(format!("k{}", dice.below(world.plan.keys as u64))).expect("a sound key");
            world.state().command(&world.plan, server, Command::Delete { key });
            excuse_loss(world);
        }
        Trouble::NodePause => {
            world.state().servers[server].stopped = Some(Vec::new());
            world.sleep(pause).await;
            let mut state = world.state();
            let now = state.now;
            for arriving in state.servers[server].stopped.take().unwrap_or_default() {
                state.later(now, arriving);
            }
            drop(state);
            excuse(world, from);
        }
        Trouble::ClockForward | Trouble::ClockBack => {
            let by = i64::try_from(pause.as_micros()).unwrap_or(0);
            let mut state = world.state();
            state.servers[server].ahead += if trouble == Trouble::ClockForward { by } else { -by };
            state.mark(None);
            state.servers[server].node.audit.look_away();
            drop(state);
            excuse_loss(world);
        }
        Trouble::Crash => {
            let Some(number) = stage.pick(dice) else { return };
            stage.crash(number);
            let mut state = world.state();
            let at = state.moment();
            let event = Event::new(format!("c{number}"), Op::Crash, at);
            state.note(event);
            drop(state);
            excuse(world, from);
            if stage.clients() < 2 * world.plan.clients {
                stage.begin_client(dice);
            }
        }
        Trouble::Pause | Trouble::StarveEngine | Trouble::StarveTasks => {
            let Some(number) = stage.pick(dice) else { return };
            let (engine, tasks) = (trouble != Trouble::StarveTasks, trouble != Trouble::StarveEngine);
            stage.look(number);
            {
                let link = &mut world.state().links[number];
                if engine {
                    link.engine.close();
                }
                if tasks {
                    link.tasks.close();
                }
                link.disturbed = u64::MAX;
            }
            world.sleep(pause).await;
            let mut wakers = Vec::new();
            {
                let link = &mut world.state().links[number];
                if engine {
                    wakers.extend(link.engine.open());
                }
                if tasks {
                    wakers.extend(link.tasks.open());
                }
                link.disturbed = from + u64::try_from(pause.as_micros()).unwrap_or(0);
            }
            wakers.into_iter().for_each(std::task::Waker::wake);
            excuse(world, from);
        }
        Trouble::Suspend => {
            let Some(number) = stage.pick(dice) else { return };
            let now = world.now();
            {
                let link = &mut world.state().links[number];
                link.leapt += u64::try_from(pause.as_micros()).unwrap_or(0);
                link.disturbed = now + 300_000;
            }
            stage.look(number);
            excuse(world, from);
        }
        Trouble::Failover => {
            let (copied, since) = {
                let mut state = world.state();
                (state.servers[server].node.copy(), state.moment())
            };
            // By so much the copy lags behind.
            world.sleep(dice.between(Duration::from_millis(1), Duration::from_millis(300))).await;
            {
                let mut state = world.state();
                state.hang_up_on_all(&world.plan, server);
                state.servers[server].down = true;
                state.servers[server].node.fail_over(copied);
                state.undo(since);
            }
            world.sleep(pause / 4).await;
            world.state().servers[server].down = false;
            excuse(world, from);
            excuse_loss(world);
        }
        Trouble::Replica => {
            // What it had is lost if it comes to copying the other one.
            let copies = dice.below(2) == 0;
            {
                let mut state = world.state();
                state.servers[server].node.refuses = Refuses::Writes;
                if copies {
                    let wall = state.wall(server);
                    state.servers[server].node.forget(wall);
                    state.mark(None);
                }
            }
            world.sleep(pause).await;
            world.state().servers[server].node.refuses = Refuses::Nothing;
            excuse(world, from);
            if copies {
                excuse_loss(world);
            }
        }
        Trouble::OutOfMemory | Trouble::NoNumbers => {
            let refuses = if trouble == Trouble::NoNumbers { Refuses::Numbers } else { Refuses::Memory };
            world.state().servers[server].node.refuses = refuses;
            world.sleep(pause).await;
            world.state().servers[server].node.refuses = Refuses::Nothing;
            excuse(world, from);
        }
        Trouble::Mute => {
            world.state().servers[server].node.mute = true;
            world.sleep(pause).await;
            world.state().servers[server].node.mute = false;
            excuse(world, from);
        }
        Trouble::Evict => {
            let key = LockKey::new(format!("k{}", dice.below(world.plan.keys as u64))).expect("a sound key");
            let node = &mut world.state().servers[server].node;
            if dice.below(2) == 0 { node.forget_waiting() } else { node.forget_queue(&key) }
        }
        Trouble::Snipe => {
            world.state().servers[server].sniped = true;
            world.sleep(pause / 2).await;
            world.state().servers[server].sniped = false;
        }
        Trouble::Kill => {
            let Some(number) = stage.pick(dice) else { return };
            let mut state = world.state();
            if let Some(conn) = state.links[number].ways[server].up {
                state.hang_up(&world.plan, conn);
            }
            drop(state);
            excuse(world, from);
        }
    }
}

/// What is slow now is so because of what broke.
fn excuse(world: &World, from: u64) {
    let mut state = world.state();
    let to = state.now + 3_000_000;
    state.excuse(from, to);
}

/// A lease has vanished, of which its holder learns with the next renewal; those of its process stand behind it as long.
pub(super) fn excuse_loss(world: &World) {
    excuse_loss_of(&mut world.state(), &world.plan);
}

pub(super) fn excuse_loss_of(state: &mut State, plan: &Plan) {
    let longest = micros(plan.longest_ttl() * LONGEST_EXTEND);
    let now = state.now;
    state.excuse(now, now + 3_000_000 + longest);
}
