//! lock-core beside other locks on Redis, in one run on one server: `cargo run --release -- [--json]` in this folder.

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
    server::{Server, pings},
    sides::{Locks, Ours, Raw},
    stats::{histogram, median, quantile},
};

/// How many rounds count, after one that warms up; in each round all libraries take their turn.
const ROUNDS: usize = 5;
const TASKS: usize = 1_000;
const PROCESSES: usize = 8;

#[tokio::main]
async fn main() {
    if let Some(child) = player::child_arguments() {
        let (side, urls) = (&*child[1], &child[2..]);
        return match side {
            Ours::NAME => player::play::<Ours>(urls).await,
            Rslock::NAME => player::play::<Rslock>(urls).await,
            AsyncRedisLock::NAME => player::play::<AsyncRedisLock>(urls).await,
            _ => panic!("no such library: {side}"),
        };
    }
    let json = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--json") => true,
        Some(argument) => panic!("no such argument: {argument}; there is --json"),
    };
    let mut figures = Figures::new([Ours::NAME, Rslock::NAME, AsyncRedisLock::NAME]);
    let server = Server::start().await;
    uncontended(&server, &mut figures).await;
    in_process(&server, &mut figures).await;
    handoff(&server, &mut figures).await;
    between_processes(&server, &mut figures).await;
    figures.print(json);
}

/// Acquire and release on free keys, beside raw commands.
async fn uncontended(server: &Server, figures: &mut Figures) {
    let (ours, rslock, async_redis_lock) = connect(server).await;
    let raw = Raw::connect(&server.url).await;
    for round in 0..=ROUNDS {
        let raw_time = pairs::sequential(&raw).await;
        let times = [
            pairs::sequential(&ours).await,
            pairs::sequential(&rslock).await,
            pairs::sequential(&async_redis_lock).await,
        ];
        figures.add(round > 0, "sequential_pair_p50", "us", times, times.map(|time| time / raw_time));
        for (measure, tasks) in [("pairs_per_second_64", 64), ("pairs_per_second_1000", 1_000)] {
            let raw_rate = pairs::on_own_keys(&raw, tasks).await;
            let rates = [
                pairs::on_own_keys(&ours, tasks).await,
                pairs::on_own_keys(&rslock, tasks).await,
                pairs::on_own_keys(&async_redis_lock, tasks).await,
            ];
            figures.add(round > 0, measure, "pairs/s", rates, rates.map(|rate| rate / raw_rate));
        }
    }
}

/// Many tasks of one process on one key, beside one holder in the time of a PING.
async fn in_process(server: &Server, figures: &mut Figures) {
    let (ours, rslock, async_redis_lock) = connect(server).await;
    let mut connection = server.connect().await;
    for round in 0..=ROUNDS {
        let trips = pings(&mut connection, Duration::from_millis(200)).await;
        let ping = quantile(&histogram(trips), 0.5) / 1e6;
        let rates = [
            pairs::on_one_key(&ours, TASKS).await,
            pairs::on_one_key(&rslock, TASKS).await,
            pairs::on_one_key(&async_redis_lock, TASKS).await,
        ];
        figures.add(round > 0, "in_process_pairs_per_second", "pairs/s", rates, rates.map(|rate| rate * ping));
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
    let p50 = played.each_ref().map(|played| played.figure(|round| round.p50));
    figures.set("handoff_p50", "us", p50.map(|figure| figure.0), p50.map(|figure| figure.1));
    let p99 = played.each_ref().map(|played| played.figure(|round| round.p99));
    figures.set("handoff_p99", "us", p99.map(|figure| figure.0), p99.map(|figure| figure.1));
}

/// Eight processes on one key.
async fn between_processes(server: &Server, figures: &mut Figures) {
    let mut ours = Crowd::<Ours>::start(server, PROCESSES).await;
    let mut rslock = Crowd::<Rslock>::start(server, PROCESSES).await;
    let mut async_redis_lock = Crowd::<AsyncRedisLock>::start(server, PROCESSES).await;
    for round in 0..=ROUNDS {
        ours.round(4.0, 4.0, round > 0).await;
        rslock.round(4.0, 4.0, round > 0).await;
        async_redis_lock.round(4.0, 4.0, round > 0).await;
    }
    let rounds = [ours.rounds, rslock.rounds, async_redis_lock.rounds];
    let of = |figure: fn(&Round) -> f64| rounds.each_ref().map(|rounds| median(rounds.iter().map(figure).collect()));
    let none = [f64::NAN; 3];
    let of_ping = of(|round| round.owner_changes_per_second * round.ping);
    figures.set("owner_changes_per_second", "1/s", of(|round| round.owner_changes_per_second), of_ping);
    let requests = of(|round| round.requests_per_handoff);
    figures.set("requests_per_handoff", "requests", requests, requests.map(|requests| requests / 2.0));
    figures.set("fairness_min_max", "share", of(|round| round.fairness), none);
    figures.set("wait_p99", "ms", of(|round| round.wait_p99), of(|round| round.wait_p99 / 1e3 / round.ping));
}
