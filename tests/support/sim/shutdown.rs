//! Managers that are shut down in good order, and the new ones that come after them.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use lock_core::ErrorKind;

use super::{
    Stage,
    client::{Client, Task},
    judge::check_ghosts,
    world::micros,
};
use crate::Dice;

/// Has a manager shut down every now and then, until the faults are over.
pub(super) async fn run(stage: Arc<Stage>, mut dice: Dice) {
    let world = &stage.world;
    for _ in 0..world.plan.shutdowns {
        world.sleep(dice.between(Duration::from_millis(5), LATEST)).await;
        if !world.state().faults {
            return;
        }
        let Some(number) = stage.pick(&mut dice) else { return };
        if let Some(client) = stage.client(number).filter(|client| client.may_end()) {
            world.log(|| format!("c{number} shuts down"));
            let task = client.spawn(end(Arc::clone(&stage), client.clone(), dice.split()));
            stage.members()[number].tasks.push(task);
        }
    }
}

/// Shuts the manager of a client down, judges what it leaves, and has a new client begin.
async fn end(stage: Arc<Stage>, client: Client, mut dice: Dice) {
    let world = &stage.world;
    let longest = [Duration::ZERO, Duration::from_millis(50), Duration::from_secs(1)][dice.below(3) as usize];
    let grace = dice.between(Duration::ZERO, longest);
    let mut begun = world.now();
    world.state().links[client.number].ends = Some(begun + micros(grace) - micros(grace) / 100);
    let mut aside = false;
    let cut = match dice.below(4) {
        0 => Task::new(&client, "end", dice.split()).cut(client.manager.shutdown(grace), &mut aside).await,
        _ => Some(client.manager.shutdown(grace).await),
    };
    if cut.is_none() {
        // It was dropped in the midst of it, and is to be finished.
        begun = world.now();
        client.manager.shutdown(grace).await;
    }
    let ended = world.now();
    world.log(|| format!("c{} is shut down, {cut:?} leases were cut short", client.number));
    let most = (grace + 2 * LIMIT) * 101 / 100 + Duration::from_millis(10);
    if !aside && world.state().links[client.number].disturbed < begun && ended > begun + micros(most) {
        world.state().breach("late-end", || format!("a shutdown takes longer than {most:?}"));
    }
    if client.holds_any() {
        world.state().breach("outlived", || "a lease is valid after the shutdown".to_owned());
    }
    let refused = client.manager.lock("k0").wait(Duration::ZERO).await;
    if !refused.is_err_and(|error| error.kind() == ErrorKind::ShutDown) {
        world.state().breach("outlived", || "a request is taken after the shutdown".to_owned());
    }
    if world.plan.is_calm() {
        // What its tasks had under way may be answered still.
        world.sleep(world.plan.soon()).await;
        check_ghosts(world, Some(client.number));
        let mut state = world.state();
        // Where it has waited in vain for an answer that settles all, its engine goes on until what it doubts is over.
        let is_up = state.links[client.number].ways.iter().any(|way| way.up.is_some());
        // (A quorum tells each node until it has answered, or what it may have has expired.)
        if !world.plan.store.is_quorum() && is_up && ended < begun + micros(grace + LIMIT) * 99 / 100 {
            state.breach("left-running", || "a manager that was shut down is connected".to_owned());
        }
    }
    client.judge_count(cut);
    if stage.clients() < 2 * world.plan.clients {
        stage.begin_client(&mut dice);
    }
}

/// When a manager is shut down at the latest after the last.
const LATEST: Duration = Duration::from_millis(400);
/// For how long a manager waits for an answer at most, as it is unless one asks for another time.
const LIMIT: Duration = Duration::from_secs(1);

impl Client {
    /// Whether it is not shut down yet, and may be.
    fn may_end(&self) -> bool {
        let mut state = self.world.state();
        let link = &mut state.links[self.number];
        let may = link.ends.is_none();
        link.ends.get_or_insert(u64::MAX);
        may
    }

    fn holds_any(&self) -> bool {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.iter().any(|watched| watched.lease.is_held())
    }

    /// Nobody is told that his lease was cut short who was not counted.
    fn judge_count(&self, cut: Option<usize>) {
        let mut state = self.world.state();
        let told = state.links[self.number].cut_short;
        if cut.is_some_and(|cut| told > cut) {
            state.breach("miscounted", || format!("{told} leases were cut short, {cut:?} it says"));
        }
    }
}
