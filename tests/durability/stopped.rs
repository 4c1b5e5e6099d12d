//! A replica that does not answer: what it costs the requests that wait for it, and that it costs the others nothing.
//!
//! A request whose wait takes longer than its own timeout and the second for which others may keep it back is told that the
//! server did not answer, with another message (`Replication::confirm`). So a count of replicas in the message shows that it
//! was told in time, on however slow a machine.

use std::time::{Duration, Instant};

use lock_core::{ErrorKind, LockManager, backend::RedisBackend};
use lock_tests::{LONG, SOON, eventually, ms, within};

use crate::durability::group::{Group, one};

const TOO_FEW: &str = "0 of the 1 required replicas";

#[tokio::test]
async fn acquire_fails_within_its_timeout_and_the_key_is_free_then() {
    let group = Group::start(1).await;
    let manager = group.manager().await;
    group.replicas[0].server.pause();
    for _ in 0..2 {
        let (begun, waits) = (Instant::now(), group.waits().await);
        let request = manager.lock("k").ttl(LONG).durability(one(ms(300)));
        let error = within(SOON, request.acquire()).await.expect_err("the replica does not answer");
        let took = begun.elapsed();
        println!("told after {took:?}");
        let waits = group.waits().await - waits;
        assert!(waits <= 2, "it is waited for once, or again if that ended a moment too early: {waits}");
        assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}");
        assert!(error.to_string().contains(TOO_FEW), "{error}");
        assert!(took >= ms(300), "{took:?}");
        assert_eq!((error.code(), error.nothing_was_done()), ("lock_unavailable", true));
        assert_eq!(group.value("k").await, None);
    }
    group.replicas[0].server.resume();
    let held = manager.lock("k").durability(one(SOON)).ttl(LONG).await.expect("it answers again");
    held.release().await.expect("it is held");
}

#[tokio::test]
async fn requests_without_durability_are_not_delayed_by_those_that_wait() {
    let group = Group::start(1).await;
    let manager = group.manager().await;
    let renewed = manager.lock("renewed").ttl(LONG).renew_every(ms(500)).await.expect("it is free");
    group.replicas[0].server.pause();
    let waits = tokio::spawn(manager.lock("k").ttl(LONG).durability(one(LONG / 2)).acquire());
    eventually(SOON, "it waits", async || group.waits_now().await).await;
    for _ in 0..50 {
        let plain = within(SOON, manager.lock("plain").ttl(LONG).acquire()).await.expect("it is free");
        plain.release().await.expect("it is held");
    }
    for _ in 0..3 {
        let before = renewed.deadline();
        eventually(SOON, "it is renewed", async || renewed.deadline() > before).await;
    }
    assert!(!waits.is_finished(), "it waits still");
    group.replicas[0].server.resume();
    let held = within(SOON, waits).await.expect("no panic").expect("the replica answers at last");
    held.release().await.expect("it is held");
}

#[tokio::test]
async fn request_that_comes_while_others_wait_is_told_within_two_timeouts() {
    const TIMEOUT: Duration = ms(900);
    let group = Group::start(1).await;
    let manager = group.manager().await;
    group.replicas[0].server.pause();
    // On a busy machine some come later, and wait apart, but not each time.
    for round in 0..10 {
        let waits_before = group.waits().await;
        let mut requests = Vec::new();
        for number in 0..40 {
            let request = manager.lock(format!("k{number}")).ttl(LONG).wait(LONG).durability(one(TIMEOUT)).acquire();
            requests.push(tokio::spawn(async move {
                let begun = Instant::now();
                let error = request.await.expect_err("the replica does not answer");
                (error, begun.elapsed())
            }));
            if number == 0 {
                let waits = async || requests[0].is_finished() || group.waits_now().await;
                eventually(SOON, "the first one waits", waits).await;
            }
        }
        let mut took = Vec::new();
        for request in requests {
            let (error, elapsed) = request.await.expect("no panic");
            assert!(error.to_string().contains(TOO_FEW), "{error}");
            took.push(elapsed);
        }
        took.sort_unstable();
        println!("told after {:?} at least, {:?} in the middle, {:?} at most", took[0], took[20], took[39]);
        assert!(took[0] >= TIMEOUT, "{took:?}");
        // The first one alone, and then all others together.
        let waits = group.waits().await - waits_before;
        println!("{waits} WAITs for 40 requests");
        if waits <= 10 {
            break;
        }
        assert!(round < 9, "they wait together: {waits}");
    }
    assert_eq!(group.primary.left().await, Vec::<String>::new());
}

#[tokio::test]
async fn request_with_a_short_timeout_waits_a_second_at_most_for_one_with_a_long_timeout() {
    let group = Group::start(1).await;
    let manager = group.manager().await;
    group.replicas[0].server.pause();
    let long = tokio::spawn(manager.lock("long").ttl(LONG).durability(one(LONG / 4)).acquire());
    eventually(SOON, "it waits", async || group.waits_now().await).await;
    let short = manager.lock("short").ttl(LONG).durability(one(ms(200)));
    let error = within(SOON, short.acquire()).await.expect_err("the replica does not answer");
    assert_eq!(error.kind(), ErrorKind::NotReplicated);
    assert!(error.to_string().contains(TOO_FEW), "{error}");
    assert!(!long.is_finished(), "the long one waits on");
    group.replicas[0].server.resume();
    let held = within(SOON, long).await.expect("no panic").expect("the replica answers at last");
    held.release().await.expect("it is held");
}

#[tokio::test]
async fn future_that_is_dropped_while_it_waits_leaves_nothing_and_keeps_no_task() {
    let group = Group::start(1).await;
    let manager = group.manager().await;
    group.replicas[0].server.pause();
    let waits = tokio::spawn(manager.lock("k").ttl(LONG).durability(one(LONG / 4)).acquire());
    eventually(SOON, "it waits", async || group.waits_now().await).await;
    waits.abort();
    eventually(SOON, "the key is free", async || group.value("k").await.is_none()).await;
    drop(manager);
    eventually(SOON, "all connections are closed", async || group.clients().await == 0).await;
}

#[tokio::test]
async fn request_that_is_dropped_does_not_end_the_wait_of_another() {
    let group = Group::start(1).await;
    let manager = group.manager().await;
    group.replicas[0].server.pause();
    let request = |key| tokio::spawn(manager.lock(key).ttl(LONG).durability(one(LONG / 4)).acquire());
    let before = group.waits().await;
    let first = request("first");
    eventually(SOON, "it waits", async || group.waits_now().await).await;
    let second = request("second");
    // A WAIT is counted when it ends.
    let have_joined = async || group.waits().await > before && group.waits_now().await;
    eventually(SOON, "they wait together", have_joined).await;
    first.abort();
    eventually(SOON, "the first key is free", async || group.value("first").await.is_none()).await;
    assert!(!second.is_finished(), "the second waits on");
    group.replicas[0].server.resume();
    let held = within(SOON, second).await.expect("no panic").expect("the replica answers at last");
    held.release().await.expect("it is held");
}

/// Two managers share a backend, and the driver of either may be the one that waits. It ends in the midst of it.
#[tokio::test]
async fn waits_go_on_when_one_of_two_managers_of_a_backend_ends() {
    let group = Group::start(1).await;
    for round in 0..4 {
        let backend = RedisBackend::from_url(&group.primary.url(), "shared", SOON).expect("a valid URL");
        let manager = || LockManager::builder().backend(backend.clone()).build().expect("sound settings");
        let (ends, stays) = (manager(), manager());
        for manager in [&ends, &stays] {
            let warm = within(SOON, manager.lock("warm").ttl(LONG).acquire()).await.expect("it is free");
            warm.release().await.expect("it is held");
        }
        group.replicas[0].server.pause();
        let waits = tokio::spawn(stays.lock(format!("k{round}")).ttl(LONG).durability(one(LONG / 4)).acquire());
        eventually(SOON, "it waits", async || group.waits_now().await).await;
        ends.shutdown(SOON).await;
        group.replicas[0].server.resume();
        let held = within(SOON, waits).await.expect("no panic").expect("the replica answers at last");
        held.release().await.expect("it is held");
    }
}
