//! Acquire and release without contention.

use std::time::{Duration, Instant};

use tokio::{task::JoinSet, time::sleep};

use super::{clock, sides::Locks, stats};

/// The median time of a pair in µs, one after the other in a task.
pub(crate) async fn sequential<L: Locks>(locks: &L) -> f64 {
    time(locks, 1, PAIRS, Duration::ZERO).await
}

/// The median time of a pair in µs, of many tasks, each on a key of its own, with some pairs one after the other. The tasks rest before
/// each request, for different parts of `rest`, which does not count: without rests, the tasks that share a call go on together for ever.
pub(crate) async fn time<L: Locks>(locks: &L, tasks: usize, pairs: usize, rest: Duration) -> f64 {
    let mut set = JoinSet::new();
    for task in 0..tasks {
        let (locks, key) = (locks.clone(), format!("{}:{task}", L::NAME));
        set.spawn(async move {
            let mut times = Vec::with_capacity(pairs);
            for pair in 0..pairs {
                let part = |number: usize| rest * ((7 * task + 5 * number) % 16) as u32 / 16;
                pause(part(2 * pair)).await;
                let start = clock::now();
                let held = locks.acquire(&key).await;
                let acquired = clock::now() - start;
                pause(part(2 * pair + 1)).await;
                let start = clock::now();
                L::release(held).await;
                times.push(acquired + clock::now() - start);
            }
            times
        });
    }
    let times = set.join_all().await;
    stats::quantile(&stats::histogram(times.into_iter().flatten()), 0.5)
}

/// Even a timer of no time would end only with the next tick.
async fn pause(lasts: Duration) {
    if !lasts.is_zero() {
        sleep(lasts).await;
    }
}

/// Pairs a second of many tasks, each on a key of its own.
pub(crate) async fn on_own_keys<L: Locks>(locks: &L, tasks: usize) -> f64 {
    rate(locks, (0..tasks).map(|task| format!("{}:{task}", L::NAME)).collect()).await
}

/// Pairs a second of many tasks on one key.
pub(crate) async fn on_one_key<L: Locks>(locks: &L, tasks: usize) -> f64 {
    rate(locks, vec![L::NAME.to_owned(); tasks]).await
}

async fn rate<L: Locks>(locks: &L, keys: Vec<String>) -> f64 {
    let start = Instant::now();
    let mut set = JoinSet::new();
    for key in keys {
        let locks = locks.clone();
        set.spawn(async move {
            let mut pairs = 0;
            while start.elapsed() < WINDOW {
                let held = locks.acquire(&key).await;
                // What was taken after the end does not count: one task after the other stops then.
                pairs += u64::from(start.elapsed() < WINDOW);
                L::release(held).await;
            }
            pairs
        });
    }
    let pairs: u64 = set.join_all().await.into_iter().sum();
    pairs as f64 / WINDOW.as_secs_f64()
}

/// How many pairs follow one another.
pub(crate) const PAIRS: usize = 1_500;
/// How long tasks on their own keys are counted.
pub(crate) const WINDOW: Duration = Duration::from_millis(400);
