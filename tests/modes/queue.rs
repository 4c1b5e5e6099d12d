//! One queue of requests in all modes, of several processes.

use lock_tests::{
    Dice, Team,
    history::{Event, Op, Outcome},
};
use tokio::time::sleep;

use crate::modes::*;

#[tokio::test]
async fn processes_that_want_a_key_in_all_modes_are_served_in_their_order() {
    let (server, run) = (RedisServer::start().await, Run::new("modes-order"));
    let mut holder = actor!(run, server.url(), "holder").await;
    let mut last = holder.acquire("k", LONG).await;
    let (reads, writes) = (Mode::Shared, Mode::Exclusive);
    let both = Mode::Permits { total: 2, take: 1 };
    let mut waiters = Vec::new();
    for (index, mode) in [reads, reads, writes, reads, both, both, writes].into_iter().enumerate() {
        let mut waiter = actor!(run, server.url(), &format!("w{index}")).await;
        waiter.begin_in(mode, "k", LONG, LONG).await;
        has_places(&server, index + 1).await;
        waiters.push(waiter);
    }
    assert_eq!(holder.tell("release").await, "released");
    // Those of a group hold together. If it were the turn of others, these would wait for ever.
    for group in [0..2, 2..3, 3..4, 4..6, 6..7] {
        let mut fences = Vec::new();
        for waiter in &mut waiters[group.clone()] {
            fences.push(waiter.held(HANDOFF).await);
        }
        assert!(fences.iter().all(|fence| *fence > last), "{fences:?} after {last}");
        assert_eq!(fences[0] == fences[fences.len() - 1], group.len() == 1 || group.start == 0, "{fences:?}");
        last = fences.into_iter().max().expect("one at least");
        for waiter in &mut waiters[group] {
            releases(waiter).await;
        }
    }
    run.settle(&server).await;
    judged(&run);
}

#[tokio::test]
async fn fault_51_queue_of_all_modes_keeps_every_rule_under_kills_stops_and_restarts() {
    const PROCESSES: u64 = 4;
    let ttl = ms(500);
    let (server, run) = (RedisServer::start().await, Run::new("fault-51"));
    let mut options = vec![format!("url={}", server.url()), format!("register={}", server.address())];
    options.extend(["tasks=5", "keys=2", "ttl=500", "hold=20", "shares=70", "permits=3"].map(str::to_owned));
    options.extend(["extends=10", "drops=10"].map(str::to_owned));
    let program = env!("CARGO_BIN_EXE_lock-role");
    let mut team = Team::start(program, &run, "contend", 4, "p", &options).await;
    let mut names: Vec<_> = (0..PROCESSES).map(|number| format!("p{number}")).collect();
    team.go().await;
    let mut dice = Dice::named("fault_51");
    let (start, since) = (Instant::now(), now());
    let (mut killed, mut stopped) = (0, 0);
    let commands = async || server.info("total_commands_processed").await.parse::<u64>().expect("a number");
    // On a slow machine for longer, until as much was done as usually is in much less time.
    while start.elapsed() < for_seconds(4) || commands().await < 8_000 && start.elapsed() < SOON {
        let victim = usize::try_from(dice.below(PROCESSES)).expect("small");
        if killed <= 2 * stopped {
            killed += 1;
            team.members.remove(victim).kill().await;
            run.crashed(&names.remove(victim));
            let name = format!("q{killed}");
            team.join(program, &run, "contend", &name, &options).await;
            names.push(name);
        } else {
            stopped += 1;
            team.members[victim].pause();
            sleep(dice.between(ttl / 2, 3 * ttl / 2)).await;
            team.members[victim].resume();
        }
        sleep(dice.between(Duration::ZERO, ttl / 2)).await;
    }
    sleep(2 * ttl).await; // calm
    run.broken_since(since);
    let rounds = team.stop(SOON).await;
    run.settle(&server).await;
    let history = judged(&run);
    let granted: Vec<&Event> =
        history.events().iter().filter(|event| event.op == Op::Acquire && event.succeeded()).collect();
    let of = |is: fn(Mode) -> bool| granted.iter().filter(|event| is(event.mode)).count();
    let writers = of(|mode| mode == Mode::Exclusive);
    let readers = of(|mode| mode == Mode::Shared);
    let permits = of(|mode| matches!(mode, Mode::Permits { .. }));
    println!(
        "{killed} kills, {stopped} stops; {writers} writers, {readers} readers, {permits} permits; {rounds:?} rounds"
    );
    assert!(killed > 0 && stopped > 0);
    assert!(writers > 20 && readers > 20 && permits > 20, "{writers}, {readers}, {permits}");
    // Readers had the key together, or nothing was tried here: far fewer numbers than holds.
    let mut numbers: Vec<_> =
        granted.iter().filter(|event| event.mode == Mode::Shared).map(|event| event.fence).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert!(numbers.len() < readers, "{} groups of {readers} readers", numbers.len());
    no_update_is_lost(&server, history.events()).await;
}

/// The registers have all updates that were answered, and none that was not sent.
async fn no_update_is_lost(server: &RedisServer, events: &[Event]) {
    let writes = |result| events.iter().filter(|event| event.op == Op::Write && event.result == result).count();
    let (written, unknown) = (writes(Outcome::Ok), writes(Outcome::Info));
    let mut counted = 0;
    for key in 0..2 {
        let value = server.call(&["HGET", &format!("register:k{key}"), "value"]).await.text();
        counted += value.map_or(0, |value| value.parse::<usize>().expect("a number"));
    }
    println!("{written} writes, {unknown} of which nobody knows, {counted} updates");
    let never_back = events.iter().filter(|event| event.op == Op::Write && event.t_return.is_none()).count();
    assert!((written - never_back..=written + unknown).contains(&counted), "{counted} of {written} updates");
}
