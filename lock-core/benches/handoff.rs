//! From release in one process to the lease in another that waits for it, beside the round trip of a PING:
//! `cargo bench -p lock-core --bench handoff -- --json`.

mod support;

use support::{
    handoff::Match,
    player, plot,
    report::{Report, Target},
    server::Server,
    sides::Ours,
};

/// How many rounds count, after one that warms up.
const ROUNDS: usize = 7;
const SECONDS: f64 = 4.0;

#[tokio::main]
async fn main() {
    if let Some(child) = player::child_arguments() {
        return player::play::<Ours>(&child[2..]).await;
    }
    let mut report = Report::from_arguments();
    let server = Server::start().await;
    let mut game = Match::<Ours>::start(&server).await;
    game.round(SECONDS / 2.0, false).await;
    for _ in 0..ROUNDS {
        game.round(SECONDS, true).await;
    }

    let played = game.played;
    let (p50, p50_ratio) = played.figure(|round| round.p50);
    let (p99, p99_ratio) = played.figure(|round| round.p99);
    report.figure("handoff_p50", p50, "us", Some(p50_ratio), Target::RatioAtMost(2.6));
    report.figure("handoff_p99", p99, "us", Some(p99_ratio), Target::RatioAtMost(6.0));
    let (ping, _) = played.figure(|round| round.ping);
    report.remark(&format!("ratios to the PING p50 of {ping:.1} us; {} handoffs", played.handoffs.len()));

    if let Some(folder) = &report.plots {
        plot::handoff(&folder.join("handoff.svg"), &played);
    }
}
