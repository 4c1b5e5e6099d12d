//! A network that fails, between a manager and a real Redis.
#![expect(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::time::Duration;

use lock_core::{ErrorKind, LockManager, LossReason};
use lock_tests::{FaultProxy, LONG, RedisServer, SOON, eventually};
use tokio::time::timeout;

use crate::patient;

const KEY: &str = "goods:1";
const TTL: Duration = Duration::from_secs(5);

#[tokio::test]
async fn work_is_dropped_when_its_holder_is_cut_off() {
    let (_server, proxy, manager) = behind_proxy().await;
    let outcome = manager.lock(KEY).ttl(TTL).wait(SOON).run(async |_| {
        proxy.hole();
        std::future::pending::<()>().await;
    });
    let error = timeout(SOON, outcome).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost(LossReason::Expired));
}

#[tokio::test]
async fn request_into_a_silent_network_ends_and_leaves_nothing() {
    let (server, proxy, manager) = behind_proxy().await;
    let is_set = async || !server.call(&["GET", KEY]).await.is_nil();
    manager.lock("another").await.unwrap().release().await.unwrap(); // the server knows the scripts now
    proxy.drop_replies();
    let request = tokio::spawn(manager.lock(KEY).ttl(LONG).wait(Duration::ZERO).acquire());
    eventually(SOON, "the key is set, though nobody hears of it", is_set).await;
    let error = timeout(SOON, request).await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    proxy.pass();
    eventually(SOON, "the key is gone", async || !is_set().await).await;
    eventually(SOON, "it works again", async || manager.lock(KEY).await.is_ok()).await;
}

#[tokio::test]
async fn lease_outlives_killed_connections() {
    let (_server, proxy, manager) = behind_proxy().await;
    let guard = manager.lock(KEY).ttl(LONG).renew_every(Duration::from_millis(100)).await.unwrap();
    let fence = guard.fencing_token();
    for _ in 0..12 {
        let before = guard.deadline();
        proxy.reset();
        eventually(SOON, "it is renewed over another connection", async || guard.deadline() > before).await;
    }
    assert_eq!(guard.fencing_token(), fence);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn heartbeat_that_is_not_answered_replaces_the_connection_of_an_idle_manager() {
    let (_server, proxy, manager) = behind_proxy().await;
    manager.lock(KEY).await.unwrap().release().await.unwrap();
    let before = proxy.accepted();
    proxy.hole();
    // Nobody asks for anything, and it is noticed all the same.
    eventually(SOON, "it reconnects", async || proxy.accepted() > before).await;
    proxy.pass();
    // An attempt to connect may still wait for an answer that was lost.
    eventually(SOON, "it works again", async || manager.lock(KEY).await.is_ok()).await;
}

#[tokio::test]
async fn release_that_lost_its_reply_has_freed_the_key() {
    let (server, proxy, manager) = behind_proxy().await;
    let guard = manager.lock(KEY).ttl(LONG).await.unwrap();
    manager.lock("another").await.unwrap().release().await.unwrap(); // the server knows the scripts now
    proxy.drop_replies();
    let error = timeout(SOON, guard.release()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(server.call(&["GET", KEY]).await.is_nil());
    proxy.pass();
    eventually(SOON, "it works again", async || manager.lock(KEY).await.is_ok()).await;
}

#[tokio::test]
async fn requests_over_a_long_way_do_not_wait_for_the_answers_to_others_and_survive_a_broken_connection() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.address()).await;
    proxy.delay(Duration::from_millis(10), Duration::ZERO);
    let manager = LockManager::builder().url(server.url_at(&proxy.address())).command_timeout(LONG);
    let manager = manager.connect().await.unwrap();
    manager.lock("another").await.unwrap().release().await.unwrap(); // the server knows the scripts now
    proxy.drop_replies();
    let mut requests = Vec::new();
    for number in 0..16 {
        let key = format!("{KEY}:{number}");
        requests.push(tokio::spawn(manager.lock(&key).ttl(LONG).wait(LONG).acquire()));
        // So each request is in a call of its own.
        eventually(SOON, "the key is set", async || !server.call(&["GET", &key]).await.is_nil()).await;
    }
    proxy.pass();
    proxy.reset();
    for request in requests {
        timeout(SOON, request).await.unwrap().unwrap().unwrap().release().await.unwrap();
    }
    for number in 0..16 {
        assert!(server.call(&["GET", &format!("{KEY}:{number}")]).await.is_nil());
    }
}

async fn behind_proxy() -> (RedisServer, FaultProxy, LockManager) {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.address()).await;
    let manager = patient::connect(server.url_at(&proxy.address())).await.unwrap();
    (server, proxy, manager)
}
