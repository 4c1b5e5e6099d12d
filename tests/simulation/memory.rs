//! The store in memory against the simulated node: the same batches, the same answers, the same messages. Both are made of one `Store`, here
//! with exact times and there with those of a server, so this is about what is around it. `node.rs` and `held.rs` hold that `Store` against
//! the script.
//!
//! No time ends in the very millisecond of a call: Redis takes a key as expired when that millisecond is over, and the store in
//! memory, whose clock is finer, at its end. Each counts its fencing tokens from its own clock; how one compares with the last of its key
//! is the same.

use std::{
    cmp::Ordering,
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::FutureExt;
use lock_core::{
    backend::{Backend, Batch, Calls, Grant, MemoryBackend, Notice, Operation, Outcome},
    clock::{Clock, Moment, Sleep},
    key::LockKey,
};
use lock_tests::{Dice, ms, sim::Node};
use tokio::sync::mpsc::UnboundedReceiver;

use super::node::{Times, batch, modes};
use crate::seeds;

/// The clock goes on in steps of 10 ms.
const ODD: Times = Times { ttls: &[ms(15), ms(25), ms(45), ms(105), ms(505)], life: ms(55) };
const LONG: Times = Times { ttls: &[ms(600_005), ms(900_005), ms(1_200_005)], life: ms(45_005) };

/// A clock that goes on only when it is told to.
#[derive(Clone, Debug)]
struct Held(Arc<AtomicU64>);

impl Clock for Held {
    fn now(&self) -> Moment {
        Moment::from_origin(Duration::from_micros(self.0.load(Relaxed)))
    }

    fn sleep(&self, _: Duration) -> Sleep {
        Box::pin(std::future::pending())
    }
}

/// What one of the two has said so far.
#[derive(Debug, Default)]
struct Seen {
    /// The last fencing token of each key: how the next one compares with it has to be the same, the numbers themselves have not.
    numbers: BTreeMap<LockKey, u64>,
}

impl Seen {
    fn compared(&mut self, key: &LockKey, fence: u64) -> Ordering {
        let last = self.numbers.insert(key.clone(), fence);
        fence.cmp(&last.unwrap_or(0))
    }

    fn answer(&mut self, operation: &Operation, outcome: Outcome) -> String {
        let key = operation.key();
        match outcome {
            Outcome::Held { fence, was_free, .. } => format!("held {:?} {was_free}", self.compared(key, fence)),
            Outcome::Renewed { remaining, fence, .. } => {
                format!("renewed {remaining:?} {:?}", fence.map(|fence| self.compared(key, fence)))
            }
            Outcome::Busy { remaining, by, position } => {
                format!("busy {by:?} {remaining:?} {position:?}")
            }
            other => format!("{other:?}"),
        }
    }

    fn grant(&mut self, mut grant: Grant) -> (Grant, Ordering) {
        let compared = self.compared(&grant.key, grant.fence);
        (grant.fence, grant.block) = (0, 0);
        (grant, compared)
    }
}

#[test]
fn the_store_in_memory_answers_as_the_simulated_node_does() {
    let seeds = seeds(0, SEEDS);
    let least = (seeds.end - seeds.start) / 10 * 25;
    let told: usize = seeds.map(|seed| compare(seed, &ODD) + compare(seed, &LONG)).sum();
    assert!(told as u64 >= least, "only {told} grants were told");
}

/// Tries batches of a seed on both. Returns how many grants were told.
fn compare(seed: u64, times: &Times) -> usize {
    let mut dice = Dice::seeded(seed);
    let modes = modes(seed);
    let mut node = Node::new();
    let heard: Arc<str> = "lock-core:calls:here".into();
    node.listen(&heard);
    let micros = Arc::new(AtomicU64::new(1_750_000_000_000_000));
    let memory = MemoryBackend::with_clock(Arc::new(Held(Arc::clone(&micros))));
    let (calls, mut notices) = Calls::new(Arc::clone(&heard));
    let mut driver = memory.driver(calls);
    assert!((&mut driver).now_or_never().is_none(), "the driver goes on");
    let channels: [Arc<str>; 3] = [heard, "lock-core:calls:gone".into(), "".into()];
    let (mut of_node, mut of_memory) = (Seen::default(), Seen::default());
    let (mut story, mut messages) = (Vec::new(), 0);
    for _ in 0..60 {
        let now = micros.fetch_add(10_000 * dice.below(5), Relaxed);
        story.push(format!("it is {} ms", now / 1_000));
        let now = micros.load(Relaxed);
        let channel = &channels[usize::try_from(dice.below(3)).expect("a small number")];
        let mut batch = batch(&mut dice, channel, modes, times);
        batch.iter_mut().for_each(as_both_know_it);
        let answer = memory.call(Batch::from(batch.clone())).now_or_never().expect("it answers at once");
        let real: Vec<_> =
            answer.expect("it answers").outcomes.into_iter().map(|it| it.expect("no item fails")).collect();
        let (simulated, pushes) = node.call(&batch, now);
        let simulated: Vec<_> = simulated.into_iter().map(|outcome| outcome.expect("no item fails")).collect();
        story.push(format!("{batch:?}\n  -> {real:?}"));
        let told = told(&mut notices);
        messages += told.len();
        for ((operation, real), simulated) in batch.iter().zip(&real).zip(&simulated) {
            let (one, other) = (of_memory.answer(operation, *real), of_node.answer(operation, *simulated));
            assert_eq!(one, other, "seed {seed}, after:\n{}\n instead of {simulated:?}", story.join("\n"));
        }
        let pushes = pushes.into_iter().filter(|(channel, _)| *channel == channels[0]);
        let pushes: Vec<_> = pushes.map(|(_, grant)| of_node.grant(grant)).collect();
        let told: Vec<_> = told.into_iter().map(|grant| of_memory.grant(grant)).collect();
        assert_eq!(told, pushes, "seed {seed}, after:\n{}", story.join("\n"));
    }
    messages
}

fn told(notices: &mut UnboundedReceiver<Notice>) -> Vec<Grant> {
    let told = std::iter::from_fn(|| notices.try_recv().ok()).filter_map(|notice| match notice {
        Notice::Granted(grant) => Some(grant),
        _ => None,
    });
    told.collect()
}

/// Leaves out what only Redis has: a quicker way to a key that is thought to be free.
fn as_both_know_it(operation: &mut Operation) {
    if let Operation::Acquire(acquire) = operation {
        acquire.expects_free = false;
    }
}

/// How many seeds are tried.
const SEEDS: u64 = 200;
