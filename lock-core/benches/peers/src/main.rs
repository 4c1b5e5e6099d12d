//! lock-core beside other locks on Redis, in one run on one server: `cargo run --release` in this folder.
//! With `-- --json` it prints lines of JSON; with `-- --plot FOLDER` it draws a picture as well.

#[path = "../../support/mod.rs"]
mod support;

mod figures;
mod peers;

use std::time::Duration;

use figures::Figures;
use peers::{AsyncRedisLock, Rslock};
use support::{
    contention::{Crowd, Round},
    handoff::Match,
    pairs, player,
    report::Report,
    server::{Server, client, ping_p50},
    sides::{Locks, Ours, OursAwaited, Raw, client_without_delay},
    stats::Rounds,
    task::{Turn, in_turn},
};

/// How many rounds count, after one that warms up; in each round all libraries take their turn.
const ROUNDS: usize = 5;
const TASKS: usize = 1_000;
const TASKS_ON_OWN_KEYS: [usize; 6] = [1, 4, 16, 64, 256, 1_000];
const PROCESSES: usize = 8;

#[tokio::main]
async fn main() {
    if let Some(child) = player::child_arguments() {
        let (side, urls) = (&*child[1], &child[2..]);
        return match side {
            Ours::NAME => player::play::<Ours>(urls).await,
            OursAwaited::NAME => player::play::<OursAwaited>(urls).await,
            Rslock::NAME => player::play::<Rslock>(urls).await,
            AsyncRedisLock::NAME => player::play::<AsyncRedisLock>(urls).await,
            _ => panic!("no such library: {side}"),
        };
    }
    let asked = Report::from_arguments();
    let mut figures = Figures::new([Ours::NAME, Rslock::NAME, AsyncRedisLock::NAME]);
    let server = Server::start().await;
    uncontended(&server, &mut figures).await;
    in_process(&server, &mut figures).await;
    handoff(&server, &mut figures).await;
    between_processes(&server, &mut figures).await;
    figures.print(asked.json);
    if let Some(folder) = &asked.plots {
        figures.draw(&folder.join("peers.svg"), PROCESSES);
    }
}

/// Acquire and release on free keys, beside raw commands. The others leave Nagle's algorithm on, as the redis crate does by itself; the
/// rows `_nodelay` turn it off for them, and for raw commands. lock-core always does.
async fn uncontended(server: &Server, figures: &mut Figures) {
    let ours = Ours::connect(&server.url).await;
    for (suffix, client) in [("", client(&server.url)), ("_nodelay", client_without_delay(&server.url))] {
        let raw = Raw::over(&client).await;
        let (rslock, async_redis_lock) = (Rslock::over(client.clone()).await, AsyncRedisLock::over(client).await);
        let mut times = <[Rounds; 3]>::default();
        let mut rates = TASKS_ON_OWN_KEYS.map(|tasks| (tasks, <[Rounds; 3]>::default()));
        for round in 0..=ROUNDS {
            let sides: [Turn<'_>; 4] = [
                Box::pin(pairs::sequential(&raw)),
                Box::pin(pairs::sequential(&ours)),
                Box::pin(pairs::sequential(&rslock)),
                Box::pin(pairs::sequential(&async_redis_lock)),
            ];
            let [raw_time, each @ ..] = in_turn(round, sides).await;
            add(round, &mut times, each, raw_time);
            for (tasks, rates) in &mut rates {
                let sides: [Turn<'_>; 4] = [
                    Box::pin(pairs::on_own_keys(&raw, *tasks)),
                    Box::pin(pairs::on_own_keys(&ours, *tasks)),
                    Box::pin(pairs::on_own_keys(&rslock, *tasks)),
                    Box::pin(pairs::on_own_keys(&async_redis_lock, *tasks)),
                ];
                let [raw_rate, each @ ..] = in_turn(round, sides).await;
                add(round, rates, each, raw_rate);
            }
        }
        figures.add(format!("sequential_pair_p50{suffix}"), "us", times);
        for (tasks, rates) in rates {
            figures.add(format!("pairs_per_second_{tasks}{suffix}"), "pairs/s", rates);
        }
    }
}

/// Many tasks of one process on one key, beside one holder in the time of the quickest PING.
async fn in_process(server: &Server, figures: &mut Figures) {
    let (ours, rslock, async_redis_lock) = connect(server).await;
    let connection = server.connect().await;
    let (mut rates, mut quickest) = (<[Rounds; 3]>::default(), f64::INFINITY);
    for round in 0..=ROUNDS {
        let sides: [Turn<'_>; 4] = [
            Box::pin(ping_p50(&connection, Duration::from_millis(200))),
            Box::pin(pairs::on_one_key(&ours, TASKS)),
            Box::pin(pairs::on_one_key(&rslock, TASKS)),
            Box::pin(pairs::on_one_key(&async_redis_lock, TASKS)),
        ];
        let [ping, each @ ..] = in_turn(round, sides).await;
        add(round, &mut rates, each, f64::NAN);
        quickest = quickest.min(ping);
    }
    for rounds in &mut rates {
        rounds.ratios = rounds.values.iter().map(|rate| rate * quickest / 1e6).collect();
    }
    figures.add("in_process_pairs_per_second", "pairs/s", rates);
}

/// A round of all libraries, beside something else; the one that warms up is not kept.
fn add(round: usize, columns: &mut [Rounds; 3], values: [f64; 3], other: f64) {
    if round > 0 {
        for (rounds, value) in columns.iter_mut().zip(values) {
            rounds.add(value, other);
        }
    }
}

async fn connect(server: &Server) -> (Ours, Rslock, AsyncRedisLock) {
    (Ours::connect(&server.url).await, Rslock::connect(&server.url).await, AsyncRedisLock::connect(&server.url).await)
}

/// Two processes that pass a key back and forth.
async fn handoff(server: &Server, figures: &mut Figures) {
    let mut ours = Match::<Ours>::start(server).await;
    let mut rslock = Match::<Rslock>::start(server).await;
    let mut async_redis_lock = Match::<AsyncRedisLock>::start(server).await;
    for round in 0..=ROUNDS {
        ours.round(4.0, round > 0).await;
        rslock.round(4.0, round > 0).await;
        async_redis_lock.round(4.0, round > 0).await;
    }
    let played = [ours.played, rslock.played, async_redis_lock.played];
    figures.add("handoff_p50", "us", played.each_ref().map(|played| played.figure(|round| round.p50)));
    figures.add("handoff_p99", "us", played.each_ref().map(|played| played.figure(|round| round.p99)));
}

/// Eight processes on one key. All of them await each release, since not every library has another way.
async fn between_processes(server: &Server, figures: &mut Figures) {
    let mut ours = Crowd::start::<OursAwaited>(server, PROCESSES).await;
    let mut rslock = Crowd::start::<Rslock>(server, PROCESSES).await;
    let mut async_redis_lock = Crowd::start::<AsyncRedisLock>(server, PROCESSES).await;
    for round in 0..=ROUNDS {
        ours.round(4.0, 4.0, round > 0).await;
        rslock.round(4.0, 4.0, round > 0).await;
        async_redis_lock.round(4.0, 4.0, round > 0).await;
    }
    let rounds = [ours.rounds, rslock.rounds, async_redis_lock.rounds];
    for (measure, unit, of) in MEASURES {
        figures.add(measure, unit, rounds.each_ref().map(|rounds| Rounds::of(rounds.iter().map(of))));
    }
}

type Measure = (&'static str, &'static str, fn(&Round) -> f64);
const MEASURES: [Measure; 4] = [
    ("owner_changes_per_second", "1/s", |round| round.owner_changes_per_second),
    ("requests_per_handoff", "requests", |round| round.requests_per_handoff),
    ("fairness_min_max", "share", |round| round.fairness),
    ("wait_p99", "ms", |round| round.wait_p99),
];
