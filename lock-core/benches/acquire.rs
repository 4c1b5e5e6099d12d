//! Acquire and release without contention, beside raw commands through the same client in the same run:
//! `cargo bench -p lock-core --bench acquire -- --json`.

mod support;

use support::{
    pairs,
    plot::{self, Throughput},
    report::{Report, Target},
    server::Server,
    sides::{Locks, Ours, Raw},
    stats::{median, median_ratio},
};

/// How often the two sides take turns, after a round that warms up.
const ROUNDS: usize = 7;

#[tokio::main]
async fn main() {
    let mut report = Report::from_arguments();
    let server = Server::start().await;
    let (ours, raw) = (Ours::connect(&server.url).await, Raw::connect(&server.url).await);

    let (mut times, mut raw_times) = (Vec::new(), Vec::new());
    let (mut spawned, mut raw_spawned) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let (time, raw_time) = (pairs::sequential(&ours).await, pairs::sequential(&raw).await);
        let (task_time, raw_task_time) = (in_a_task(&ours).await, in_a_task(&raw).await);
        if round > 0 {
            times.push(time);
            raw_times.push(raw_time);
            spawned.push(task_time);
            raw_spawned.push(raw_task_time);
        }
    }
    let ratio = median_ratio(&times, &raw_times);
    report.figure("sequential_pair_p50", median(times), "us", Some(ratio), Target::RatioAtMost(1.10));
    let ratio = median_ratio(&spawned, &raw_spawned);
    report.remark(&format!("in a task, beside its connection: {:.2} us, {ratio:.3} x raw", median(spawned)));

    for (measure, tasks, target) in [("pairs_per_second_64", 64, 0.85), ("pairs_per_second_1000", 1_000, 1.2)] {
        let throughput = throughput(&ours, &raw, tasks).await;
        report.figure(measure, throughput.ours, "pairs/s", Some(throughput.ratio), Target::RatioAtLeast(target));
    }

    if let Some(folder) = &report.plots {
        let mut points = Vec::new();
        for tasks in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_000] {
            points.push(throughput(&ours, &raw, tasks).await);
        }
        plot::throughput(&folder.join("throughput.svg"), &points);
    }
}

/// In a spawned task, which mostly shares a thread with the connection. The future of `#[tokio::main]` never does, so
/// that each answer wakes another thread, which takes longer than the round trip itself.
async fn in_a_task<L: Locks>(locks: &L) -> f64 {
    let locks = locks.clone();
    tokio::spawn(async move { pairs::sequential(&locks).await }).await.expect("no pair fails")
}

async fn throughput(ours: &Ours, raw: &Raw, tasks: usize) -> Throughput {
    let (mut rates, mut raw_rates) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let (rate, raw_rate) = (pairs::on_own_keys(ours, tasks).await, pairs::on_own_keys(raw, tasks).await);
        if round > 0 {
            rates.push(rate);
            raw_rates.push(raw_rate);
        }
    }
    let ratio = median_ratio(&rates, &raw_rates);
    Throughput { tasks, ours: median(rates), raw: median(raw_rates), ratio }
}
