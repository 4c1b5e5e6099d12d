//! Waiters that hold as soon as they are told of their grant, on one real server.

use lock_core::LockManager;
use lock_tests::{RedisServer, SOON, eventually};

const ROUNDS: usize = 10;

/// How many requests it takes from a release to the release of the next holder: the least of some rounds, since a lease that is
/// held for longer is renewed, and waiters look after their places.
async fn requests_of_a_handoff() -> u64 {
    let server = RedisServer::start().await;
    let one = LockManager::connect(&server.url()).await.expect("connects");
    let two = LockManager::connect(&server.url()).await.expect("connects");
    let (mut least, mut last) = (u64::MAX, 0);
    for _ in 0..ROUNDS {
        let held = one.lock("k").wait(SOON).await.expect("it is free");
        let waiter = tokio::spawn(two.lock("k").wait(SOON).acquire());
        let places = async || server.call(&["EXISTS", "{0}lock-core:queue:k"]).await.integer();
        eventually(SOON, "it has a place", async || places().await == Some(1)).await;
        let first = held.fencing_token().get();
        let before = server.script_calls().await;
        held.release().await.expect("it is held");
        let next = waiter.await.expect("no panic").expect("its turn comes");
        let second = next.fencing_token().get();
        next.release().await.expect("it is held");
        least = least.min(server.script_calls().await - before);
        assert!(last < first && first < second, "{last}, {first}, {second}");
        last = second;
    }
    assert!(server.left().await.is_empty());
    least
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_told_holds_without_a_request() {
    assert_eq!(requests_of_a_handoff().await, 2, "the two releases");
}

#[tokio::test]
async fn a_waiter_that_could_keep_the_only_thread_confirms() {
    assert_eq!(requests_of_a_handoff().await, 3, "and the acquire between them");
}
