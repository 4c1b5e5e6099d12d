//! What it costs to hold leases: `cargo bench -p lock-core --bench renewal -- --json`.
//!
//! They are held by a process of their own, so that neither the memory nor the processor time of the bench counts.

mod support;

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use support::{
    clock, holder,
    player::{self, Player},
    plot::{self, Cost},
    report::{Report, Target},
    server::{Server, calls},
    stats::median,
};

const LEASES: usize = 100_000;
/// How many times a third of the ttl is watched; in each every lease is renewed once.
const WINDOWS: usize = 3;

#[tokio::main]
async fn main() {
    if let Some(child) = player::child_arguments() {
        return holder::hold(&child[1], child[2].parse().expect("a number")).await;
    }
    let mut report = Report::from_arguments();
    let server = Server::start().await;
    let mut raw = RawKeys::new(&server, LEASES).await;
    let held = hold(&server, LEASES, WINDOWS, Some(&mut raw)).await;

    report.figure("cpu_share", held.share(), "%", Some(held.share() / raw.share()), Target::ValueAtMost(5.0));
    report.figure("bytes_per_lease", held.bytes, "bytes", None, Target::ValueAtMost(600.0));
    // Raw commands renew one key each.
    let (renewals, least) = (median(held.renewals_per_call), Target::ValueAtLeast(400.0));
    report.figure("renewals_per_call", renewals, "renewals", Some(renewals), least);
    report.figure("lost", held.lost as f64, "leases", None, Target::ValueAtMost(0.0));
    report.remark(&format!("raw: PEXPIRE in pipelines of 500 takes {:.2} % of a core", raw.share()));

    if let Some(folder) = &report.plots {
        let mut points = Vec::new();
        for leases in [1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000] {
            // The keys of the last one live for a while.
            let server = Server::start().await;
            let held = hold(&server, leases, 1, None).await;
            println!("  {leases} leases: {:.0} bytes each, {:.2} % of a core", held.bytes, held.share());
            points.push(Cost { leases, bytes: held.bytes, processor: held.microseconds(leases) });
        }
        plot::cost(&folder.join("leases.svg"), &points);
    }
}

/// What holding cost.
struct Held {
    /// Processor time to renew all leases once, by each window.
    times: Vec<Duration>,
    bytes: f64,
    renewals_per_call: Vec<f64>,
    lost: u64,
}

impl Held {
    /// The median, in percent of a core.
    fn share(&self) -> f64 {
        share(&self.times)
    }

    /// Of processor time, for one renewal of one lease.
    fn microseconds(&self, leases: usize) -> f64 {
        median(self.times.iter().map(|time| time.as_secs_f64() * 1e6 / leases as f64).collect())
    }
}

/// Holds leases in another process; in each window, raw commands renew as many keys from this one.
async fn hold(server: &Server, leases: usize, windows: usize, mut raw: Option<&mut RawKeys>) -> Held {
    let mut connection = server.connect().await;
    let mut holder = Player::start(&["holder", &server.url, &leases.to_string()]);
    let bytes_before: f64 = number(&tokio::task::block_in_place(|| holder.line()));
    assert_eq!(tokio::task::block_in_place(|| holder.line()), "held");

    let mut held = Held { times: Vec::new(), bytes: 0.0, renewals_per_call: Vec::new(), lost: 0 };
    for _ in 0..windows {
        pause(&mut connection).await;
        let (renewals, scripts) = renewals(&mut connection).await;
        let start: f64 = ask(&mut holder, "time");
        tokio::time::sleep(holder::TTL / 3).await;
        let time: f64 = ask(&mut holder, "time") - start;
        let (renewals_after, scripts_after) = self::renewals(&mut connection).await;
        held.renewals_per_call.push((renewals_after - renewals) as f64 / (scripts_after - scripts) as f64);
        let each = (renewals_after - renewals) as f64 / leases as f64;
        assert!((0.9..1.1).contains(&each), "{each} renewals of a lease in a third of its ttl");
        held.times.push(Duration::from_secs_f64(time));
        if let Some(raw) = raw.as_deref_mut() {
            raw.renew().await;
        }
    }
    held.bytes = (ask(&mut holder, "memory") - bytes_before) / leases as f64;
    held.lost = ask(&mut holder, "lost") as u64 + missing(&mut connection, leases).await;
    held
}

/// Waits for a pause in the renewals, so that a window holds one of each lease: those that were acquired together are
/// renewed together. So many that there is none are renewed evenly.
async fn pause(connection: &mut MultiplexedConnection) {
    let steady = Instant::now() + holder::TTL / 3;
    let (mut last, mut quiet) = (0, 0);
    while quiet < 3 && Instant::now() < steady {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (renewals, _) = renewals(connection).await;
        quiet = if renewals == last { quiet + 1 } else { 0 };
        last = renewals;
    }
}

fn ask(holder: &mut Player, question: &str) -> f64 {
    holder.order(question);
    number(&tokio::task::block_in_place(|| holder.line()))
}

/// How many keys were renewed so far, and by how many calls of scripts; only leases are in this server's scripts.
async fn renewals(connection: &mut MultiplexedConnection) -> (u64, u64) {
    let mut scripts = 0;
    for command in ["evalsha", "eval"] {
        scripts += calls(connection, command).await;
    }
    (calls(connection, "pexpire").await, scripts)
}

/// How many leases the server does not know of.
async fn missing(connection: &mut MultiplexedConnection, leases: usize) -> u64 {
    let mut there = 0;
    for from in (0..leases).step_by(500) {
        let mut exists = redis::cmd("EXISTS");
        for lease in from..leases.min(from + 500) {
            exists.arg(holder::key(lease));
        }
        there += exists.query_async::<u64>(connection).await.expect("EXISTS");
    }
    leases as u64 - there
}

/// As many keys that are renewed by raw commands.
struct RawKeys {
    connection: MultiplexedConnection,
    count: usize,
    times: Vec<Duration>,
}

impl RawKeys {
    async fn new(server: &Server, count: usize) -> Self {
        let mut keys = Self { connection: server.connect().await, count, times: Vec::new() };
        keys.all(|pipe, key| {
            pipe.cmd("SET").arg(key).arg("0123456789abcdef0123456789abcdef").arg("EX").arg(300).ignore();
        })
        .await;
        keys
    }

    /// Once all, by EXPIRE, so that INFO tells it from the renewals of leases.
    async fn renew(&mut self) {
        let before = clock::processor_time();
        self.all(|pipe, key| {
            pipe.cmd("EXPIRE").arg(key).arg(300).ignore();
        })
        .await;
        self.times.push(clock::processor_time() - before);
    }

    async fn all(&mut self, command: impl Fn(&mut redis::Pipeline, String)) {
        for from in (0..self.count).step_by(500) {
            let mut pipe = redis::pipe();
            for key in from..self.count.min(from + 500) {
                command(&mut pipe, format!("raw:{key}"));
            }
            pipe.query_async::<()>(&mut self.connection).await.expect("the server answers");
        }
    }

    /// The median, in percent of a core, if all were renewed once in a third of the ttl.
    fn share(&self) -> f64 {
        share(&self.times)
    }
}

fn share(times: &[Duration]) -> f64 {
    let window = (holder::TTL / 3).as_secs_f64();
    median(times.iter().map(|time| 100.0 * time.as_secs_f64() / window).collect())
}

fn number(line: &str) -> f64 {
    line.parse().expect("a number")
}
