//! Clients of other libraries beside those who share a key.

use lock_tests::{
    Reply,
    history::{ForeignClient, Manners, Recorded},
};

use crate::modes::*;
use crate::patient;

/// What libraries do with a lock of theirs: redis-py to release, extend and renew, python-redis-lock and redlock-py to release.
const SCRIPTS: [&str; 5] = [
    "local token = redis.call('get', KEYS[1])
if not token or token ~= ARGV[1] then return 0 end
redis.call('del', KEYS[1]) return 1",
    "local token = redis.call('get', KEYS[1])
if not token or token ~= ARGV[1] then return 0 end
local expiration = redis.call('pttl', KEYS[1])
if expiration < 0 then return 0 end
redis.call('pexpire', KEYS[1], expiration + 5000) return 1",
    "local token = redis.call('get', KEYS[1])
if not token or token ~= ARGV[1] then return 0 end
redis.call('pexpire', KEYS[1], 5000) return 1",
    "if redis.call(\"get\", KEYS[1]) ~= ARGV[1] then return 1
else redis.call(\"del\", KEYS[2]) redis.call(\"lpush\", KEYS[2], 1) redis.call(\"pexpire\", KEYS[2], ARGV[2])
redis.call(\"del\", KEYS[1]) return 0 end",
    "if redis.call(\"get\",KEYS[1]) == ARGV[1] then return redis.call(\"del\",KEYS[1]) else return 0 end",
];

async fn group_and_foreign_lock(mode: Mode, name: &str) {
    let (server, run) = (RedisServer::start().await, Run::new(name));
    let manager = patient::connect(&server.url()).await.expect("connects");
    let client = Recorded::new(&manager, &run.recorder("p0"), "");
    let recorder = run.recorder("foreign");
    let mut foreign =
        ForeignClient::connect(&server.address(), &recorder, "t0", Manners::Good).await.expect("connects");

    let mut held = client.acquire_in(mode, "k", LONG, |request| request).await.expect("the key is free");
    assert_eq!(foreign.acquire("k", Some(TTL), Duration::ZERO).await.expect("is answered"), None);
    let token = shares(&server, "k").await.into_keys().next().expect("it shares the key");
    for script in SCRIPTS {
        for guess in ["0d9ef7b8c1d011ee", &token] {
            let reply = server.call(&["EVAL", script, "2", "k", "signal:k", guess, "1000"]).await;
            assert!(matches!(&reply, Reply::Error(error) if error.contains("WRONGTYPE")), "{reply:?} to {script}");
        }
    }
    assert!(held.check());
    assert_eq!(shares(&server, "k").await.len(), 1);
    held.release().await.expect("held");

    for expires in [false, true] {
        let lives = if expires { TTL } else { LONG };
        let since = now();
        let theirs = foreign.acquire("k", Some(lives), Duration::ZERO).await.expect("is answered");
        let theirs = theirs.expect("nothing of the group is left");
        // In this order: on a slow machine their lock may be over by now.
        let tried = client.try_acquire_in(mode, "k", LONG).await.expect("is answered");
        assert!(tried.is_none() || server.call(&["GET", "k"]).await.text().is_none_or(|token| token != theirs));
        if let Some(early) = tried {
            early.release().await.expect("held");
        }
        let other = Recorded::new(&manager, &run.recorder("p0"), "waits");
        let waits = tokio::spawn(async move { other.acquire_in(mode, "k", LONG, |request| request.wait(LONG)).await });
        tokio::time::sleep(TTL / 2).await;
        // In this order, too.
        let finished = waits.is_finished();
        let is_there = server.call(&["GET", "k"]).await.text().is_some_and(|token| token == theirs);
        assert!(!finished || !is_there, "their lock is there");
        let over = if expires {
            since + TTL.as_secs_f64() * 1_000.0
        } else {
            let over = now();
            assert!(foreign.release("k", &theirs).await.expect("is answered"));
            over
        };
        let mut held = waits.await.expect("no panic").expect("it is free");
        // The server counts whole milliseconds.
        assert!(now() > over - 1.0, "it came {} ms too early", over - now());
        figure(52, "end of a foreign lock to a share", span(over, now()));
        assert!(held.check());
        held.release().await.expect("held");
    }
    run.settle(&server).await;
    judged(&run);
}

#[tokio::test]
async fn fault_52_clients_of_other_libraries_exclude_readers_and_are_excluded() {
    group_and_foreign_lock(Mode::Shared, "fault-52-shared").await;
}

#[tokio::test]
async fn fault_52_clients_of_other_libraries_exclude_permits_and_are_excluded() {
    group_and_foreign_lock(Mode::Permits { total: 3, take: 2 }, "fault-52-permits").await;
}

#[tokio::test]
async fn fault_52_key_is_free_for_other_libraries_when_its_last_share_is_over() {
    let (server, run) = (RedisServer::start().await, Run::new("fault-52-last-share"));
    let mut dead = actor!(run, server.url(), "dead").await;
    let mut long = actor!(run, server.url(), "long").await;
    dead.acquire_in(Mode::Shared, "k", TTL).await;
    long.acquire_in(Mode::Shared, "k", LONG).await;
    let recorder = run.recorder("foreign");
    let mut foreign =
        ForeignClient::connect(&server.address(), &recorder, "t0", Manners::Good).await.expect("connects");
    dead.kill(&run).await;
    // The key was to live for a minute, and nobody of ours comes to look.
    releases(&mut long).await;
    let since = now();
    let theirs = foreign.acquire("k", Some(LONG), SOON).await.expect("is answered").expect("the key expires");
    figure(52, "release of a long share beside a dead one of 2 s to a foreign lock", span(since, now()));
    assert!(foreign.release("k", &theirs).await.expect("is answered"));
    run.settle(&server).await;
    judged(&run);
}
