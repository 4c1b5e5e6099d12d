//! Acquire and release without contention, beside raw commands through the same client in the same run:
//! `cargo bench -p lock-benches --bench acquire -- --json`.

mod support;

use std::{iter::zip, time::Duration};

use support::{
    pairs,
    plot::{self, Throughput},
    relay::far_away,
    report::{Report, Target},
    server::{Server, ping_p50},
    sides::{Locks as _, Ours, Raw},
    stats::{Rounds, median},
    task::{Turn, in_turn},
};
use tokio::runtime::Builder;

/// How often the sides take turns, after a round that warms up.
const ROUNDS: usize = 7;

fn main() {
    let mut report = Report::from_arguments();
    let runtime = |mut builder: Builder| builder.enable_all().build().expect("threads can be had");
    runtime(Builder::new_multi_thread()).block_on(on_all_threads(&mut report));
    runtime(Builder::new_current_thread()).block_on(on_one_thread(&mut report));
}

async fn on_all_threads(report: &mut Report) {
    let server = Server::start().await;
    let near = Sides::connect(&server.url).await;

    let Sides { ours, raw, .. } = &near;
    let [times, raw_times, pings] = rounds(|| {
        let ping = ping_p50(&raw.connection, Duration::from_millis(100));
        [Box::pin(pairs::sequential(ours)), Box::pin(pairs::sequential(raw)), Box::pin(ping)]
    })
    .await;
    report.figure("ping_p50", "us", &Rounds::of(pings), "", Target::None);
    let times = Rounds::beside(zip(times, raw_times));
    report.figure("sequential_pair_p50", "us", &times, "raw", Target::RatioAtMost(1.10));

    for (tasks, target) in [
        (1, Target::RatioAtLeast(0.91)),
        (4, Target::RatioAtLeast(1.2)),
        (16, Target::RatioAtLeast(1.35)),
        (64, Target::RatioAtLeast(1.6)),
        (256, Target::RatioAtLeast(1.8)),
        (1_000, Target::RatioAtLeast(2.3)),
    ] {
        near.report_throughput(report, tasks, &format!("pairs_per_second_{tasks}"), target).await;
    }

    for way in [1, 20] {
        let away = Duration::from_millis(way);
        let far = Sides::connect(&far_away(server.port, away)).await;
        for tasks in [1, 4, 16, 64] {
            let [times, raw, no_delay, pings] = far.round_trips(tasks, away).await;
            let in_round_trips = |times| Rounds::beside(zip(times, pings.clone())).ratios;
            let [times, raw, no_delay] = [times, raw, no_delay].map(in_round_trips);
            let measure = format!("round_trip_{way}ms_tasks_{tasks}");
            let target = Target::ValueAtMost(2.1);
            report.figure(&measure, "round_trips", &Rounds::beside(zip(times.clone(), raw)), "raw", target);
            let beside = Rounds::beside(zip(times, no_delay));
            report.figure(&format!("{measure}_nodelay"), "round_trips", &beside, "raw with TCP_NODELAY", Target::None);
        }
    }

    let memory = Ours::connect("memory://").await;
    let rates = rounds(|| MEMORY_TASKS.map(|tasks| -> Turn<'_> { Box::pin(pairs::on_own_keys(&memory, tasks)) })).await;
    for (tasks, of_these) in zip(MEMORY_TASKS, &rates) {
        let beside = Rounds::beside(zip(of_these.clone(), rates[0].clone()));
        let measure = format!("memory_pairs_per_second_{tasks}");
        report.figure(&measure, "pairs/s", &beside, "one task", Target::RatioAtLeast(1.0));
    }

    if let Some(folder) = &report.plots {
        let mut points = Vec::new();
        for tasks in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_000] {
            let [rates, raw, _] = near.throughput(tasks).await;
            let ratio = Rounds::beside(zip(rates.clone(), raw.clone())).ratio().map_or(f64::NAN, |ratio| ratio.median);
            points.push(Throughput { tasks, ours: median(rates), raw: median(raw), ratio });
        }
        plot::throughput(&folder.join("throughput.svg"), &points);
    }
}

/// The same near rows where the engine and all tasks share a thread.
async fn on_one_thread(report: &mut Report) {
    let server = Server::start().await;
    let near = Sides::connect(&server.url).await;
    for tasks in [1, 16, 64, 1_000] {
        near.report_throughput(report, tasks, &format!("current_thread_pairs_per_second_{tasks}"), Target::None).await;
    }
}

struct Sides {
    ours: Ours,
    raw: Raw,
    /// Raw commands with `TCP_NODELAY`.
    no_delay: Raw,
}

impl Sides {
    async fn connect(url: &str) -> Self {
        Self { ours: Ours::connect(url).await, raw: Raw::connect(url).await, no_delay: Raw::without_delay(url).await }
    }

    async fn report_throughput(&self, report: &mut Report, tasks: usize, measure: &str, target: Target) {
        let [rates, raw, no_delay] = self.throughput(tasks).await;
        report.figure(measure, "pairs/s", &Rounds::beside(zip(rates.clone(), raw)), "raw", target);
        let beside = Rounds::beside(zip(rates, no_delay));
        report.figure(&format!("{measure}_nodelay"), "pairs/s", &beside, "raw with TCP_NODELAY", Target::None);
    }

    /// Pairs a second of each side.
    async fn throughput(&self, tasks: usize) -> [Vec<f64>; 3] {
        let Self { ours, raw, no_delay } = self;
        rounds(|| {
            let [raw, no_delay] = [raw, no_delay].map(|raw| -> Turn<'_> { Box::pin(pairs::on_own_keys(raw, tasks)) });
            [Box::pin(pairs::on_own_keys(ours, tasks)), raw, no_delay]
        })
        .await
    }

    /// The time of a pair of each side, and that of a PING.
    async fn round_trips(&self, tasks: usize, away: Duration) -> [Vec<f64>; 4] {
        let Self { ours, raw, no_delay } = self;
        rounds(|| {
            let ping = ping_p50(&no_delay.connection, 10 * away);
            let [raw, no_delay] =
                [raw, no_delay].map(|raw| -> Turn<'_> { Box::pin(pairs::time(raw, tasks, FAR_PAIRS, away)) });
            [Box::pin(pairs::time(ours, tasks, FAR_PAIRS, away)), raw, no_delay, Box::pin(ping)]
        })
        .await
    }
}

/// What the sides measure, round by round.
async fn rounds<'a, const N: usize>(turns: impl Fn() -> [Turn<'a>; N]) -> [Vec<f64>; N] {
    let mut measured = [const { Vec::new() }; N];
    for round in 0..=ROUNDS {
        let values = in_turn(round, turns()).await;
        if round > 0 {
            zip(&mut measured, values).for_each(|(all, value)| all.push(value));
        }
    }
    measured
}

/// How many tasks lock in memory at a time; the first is what the others are compared with.
const MEMORY_TASKS: [usize; 4] = [1, 4, 16, 64];

/// How many pairs a task there makes in a round.
const FAR_PAIRS: usize = 8;
