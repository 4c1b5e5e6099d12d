//! What breaks, and is mended again.

use std::{sync::Arc, time::Duration};

use lock_core::key::LockKey;

use super::{
    Stage,
    client::LONGEST_EXTEND,
    link::{Command, Gate},
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
        Strike::new(&stage, &world, &mut dice).with(trouble).await;
    }
}

/// One trouble, and what it strikes.
pub(super) struct Strike<'a> {
    stage: &'a Arc<Stage>,
    pub(super) world: &'a Arc<World>,
    pub(super) dice: &'a mut Dice,
    pub(super) server: usize,
    /// For how long it lasts, where it lasts.
    pub(super) pause: Duration,
    /// When it began.
    pub(super) from: u64,
}

impl<'a> Strike<'a> {
    fn new(stage: &'a Arc<Stage>, world: &'a Arc<World>, dice: &'a mut Dice) -> Self {
        let from = world.now();
        let longest = world.plan.longest_ttl();
        let pause = dice.between(Duration::from_millis(10), (longest * 3 / 2).min(Duration::from_secs(2)));
        let servers = world.state().servers.len();
        let server = if servers > 1 { dice.below(servers as u64) as usize } else { 0 };
        Self { stage, world, dice, server, pause, from }
    }

    async fn with(self, trouble: Trouble) {
        match trouble {
            Trouble::NodeCrash => self.crash_server(false).await,
            Trouble::NodeLoss => self.crash_server(true).await,
            Trouble::NodePause => self.stop_server().await,
            Trouble::ClockForward => self.set_clock(1),
            Trouble::ClockBack => self.set_clock(-1),
            Trouble::Failover => self.fail_over().await,
            Trouble::Replica => self.make_replica().await,
            Trouble::OutOfMemory => self.refuse(Refuses::Memory, false).await,
            Trouble::NoNumbers => self.refuse(Refuses::Numbers, false).await,
            Trouble::Mute => self.mute().await,
            Trouble::Flush => {
                self.forget();
                excuse_loss(self.world);
            }
            Trouble::Delete => self.delete(),
            Trouble::Evict => self.evict(),
            Trouble::Snipe => self.snipe().await,
            Trouble::Crash => self.crash_client(),
            Trouble::Pause => self.starve(true, true).await,
            Trouble::StarveEngine => self.starve(true, false).await,
            Trouble::StarveTasks => self.starve(false, true).await,
            Trouble::Suspend => self.suspend(),
            Trouble::Kill => self.kill_connection(),
        }
    }

    async fn crash_server(self, loses_data: bool) {
        self.world.state().hang_up_on_all(&self.world.plan, self.server);
        self.world.state().servers[self.server].down = true;
        if loses_data {
            self.forget();
        }
        self.world.sleep(self.pause / 4).await;
        self.world.state().servers[self.server].down = false;
        excuse(self.world, self.from);
        if loses_data {
            excuse_loss(self.world);
        }
    }

    /// The server loses all data.
    fn forget(&self) {
        let mut state = self.world.state();
        let wall = state.wall(self.server);
        state.servers[self.server].node.forget(wall);
        state.mark(None);
    }

    async fn stop_server(self) {
        self.world.state().servers[self.server].stopped = Some(Vec::new());
        self.world.sleep(self.pause).await;
        let mut state = self.world.state();
        let now = state.now;
        for arriving in state.servers[self.server].stopped.take().unwrap_or_default() {
            state.later(now, arriving);
        }
        drop(state);
        excuse(self.world, self.from);
    }

    fn set_clock(self, sign: i64) {
        let by = i64::try_from(self.pause.as_micros()).unwrap_or(0);
        let mut state = self.world.state();
        state.servers[self.server].ahead += sign * by;
        state.mark(None);
        state.servers[self.server].node.audit.look_away();
        drop(state);
        excuse_loss(self.world);
    }

    async fn make_replica(self) {
        // What it had is lost if it comes to copying the other one.
        let (copies, world) = (self.dice.below(2) == 0, self.world);
        self.refuse(Refuses::Writes, copies).await;
        if copies {
            excuse_loss(world);
        }
    }

    async fn refuse(self, refuses: Refuses, forgets: bool) {
        self.world.state().servers[self.server].node.refuses = refuses;
        if forgets {
            self.forget();
        }
        self.world.sleep(self.pause).await;
        self.world.state().servers[self.server].node.refuses = Refuses::Nothing;
        excuse(self.world, self.from);
    }

    async fn mute(self) {
        self.world.state().servers[self.server].node.mute = true;
        self.world.sleep(self.pause).await;
        self.world.state().servers[self.server].node.mute = false;
        excuse(self.world, self.from);
    }

    fn delete(mut self) {
        let key = self.some_key();
        self.world.state().command(&self.world.plan, self.server, key, Command::Delete);
        excuse_loss(self.world);
    }

    fn evict(mut self) {
        let key = self.some_key();
        let evicts_waiting = self.dice.below(2) == 0;
        let node = &mut self.world.state().servers[self.server].node;
        if evicts_waiting { node.forget_waiting() } else { node.forget_queue(&key) }
    }

    async fn snipe(self) {
        self.world.state().servers[self.server].sniped = true;
        self.world.sleep(self.pause / 2).await;
        self.world.state().servers[self.server].sniped = false;
    }

    fn some_key(&mut self) -> LockKey {
        LockKey::new(format!("k{}", self.dice.below(self.world.plan.keys as u64))).expect("a sound key")
    }

    fn crash_client(self) {
        let Some(number) = self.stage.pick(self.dice) else { return };
        self.stage.crash(number);
        let mut state = self.world.state();
        let at = state.moment();
        state.note(Event::new(format!("c{number}"), Op::Crash, at));
        state.excuse_late(number);
        drop(state);
        excuse(self.world, self.from);
        if self.stage.clients() < 2 * self.world.plan.clients {
            self.stage.begin_client(self.dice);
        }
    }

    async fn starve(self, engine: bool, tasks: bool) {
        let Some(number) = self.stage.pick(self.dice) else { return };
        self.stage.look(number);
        for gate in self.world.state().links[number].gates(engine, tasks) {
            gate.close();
        }
        self.world.state().links[number].disturbed = u64::MAX;
        self.world.sleep(self.pause).await;
        let wakers: Vec<_> = self.world.state().links[number].gates(engine, tasks).flat_map(Gate::open).collect();
        self.world.state().links[number].disturbed = self.from + micros(self.pause);
        wakers.into_iter().for_each(std::task::Waker::wake);
        excuse(self.world, self.from);
    }

    fn suspend(self) {
        let Some(number) = self.stage.pick(self.dice) else { return };
        {
            let link = &mut self.world.state().links[number];
            link.leapt += micros(self.pause);
            link.disturbed = self.from + 300_000;
        }
        self.stage.look(number);
        excuse(self.world, self.from);
    }

    fn kill_connection(self) {
        let Some(number) = self.stage.pick(self.dice) else { return };
        let mut state = self.world.state();
        if let Some(conn) = state.links[number].ways[self.server].up {
            state.hang_up(&self.world.plan, conn);
        }
        drop(state);
        excuse(self.world, self.from);
    }
}

/// What is slow now is so because of what broke.
pub(super) fn excuse(world: &World, from: u64) {
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
