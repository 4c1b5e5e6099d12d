//! What stays in a server: nothing that grows with the number of keys, and nothing of processes that were killed.

use lock_core::LockManager;
use lock_tests::{RedisServer, SOON, eventually, role};

#[tokio::test]
async fn the_counter_stays_empty_however_many_free_keys_are_acquired() {
    let server = RedisServer::start().await;
    let manager = LockManager::connect(&server.url()).await.expect("connects");
    for number in 0..50 {
        manager.lock(format!("k{number}")).await.expect("free").release().await.expect("held");
    }
    assert!(server.calls_of("exec").await > 0, "most go without the script, which has a command of its own for it");
    assert_eq!(server.call(&["XLEN", RedisServer::COUNTER]).await.integer(), Some(0));
    assert_eq!(server.left().await, Vec::<String>::new());
}

#[tokio::test]
async fn a_queue_goes_by_itself_when_the_holder_and_all_who_wait_were_killed() {
    let server = RedisServer::start().await;
    let mut holder = role!("hold", server.url(), "k", 600_000, 0);
    holder.expect("held ", SOON).await;
    let mut waiters =
        [role!("hold", server.url(), "k", 600_000, 600_000), role!("hold", server.url(), "k", 600_000, 600_000)];
    let queues = async || server.keys("*queue*").await;
    eventually(SOON, "both have a place", async || {
        let Some(queue) = queues().await.pop() else { return false };
        // `first`, `next`, and two fields for each place.
        server.call(&["HLEN", &queue]).await.integer() == Some(6)
    })
    .await;
    for process in waiters.iter_mut().chain([&mut holder]) {
        process.kill().await;
    }
    // The lease would outlast the test. No request comes that could find the places over.
    server.call(&["DEL", "k"]).await;
    eventually(SOON, "no queue is left", async || queues().await.is_empty()).await;
    eventually(SOON, "no key is left", async || server.keys("*").await == [RedisServer::COUNTER]).await;
}
