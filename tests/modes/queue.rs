//! One queue of requests in all modes, of several processes.

use std::fs;

use lock_tests::{
    Dice, Team,
    history::{Event, History, Op},
};
use tokio::time::sleep;

use crate::modes::{
    state::{comes, next_holder, release},
    *,
};

#[tokio::test]
async fn processes_that_want_a_key_in_all_modes_are_served_in_their_order() {
    const HANDOFFS: usize = 5;
    let (server, run) = (RedisServer::start().await, Run::new("modes-order"));
    let mut holder = actor!(run, server.url(), "holder").await;
    let (reads, writes) = (Mode::Shared, Mode::Exclusive);
    let both = Mode::Permits { total: 2, take: 1 };
    let modes = [reads, reads, writes, reads, both, both, writes];
    let mut waiters = Vec::new();
    for index in 0..modes.len() {
        waiters.push(actor!(run, server.url(), &format!("w{index}")).await);
    }
    // Those of a group are granted the key together, and nobody before them: as often as a round has it. On a busy machine some handoffs
    // are not seen.
    let (mut seen, mut known) = (0, Vec::new());
    for round in 0.. {
        if seen >= HANDOFFS {
            break;
        }
        assert!(round < 20, "{seen} handoffs were seen");
        holder.acquire("k", LONG).await;
        for (waiter, mode) in waiters.iter_mut().zip(modes) {
            let (before, after) = comes(&server, waiter.begin_in(mode, "k", LONG, LONG), &mut known).await;
            after.follows(&before);
        }
        seen += usize::from(release(&mut holder, &server, &[]).await.1);
        let mut served = Vec::new();
        while !waiters.is_empty() {
            let mut next = next_holder(&mut waiters).await.0;
            seen += usize::from(release(&mut next, &server, &[]).await.1);
            served.push(next);
        }
        waiters = served;
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
    // On a slow machine for longer, until as much was done as is demanded below.
    while start.elapsed() < for_seconds(4) || (stopped == 0 || !has_enough(&run)) && start.elapsed() < LONG {
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
    let rounds = team.stop(LONG).await;
    run.settle(&server).await;
    let history = judged(&run);
    let granted = granted(&history);
    let [writers, readers, permits] = in_each_mode(&granted);
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
    no_update_is_lost(&server, 2, history.events()).await;
}

/// The leases that were had.
fn granted(history: &History) -> Vec<&Event> {
    history.events().iter().filter(|event| event.op == Op::Acquire && event.succeeded()).collect()
}

/// How many writers, readers and holders of permits there were.
fn in_each_mode(granted: &[&Event]) -> [usize; 3] {
    let of = |is: fn(Mode) -> bool| granted.iter().filter(|event| is(event.mode)).count();
    [
        of(|mode| mode == Mode::Exclusive),
        of(|mode| mode == Mode::Shared),
        of(|mode| matches!(mode, Mode::Permits { .. })),
    ]
}

/// Whether enough leases of each mode were written down.
fn has_enough(run: &Run) -> bool {
    let mut history = History::default();
    for file in fs::read_dir(run.folder()).expect("the folder is there") {
        let path = file.expect("it can be read").path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            let text = fs::read_to_string(&path).expect("it can be read");
            // The last line may be half written.
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            history.add_lines(&path.to_string_lossy(), whole).expect("these are events");
        }
    }
    in_each_mode(&granted(&history)).iter().all(|count| *count > 30)
}
