//! Acquire and release without contention.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::{clock, sides::Locks, stats, task::in_a_task};

/// The median time of a pair in µs, one after the other in a task.
pub(crate) async fn sequential<L: Locks>(locks: &L) -> f64 {
    let locks = locks.clone();
    in_a_task(async move {
        let mut times = Vec::with_capacity(PAIRS);
        for _ in 0..PAIRS {
            let start = clock::now();
            let held = locks.acquire(L::NAME).await;
            L::release(held).await;
            times.push(clock::now() - start);
        }
        stats::quantile(&stats::histogram(times), 0.5)
    })
    .await
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
pub(crate) const WINDOW: Duration = Duration::from_millis(700);
