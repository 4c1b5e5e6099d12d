//! Acquire and release without contention, beside raw commands through the same client in the same run:
//! `cargo bench -p lock-core --bench acquire -- --json`.

mod support;

use std::time::{Duration, Instant};

use lock_core::LockManager;
use tokio::task::JoinSet;

use support::{Raw, Server, median, print};

/// How often the two sides take turns.
const ROUNDS: usize = 7;

#[tokio::main]
async fn main() {
    let server = Server::start();
    let raw = Raw::new(server.connect().await);
    let manager = LockManager::connect(&server.url).await.expect("the server answers");

    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let (one, other) = (sequential_ours(&manager).await, sequential_raw(raw.clone()).await);
        // The first round warms up.
        if round > 0 {
            ours.push(one);
            theirs.push(other);
        }
    }
    let ratio = ratio(&ours, &theirs);
    print("sequential_pair_p50", median(ours), "us", ratio);

    for (measure, tasks) in [("pairs_per_second_64", 64), ("pairs_per_second_1000", 1_000)] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let (one, other) = (many_ours(&manager, tasks).await, many_raw(&raw, tasks).await);
            if round > 0 {
                ours.push(one);
                theirs.push(other);
            }
        }
        let ratio = self::ratio(&ours, &theirs);
        print(measure, median(ours), "pairs/s", ratio);
    }
}

/// The median of the ratios of each round: what slows the machine slows both sides of a round.
fn ratio(ours: &[f64], theirs: &[f64]) -> f64 {
    median(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect())
}

const PAIRS: usize = 1_500;

/// The median time of a pair in µs.
async fn sequential_ours(manager: &LockManager) -> f64 {
    let mut times = Vec::with_capacity(PAIRS);
    for _ in 0..PAIRS {
        let start = Instant::now();
        let guard = manager.lock("bench:ours").await.expect("the key is free");
        guard.release().await.expect("the lease is held");
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    median(times)
}

async fn sequential_raw(mut raw: Raw) -> f64 {
    let mut times = Vec::with_capacity(PAIRS);
    for _ in 0..PAIRS {
        let start = Instant::now();
        raw.pair("bench:raw").await;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    median(times)
}

const WINDOW: Duration = Duration::from_millis(700);

/// Pairs a second of many tasks, each on a key of its own, over one connection.
async fn many_ours(manager: &LockManager, tasks: usize) -> f64 {
    let start = Instant::now();
    let mut set = JoinSet::new();
    for task in 0..tasks {
        let manager = manager.clone();
        set.spawn(async move {
            let key = format!("bench:ours:{task}");
            let mut pairs = 0;
            while start.elapsed() < WINDOW {
                let guard = manager.lock(&key).await.expect("the key is free");
                guard.release().await.expect("the lease is held");
                pairs += 1;
            }
            pairs
        });
    }
    rate(set.join_all().await, start)
}

async fn many_raw(raw: &Raw, tasks: usize) -> f64 {
    let start = Instant::now();
    let mut set = JoinSet::new();
    for task in 0..tasks {
        let mut raw = raw.clone();
        set.spawn(async move {
            let key = format!("bench:raw:{task}");
            let mut pairs = 0;
            while start.elapsed() < WINDOW {
                raw.pair(&key).await;
                pairs += 1;
            }
            pairs
        });
    }
    rate(set.join_all().await, start)
}

fn rate(pairs: Vec<u32>, start: Instant) -> f64 {
    f64::from(pairs.into_iter().sum::<u32>()) / start.elapsed().as_secs_f64()
}
