//! Clients of other libraries on the same key: real ones where they can be installed, their bytes everywhere.

use std::{fs, path::Path};

use lock_core::ErrorKind;
use lock_tests::{
    Process, RedisServer, Reply, eventually, figure,
    history::{ForeignClient, Manners, Run, now},
    left_out, python, role, team,
};
use tokio::time::{sleep, timeout};

use crate::faults::*;

#[tokio::test]
#[ignore = "needs Python clients; run by .ci/run"]
async fn fault_43_clients_of_python_libraries_and_ours_lose_no_update() {
    let Some(python) = python(Path::new(env!("CARGO_TARGET_TMPDIR"))).await else {
        // A package index that is out of reach is nobody's fault; their bytes are tried all the same.
        left_out("fault_43", "the Python libraries cannot be installed", false);
        return;
    };
    let server = RedisServer::start().await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("faults").join("foreign.py");
    let rounds = 10 * u32::try_from(for_seconds(2).as_secs()).expect("small") / 2;
    let (script, port, theirs_each) = (script.display().to_string(), server.port().to_string(), rounds.to_string());
    let libraries = ["redis-py", "redis-py-without-ttl", "python-redis-lock", "redlock-py"];
    let mut theirs: Vec<_> = libraries
        .iter()
        .map(|library| Process::start(&python, [script.as_str(), library, &port, &theirs_each]))
        .collect();
    let ours_each = 4 * rounds;
    let mut ours: Vec<_> =
        (0..2).map(|_| role!("count", server.url(), server.address(), "lock:shared", ours_each)).collect();
    let within = 3 * SOON + 20 * for_seconds(2);
    for process in theirs.iter_mut().chain(&mut ours) {
        process.expect("counted", within).await;
    }
    let counted = server.call(&["GET", "lock:shared:number"]).await.text();
    let total = 2 * ours_each + 4 * rounds;
    println!("{counted:?} of {total} increments");
    assert_eq!(counted, Some(total.to_string()), "no update is lost");
    assert!(server.call(&["GET", "lock:shared"]).await.is_nil());
}

#[tokio::test]
async fn fault_43_clients_by_the_bytes_of_other_libraries_exclude_and_are_excluded() {
    let (server, run) = (RedisServer::start().await, Run::new("fault-43"));
    let address = format!("address={}", server.address());
    let (url, register) = (format!("url={}", server.url()), format!("register={}", server.address()));
    // They leave the key free at times: those who poll get a key that is handed on only by chance, on a busy machine never.
    let mut ours = team!(run, "contend", 2, "p", [url, register, "tasks=1", "keys=1", "pause=50"]).await;
    let mut theirs = team!(run, "foreign", 2, "f", [address, "tasks=2", "keys=1"]).await;
    ours.go().await;
    theirs.go().await;
    sleep(for_seconds(1)).await;
    let has_had = |name: &str| {
        let written = fs::read_to_string(run.folder().join(name));
        written.is_ok_and(|written| written.contains(r#""op":"release""#))
    };
    let have_had =
        async || ["p", "f"].iter().all(|team| [0, 1].iter().any(|one| has_had(&format!("{team}{one}.jsonl"))));
    eventually(LONG, "both have had the key", have_had).await;
    let rounds = [ours.stop(LONG).await, theirs.stop(LONG).await];
    run.settle(&server).await;
    judged(&run);
    println!("{rounds:?} rounds, ours and theirs");
    assert!(rounds.iter().all(|rounds| rounds.iter().sum::<u64>() > 0), "{rounds:?}");
}

#[tokio::test]
async fn fault_43_holder_without_ttl_is_waited_for_without_a_busy_loop() {
    let (server, run) = (RedisServer::start().await, Run::new("fault-43-no-ttl"));
    let (_manager, client) = client(&run, &server.url(), "p0").await;
    let recorder = run.recorder("foreign");
    let foreign = ForeignClient::connect(&server.address(), &recorder, "t0", Manners::Good).await;
    let mut foreign = foreign.expect("connects");
    let token = foreign.acquire("k", None, Duration::ZERO).await.expect("is answered").expect("the key is free");
    let (calls, start) = (server.script_calls().await, Instant::now());
    let waits = tokio::spawn(async move { client.acquire("k", LONG, |request| request.wait(LONG)).await });
    sleep(2 * TTL).await;
    let rate = (server.script_calls().await - calls) as f64 / start.elapsed().as_secs_f64();
    println!("{rate:.1} calls a second by one waiter");
    assert!(rate <= 20.0, "{rate} calls a second");
    assert!(!waits.is_finished());
    let since = now();
    assert!(foreign.release("k", &token).await.expect("is answered"));
    let held = timeout(SOON, waits).await.expect("it looks again").expect("no panic").expect("it is free");
    figure(43, "released by a foreign holder to next grant", span(since, now()));
    held.release().await.expect("held");
    run.settle(&server).await;
    judged(&run);
}

/// Redisson keeps a hash at the key of its lock, with a field for each thread that holds it.
#[tokio::test]
async fn fault_43_redisson_lock_is_told_apart_and_kept_out() {
    const REDISSON: &str = "
if ((redis.call('exists', KEYS[1]) == 0) or (redis.call('hexists', KEYS[1], ARGV[2]) == 1)) then
redis.call('hincrby', KEYS[1], ARGV[2], 1); redis.call('pexpire', KEYS[1], ARGV[1]); return nil; end;
return redis.call('pttl', KEYS[1]);";
    let (server, run) = (RedisServer::start().await, Run::new("fault-43-redisson"));
    let (_manager, client) = client(&run, &server.url(), "p0").await;
    let theirs = ["EVAL", REDISSON, "1", "k", "600000", "8743c9c0-0795-4907-87fd-6c719a6b4586:1"];
    assert!(server.call(&theirs).await.is_nil(), "they have it");
    // At once, and not when the wait is over: that is far longer than this limit.
    let told = timeout(SOON, client.acquire("k", TTL, |request| request.wait(LONG))).await.expect("at once");
    assert_eq!(told.expect_err("another kind of lock").kind(), ErrorKind::WrongType);
    let kept = server.call(&["HGET", "k", theirs[5]]).await.text();
    assert_eq!(kept.as_deref(), Some("1"), "their lock was left alone");
    server.call(&["DEL", "k"]).await;

    let mut held = client.acquire("k", LONG, |request| request).await.expect("the key is free");
    assert!(matches!(server.call(&theirs).await, Reply::Error(error) if error.contains("WRONGTYPE")), "and so is ours");
    assert!(held.check());
    held.release().await.expect("held");
    eventually(SOON, "nothing is left", async || server.keys("k").await.is_empty()).await;
    run.settle(&server).await;
    judged(&run);
}
