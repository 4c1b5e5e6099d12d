//! Holders in several operating-system processes, on one Redis.

use std::fs;

use lock_tests::{LONG, RedisServer, SOON, role, until_free};

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
    let mut first = role!("hold", server.url(), KEY, 1_000, 0);
    let first_fence = fence(&first.expect("held", SOON).await);
    let mut second = role!("hold", server.url(), KEY, 1_000, LONG.as_millis());
    first.kill().await;
    let second_fence = fence(&second.expect("held", SOON).await);
    assert!(second_fence > first_fence, "{second_fence} after {first_fence}");
}

#[tokio::test]
async fn nightly_job_of_three_machines_runs_once_a_date_also_if_one_stands_still_for_longer_than_at_least() {
    let server = RedisServer::start().await;
    let calendar = server.folder().join("calendar");
    fs::write(&calendar, "24").expect("a file");
    let mut machines: Vec<_> =
        (0..3).map(|_| role!("nightly", server.url(), calendar.display(), LONG.as_millis())).collect();
    for machine in &mut machines {
        machine.expect("ready", SOON).await;
    }
    let [late, others @ ..] = &mut machines[..] else { unreachable!("three machines") };

    late.pause();
    late.send("run 24").await;
    let mut said = Vec::new();
    for machine in &mut *others {
        machine.send("run 24").await;
        said.extend(machine.line(SOON).await);
    }
    assert_eq!(said, ["ran 24", "skipped 24"]);
    // The end of `at_least`, without which a slow machine could not run this test: it may let hours pass between two lines.
    for key in server.keys("jobs:*").await {
        server.call(&["PEXPIRE", &key, "1"]).await;
    }
    until_free("`at_least` of the first date is over", async || !server.keys("jobs:*").await.is_empty()).await;

    fs::write(&calendar, "25").expect("a file");
    late.resume();
    assert_eq!(late.line(SOON).await.as_deref(), Some("skipped 24"));
    let mut ran = 0;
    for machine in &mut machines {
        machine.send("run 25").await;
        ran += usize::from(machine.line(SOON).await.as_deref() == Some("ran 25"));
    }
    assert_eq!(ran, 1);
}

fn fence(text: &str) -> u64 {
    text.parse().expect("a fencing token is a number")
}
