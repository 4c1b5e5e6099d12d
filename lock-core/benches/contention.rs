//! Many who want one key, in one process and in eight: `cargo bench -p lock-core --bench contention -- --json`.

mod support;

use std::time::Duration;

use support::{
    contention::Crowd,
    pairs, player,
    report::{Report, Target},
    server::{Server, pings},
    sides::{Locks as _, Ours},
    stats::{histogram, median, quantile},
};

/// How many rounds count, after one that warms up.
const ROUNDS: usize = 5;
const TASKS: usize = 1_000;
const PROCESSES: usize = 8;

#[tokio::main]
async fn main() {
    if let Some(child) = player::child_arguments() {
        return player::play::<Ours>(&child[2..]).await;
    }
    let mut report = Report::from_arguments();
    let server = Server::start().await;
    in_process(&server, &mut report).await;
    between_processes(&server, &mut report).await;
}

async fn in_process(server: &Server, report: &mut Report) {
    let ours = Ours::connect(&server.url).await;
    let mut connection = server.connect().await;
    let (mut rates, mut ratios) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let trips = pings(&mut connection, Duration::from_millis(200)).await;
        let rate = pairs::on_one_key(&ours, TASKS).await;
        if round > 0 {
            rates.push(rate);
            // Whoever pays a round trip for each holder has one holder in the time of a PING.
            ratios.push(rate * quantile(&histogram(trips), 0.5) / 1e6);
        }
    }
    let ratio = Some(median(ratios));
    report.figure("in_process_pairs_per_second", median(rates), "pairs/s", ratio, Target::RatioAtLeast(20.0));
}

async fn between_processes(server: &Server, report: &mut Report) {
    let mut crowd = Crowd::<Ours>::start(server, PROCESSES).await;
    crowd.round(1.0, 0.5, false).await;
    for _ in 0..ROUNDS {
        crowd.round(2.5, 1.5, true).await;
    }

    let changes = crowd.figure(|round| round.owner_changes_per_second);
    let of_ping = crowd.figure(|round| round.owner_changes_per_second * round.ping);
    report.figure("owner_changes_per_second", changes, "1/s", Some(of_ping), Target::None);
    // Raw commands need two: one that takes and one that releases.
    let requests = crowd.figure(|round| round.requests_per_handoff);
    report.figure("requests_per_handoff", requests, "requests", Some(requests / 2.0), Target::ValueAtMost(2.2));
    let fairness = crowd.figure(|round| round.fairness);
    report.figure("fairness_min_max", fairness, "share", None, Target::ValueAtLeast(0.8));
    let wait = crowd.figure(|round| round.wait_p99);
    let of_ping = crowd.figure(|round| round.wait_p99 / 1e3 / round.ping);
    report.figure("wait_p99", wait, "ms", Some(of_ping), Target::None);
    let scripts = crowd.figure(|round| round.scripts_per_handoff);
    report.remark(&format!("{scripts:.2} calls of scripts per handoff by the server's own count, without the relay"));
}
