//! The simulated node against the script in a real Redis whose wall clock is held, and goes on only between two calls: leases, shares,
//! places and grants end in time, often in the very millisecond of a call, and the clock is set back now and then.

use std::sync::Arc;

use lock_core::backend::{Backend, Batch, Calls, Grant, Operation, RedisBackend, Release};
use lock_tests::{Dice, RawClient, RedisServer, SOON, WallClock, left_out, ms, sim::Node};

use super::node::{KEYS, Times, batch, heard_by, key, modes};
use crate::seeds;

/// Multiples of the steps of the clock, so that many ends fall on the millisecond of a call.
const SHORT: Times = Times { ttls: &[ms(10), ms(20), ms(40), ms(100), ms(500)], life: ms(50) };

/// How the clock goes on.
#[derive(Clone, Copy, Debug)]
enum Clock {
    Forward,
    /// It is set back now and then.
    BackToo,
}

#[tokio::test]
async fn the_simulated_node_answers_as_the_script_does_when_leases_and_places_end() {
    all_agree(Clock::Forward).await;
}

#[tokio::test]
async fn the_simulated_node_answers_as_the_script_does_when_the_clock_is_set_back() {
    all_agree(Clock::BackToo).await;
}

async fn all_agree(goes: Clock) {
    let Some(clock) = WallClock::new() else {
        return left_out(
            "the node by a clock that is held",
            "no wall clock can be held without a C compiler",
            cfg!(target_os = "linux"),
        );
    };
    let environment = clock.environment();
    let server =
        environment.iter().fold(RedisServer::builder(), |server, (name, value)| server.environment(name, value));
    let server = server.start().await;
    // What has expired goes when it is looked at, and not at a time of the server's own choice.
    server.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]).await;
    let backend = RedisBackend::from_url(&server.url(), "held", SOON).expect("a sound URL");
    let calls = Calls::to_nobody();
    let heard = Arc::clone(calls.channel());
    let work = async {
        backend.call(Batch::new()).await.expect("the server answers");
        // From the first script on, acquires of free keys go without one.
        let nothing = Release::new(key(0), "lock-core:1:00000000000000000000000000000000".parse().expect("a token"));
        backend.call(Batch::from([Operation::Release(nothing)])).await.expect("the server answers");
        let mut listener = server.connect().await.expect("the server is up");
        listener.call(&["SUBSCRIBE", &heard]).await.expect("the server answers");
        let mut told = 0;
        // The counter of fencing tokens goes with the data, so time goes on over all seeds.
        let mut micros = 1_750_000_000_000_000;
        let seeds = seeds(0, SEEDS);
        let least = (seeds.end - seeds.start) / 10 * 4;
        for seed in seeds {
            told += compare(seed, goes, (&backend, &server, &clock), &heard, &mut listener, &mut micros).await;
            micros += 10_000_000;
        }
        assert!(told as u64 >= least, "only {told} grants were told");
    };
    tokio::select! {
        () = backend.driver(calls) => unreachable!("the driver goes on for as long as it is polled"),
        () = work => {}
    }
}

/// Tries batches of a seed on both. Returns how many grants were told.
async fn compare(
    seed: u64,
    goes: Clock,
    (backend, server, clock): (&RedisBackend, &RedisServer, &WallClock),
    heard: &Arc<str>,
    listener: &mut RawClient,
    micros: &mut u64,
) -> usize {
    clock.hold(*micros);
    server.call(&["FLUSHALL"]).await;
    let mut dice = Dice::seeded(seed);
    let modes = modes(seed);
    let mut node = Node::new();
    node.listen(heard);
    let channels: [Arc<str>; 3] = [Arc::clone(heard), "lock-core:calls:gone".into(), "".into()];
    let (mut story, mut messages) = (Vec::new(), 0);
    for _ in 0..60 {
        let step = 10_000 * dice.below(5);
        let is_back = matches!(goes, Clock::BackToo) && dice.below(10) == 0;
        *micros = if is_back { *micros - 10 * step } else { *micros + step };
        clock.hold(*micros);
        story.push(format!("it is {} ms", *micros / 1_000));
        if dice.below(16) == 0 {
            let key = key(dice.below(KEYS));
            server.call(&["SET", key.as_str(), "foreign", "PX", "20", "NX"]).await;
            node.set_foreign(&key, 1, 20, *micros);
            story.push(format!("{key}: SET NX PX 20 by another library"));
        }
        let channel = &channels[usize::try_from(dice.below(3)).expect("a small number")];
        let batch = batch(&mut dice, channel, modes, &SHORT);
        let real = backend.call(Batch::from(batch.clone())).await.expect("the server answers");
        let real: Vec<_> = real.outcomes.into_iter().map(|outcome| outcome.expect("no item fails")).collect();
        let told = heard_by(listener, server, heard).await;
        let (simulated, pushes) = node.call(&batch, *micros);
        let simulated: Vec<_> = simulated.into_iter().map(|outcome| outcome.expect("no item fails")).collect();
        let pushes: Vec<Grant> =
            pushes.into_iter().filter(|(channel, _)| channel == heard).map(|(_, grant)| grant).collect();
        messages += told.len();
        story.push(format!("{batch:?}\n  -> {real:?}\n  -> {told:?}"));
        assert_eq!(simulated, real, "seed {seed}, after:\n{}", story.join("\n"));
        assert_eq!(pushes, told, "seed {seed}, after:\n{}", story.join("\n"));
    }
    messages
}

/// How many seeds are tried.
const SEEDS: u64 = 40;
