//! Waiters that hold as soon as they are told of their grant, on one real server: each handoff is counted in requests, which
//! are the same on a slow machine.

use lock_core::LockManager;
use lock_tests::{LONG, RedisServer, SOON, eventually};

use crate::patient;

/// How many requests it takes from a release to the release of the next holder, who has another manager: the least of some
/// rounds, since a lease that is held for longer is renewed, and waiters look after their places. So rounds go on until one
/// needs no more than `expected`, and a test fails only if none ever does. A round in which a lease was lost says nothing: one that
/// was granted has a second at most until its first renewal is answered, and a busy machine may stand still for longer.
///
/// On a runtime of several threads a waiter that is called needs the two releases only, and one that finds the key at a check
/// of its own needs a third request.
pub(crate) async fn requests_of_a_handoff(
    server: &RedisServer,
    database: &str,
    managers: [&LockManager; 2],
    expected: u64,
) -> u64 {
    requests_of_a_handoff_after(async || {}, server, database, managers, expected).await
}

/// The same if in each round something happens to those that wait, between their request and the release.
pub(crate) async fn requests_of_a_handoff_after(
    happens: impl AsyncFn(),
    server: &RedisServer,
    database: &str,
    [one, two]: [&LockManager; 2],
    expected: u64,
) -> u64 {
    let (mut least, mut last) = (u64::MAX, 0);
    for round in 1..=MOST_ROUNDS {
        // A new one each time: all connections may be killed in a round.
        let mut client = server.connect().await.expect("connects");
        client.call(&["SELECT", database]).await.expect("it answers");
        let held = one.lock("k").ttl(LONG).wait(LONG).await.expect("it is free");
        let waiter = tokio::spawn(two.lock("k").ttl(LONG).wait(LONG).acquire());
        let has_place = async || {
            // The name begins with the slot in a cluster.
            let places = client.call(&["KEYS", "*lock-core:queue:k"]).await.expect("it answers");
            places.items().len() == 1
        };
        eventually(SOON, "it has a place", has_place).await;
        happens().await;
        let first = held.fencing_token().get();
        let before = server.script_calls().await;
        let released = held.release().await;
        let next = waiter.await.expect("no panic").expect("its turn comes");
        let second = next.fencing_token().get();
        if released.and(next.release().await).is_ok() {
            least = least.min(server.script_calls().await - before);
        }
        assert!(last < first && first < second, "{last}, {first}, {second}");
        last = second;
        if round >= ROUNDS && least <= expected {
            break;
        }
    }
    least
}

const ROUNDS: usize = 10;
const MOST_ROUNDS: usize = 200;

async fn requests_of_two(expected: u64) -> u64 {
    let server = RedisServer::start().await;
    let one = patient::connect(&server.url()).await.expect("connects");
    let two = patient::connect(&server.url()).await.expect("connects");
    let requests = requests_of_a_handoff(&server, "0", [&one, &two], expected).await;
    eventually(SOON, "nothing is left", async || server.left().await.is_empty()).await;
    requests
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_told_holds_without_a_request() {
    assert_eq!(requests_of_two(2).await, 2, "the two releases");
}

#[tokio::test]
async fn a_waiter_that_could_keep_the_only_thread_confirms() {
    assert_eq!(requests_of_two(3).await, 3, "and the acquire between them");
}
