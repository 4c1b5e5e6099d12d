//! Holders in several operating-system processes, on one Redis.

use std::fs;

use lock_tests::{LONG, RedisServer, SOON, eventually, role};

const KEY: &str = "goods:1";

#[tokio::test]
async fn processes_exclude_each_other_and_lose_no_update() {
    let server = RedisServer::start().await;
    let (processes, rounds) = (4, 25);
    let mut counters: Vec<_> =
        (0..processes).map(|_| role!("count", server.url(), server.address(), KEY, rounds)).collect();
    for counter in &mut counters {
        counter.expect("counted", LONG).await;
    }
    let number = server.call(&["GET", "goods:1:number"]).await.text();
    assert_eq!(number, Some((processes * rounds).to_string()));
    assert!(server.call(&["GET", KEY]).await.is_nil());
}

#[tokio::test]
async fn next_process_comes_in_after_the_ttl_of_a_killed_one_with_a_larger_fencing_token() {
    let server = RedisServer::start().await;
    let mut first = role!("hold", server.url(), KEY, 5_000, 0);
    let first_fence = fence(&first.expect("held", SOON).await);
    let mut second = role!("hold", server.url(), KEY, 5_000, LONG.as_millis());
    first.kill().await;
    let second_fence = fence(&second.expect("held", SOON).await);
    assert!(second_fence > first_fence, "{second_fence} after {first_fence}");
}

#[tokio::test]
async fn nightly_job_of_three_machines_runs_once_and_one_that_stood_still_skips_it_or_finds_it_recorded() {
    let server = RedisServer::start().await;
    let records = server.folder().join("runs");
    fs::create_dir(&records).expect("a folder");
    let mut machines: Vec<_> = (0..3).map(|_| role!("nightly", server.url(), records.display(), 3_600_000)).collect();
    for machine in &mut machines {
        machine.expect("ready", SOON).await;
    }
    let [late, others @ ..] = &mut machines[..] else { unreachable!("three machines") };

    for (run, is_forgotten, late_says) in [("24", false, "skipped 24"), ("25", true, "done before 25")] {
        late.pause();
        late.send(&format!("run {run}")).await;
        let mut said = Vec::new();
        for machine in &mut *others {
            machine.send(&format!("run {run}")).await;
            said.extend(machine.line(SOON).await);
        }
        assert_eq!(said, [format!("ran {run}"), format!("skipped {run}")]);
        // As after the end of `at_least`, or on a server that has lost its data.
        for key in server.keys("jobs:*").await.iter().filter(|_| is_forgotten) {
            server.call(&["DEL", key]).await;
        }
        late.resume();
        assert_eq!(late.line(SOON).await.as_deref(), Some(late_says));
    }
}

#[tokio::test]
async fn nightly_job_that_is_later_than_at_least_is_found_recorded() {
    let server = RedisServer::start().await;
    let records = server.folder().join("runs");
    fs::create_dir(&records).expect("a folder");
    let mut machines: Vec<_> = (0..3).map(|_| role!("nightly", server.url(), records.display(), 1)).collect();
    for machine in &mut machines {
        machine.expect("ready", SOON).await;
    }
    let [late, others @ ..] = &mut machines[..] else { unreachable!("three machines") };
    late.pause();
    late.send("run 26").await;
    let mut said = Vec::new();
    for machine in others {
        machine.send("run 26").await;
        said.extend(machine.line(SOON).await);
        eventually(SOON, "`at_least` is over", async || server.keys("jobs:*").await.is_empty()).await;
    }
    late.resume();
    said.extend(late.line(SOON).await);
    assert_eq!(said, ["ran 26", "done before 26", "done before 26"]);
}

fn fence(text: &str) -> u64 {
    text.parse().expect("a fencing token is a number")
}
