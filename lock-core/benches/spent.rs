//! Where the time of a pair and of a handoff goes: `cargo bench -p lock-benches --bench spent -- --json`.
//!
//! A pair is an acquire and a release without contention, one after the other in a task; a handoff leads from the release in
//! one process to the lease in another that waits. What the client computes while it waits for nobody, what the server executes,
//! and what the way there and back takes (a PING) are measured by themselves; they overlap, so they need not add up.

mod support;

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use support::{
    clock,
    handoff::Match,
    pairs, player,
    report::{Report, Target},
    server::{Server, ping_p50, usage},
    sides::{Locks, Ours, Raw},
    stats::Rounds,
};

/// How many rounds count, after one that warms up.
const ROUNDS: usize = 7;
const SECONDS: f64 = 3.0;
/// What we call.
const OURS: [&str; 2] = ["evalsha", "exec"];
/// What raw commands call.
const RAW: [&str; 2] = ["evalsha", "set"];

#[tokio::main]
async fn main() {
    if let Some(child) = player::child_arguments() {
        return player::play::<Ours>(&child[2..]).await;
    }
    let mut report = Report::from_arguments();
    let server = Server::start().await;
    pair::<Ours>(&server, &mut report, &OURS).await;
    pair::<Raw>(&server, &mut report, &RAW).await;
    handoff(&server, &mut report).await;
}

/// A pair, and its parts in µs.
async fn pair<L: Locks>(server: &Server, report: &mut Report, commands: &[&str]) {
    let (locks, mut connection) = (L::connect(&server.url).await, server.connect().await);
    let [mut times, mut ways, mut here, mut there] = [const { Rounds { values: Vec::new(), ratios: Vec::new() } }; 4];
    for round in 0..=ROUNDS {
        let ping = ping_p50(&connection, Duration::from_millis(100)).await;
        let (computed, executed) = (clock::processor_time(), executed(&mut connection, commands).await);
        let time = pairs::sequential(&locks).await;
        let computed = (clock::processor_time() - computed).as_secs_f64() * 1e6;
        let executed = self::executed(&mut connection, commands).await - executed;
        if round > 0 {
            times.values.push(time);
            ways.add(2.0 * ping, time);
            here.add(computed / pairs::PAIRS as f64, time);
            there.add(executed as f64 / pairs::PAIRS as f64, time);
        }
    }
    let name = |part: &str| format!("{}_pair_{part}", L::NAME);
    report.figure(&name("p50"), "us", &times, "", Target::None);
    report.figure(&name("two_pings"), "us", &ways, "the pair", Target::None);
    report.figure(&name("processor_of_client"), "us", &here, "the pair", Target::None);
    report.figure(&name("commands_in_server"), "us", &there, "the pair", Target::None);
}

/// A handoff, and its parts.
async fn handoff(server: &Server, report: &mut Report) {
    let mut connection = server.connect().await;
    let mut game = Match::<Ours>::start(server).await;
    let [mut there, mut calls, mut pushes] = [const { Rounds { values: Vec::new(), ratios: Vec::new() } }; 3];
    for round in 0..=ROUNDS {
        let before = counted(&mut connection).await;
        let handoffs = game.played.handoffs.len();
        game.round(SECONDS, round > 0).await;
        let after = counted(&mut connection).await;
        let handoffs = (game.played.handoffs.len() - handoffs) as f64;
        if round > 0 {
            let of_each = |of: fn(&Counted) -> u64| (of(&after) - of(&before)) as f64 / handoffs;
            let p50 = game.played.rounds.last().expect("it was kept").p50;
            there.add(of_each(|counted| counted.executed), p50);
            calls.values.push(of_each(|counted| counted.calls));
            pushes.values.push(of_each(|counted| counted.pushes));
        }
    }
    let played = game.played;
    report.figure("handoff_p50", "us", &played.figure(|round| round.p50), "PING p50", Target::None);
    let ping = Rounds::beside(played.rounds.iter().map(|round| (round.ping, round.p50)));
    report.figure("handoff_ping", "us", &ping, "the handoff", Target::None);
    report.figure("handoff_commands_in_server", "us", &there, "the handoff", Target::None);
    report.figure("handoff_calls", "calls", &calls, "", Target::None);
    report.figure("handoff_pushes", "messages", &pushes, "", Target::None);
}

/// What the server has counted so far.
struct Counted {
    executed: u64,
    calls: u64,
    pushes: u64,
}

async fn counted(connection: &mut MultiplexedConnection) -> Counted {
    let mut calls = 0;
    for command in OURS {
        calls += usage(connection, command).await.0;
    }
    let pushes = usage(connection, "publish").await.0;
    Counted { executed: executed(connection, &OURS).await, calls, pushes }
}

/// For how long, in µs, the server has executed these commands so far.
async fn executed(connection: &mut MultiplexedConnection, commands: &[&str]) -> u64 {
    let mut sum = 0;
    for command in commands {
        sum += usage(connection, command).await.1;
    }
    sum
}
