//! Shared leases and permits beside exclusive leases and raw commands: `cargo bench -p lock-benches --bench modes -- --json`.

mod support;

use std::time::Duration;

use lock_core::{LeaseOptions, LockGuard, LockManager, LockRequest};
use redis::aio::MultiplexedConnection;
use support::{
    clock,
    history::Hold,
    pairs,
    player::{self, Answer, Player},
    report::{Report, Target},
    server::{Server, ping_p50, usage},
    sides::{Locks as _, Ours, Permits, Raw, Readers},
    stats::{self, Rounds},
    task::{in_a_task, in_turn},
};
use tokio::{task::JoinSet, time::sleep};

/// How many rounds count, after one that warms up.
const ROUNDS: usize = 7;
const PROCESSES: usize = 8;
/// Of each process.
const TASKS: usize = 8;
/// How long a reader in the way of a writer holds the key.
const HOLD: Duration = Duration::from_millis(5);
/// Of leases that are renewed.
const TTL: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() {
    if let Some(child) = player::child_arguments() {
        return player::play::<Readers>(&child[2..]).await;
    }
    let mut report = Report::from_arguments();
    let server = Server::start().await;
    one_after_the_other(&server, &mut report).await;
    let mut crowd = Crowd(Player::start_all(PROCESSES, Readers::NAME, &[&server.url]));
    readers_of_one_key(&mut crowd, &mut report);
    writer_behind_readers(&server, &mut crowd, &mut report).await;
    drop(crowd);
    for shares in [1, 64, 1_000] {
        renewals(shares, &mut report).await;
    }
}

/// Pairs without contention, in each mode.
async fn one_after_the_other(server: &Server, report: &mut Report) {
    let (ours, raw) = (Ours::connect(&server.url).await, Raw::connect(&server.url).await);
    let (readers, permits) = (Readers::connect(&server.url).await, Permits::connect(&server.url).await);
    let mut connection = server.connect().await;
    let [mut shared, mut permit, mut beside_raw, mut executed] =
        [const { Rounds { values: Vec::new(), ratios: Vec::new() } }; 4];
    for round in 0..=ROUNDS {
        let [of_readers, of_permits, of_ours, of_raw] = in_turn(
            round,
            [
                Box::pin(pairs::sequential(&readers)),
                Box::pin(pairs::sequential(&permits)),
                Box::pin(pairs::sequential(&ours)),
                Box::pin(pairs::sequential(&raw)),
            ],
        )
        .await;
        if round > 0 {
            shared.add(of_readers, of_ours);
            permit.add(of_permits, of_ours);
            beside_raw.add(of_readers, of_raw);
            let mut of = [0.0; 2];
            for (side, of) in of.iter_mut().enumerate() {
                let before = scripts(&mut connection).await;
                let _ = if side == 0 { pairs::sequential(&readers).await } else { pairs::sequential(&ours).await };
                *of = (scripts(&mut connection).await - before) as f64 / pairs::PAIRS as f64;
            }
            executed.add(of[0], of[1]);
        }
    }
    report.figure("shared_pair_p50", "us", &shared, "exclusive", Target::None);
    report.figure("shared_pair_p50", "us", &beside_raw, "raw", Target::None);
    report.figure("permit_pair_p50", "us", &permit, "exclusive", Target::None);
    report.figure("shared_pair_in_server", "us", &executed, "exclusive", Target::None);
}

/// For how long, in us, the server has executed scripts and transactions so far.
async fn scripts(connection: &mut MultiplexedConnection) -> u64 {
    usage(connection, "evalsha").await.1 + usage(connection, "exec").await.1
}

/// Processes whose tasks share keys.
struct Crowd(Vec<Player>);

impl Crowd {
    /// Lets each task take its key again and again for some seconds: all the same, or each its own.
    fn order(&mut self, one_key: bool, hold: Duration, seconds: f64) -> (u64, u64) {
        let start = clock::now() + 50_000_000;
        let end = start + (seconds * 1e9) as u64;
        for (number, player) in self.0.iter_mut().enumerate() {
            let (key, keys) = if one_key { ("one".to_owned(), 1) } else { (format!("own:{number}"), TASKS) };
            player.order(&format!("crowd {key} {keys} {TASKS} {} {start} {end}", hold.as_micros()));
        }
        (start, end)
    }

    fn answers(&mut self) -> Answer {
        Player::answers(&mut self.0)
    }

    /// Pairs a second of all together.
    fn rate(&mut self, one_key: bool, seconds: f64) -> f64 {
        self.order(one_key, Duration::ZERO, seconds);
        self.answers().pairs as f64 / seconds
    }
}

/// Readers of one key beside as many with keys of their own.
fn readers_of_one_key(crowd: &mut Crowd, report: &mut Report) {
    let mut rates = Rounds::default();
    for round in 0..=ROUNDS {
        let seconds = if round == 0 { 0.5 } else { 1.5 };
        let mut of = [0.0; 2];
        for turn in 0..2 {
            let one_key = (round + turn) % 2;
            of[one_key] = crowd.rate(one_key == 1, seconds);
        }
        if round > 0 {
            rates.add(of[1], of[0]);
        }
    }
    report.figure("readers_pairs_per_second_64", "pairs/s", &rates, "own keys", Target::RatioAtLeast(0.8));
}

/// A writer in a process of its own asks for a key that readers of eight others hold all the time.
async fn writer_behind_readers(server: &Server, crowd: &mut Crowd, report: &mut Report) {
    let (writer, connection) = (Ours::connect(&server.url).await, server.connect().await);
    let [mut waits, mut p99, mut beyond] = [const { Rounds { values: Vec::new(), ratios: Vec::new() } }; 3];
    for round in 0..=ROUNDS {
        let ping = ping_p50(&connection, Duration::from_millis(150)).await;
        let (start, end) = crowd.order(true, HOLD, if round == 0 { 0.5 } else { 2.0 });
        let writer = writer.clone();
        let written = in_a_task(async move {
            let mut written = Vec::new();
            sleep(Duration::from_nanos(start.saturating_sub(clock::now())) + 2 * HOLD).await;
            let last = end - 2 * nanoseconds(HOLD);
            while clock::now() < last {
                let asked = clock::now();
                let guard = writer.acquire("one:0").await;
                written.push((asked, clock::now()));
                Ours::release(guard).await;
                sleep(4 * HOLD).await; // all are back by then
            }
            written
        })
        .await;
        let readers = crowd.answers().holds;
        if round > 0 {
            let waited: Vec<Waited> = written.into_iter().map(|write| Waited::of(write, &readers)).collect();
            let quantile =
                |of: fn(&Waited) -> u64, quantile| stats::quantile(&stats::histogram(waited.iter().map(of)), quantile);
            waits.add(quantile(|waited| waited.wait, 0.5) / 1e3, quantile(|waited| waited.before, 0.5) / 1e3);
            beyond.add(quantile(|waited| waited.wait - waited.before.min(waited.wait), 0.5), ping);
            p99.add(quantile(|waited| waited.wait, 0.99) / 1e3, quantile(|waited| waited.before, 0.99) / 1e3);
        }
    }
    report.figure("writer_wait_p50", "ms", &waits, "the last hold before it", Target::RatioAtMost(1.2));
    report.figure("writer_wait_p99", "ms", &p99, "the last hold before it", Target::None);
    report.figure("writer_wait_beyond_p50", "us", &beyond, "PING p50", Target::None);
}

/// How a writer waited; times in ns.
struct Waited {
    wait: u64,
    /// Until the last reader that was there before it gave the key back.
    before: u64,
}

impl Waited {
    fn of((asked, held): (u64, u64), readers: &[Hold]) -> Self {
        let is_before =
            |reader: &&Hold| reader.held < held && reader.released > asked && reader.asked < asked + IN_LINE;
        let last = readers.iter().filter(is_before).map(|reader| reader.released).max();
        Self { wait: held - asked, before: last.unwrap_or(asked) - asked }
    }
}

/// What a request takes to reach the queue among those of 64 readers, generously.
const IN_LINE: u64 = 2_000_000;

/// What it takes the server to renew the shares of a group for a second, beside as many exclusive leases.
async fn renewals(shares: usize, report: &mut Report) {
    let servers = [Server::start().await, Server::start().await];
    let shared = hold(&servers[0], shares, |manager, _| manager.lock("one").shared()).await;
    let exclusive = hold(&servers[1], shares, |manager, number| manager.lock(format!("own:{number}"))).await;
    let mut costs = Rounds::default();
    let mut connections = [servers[0].connect().await, servers[1].connect().await];
    for _ in 0..ROUNDS {
        let mut spent = [0; 2];
        for (connection, spent) in connections.iter_mut().zip(&mut spent) {
            *spent = usage(connection, "evalsha").await.1;
        }
        sleep(TTL).await;
        for (connection, spent) in connections.iter_mut().zip(&mut spent) {
            *spent = usage(connection, "evalsha").await.1 - *spent;
        }
        let [of_shared, of_exclusive] = spent.map(|spent| spent as f64 / TTL.as_secs_f64() / shares as f64);
        costs.add(of_shared, of_exclusive);
    }
    assert!(shared.iter().chain(&exclusive).all(LockGuard::is_held));
    report.figure(&format!("a_second_of_{shares}_shares"), "us/share", &costs, "exclusive", Target::None);
}

async fn hold(server: &Server, leases: usize, request: fn(&LockManager, usize) -> LockRequest) -> Vec<LockGuard> {
    let manager = LockManager::builder()
        .url(&server.url)
        .defaults(LeaseOptions::new().ttl(TTL))
        .connect()
        .await
        .expect("the server answers");
    let mut set = JoinSet::new();
    for number in 0..leases {
        set.spawn(request(&manager, number).acquire());
    }
    set.join_all().await.into_iter().map(|guard| guard.expect("the key can be had")).collect()
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("seconds")
}
