//! Everything at once, for as long as `FAULT_SECONDS` says, and nothing grows.

use std::{env, fs};

use lock_tests::{
    Dice, Process, RedisServer, Team, eventually,
    history::{Run, now},
};
use tokio::time::sleep;

use crate::faults::*;

/// What one process has at one moment.
#[derive(Clone, Copy, Debug)]
struct Sample {
    memory_kib: u64,
    descriptors: usize,
    tasks: u64,
}

async fn sample(process: &mut Process) -> Sample {
    let folder = format!("/proc/{}", process.pid());
    process.send("tasks").await;
    let tasks = process.expect("tasks ", SOON).await.parse().expect("a number of tasks");
    let status = fs::read_to_string(format!("{folder}/status")).unwrap_or_default();
    let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
    let descriptors = fs::read_dir(format!("{folder}/fd")).map_or(0, |entries| entries.count());
    Sample { memory_kib: memory.unwrap_or_default(), descriptors, tasks }
}

/// What a server has: its connections, and its keys but for the counters and registers that stay.
async fn left_in(server: &RedisServer) -> (usize, usize) {
    (server.client_list().await.len(), server.left().await.len())
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
    ];
    let mut team = Team::start(env!("CARGO_BIN_EXE_lock-role"), &run, "contend", count, "p", &options).await;
    // The first half lives to the end and is looked at; the others are killed now and then, and come again.
    let mut names: Vec<_> = (0..count).map(|number| format!("p{number}")).collect();
    let steady = count / 2;
    team.go().await;
    sleep(ms(500)).await;
    let mut dice = Dice::named("fault_44");
    let (start, since) = (Instant::now(), now());
    let (mut samples, mut next_sample) = (vec![Vec::new(); steady], start + lasts / 10);
    let mut done = [0_u32; 4];
    while start.elapsed() < lasts {
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
        if Instant::now() >= next_sample {
            next_sample += lasts / 10;
            for (process, samples) in team.members[..steady].iter_mut().zip(&mut samples) {
                samples.push(sample(process).await);
            }
        }
    }
    let (connections, passing) = left_in(&server).await;
    run.broken_since(since);
    sleep(2 * ttl).await; // calm
    let mut after = Vec::new();
    for process in &mut team.members[..steady] {
        after.push(sample(process).await);
    }
    let rounds = team.stop(SOON).await;
    run.settle(&server, SETTLED).await;
    let history = judged(&run);
    println!("{done:?} stops, kills, cuts, flushes; {rounds:?} rounds, {} events", history.events().len());
    println!("{connections} connections and {passing} keys at the end");
    assert!(connections <= 3 * count, "{connections} connections");
    assert!(passing <= 2 * keys, "{passing} keys: one and one queue for each");
    for (samples, last) in samples.iter().zip(after) {
        let first = samples.get(samples.len() / 4).expect("it was looked at meanwhile");
        let grown = last.memory_kib.saturating_sub(first.memory_kib);
        println!("{grown} KiB more than at a quarter of the time, {first:?} to {last:?}");
        // Allocators keep what they had in a busy moment.
        assert!(last.memory_kib < first.memory_kib * 5 / 4 + 4_096, "{first:?} to {last:?}");
        assert!(last.descriptors <= first.descriptors + 2, "{first:?} to {last:?}");
        // Whoever holds has one more, which writes down the loss.
        assert!(last.tasks <= first.tasks + tasks + 1, "{first:?} to {last:?}");
    }
    assert!(rounds.iter().take(steady).all(|rounds| *rounds > 5), "{rounds:?}");
    eventually(SOON, "no connection is left", async || server.client_list().await.is_empty()).await;
}
