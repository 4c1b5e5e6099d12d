//! Several nodes, each of which has some of the slots; slots move from one to another. The backend cuts a batch by slot.

use std::{collections::BTreeMap, future::Future, pin::Pin, sync::Arc, time::Duration};

use futures_util::future::join_all;
use lock_core::{
    backend::{Answer, Backend, BackendError, Batch, Calls, Operation, Reply},
    clock::Clock,
    key::LockKey,
};

use super::{
    Stage,
    backend::SimBackend,
    node::{Redirect, Refuses},
    world::{Server, State, World},
};
use crate::Dice;

/// One client's ways to all nodes.
#[derive(Clone, Debug)]
pub(super) struct SlotBackend {
    /// One for each node.
    pub(super) nodes: Vec<SimBackend>,
}

impl SlotBackend {
    fn world(&self) -> (&Arc<World>, usize) {
        (&self.nodes[0].world, self.nodes[0].client)
    }

    /// Sends each part to the node that has its slot, all at once, and puts the answers together.
    async fn send_parts(self, batch: Batch) -> Result<Answer, BackendError> {
        let mut parts: BTreeMap<usize, (Vec<usize>, Vec<Operation>)> = BTreeMap::new();
        let count = batch.len();
        for (index, operation) in batch.into_iter().enumerate() {
            let (indexes, part) = parts.entry(slot_of(operation.key())).or_default();
            indexes.push(index);
            part.push(operation);
        }
        let send = |slot: usize, part: Vec<Operation>| self.nodes[0].clone().repeat(Batch::from(part), Some(slot));
        let calls = parts.into_iter().map(|(slot, (indexes, part))| async move { (indexes, send(slot, part).await) });
        let mut outcomes: Vec<_> = (0..count).map(|_| Err(BackendError::unavailable("no answer"))).collect();
        let mut whole = Answer::new([]);
        for (indexes, answer) in join_all(calls).await {
            match answer {
                Ok(answer) => {
                    whole.repeated |= answer.repeated;
                    whole.out_of_order |= answer.out_of_order;
                    whole.calls_refused |= answer.calls_refused;
                    indexes.into_iter().zip(answer.outcomes).for_each(|(index, outcome)| outcomes[index] = outcome);
                }
                Err(error) => indexes.into_iter().for_each(|index| outcomes[index] = Err(error.clone())),
            }
        }
        whole.outcomes = outcomes.into_iter().collect();
        Ok(whole)
    }
}

impl Backend for SlotBackend {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        if batch.is_empty() {
            return self.nodes[0].call(batch);
        }
        let this = self.clone();
        Reply::new(async move { this.send_parts(batch).await })
    }

    fn list(&self, _: String) -> Reply<Vec<LockKey>> {
        Reply::ready(Err(BackendError::unsupported("the simulated nodes list nothing")))
    }

    /// Changes with every connection, and with every change of the map.
    fn epoch(&self) -> u64 {
        let (world, client) = self.world();
        let state = world.state();
        let link = &state.links[client];
        link.ways.iter().map(|way| way.epoch).sum::<u64>() + link.map_changes
    }

    fn grants_leases(&self) -> bool {
        true
    }

    fn is_reachable(&self) -> bool {
        self.nodes.iter().all(Backend::is_reachable)
    }

    fn time_limit(&self) -> Duration {
        self.nodes[0].time_limit()
    }

    /// As `RedisBackend` for a cluster.
    fn calls_at_once(&self) -> usize {
        64
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.nodes[0].clock()
    }

    fn driver(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let drivers: Vec<_> = self.nodes.iter().map(|node| node.driver(calls.clone())).collect();
        Box::pin(async move {
            join_all(drivers).await;
        })
    }
}

/// Gives each node its part of the slots.
pub(super) fn deal(servers: &mut [Server], slots: usize) {
    let nodes = servers.len();
    for slot in 0..slots {
        servers[slot % nodes].node.slots.insert(key_of(slot));
    }
}

/// Has slots move every now and then, until the faults are over.
pub(super) async fn run(stage: Arc<Stage>, mut dice: Dice) {
    let world = &stage.world;
    let pace = world.plan.pace;
    // In a sound world, each lease is renewed between two moves.
    let least = if world.plan.is_sound() { world.plan.longest_ttl() } else { pace / 8 };
    while world.state().faults {
        world.sleep(dice.between(least, least + pace / 2)).await;
        let slot = dice.below(world.plan.keys as u64) as usize;
        let to = dice.below(world.plan.store.nodes() as u64) as usize;
        world.log(|| format!("slot {slot} begins to move to node {to}"));
        world.state().moving.insert(slot);
        // Half of them take no time.
        let takes = world.plan.longest_move() * u32::from(dice.below(2) == 0);
        world.sleep(dice.between(Duration::ZERO, takes)).await;
        let from = {
            let mut state = world.state();
            state.moving.remove(&slot);
            let from = state.owner(&key_of(slot));
            if dice.below(4) > 0 {
                state.move_slot(slot, to);
            }
            from
        };
        if dice.below(3) == 0 && !world.plan.is_sound() {
            // It moves back, and may find what was sent to it before.
            world.sleep(dice.between(Duration::ZERO, Duration::from_millis(200))).await;
            world.state().move_slot(slot, from);
        }
    }
}

impl State {
    /// The node that has a key.
    pub(super) fn owner(&self, key: &LockKey) -> usize {
        self.servers.iter().position(|server| server.node.has_slot(key)).unwrap_or(0)
    }

    /// The nodes that have the slots, in the order of slots.
    pub(super) fn map(&self, slots: usize) -> Vec<usize> {
        (0..slots).map(|slot| self.owner(&key_of(slot))).collect()
    }

    /// Moves a slot at once, unless one of the two nodes is in trouble.
    fn move_slot(&mut self, slot: usize, to: usize) {
        let key = key_of(slot);
        let from = self.owner(&key);
        let is_well = |server: usize| {
            let server = &self.servers[server];
            !server.down && server.stopped.is_none() && server.node.refuses == Refuses::Nothing
        };
        if from == to || !is_well(from) || !is_well(to) {
            return;
        }
        self.log(|| format!("slot {slot} moves from node {from} to node {to}"));
        let (there, here) = (self.wall(from), self.wall(to));
        self.take_notes(from, false);
        let moved = self.servers[from].node.give_slot(&key, there);
        self.servers[to].node.take_slot(moved, here);
        self.take_notes(to, false);
    }

    /// Why a node executes nothing of a batch, all of one slot.
    pub(super) fn redirect(&mut self, conn: usize, batch: &[Operation]) -> Option<Redirect> {
        let key = batch.first().map(Operation::key)?.clone();
        let owner = self.owner(&key);
        let is_former = self.conns[conn].former;
        let node = self.node_of(conn);
        match node.has_slot(&key) {
            false => Some(Redirect::Moved(owner)),
            true if !is_former && self.moving.contains(&slot_of(&key)) => Some(Redirect::TryAgain),
            true => None,
        }
    }

    /// Records the node that has a slot, as a client knows it.
    pub(super) fn learn(&mut self, client: usize, slot: usize, server: usize) {
        let link = &mut self.links[client];
        if link.map[slot] != server {
            link.map[slot] = server;
            link.map_changes += 1;
        }
    }
}

/// Each key has a slot of its own.
pub(super) fn slot_of(key: &LockKey) -> usize {
    key.as_str().trim_start_matches('k').parse().expect("a number")
}

/// The key of a slot.
pub(super) fn key_of(slot: usize) -> LockKey {
    LockKey::new(format!("k{slot}")).expect("a sound key")
}
