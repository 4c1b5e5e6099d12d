//! A process that holds many leases and says what that costs.

use std::{fs::read_to_string, time::Duration};

use lock_core::{LeaseOptions, LockGuard, LockManager};
use tokio::task::JoinSet;

use super::{clock, player::orders};

pub(crate) const TTL: Duration = Duration::from_secs(30);

/// Of the lease of this number.
pub(crate) fn key(lease: usize) -> String {
    format!("bench:lease:{lease}")
}

/// Acquires, says `held`, and answers `time` (seconds of processor time), `memory` (bytes) and `lost` (leases).
pub(crate) async fn hold(url: &str, leases: usize) {
    let mut orders = orders();
    let manager = LockManager::builder()
        .url(url)
        .defaults(LeaseOptions::new().ttl(TTL))
        .connect()
        .await
        .expect("the server answers");
    // What is there once is not counted: the engine, the connection.
    manager.lock("bench:first").await.expect("the key is free").release().await.expect("the lease is held");
    println!("{}", resident());

    let mut set = JoinSet::new();
    for task in 0..TASKS {
        let manager = manager.clone();
        set.spawn(async move {
            let numbers = (task..leases).step_by(TASKS);
            let mut guards: Vec<LockGuard> = Vec::with_capacity(numbers.len());
            for lease in numbers {
                guards.push(manager.lock(key(lease)).await.expect("the key is free"));
            }
            guards
        });
    }
    let guards = set.join_all().await;
    println!("held");
    while let Some(order) = orders.recv().await {
        match &*order {
            "time" => println!("{}", clock::processor_time().as_secs_f64()),
            "memory" => println!("{}", resident()),
            "lost" => println!("{}", guards.iter().flatten().filter(|guard| !guard.is_held()).count()),
            _ => panic!("no such order: {order:?}"),
        }
    }
}

/// The memory of this process that is in use, in bytes.
fn resident() -> u64 {
    let status = read_to_string("/proc/self/status").expect("this bench needs Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it is there");
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    1_024 * kilobytes
}

const TASKS: usize = 64;
