//! Acquire and release without contention, beside raw commands through the same client in the same run:
//! `cargo bench -p lock-benches --bench acquire -- --json`.

mod support;

use std::time::Duration;

use support::{
    pairs,
    plot::{self, Throughput},
    report::{Report, Target},
    server::{Server, ping_p50},
    sides::{Locks as _, Ours, Raw},
    stats::Rounds,
    task::{Turn, in_turn},
};

/// How often the two sides take turns, after a round that warms up.
const ROUNDS: usize = 7;

#[tokio::main]
async fn main() {
    let mut report = Report::from_arguments();
    let server = Server::start().await;
    let (ours, raw) = (Ours::connect(&server.url).await, Raw::connect(&server.url).await);

    let (mut times, mut pings) = (Rounds::default(), Rounds::default());
    for round in 0..=ROUNDS {
        let ping = ping_p50(&raw.connection, Duration::from_millis(100)).await;
        let [time, raw_time] =
            in_turn(round, [Box::pin(pairs::sequential(&ours)), Box::pin(pairs::sequential(&raw))]).await;
        if round > 0 {
            times.add(time, raw_time);
            pings.values.push(ping);
        }
    }
    report.figure("ping_p50", "us", &pings, "", Target::None);
    report.figure("sequential_pair_p50", "us", &times, "raw", Target::RatioAtMost(1.10));

    for (measure, tasks, target) in [("pairs_per_second_64", 64, 1.0), ("pairs_per_second_1000", 1_000, 1.4)] {
        let (rates, _) = throughput(&ours, &raw, tasks).await;
        report.figure(measure, "pairs/s", &rates, "raw", Target::RatioAtLeast(target));
    }

    if let Some(folder) = &report.plots {
        let mut points = Vec::new();
        for tasks in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_000] {
            let (rates, raw_rates) = throughput(&ours, &raw, tasks).await;
            let ratio = rates.ratio().map_or(f64::NAN, |ratio| ratio.median);
            points.push(Throughput { tasks, ours: rates.value().median, raw: raw_rates.value().median, ratio });
        }
        plot::throughput(&folder.join("throughput.svg"), &points);
    }
}

/// Pairs a second of both sides, of ours beside raw.
async fn throughput(ours: &Ours, raw: &Raw, tasks: usize) -> (Rounds, Rounds) {
    let (mut rates, mut raw_rates) = (Rounds::default(), Rounds::default());
    for round in 0..=ROUNDS {
        let sides: [Turn<'_>; 2] =
            [Box::pin(pairs::on_own_keys(ours, tasks)), Box::pin(pairs::on_own_keys(raw, tasks))];
        let [rate, raw_rate] = in_turn(round, sides).await;
        if round > 0 {
            rates.add(rate, raw_rate);
            raw_rates.values.push(raw_rate);
        }
    }
    (rates, raw_rates)
}
