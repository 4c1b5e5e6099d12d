//! Shared leases and permits on a real Redis: what only a server shows.

use std::{
    future::{Future, poll_fn},
    task::Poll,
};

use lock_core::LockManager;
use lock_tests::{LONG, RedisServer, Reply, SOON, eventually, ms};
use tokio::time::sleep;

async fn manager(server: &RedisServer) -> LockManager {
    LockManager::connect(&server.url()).await.expect("the server answers")
}

#[tokio::test]
async fn a_shared_lease_is_kept_beside_an_exclusive_one_that_is_watched() {
    let server = RedisServer::start().await;
    let manager = manager(&server).await;
    let ttl = ms(1_500);
    let shared = manager.lock("shared").shared().ttl(ttl).await.unwrap();
    let permit = manager.lock("permit").permits(3).ttl(ttl).await.unwrap();
    let exclusive = manager.lock("exclusive").ttl(ttl).await.unwrap();
    sleep(ttl * 3).await;
    assert!(exclusive.is_held());
    assert!(shared.is_held(), "{:?}", shared.release().await);
    assert!(permit.is_held(), "{:?}", permit.release().await);
}

#[tokio::test]
async fn shares_are_renewed_extended_and_released_when_the_server_is_out_of_memory() {
    let server = RedisServer::start().await;
    let manager = manager(&server).await;
    let lock = |key: &str| manager.lock(key).ttl(ms(1_500));
    let leases = [lock("shared").shared().await.unwrap(), lock("permit").permits(2).await.unwrap()];
    let mut fixed = lock("fixed").shared().fixed().await.unwrap();
    server.call(&["CONFIG", "SET", "maxmemory", "1"]).await;
    fixed.extend(LONG).await.unwrap();
    sleep(ms(3_000)).await;
    for lease in leases {
        assert!(lease.is_held(), "{}", lease.key());
        lease.release().await.unwrap();
    }
    fixed.release().await.unwrap();
    server.call(&["CONFIG", "SET", "maxmemory", "0"]).await;
    eventually(SOON, "nothing is left", async || server.left().await.is_empty()).await;
}

/// Waits until so many waiters have a place in the queue of `k`.
async fn places(server: &RedisServer, count: usize) {
    eventually(SOON, format!("{count} places"), async || {
        let fields = server.call(&["HKEYS", "{0}lock-core:queue:k"]).await;
        fields.items().iter().filter_map(Reply::text).filter(|field| field.starts_with('#')).count() == count
    })
    .await;
}

#[tokio::test]
async fn a_waiter_that_the_key_is_passed_on_to_leaves_no_place_of_its_own() {
    let server = RedisServer::start().await;
    let manager = manager(&server).await;
    let lock = || manager.lock("k").ttl(LONG).wait(LONG);
    let reader = lock().shared().await.unwrap();
    let first = tokio::spawn(lock().acquire());
    places(&server, 1).await;
    let between = tokio::spawn(lock().shared().acquire());
    places(&server, 2).await;
    let last = tokio::spawn(lock().acquire());
    places(&server, 3).await;
    reader.release().await.unwrap();
    let first = first.await.unwrap().unwrap();
    between.abort();
    places(&server, 1).await;
    first.release().await.unwrap();
    let last = last.await.unwrap().unwrap();
    eventually(SOON, "only the lease is left", async || server.left().await == ["k"]).await;
    last.release().await.unwrap();
}

#[tokio::test]
async fn a_member_that_another_program_has_added_counts_as_one_permit() {
    let server = RedisServer::start().await;
    let manager = manager(&server).await;
    let permits = |take| manager.lock("k").permits(4).take(take).ttl(LONG);
    let held = permits(2).await.unwrap();
    server.call(&["ZADD", "k", "9999999999999", "theirs"]).await;
    assert!(permits(2).try_acquire().await.unwrap().is_none());
    let other = permits(1).try_acquire().await.unwrap().expect("a permit is left");
    other.release().await.unwrap();
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_downgrade_that_is_dropped_leaves_the_key_busy_for_at_least_so_long() {
    let server = RedisServer::start().await;
    let manager = manager(&server).await;
    let guard = manager.lock("k").ttl(ms(5_000)).at_least(LONG).await.unwrap();
    let mut downgrade = Box::pin(guard.downgrade());
    assert!(poll_fn(|cx| Poll::Ready(downgrade.as_mut().poll(cx))).await.is_pending());
    let is_group = async || server.call(&["TYPE", "k"]).await.text().as_deref() == Some("zset");
    eventually(SOON, "the key is shared", is_group).await;
    drop(downgrade);
    let is_kept = async || server.call(&["PTTL", "k"]).await.integer().is_some_and(|left| left > 30_000);
    eventually(SOON, "the key is kept", is_kept).await;
}
