//! From release in one process to the lease in another that waits for it, beside the round trip of a PING:
//! `cargo bench -p lock-benches --bench handoff -- --json`.

mod support;

use support::{
    handoff::Match,
    player, plot,
    report::{Report, Target},
    server::Server,
    sides::Ours,
    stats::Rounds,
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
    let pings = Rounds::of(played.rounds.iter().map(|round| round.ping));
    report.figure("ping_p50", "us", &pings, "", Target::None);
    report.figure("handoff_p50", "us", &played.figure(|round| round.p50), "PING p50", Target::RatioAtMost(2.6));
    report.figure("handoff_p99", "us", &played.figure(|round| round.p99), "PING p50", Target::RatioAtMost(6.0));
    report.remark(&format!("{} handoffs", played.handoffs.len()));

    if let Some(folder) = &report.plots {
        plot::handoff(&folder.join("handoff.svg"), &played);
    }
}
