//! Keys that others evict or overwrite.

use lock_core::{End, ErrorKind, LossReason};
use lock_tests::{
    RedisServer, Reply, eventually, figure,
    history::{Checker, Mark, Run, now},
};
use tokio::time::timeout;

use crate::faults::*;

#[tokio::test]
async fn fault_37_evicted_lease_is_noticed_at_once_and_fences_rise() {
    let (server, run) = (RedisServer::start().await, Run::new("fault-37"));
    let (_manager, client) = client(&run, &server.url(), "p0").await;
    let mut held = client.acquire("k", LONG, |request| request).await.expect("the key is free");
    let first = held.fence();
    watched(&server).await;
    let since = now();
    server.call(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    server.call(&["CONFIG", "SET", "maxmemory", "3mb"]).await;
    let mut filler = server.connect().await.expect("connects");
    let (text, mut number, mut before) = ("x".repeat(10_000), 0, now());
    // Its own renewals and looks make it look used; so it takes a while.
    let evicted = loop {
        let gone = server.call(&["EXISTS", "k"]).await.integer() == Some(0);
        if gone {
            break now();
        }
        before = now();
        for _ in 0..200 {
            number += 1;
            filler.call(&["SET", &format!("filler:{number}"), &text]).await.expect("is answered");
        }
        assert!(number < 200_000, "nothing is evicted");
    };
    let end = timeout(SOON, held.guard().ended()).await.expect("it is told");
    assert_eq!(end, End::Lost(LossReason::Taken));
    figure(37, "evicted to told", span(evicted, now()));
    assert!(!held.check());
    server.call(&["CONFIG", "SET", "maxmemory", "0"]).await;
    server.call(&["FLUSHALL"]).await;
    run.broken_since(since);
    let next = client.acquire("k", LONG, |request| request).await.expect("the key is free");
    assert!(next.fence() > first);
    next.release().await.expect("held");
    drop(held);
    run.settle(&server).await;
    judged_by(&run, Checker::new().mark(Mark { key: None, from: before, to: evicted }));
}

/// What is at `k`: its value, byte by byte, and when it expires by the server's clock.
async fn found(server: &RedisServer) -> (Reply, Reply) {
    let value = server.call(&["DUMP", "k"]).await;
    assert!(matches!(value, Reply::Bulk(_)), "{value:?}");
    (value, server.call(&["PEXPIRETIME", "k"]).await)
}

#[tokio::test]
async fn fault_42_overwritten_key_is_told_and_left_alone() {
    let overwrites: [&[&[&str]]; 4] = [
        &[&["SET", "k", "somebody else's"]],
        &[&["DEL", "k"], &["HSET", "k", "owner", "1"]],
        &[&["DEL", "k"], &["RPUSH", "k", "1"]],
        &[&["SET", "k", "lock-core:1:00000000000000000000000000000000", "PX", "600000"]],
    ];
    let (server, run) = (RedisServer::start().await, Run::new("fault-42"));
    let (_manager, client) = client(&run, &server.url(), "p0").await;
    let mut longest = Duration::ZERO;
    for overwrite in overwrites {
        // Long before the ttl is over: the next renewal finds it.
        let often = |request: lock_core::LockRequest| request.renew_every(OFTEN);
        let mut told = client.acquire("k", LONG, often).await.expect("the key is free");
        for command in overwrite {
            server.call(command).await;
        }
        let since = now();
        let left = found(&server).await;
        let end = timeout(SOON, told.guard().ended()).await.expect("it is told");
        longest = longest.max(span(since, now()));
        assert_eq!(end, End::Lost(LossReason::Taken), "{overwrite:?}");
        assert!(!told.check());
        let extended = told.extend(TTL).await.expect_err("it is lost");
        assert_eq!(extended.kind(), ErrorKind::Lost(LossReason::Taken));
        told.release().await.expect_err("it is lost");
        assert_eq!(found(&server).await, left, "{overwrite:?} was left alone");

        // Whoever asks for it now is told what is in the way.
        let error = client.acquire("k", TTL, |request| request.wait(TTL)).await.expect_err("it is in the way");
        let expected = if overwrite[0][0] == "SET" { ErrorKind::Busy } else { ErrorKind::WrongType };
        assert_eq!(error.kind(), expected, "{overwrite:?}: {error}");
        assert_eq!(found(&server).await, left, "{overwrite:?} was left alone");

        // A release right after the overwriting, which nobody has noticed yet, leaves it alone as well.
        server.call(&["DEL", "k"]).await;
        let unaware = client.acquire("k", LONG, |request| request).await.expect("the key is free");
        for command in overwrite {
            server.call(command).await;
        }
        let left = found(&server).await;
        unaware.release().await.expect_err("it is gone");
        assert_eq!(found(&server).await, left, "{overwrite:?} was left alone");
        server.call(&["DEL", "k"]).await;
    }
    figure(42, "overwritten to told, renewed every 300 ms", longest);
    eventually(SOON, "nothing is left", async || server.keys("k").await.is_empty()).await;
    run.settle(&server).await;
    judged(&run);
}
