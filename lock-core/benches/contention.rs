//! Many tasks that want one key, in one process and in eight: `cargo bench -p lock-benches --bench contention -- --json`.

mod support;

use std::time::Duration;

use support::{
    contention::{Crowd, Round},
    pairs, player,
    report::{Report, Target},
    server::{Server, ping_p50},
    sides::{InProcess, Locks, Ours, OursAwaited},
    stats::Rounds,
    task::{Turn, in_turn},
};

/// How many rounds count, after one that warms up.
const ROUNDS: usize = 5;
const TASKS: usize = 1_000;
const PROCESSES: usize = 8;

#[tokio::main]
async fn main() {
    if let Some(child) = player::child_arguments() {
        return match &*child[1] {
            Ours::NAME => player::play::<Ours>(&child[2..]).await,
            OursAwaited::NAME => player::play::<OursAwaited>(&child[2..]).await,
            side => panic!("no such side: {side}"),
        };
    }
    let mut report = Report::from_arguments();
    let server = Server::start().await;
    in_process(&server, &mut report).await;
    between_processes(&server, &mut report).await;
}

/// Tasks of one process on one key, beside one holder in the time of a PING, and beside a mutex that as many tasks share.
async fn in_process(server: &Server, report: &mut Report) {
    let (ours, mutex) = (Ours::connect(&server.url).await, InProcess::connect(&server.url).await);
    let connection = server.connect().await;
    let (mut rates, mut beside_mutex, mut pings) = (Rounds::default(), Rounds::default(), Rounds::default());
    for round in 0..=ROUNDS {
        let sides: [Turn<'_>; 3] = [
            Box::pin(ping_p50(&connection, Duration::from_millis(200))),
            Box::pin(pairs::on_one_key(&ours, TASKS)),
            Box::pin(pairs::on_one_key(&mutex, TASKS)),
        ];
        let [ping, rate, mutex_rate] = in_turn(round, sides).await;
        if round > 0 {
            rates.values.push(rate);
            beside_mutex.add(rate, mutex_rate);
            pings.values.push(ping);
        }
    }
    // A lock that pays a round trip for each holder has one holder in the time of a PING. The quickest round of PINGs
    // counts: if both cores idle, each answer has to wake one of them, which tasks on one key never wait for.
    let quickest = pings.value().least;
    rates.ratios = rates.values.iter().map(|rate| rate * quickest / 1e6).collect();
    report.figure("ping_p50", "us", &pings, "", Target::None);
    report.figure("in_process_pairs_per_second", "pairs/s", &rates, "quickest PING", Target::RatioAtLeast(20.0));
    report.figure("in_process_beside_mutex", "pairs/s", &beside_mutex, "tokio Mutex", Target::RatioAtLeast(0.4));
}

async fn between_processes(server: &Server, report: &mut Report) {
    let mut crowd = Crowd::start::<Ours>(server, PROCESSES).await;
    let mut awaited = Crowd::start::<OursAwaited>(server, PROCESSES).await;
    let mut python = Crowd::start_python(server, PROCESSES).await;
    for round in 0..=ROUNDS {
        let (straight, counted) = if round == 0 { (1.0, 0.5) } else { (2.5, 1.5) };
        crowd.round(straight, counted, round > 0).await;
        awaited.round(straight, counted, round > 0).await;
        if let Some(python) = &mut python {
            python.round(straight, counted, round > 0).await;
        }
    }
    report.figure("owner_changes_per_second", "1/s", &changes(&crowd), "one per PING", Target::None);
    report.figure("requests_per_handoff", "requests", &requests(&crowd), "raw's two", Target::ValueAtMost(1.2));
    report.figure("owner_changes_per_second_awaited", "1/s", &changes(&awaited), "one per PING", Target::None);
    report.figure("requests_per_handoff_awaited", "requests", &requests(&awaited), "raw's two", Target::None);
    if let Some(python) = &python {
        let beside =
            |crowd: &Crowd| crowd.rounds.iter().map(|round| round.owner_changes_per_second).collect::<Vec<_>>();
        let rounds = Rounds::beside(beside(&crowd).into_iter().zip(beside(python)));
        report.figure("owner_changes_beside_python", "1/s", &rounds, "python-redis-lock", Target::RatioAtLeast(1.0));
        report.figure("owner_changes_per_second_python", "1/s", &changes(python), "one per PING", Target::None);
        report.figure("requests_per_handoff_python", "requests", &requests(python), "raw's two", Target::None);
    } else {
        report.remark("not beside python-redis-lock, which python3 does not have: `pip install python-redis-lock`");
    }
    let fairness = crowd.figure(|round| round.fairness);
    report.figure("fairness_min_max", "share", &fairness, "", Target::ValueAtLeast(0.95));
    let waits = crowd.beside(|round| round.wait_p99, |round| 1e3 * round.ping);
    report.figure("wait_p99", "ms", &waits, "PING p50", Target::None);
    let scripts = crowd.figure(|round| round.scripts_per_handoff).value().median;
    report.remark(&format!(
        "{scripts:.2} calls of scripts, and transactions, per handoff by the server's own count, without the relay"
    ));
    report.remark("awaited: each release is awaited, instead of a guard that goes out of scope");
}

fn changes(crowd: &Crowd) -> Rounds {
    crowd.beside(|round| round.owner_changes_per_second, |round| 1.0 / round.ping)
}

/// Raw commands need two: one that takes and one that releases.
fn requests(crowd: &Crowd) -> Rounds {
    crowd.beside(|round: &Round| round.requests_per_handoff, |_| 2.0)
}
