//! What a manager takes that no rate shows: allocations, the first pair, and what it costs while nobody asks for anything:
//! `cargo bench -p lock-benches --bench footprint -- --json`.

mod support;

use std::{
    alloc::System,
    fs,
    time::{Duration, Instant},
};

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use support::{
    pairs,
    relay::far_away,
    report::{Report, Target},
    server::Server,
    sides::{Locks, Ours, Raw},
    stats::Rounds,
};
use tokio::time::sleep;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// How many rounds count, after one that warms up.
const ROUNDS: usize = 5;
/// Pairs of a task in a round.
const PAIRS: usize = 200;
/// How many managers idle together.
const MANAGERS: usize = 50;
/// For how long they do.
const IDLE: Duration = Duration::from_secs(4);
/// The round trip to a server that is far away.
const WAY: Duration = Duration::from_millis(20);

#[tokio::main]
async fn main() {
    let mut report = Report::from_arguments();
    let server = Server::start().await;

    let (ours, raw) = (Ours::connect(&server.url).await, Raw::connect(&server.url).await);
    for (tasks, most) in [(1, 20.0), (64, 8.0)] {
        let mut rounds = Rounds::default();
        for round in 0..=ROUNDS {
            let (ours, raw) = (allocations(&ours, tasks).await, allocations(&raw, tasks).await);
            if round > 0 {
                rounds.add(ours, raw);
            }
        }
        report.figure(&format!("allocations_{tasks}"), "a pair", &rounds, "raw", Target::ValueAtMost(most));
    }

    let far = far_away(server.port, WAY);
    let [mut near, mut round_trips] = [const { Rounds { values: Vec::new(), ratios: Vec::new() } }; 2];
    for round in 0..=ROUNDS {
        let (ours, raw) = (first_pair::<Ours>(&server.url).await, first_pair::<Raw>(&server.url).await);
        let (ours_far, raw_far) = (first_pair::<Ours>(&far).await, first_pair::<Raw>(&far).await);
        if round > 0 {
            near.add(ours.as_secs_f64() * 1e6, raw.as_secs_f64() * 1e6);
            round_trips.add(ours_far.div_duration_f64(WAY), raw_far.div_duration_f64(WAY));
        }
    }
    report.figure("cold_start", "us", &near, "raw", Target::ValueAtMost(600.0));
    report.figure("cold_start_20ms", "round_trips", &round_trips, "raw", Target::ValueAtMost(3.3));

    let region = Region::new(ALLOCATOR);
    let mut managers = Vec::new();
    for _ in 0..MANAGERS {
        managers.push(Ours::connect(&server.url).await);
    }
    sleep(Duration::from_secs(1)).await;
    let (change, switches) = (region.change(), switches());
    let kept = (change.bytes_allocated as f64 - change.bytes_deallocated as f64) / MANAGERS as f64 / 1e3;
    report.figure("idle_manager", "kilobytes", &Rounds::of([kept]), "", Target::ValueAtMost(300.0));
    if let Some(before) = switches {
        sleep(IDLE).await;
        let woken = self::switches().unwrap_or(before) - before;
        let each = woken as f64 / MANAGERS as f64 / IDLE.as_secs_f64();
        report.figure("idle_manager_woken", "wakeups_per_second", &Rounds::of([each]), "", Target::ValueAtMost(1.2));
    }
    drop(managers);
}

/// The allocations of a pair, the test's own included.
async fn allocations<L: Locks>(locks: &L, tasks: usize) -> f64 {
    let region = Region::new(ALLOCATOR);
    pairs::time(locks, tasks, PAIRS, Duration::ZERO).await;
    let change = region.change();
    (change.allocations + change.reallocations) as f64 / (tasks * PAIRS) as f64
}

/// How long it takes to connect, acquire and release.
async fn first_pair<L: Locks>(url: &str) -> Duration {
    let start = Instant::now();
    let locks = L::connect(url).await;
    let held = locks.acquire("first").await;
    L::release(held).await;
    start.elapsed()
}

/// How often the threads of this process have gone to sleep, where the system says so.
fn switches() -> Option<u64> {
    let tasks = fs::read_dir("/proc/self/task").ok()?;
    let of = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    Some(tasks.filter_map(|task| of(fs::read_to_string(task.ok()?.path().join("status")).ok()?)).sum())
}
