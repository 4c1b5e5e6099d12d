//! What it costs to hold leases: `cargo bench -p lock-benches --bench renewal -- --json`.
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
    server::{Server, usage},
    stats::{Rounds, median},
    task::in_a_task,
};

const LEASES: usize = 100_000;
/// How many times a third of the ttl is watched; in each every lease is renewed once.
const WINDOWS: usize = 5;

#[tokio::main]
async fn main() {
    if let Some(child) = player::child_arguments() {
        return holder::hold(&child[1], child[2].parse().expect("a number")).await;
    }
    let mut report = Report::from_arguments();
    let server = Server::start().await;
    let mut raw = RawKeys::new(&server, LEASES).await;
    let held = hold(&server, LEASES, WINDOWS, Some(&mut raw)).await;

    let Work { client, server_processor, commands, longest, script_p99 } = Work::rounds(&held.work, &raw.work);
    report.figure("cpu_share", "%", &client, "raw", Target::ValueAtMost(5.0));
    report.figure("server_cpu_share", "%", &server_processor, "raw", Target::None);
    report.figure("server_script_share", "%", &commands, "raw", Target::RatioAtMost(3.0));
    report.figure("longest_script", "ms", &longest, "", Target::ValueAtMost(0.5));
    report.figure("script_p99", "ms", &script_p99, "", Target::ValueAtMost(0.5));
    report.figure("bytes_per_lease", "bytes", &Rounds::of([held.bytes]), "", Target::ValueAtMost(600.0));
    let renewals = Rounds::of(held.renewals_per_call);
    report.figure("renewals_per_call", "renewals", &renewals, "", Target::ValueAtLeast(60.0));
    report.remark("raw: EXPIRE in pipelines of 500; shares are of one core");
    report.remark(
        "server_script_share: what INFO counts for EVALSHA, for raw for EXPIRE (which PEXPIRE equals); nobody else is served meanwhile",
    );

    if let Some(folder) = &report.plots {
        let mut points = Vec::new();
        for leases in [1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000] {
            // The keys of the last one live for a while.
            let server = Server::start().await;
            let held = hold(&server, leases, 1, None).await;
            println!("  {leases} leases: {:.0} bytes, {:.2} us a renewal", held.bytes, held.microseconds(leases));
            points.push(Cost { leases, bytes: held.bytes, processor: held.microseconds(leases) });
        }
        plot::cost(&folder.join("leases.svg"), &points);
    }
}

/// What holding cost.
struct Held {
    /// To renew all leases once, by each window.
    work: Vec<Work<f64>>,
    bytes: f64,
    renewals_per_call: Vec<f64>,
}

/// What it takes to renew all keys once, in percent of a core while a third of the ttl passes.
#[derive(Default)]
struct Work<T> {
    /// The client's processor time.
    client: T,
    /// The server's processor time.
    server_processor: T,
    /// The time that the server spends in the commands or scripts, by its own count.
    commands: T,
    /// The longest script, in ms, and the one that is longer than 99 of a hundred: a machine that is busy otherwise stops
    /// the server in the midst of some.
    longest: T,
    script_p99: T,
}

impl Work<Rounds> {
    fn rounds(held: &[Work<f64>], raw: &[Work<f64>]) -> Self {
        let mut rounds = Self::default();
        for (held, raw) in held.iter().zip(raw) {
            rounds.client.add(held.client, raw.client);
            rounds.server_processor.add(held.server_processor, raw.server_processor);
            rounds.commands.add(held.commands, raw.commands);
            rounds.longest.values.push(held.longest);
            rounds.script_p99.values.push(held.script_p99);
        }
        rounds
    }
}

impl Held {
    /// Of the client's processor time, for one renewal of one lease.
    fn microseconds(&self, leases: usize) -> f64 {
        let window = (holder::TTL / 3).as_secs_f64();
        median(self.work.iter().map(|work| work.client / 100.0 * window * 1e6 / leases as f64).collect())
    }
}

/// Holds leases in another process; in each window, raw commands renew as many keys from this one.
async fn hold(server: &Server, leases: usize, windows: usize, mut raw: Option<&mut RawKeys>) -> Held {
    let mut connection = server.connect().await;
    let mut holder = Player::start(&["holder", &server.url, &leases.to_string()]);
    let bytes_before: f64 = number(&tokio::task::block_in_place(|| holder.line()));
    assert_eq!(tokio::task::block_in_place(|| holder.line()), "held");

    let mut held = Held { work: Vec::new(), bytes: 0.0, renewals_per_call: Vec::new() };
    for _ in 0..windows {
        pause(&mut connection).await;
        let (renewals, scripts) = renewals(&mut connection).await;
        let served = Served::read(&mut connection, &["evalsha", "eval"]).await;
        let start: f64 = ask(&mut holder, "time");
        log_long_scripts(&mut connection).await;
        tokio::time::sleep(holder::TTL / 3).await;
        let client = share(ask(&mut holder, "time") - start);
        let (longest, script_p99) = long_scripts(&mut connection).await;
        let (server_processor, commands) = served.shares(&mut connection).await;
        let (renewals_after, scripts_after) = self::renewals(&mut connection).await;
        held.renewals_per_call.push((renewals_after - renewals) as f64 / (scripts_after - scripts) as f64);
        let each = (renewals_after - renewals) as f64 / leases as f64;
        assert!((0.9..1.1).contains(&each), "{each} renewals of a lease in a third of its ttl");
        held.work.push(Work { client, server_processor, commands, longest, script_p99 });
        if let Some(raw) = raw.as_deref_mut() {
            raw.renew().await;
        }
    }
    held.bytes = (ask(&mut holder, "memory") - bytes_before) / leases as f64;
    let lost = ask(&mut holder, "lost") as u64 + missing(&mut connection, leases).await;
    assert_eq!(lost, 0, "leases were lost: what they cost says nothing");
    held
}

/// What the server has done so far, by its own count.
struct Served {
    commands: &'static [&'static str],
    /// In seconds, of the process.
    processor: f64,
    /// In seconds, in these commands.
    time: f64,
}

impl Served {
    async fn read(connection: &mut MultiplexedConnection, commands: &'static [&'static str]) -> Self {
        let mut time = 0.0;
        for command in commands {
            time += usage(connection, command).await.1 as f64 / 1e6;
        }
        let info: String = redis::cmd("INFO").arg("cpu").query_async(connection).await.expect("INFO");
        let field = |name| info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        let (system, user) = (field("used_cpu_sys:"), field("used_cpu_user:"));
        let processor = system.zip(user).map(|(system, user)| system + user).expect("the server counts its time");
        Self { commands, processor, time }
    }

    /// Since then, each in percent of a core over a third of the ttl.
    async fn shares(&self, connection: &mut MultiplexedConnection) -> (f64, f64) {
        let now = Self::read(connection, self.commands).await;
        (share(now.processor - self.processor), share(now.time - self.time))
    }
}

/// Begins a log of scripts. A command that a script calls is logged too, if it takes as long.
async fn log_long_scripts(connection: &mut MultiplexedConnection) {
    let mut pipe = redis::pipe();
    for (option, value) in [("slowlog-log-slower-than", 50), ("slowlog-max-len", 10_000)] {
        pipe.cmd("CONFIG").arg("SET").arg(option).arg(value).ignore();
    }
    pipe.cmd("SLOWLOG").arg("RESET").ignore();
    pipe.query_async::<()>(connection).await.expect("the server keeps a log");
}

/// The longest of those in the log, and the one that is longer than 99 of a hundred, in ms.
async fn long_scripts(connection: &mut MultiplexedConnection) -> (f64, f64) {
    type Entry = (u64, u64, f64, Vec<Vec<u8>>, String, String);
    let entries: Vec<Entry> =
        redis::cmd("SLOWLOG").arg("GET").arg(-1).query_async(connection).await.expect("the server keeps a log");
    let scripts =
        entries.iter().filter(|entry| entry.3.first().is_some_and(|name| name.eq_ignore_ascii_case(b"EVALSHA")));
    let mut times: Vec<_> = scripts.map(|entry| entry.2 / 1e3).collect();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| {
        times.get((times.len() as f64 * share) as usize).or_else(|| times.last()).copied().unwrap_or(f64::NAN)
    };
    (at(1.0), at(0.99))
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
        scripts += usage(connection, command).await.0;
    }
    (usage(connection, "pexpire").await.0, scripts)
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
    work: Vec<Work<f64>>,
}

impl RawKeys {
    async fn new(server: &Server, count: usize) -> Self {
        let keys = Self { connection: server.connect().await, count, work: Vec::new() };
        keys.all(|pipe, key| {
            pipe.cmd("SET").arg(key).arg("0123456789abcdef0123456789abcdef").arg("EX").arg(300).ignore();
        })
        .await;
        keys
    }

    /// Once all, by EXPIRE, so that INFO tells it from the renewals of leases.
    async fn renew(&mut self) {
        let served = Served::read(&mut self.connection, &["expire"]).await;
        let before = clock::processor_time();
        self.all(|pipe, key| {
            pipe.cmd("EXPIRE").arg(key).arg(300).ignore();
        })
        .await;
        let client = share((clock::processor_time() - before).as_secs_f64());
        let (server_processor, commands) = served.shares(&mut self.connection).await;
        self.work.push(Work { client, server_processor, commands, longest: f64::NAN, script_p99: f64::NAN });
    }

    async fn all(&self, command: fn(&mut redis::Pipeline, String)) {
        let (mut connection, count) = (self.connection.clone(), self.count);
        in_a_task(async move {
            for from in (0..count).step_by(500) {
                let mut pipe = redis::pipe();
                for key in from..count.min(from + 500) {
                    command(&mut pipe, format!("raw:{key}"));
                }
                pipe.query_async::<()>(&mut connection).await.expect("the server answers");
            }
        })
        .await;
    }
}

/// What this time is of a third of the ttl, in percent.
fn share(seconds: f64) -> f64 {
    100.0 * seconds / (holder::TTL / 3).as_secs_f64()
}

fn number(line: &str) -> f64 {
    line.parse().expect("a number")
}
