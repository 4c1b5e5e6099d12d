//! Everything at once, for as long as `FAULT_SECONDS` says, and nothing grows.
//!
//! The verdict is about what is left when all has been released: counts that must come back to those of the beginning, however long that
//! takes, so that it does not depend on the speed of the machine.

use std::{collections::HashMap, env, fs};

use lock_tests::{
    Dice, FaultProxy, Process, RedisServer, Team, eventually,
    history::{Run, now},
    role,
};
use tokio::time::sleep;

use crate::faults::*;

/// What one process has at one moment.
#[derive(Clone, Debug)]
struct Sample {
    memory_kib: u64,
    descriptors: usize,
    /// What it says itself.
    counts: HashMap<String, u64>,
}

impl Sample {
    fn count(&self, name: &str) -> u64 {
        *self.counts.get(name).unwrap_or_else(|| panic!("{name} is not among {:?}", self.counts))
    }
}

/// Reads `NAME=NUMBER…`.
fn counts(line: &str) -> HashMap<String, u64> {
    let counts = line.split(' ').filter_map(|count| count.split_once('='));
    counts.map(|(name, number)| (name.to_owned(), number.parse().expect("a number"))).collect()
}

async fn sample(process: &mut Process) -> Sample {
    let folder = format!("/proc/{}", process.pid());
    process.send("report").await;
    let counts = counts(&process.expect("report ", LONG).await);
    let status = fs::read_to_string(format!("{folder}/status")).unwrap_or_default();
    let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
    let descriptors = fs::read_dir(format!("{folder}/fd")).map_or(0, |entries| entries.count());
    Sample { memory_kib: memory.unwrap_or_default(), descriptors, counts }
}

/// What may not be left in a process that has released all: leases, lines of keys, waiters, and tokens to release.
const RELEASED: [&str; 6] = ["tenures", "lines", "waiters", "waiting", "beside", "unreleased"];

/// Has a process that rests looked at until it has as much as before it began.
async fn comes_back(process: &mut Process, before: &Sample) -> Sample {
    let (deadline, mut last) = (Instant::now() + LONG, None);
    while Instant::now() < deadline {
        let sample = sample(process).await;
        let is_back = RELEASED.iter().all(|name| sample.count(name) == 0)
            && sample.count("tasks") <= before.count("tasks")
            // The connection may be another one, and the one before it still about to be closed.
            && sample.descriptors <= before.descriptors + 1;
        if is_back {
            return sample;
        }
        last = Some(sample);
        sleep(ms(20)).await;
    }
    panic!("not as before within {LONG:?}: {before:?} became {last:?}")
}

/// Kills a holder and a waiter of a key that nobody else wants, as soon as the waiter has a place. The lease would outlast the test, so
/// that the waiter does not get it on a slow machine, and the key is deleted behind the back of the script.
async fn leaves_a_queue(server: &RedisServer, key: &str) {
    let hold = || role!("hold", server.url(), key, 600_000, 600_000);
    let mut holder = hold();
    holder.expect("held ", LONG).await;
    let mut waiter = hold();
    let queue = format!("*queue:{key}");
    eventually(LONG, "it has a place", async || !server.keys(&queue).await.is_empty()).await;
    waiter.kill().await;
    holder.kill().await;
    server.call(&["DEL", key]).await;
}

#[tokio::test]
async fn fault_44_soak_under_all_kinds_of_faults_leaves_memory_descriptors_tasks_and_keys_flat() {
    let lasts = for_seconds(5);
    let long = env::var_os("FAULT_SECONDS").is_some();
    let (count, tasks, keys, hold): (_, u64, _, _) = if long { (16, 16, 8, 100) } else { (4, 4, 4, 20) };
    let ttl = ms(500);
    let (server, registers, run) = (RedisServer::start().await, RedisServer::start().await, Run::new("fault-44"));
    let options = [
        format!("url={}", server.url()),
        format!("register={}", registers.address()),
        format!("tasks={tasks}"),
        format!("keys={keys}"),
        format!("hold={hold}"),
        "ttl=500".to_owned(),
        "extends=10".to_owned(),
        "drops=10".to_owned(),
        "churn=1".to_owned(),
    ];
    let mut team = Team::start(env!("CARGO_BIN_EXE_lock-role"), &run, "contend", count, "p", &options).await;
    let before = sample(&mut team.members[0]).await;
    // The first half lives to the end and is looked at meanwhile; the others are killed now and then, and come again.
    let mut names: Vec<_> = (0..count).map(|number| format!("p{number}")).collect();
    let steady = count / 2;
    team.go().await;
    let mut dice = Dice::named("fault_44");
    let (start, since) = (Instant::now(), now());
    let mut samples = vec![Vec::new(); steady];
    let mut done = [0_u32; 4];
    // Until each fault came and each process has worked, if that takes longer.
    let has_worked = |samples: &[Vec<Sample>]| {
        let enough = |sample: &Sample| sample.count("had") > 5 && sample.count("churned") >= CHURNED;
        samples.iter().all(|samples| samples.last().is_some_and(enough))
    };
    while start.elapsed() < lasts || done.contains(&0) || !has_worked(&samples) {
        assert!(start.elapsed() < lasts + 2 * LONG, "{done:?}: nothing goes on: {samples:?}");
        let kind = usize::try_from(dice.below(4)).expect("small");
        done[kind] += 1;
        match kind {
            0 => {
                let stopped = &team.members[dice.below(count as u64) as usize];
                stopped.pause();
                sleep(dice.between(Duration::ZERO, 2 * ttl)).await;
                stopped.resume();
            }
            1 => {
                let killed = steady + dice.below((count - steady) as u64) as usize;
                let mut process = team.members.remove(killed);
                process.kill().await;
                run.crashed(&names.remove(killed));
                let name = format!("q{}", done[1]);
                team.join(env!("CARGO_BIN_EXE_lock-role"), &run, "contend", &name, &options).await;
                names.push(name);
            }
            2 => {
                server.kill_clients().await;
            }
            _ => {
                server.call(&["SCRIPT", "FLUSH"]).await;
            }
        }
        sleep(dice.between(Duration::ZERO, ms(400))).await;
        for (process, samples) in team.members[..steady].iter_mut().zip(&mut samples) {
            samples.push(sample(process).await);
        }
    }
    run.broken_since(since);
    leaves_a_queue(&server, "nobody:1").await;
    leaves_a_queue(&server, "nobody:2").await;

    // Calm: all rounds are finished, and all leases released.
    for process in &mut team.members {
        process.send("rest").await;
    }
    for process in &mut team.members {
        process.expect("resting", LONG).await;
    }
    for process in &mut team.members {
        comes_back(process, &before).await;
        process.send("sweep").await;
    }
    for process in &mut team.members {
        let left = counts(&process.expect("swept ", LONG).await);
        assert!(left.len() == 3 && left.values().all(|left| *left == 0), "some did not go: {left:?}");
    }
    let ours = team.members.len();
    eventually(LONG, "each process has one connection", async || server.client_list().await.len() == ours).await;
    let counter = server.call(&["XLEN", RedisServer::COUNTER]).await;
    assert_eq!(counter.integer(), Some(0), "entries of the counter");
    eventually(LONG, "no key is left", async || server.left().await.is_empty()).await;

    // A server stops to answer, and never does again: what a manager has there ends with the time of its last request.
    let proxy = FaultProxy::start(registers.address()).await;
    for process in &mut team.members[..steady] {
        process.send(&format!("visit {}", registers.url_at(&proxy.address()))).await;
        process.expect("visiting", LONG).await;
    }
    proxy.hole();
    for process in &mut team.members[..steady] {
        process.send("leave").await;
        assert_eq!(process.expect("left ", LONG).await, "Some(Backend)");
    }
    let mut after = Vec::new();
    for process in &mut team.members[..steady] {
        after.push(comes_back(process, &before).await);
    }

    let rounds = team.stop(LONG).await;
    run.settle(&server).await;
    let history = judged(&run);
    println!("{done:?} stops, kills, cuts, flushes; {rounds:?} rounds, {} events", history.events().len());
    for (samples, last) in samples.iter().zip(after) {
        let first = &samples[samples.len() / 4];
        let grown = last.memory_kib.saturating_sub(first.memory_kib);
        println!("{grown} KiB more than at a quarter of the time, {first:?} to {last:?}");
        // Allocators keep what they had in a busy moment.
        assert!(last.memory_kib < first.memory_kib * 5 / 4 + 4_096, "{first:?} to {last:?}");
    }
    eventually(LONG, "no connection is left", async || server.client_list().await.is_empty()).await;
}

/// How often each process churns at least: each kind of work several times.
const CHURNED: u64 = 60;
