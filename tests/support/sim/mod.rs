//! Deterministic simulation: the real engine, over a simulated network to a simulated node, in virtual time, with
//! everything drawn from one seed.
//!
//! A *schedule* is one run: two to four clients (each a `LockManager` with a clock and a connection of its own) with a
//! few tasks each, one to three keys, a [`Store`] of one node or several, sometimes a client of another library. What its tasks do is written down
//! as a history, which the [`Checker`](crate::history::Checker) judges; [`run_on`] judges beside it what no history shows:
//!
//! | rule | breached when |
//! | --- | --- |
//! | `false-loss` | a lease that is renewed is lost though nothing broke, though its slot may have moved |
//! | `told-late` | a holder is told more than 50 ms after its deadline, though its process ran |
//! | `revived` | a lease that had lapsed is valid again |
//! | `share-cut`, `share-kept` | a share ends before or after the end that its requests gave it |
//! | `left-out` | a place at the front of a queue is left though it fits |
//! | `ghost`, `ghost-place` | all guards and futures are gone, and a key, a grant or a place is left before its time |
//! | `cut-early`, `late-end` | a shutdown ends a lease before its grace is over, or takes longer than it may |
//! | `outlived`, `miscounted` | a lease or the manager outlives its shutdown; one is cut short and not counted |
//! | `barging`, `nobody-first` | the node gives a key past a live place, or has somebody wait for nobody |
//! | `hang`, `stuck`, `left-running` | a task does not end, goes on without end, or is left when the managers are gone |
//! | `failed` | a request fails though nothing broke, and its future was polled in time |
//! | `out-of-turn`, `granted-to-nobody` | the node grants a key past a live place, or to one that is not |
//! | `quiet-grant`, `told-unset` | it grants by a quiet release, or tells a grant of a key that is not set |
//! | `kept-too-long` | a place wants, or gets, the key for longer than a silent waiter may cost the others |
//! | `number-falls` | a grant or an acquire draws a number below one that was drawn for its key before |
//! | `not-answered` | a client is told of a grant, and sends neither an acquire nor a release for it |
//! | `lowered` | a deadline comes nearer, though neither its holder nor its clock moved it |
//! | `beyond-expiry` | a holder relies on its lease for longer than the nodes keep its key |
//! | `loss-not-told` | a lease vanishes, and its holder is not told by the next renewal |
//! | `out-of-turn`, `overtaken` | a waiter is passed by a later one of its process; by one of another, while nothing breaks |
//! | `leak` | something keeps the world of the schedule when it is over |
//!
//! # What is simulated
//!
//! * **Time**: no thread sleeps. The runtime has no timers; when no task can go on, the world makes the next thing
//!   happen. Each client's clock has a rate of its own, up to 0.8 % off the node's, and leaps when its machine is
//!   suspended. The clocks of several nodes are up to 8 ms off from the start.
//! * **Network**: messages of a connection stay in order until it breaks. They are late, lost with all that follow, cut off
//!   with a reset, executed without an answer; grants are told late, twice, long after, or not at all; connections take long to be made. A request whose
//!   connection broke is repeated over the next one, and the first copy may be executed after the second, unless the new
//!   connection has the old one killed. That changes the backend's epoch, as in `link.rs`.
//! * **Node**: the store of lock-core, which does what `lock.lua` does (a test compares them). It crashes with and without its data, is
//!   emptied, stopped, has its clock set forward or back, has a key deleted by somebody, and closes connections. It fails
//!   over to a copy that lags behind, while the former node may go on answering some of the clients. It is a replica for a
//!   while, is out of memory, cannot count, lets nobody publish, and loses that somebody waits or who. Keys are deleted or
//!   released by force between two answers. Of several nodes each has troubles of its own.
//! * **Slots** ([`Store::Slots`]): each key belongs to one of three nodes, and moves from one to another with its places,
//!   its numbers and what is left of its ttl. A batch is cut by slot. While a slot moves, its node refuses all requests for
//!   it, and afterwards names the next node: they are sent once more, out of order. Grants come from the node that has the
//!   slot. Each connection, and each change of the map, changes the backend's epoch.
//! * **Clients** are killed (and replaced by new ones), stopped, suspended; their engine or their tasks starve.
//! * **Managers** are shut down, while their tasks go on asking, and new ones come.
//! * **Futures and guards**, of one key and of several, are dropped after any number of polls or at any time, or kept aside and awaited later.
//!
//! Where the documentation says that two holders are possible (data lost, a key deleted, a clock set), the history is
//! marked, and only that is excused. What a failover undoes is known lease by lease, from a journal of all that nodes have
//! done: only a lease that was granted or renewed after the copy was made may have another beside it, and only until the
//! next node has heard of it, or its deadline. Slots that move excuse nothing. A lease that vanished may be extended after
//! a late request of its own took the key again, if nobody has the answer to that request
//! ([`TakenAgain`](crate::history::TakenAgain)). At the end all faults stop, everything is released or dropped, and after
//! the longest ttl and a second nothing may be left but the counter of fencing tokens.
//!
//! # What is not
//!
//! A key of a slot that is served by the former node while the others move, the cluster's own failover and votes, Redis itself (how it refuses, ACLs, wrong types, SCRIPT FLUSH: `tests/faults`; what has expired goes when it is looked at, and not at a
//! time of the server's own choice), that the answer to CLIENT KILL settles what is in doubt, the `redis` crate and TLS, threads that
//! race (the engine runs on one), and a client whose clock stands still while its machine runs.
//!
//! # Replay
//!
//! A test tries the same seeds each time, so that all runs of one source give one answer. `SIM_SEEDS=n` tries n seeds from
//! `SIM_BASE=b` on. `SIM_SEED=x` repeats one: the same run to the byte. A failure prints its seed, the last `SIM_LINES`
//! events, and the rules that were broken. A seed means the same schedule only for the same source: what one has shown is kept
//! as a scenario, which builds the same situation directly.
//!
//! A search of its own tries schedules that nobody has seen, over all stores, for as many seconds as it is told:
//! `SIM_SECONDS=600 cargo test -p lock-tests --test search`.

mod arrival;
mod audit;
mod backend;
mod client;
mod clock;
mod failover;
mod foreign;
mod journal;
mod judge;
mod link;
mod mix;
mod nemesis;
mod network;
mod node;
mod order;
mod plan;
mod report;
mod shutdown;
mod slots;
#[cfg(test)]
mod tests;
mod watched;
mod world;

use std::{
    future::{Future, poll_fn},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

use lock_core::{
    LockManager,
    backend::{Backend, QuorumBackend},
};
use tokio::{runtime, task::JoinHandle};

use self::{
    backend::SimBackend,
    client::{Client, LONGEST_EXTEND},
    clock::SimClock,
    judge::{check_answered, check_ghosts, check_leftovers, judge},
    plan::Plan,
    slots::SlotBackend,
    watched::Watched,
    world::{Server, World, micros},
};
pub use self::{node::Node, plan::Store, report::Report};
use crate::Dice;

/// The people on stage.
#[derive(Debug)]
struct Stage {
    world: Arc<World>,
    members: Mutex<Vec<Member>>,
}

/// A client, for as long as it lives, and its tasks.
#[derive(Debug)]
struct Member {
    client: Option<Client>,
    tasks: Vec<JoinHandle<()>>,
}

/// Runs the schedule of a seed on a store and judges it. `logs` has everything written down, which takes longer.
pub fn run_on(store: Store, seed: u64, logs: bool) -> Report {
    let mut dice = Dice::seeded(seed);
    let plan = Plan::draw(&mut dice, store);
    let of_world = dice.split();
    let mut one = || Server { node: Node::new().judged_by(&plan), ahead: plan.apart(&mut dice), ..Server::default() };
    let mut servers: Vec<_> = (0..store.nodes()).map(|_| one()).collect();
    if plan.has_slots() {
        slots::deal(&mut servers, plan.keys);
    }
    let world = World::new(plan, of_world, servers, logs);
    world.log(|| format!("{:?}", world.plan));
    perform(&world, |stage| play(stage, dice));
    let mut report = judge(seed, &world);
    world.forget();
    let left = Arc::downgrade(&world);
    drop(world);
    if left.strong_count() > 0 {
        report.breaches.push(("leak".to_owned(), "the schedule is over, and its world is kept".to_owned()));
    }
    report
}

/// Has a play performed in a world, until it is over or stuck.
fn perform<F: Future<Output = ()>>(world: &Arc<World>, play: impl FnOnce(Arc<Stage>) -> F) {
    let step = Arc::clone(world);
    let runtime = runtime::Builder::new_current_thread()
        .on_thread_park(move || step.step())
        .build()
        .expect("a runtime without drivers can be made");
    let stage = Arc::new(Stage { world: Arc::clone(world), members: Mutex::default() });
    let mut play = Box::pin(play(stage));
    runtime.block_on(poll_fn(|cx| {
        if world.is_stuck(cx) {
            return Poll::Ready(());
        }
        play.as_mut().poll(cx)
    }));
    drop(play);
    drop(runtime);
}

async fn play(stage: Arc<Stage>, mut dice: Dice) {
    let world = Arc::clone(&stage.world);
    let sampler = tokio::spawn(sample(Arc::clone(&stage)));
    for _ in 0..world.plan.clients {
        stage.begin_client(&mut dice);
    }
    let mut others = vec![tokio::spawn(nemesis::run(Arc::clone(&stage), dice.split()))];
    if world.plan.has_slots() {
        others.push(tokio::spawn(slots::run(Arc::clone(&stage), dice.split())));
    }
    if world.plan.shutdowns > 0 {
        others.push(tokio::spawn(shutdown::run(Arc::clone(&stage), dice.split())));
    }
    if world.plan.foreign {
        others.push(tokio::spawn(foreign::run(Arc::clone(&world), dice.split())));
    }
    stage.finish(FAULTS, &mut Vec::new()).await;
    world.log(|| "the faults are over".to_owned());
    world.state().faults = false;
    if !stage.finish(REST, &mut others).await {
        world.state().breach("hang", || "a task does not come to its end".to_owned());
        return;
    }
    // Everything was released or dropped by now, and what is known to be over is cleaned up soon.
    world.sleep(world.plan.soon()).await;
    check_ghosts(&world, None);
    check_answered(&world);
    world.log(|| "the managers are dropped".to_owned());
    stage.members().clear();
    let back = Duration::from_micros(world.state().behind());
    let dropped = world.now();
    world.sleep(world.plan.longest_ttl() * LONGEST_EXTEND + Duration::from_secs(1) + back).await;
    check_leftovers(&world);
    // A token of a request that nobody answered is released until one release is answered that was sent when all that the
    // request can have done is over: the ttl, or the place and what is granted to it. By clocks that may be slow.
    let doubt = (world.plan.longest_ttl() * LONGEST_EXTEND).max(world.state().longest_place()) * 101 / 100;
    world.at(dropped + micros(doubt + world.plan.limit) + 4 * world.plan.latency.1).await;
    sampler.abort();
    world.sleep(Duration::from_millis(1)).await;
    let alive = runtime::Handle::current().metrics().num_alive_tasks();
    if alive > 0 {
        world.state().breach("left-running", || format!("{alive} tasks run still"));
    }
}

/// Looks at leases that may have been renewed.
async fn sample(stage: Arc<Stage>) {
    loop {
        let renewed = poll_fn(|cx| {
            let mut state = stage.world.state();
            if state.renewed.is_empty() {
                state.sampler = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(std::mem::take(&mut state.renewed))
        })
        .await;
        for client in renewed {
            stage.look(client);
        }
    }
}

impl Stage {
    fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clients(&self) -> usize {
        self.members().len()
    }

    fn begin_client(&self, dice: &mut Dice) {
        let world = &self.world;
        let number = {
            let mut state = world.state();
            let ways = state.servers.iter().map(|_| link::Way::default()).collect();
            let map = state.map(world.plan.keys);
            let mut link = link::Link { ways, map, ..link::Link::default() };
            if world.plan.drift {
                // The allowance is one per cent.
                link.rate = dice.below(16_000) as i64 - 8_000;
            }
            link.leapt = dice.below(1_000_000_000);
            state.links.push(link);
            state.links.len() - 1
        };
        let backend = |server| SimBackend { world: Arc::clone(world), client: number, server };
        let clock = Arc::new(SimClock { world: Arc::clone(world), client: number });
        let nodes = 0..world.plan.store.nodes();
        let inner: Arc<dyn Backend> = match world.plan.store {
            Store::Single | Store::Replicated | Store::Modes => Arc::new(backend(0)),
            Store::Slots => Arc::new(SlotBackend { nodes: nodes.map(backend).collect() }),
            Store::Quorum | Store::ModesOfQuorum => {
                let nodes = nodes.map(|server| Arc::new(backend(server)) as Arc<dyn Backend>);
                Arc::new(QuorumBackend::new(nodes).expect("enough nodes"))
            }
        };
        let builder = LockManager::builder().backend(Watched { inner, world: Arc::clone(world), client: number });
        let manager = builder.clock(clock).__seed(dice.below(u64::MAX)).build().expect("the options are sound");
        let client = Client { world: Arc::clone(world), number, manager, watched: Arc::default() };
        let tasks = client.begin(dice);
        self.members().push(Member { client: Some(client), tasks });
    }

    /// One that lives.
    fn pick(&self, dice: &mut Dice) -> Option<usize> {
        let members = self.members();
        let alive: Vec<_> = members.iter().enumerate().filter(|(_, member)| member.client.is_some()).collect();
        let picked = dice.below(alive.len() as u64) as usize;
        alive.get(picked).map(|(number, _)| *number)
    }

    fn client(&self, number: usize) -> Option<Client> {
        self.members().get(number).and_then(|member| member.client.clone())
    }

    fn look(&self, number: usize) {
        if let Some(client) = self.client(number) {
            client.look();
        }
    }

    /// Kills a client: nothing that it does counts any more.
    fn crash(&self, number: usize) {
        self.look(number);
        self.world.state().kill(&self.world.plan, number);
        let mut members = self.members();
        members[number].tasks.iter().for_each(JoinHandle::abort);
        let client = members[number].client.take();
        drop(members);
        drop(client);
    }

    /// Waits until all tasks are done, and `others`; not longer than `most`.
    async fn finish(&self, most: Duration, others: &mut Vec<JoinHandle<()>>) -> bool {
        let mut timer = self.world.sleep(most);
        poll_fn(|cx| {
            let mut members = self.members();
            let mut all = true;
            for tasks in members.iter_mut().map(|member| &mut member.tasks).chain([&mut *others]) {
                tasks.retain_mut(|task| std::pin::Pin::new(task).poll(cx).is_pending());
                all &= tasks.is_empty();
            }
            if all {
                return Poll::Ready(true);
            }
            std::pin::Pin::new(&mut timer).poll(cx).map(|()| false)
        })
        .await
    }
}

/// How long faults go on at most.
const FAULTS: Duration = Duration::from_secs(8);
/// How long everything may take after that: the waits, and what an unanswered request costs.
const REST: Duration = Duration::from_secs(900);
