//! What stays in a server: nothing that grows with the number of keys, and nothing of processes that were killed.

use std::time::Duration;

use lock_core::{
    ErrorKind, LockManager,
    backend::{Acquire, Backend, Calls, MemoryBackend, Operation, Outcome, Place, RedisBackend, Release, Token},
    clock::Moment,
    key::LockKey,
};
use lock_tests::{FaultProxy, LONG, RedisServer, Reply, SOON, eventually, role, within};

use crate::patient;

#[tokio::test]
async fn the_counter_stays_empty_however_many_free_keys_are_acquired() {
    let server = RedisServer::start().await;
    let manager = patient::connect(server.url()).await.expect("connects");
    for number in 0..50 {
        manager.lock(format!("k{number}")).await.expect("free").release().await.expect("held");
    }
    assert!(server.calls_of("exec").await > 0, "most go without the script, which has a command of its own for it");
    assert_eq!(server.call(&["XLEN", RedisServer::COUNTER]).await.integer(), Some(0));
    assert_eq!(server.left().await, Vec::<String>::new());
}

fn key() -> LockKey {
    LockKey::new("k").expect("a sound key")
}

/// Asks for the key with a place in its queue.
fn comes(number: u128) -> Operation {
    let place = Place::new("".into(), LONG, LONG, Moment::from_origin(Duration::ZERO));
    Operation::Acquire(Acquire::new(key(), Token::from_random(number), LONG).or_wait(place))
}

fn goes(number: u128) -> Operation {
    Operation::Release(Release::new(key(), Token::from_random(number)).with_place())
}

async fn ask(backend: &dyn Backend, operations: &[Operation]) -> Vec<Outcome> {
    let answer = backend.call(operations.iter().cloned().collect()).await.expect("it answers");
    answer.outcomes.into_iter().collect::<Result<_, _>>().expect("all are executed")
}

/// The first holds the key, two stay, and of all others one or two are there at a time. Returns what places they are told.
async fn come_and_go(backend: &dyn Backend, last: u128) -> Vec<u32> {
    let mut said = ask(backend, &[comes(1)]).await;
    for number in 2..STAYS {
        said.extend(ask(backend, &[comes(number)]).await);
    }
    said.extend(ask(backend, &[comes(STAYS)]).await);
    for number in 3..STAYS {
        said.extend(ask(backend, &[goes(number)]).await);
    }
    // Its own place gets another number.
    said.extend(ask(backend, &[comes(STAYS)]).await);
    said.extend(ask(backend, &[comes(STAYS + 1)]).await);
    for number in STAYS + 2..last {
        said.extend(ask(backend, &[comes(number), goes(number - 1)]).await);
        said.extend(ask(backend, &[comes(STAYS), comes(2)]).await);
    }
    said.extend(ask(backend, &[comes(last)]).await);
    let place = |outcome: &Outcome| if let Outcome::Busy { position, .. } = outcome { *position } else { None };
    said.iter().filter_map(place).collect()
}

const STAYS: u128 = 31;

/// A grant looks at each ticket from the first waiter on.
#[tokio::test]
async fn waiters_that_have_gone_cost_those_who_stay_nothing() {
    const LAST: u128 = 300;
    let server = RedisServer::start().await;
    let backend = RedisBackend::from_url(&server.url(), "leftovers", SOON).expect("a sound URL");
    let work = async {
        let places = come_and_go(&backend, LAST).await;
        assert_eq!(places, come_and_go(&MemoryBackend::new(), LAST).await);
        let furthest = places.iter().max();
        assert!(furthest < Some(&50), "thirty wait at most, and one is told that it has place {furthest:?}");
        let before = server.calls_of("hget").await;
        let released = ask(&backend, &[goes(1), goes(2), goes(STAYS), goes(LAST - 1), goes(LAST)]).await;
        assert_eq!(released, [Outcome::Released; 5], "each was granted the key by the one before");
        let looked = server.calls_of("hget").await - before;
        assert!(looked < 150, "{looked} tickets were looked at");
    };
    tokio::select! {
        () = backend.driver(Calls::to_nobody()) => unreachable!("the driver goes on for as long as it is polled"),
        () = work => {}
    }
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

#[tokio::test]
async fn a_waiter_that_is_told_to_stop_leaves_no_place_and_the_holder_of_its_process_is_renewed() {
    let server = RedisServer::start().await;
    let [manager, other] = [(); 2].map(|()| patient::connect(server.url()));
    let (manager, other) = (manager.await.expect("connects"), other.await.expect("connects"));
    let theirs = other.lock("theirs").ttl(LONG).await.expect("free");
    let own = manager.lock("own").ttl(LONG).renew_every(Duration::from_millis(100)).await.expect("free");
    let waiter = tokio::spawn(manager.lock("theirs").wait(LONG).acquire());
    eventually(SOON, "it has a place", async || !server.keys("*queue*").await.is_empty()).await;
    manager.stop_waiting();
    let refused = within(SOON, waiter).await.expect("no panic").expect_err("it waits no longer");
    assert_eq!(refused.kind(), ErrorKind::ShutDown);
    eventually(SOON, "no queue is left", async || server.keys("*queue*").await.is_empty()).await;
    for _ in 0..3 {
        let before = own.deadline();
        eventually(SOON, "it is renewed", async || own.deadline() > before).await;
    }
    assert!(other.is_locked("own").await.expect("answered"));
    own.release().await.expect("held");
    assert!(!other.is_locked("own").await.expect("answered"));
    theirs.release().await.expect("held");
    assert_eq!(within(SOON, manager.shutdown(LONG)).await, 0);
}

#[tokio::test]
async fn a_time_until_when_somebody_may_wait_that_is_an_hour_ahead_is_set_right_by_the_next_request() {
    const HOUR_MS: u64 = 3_600_000;
    let server = RedisServer::start().await;
    let manager = patient::connect(server.url()).await.expect("connects");
    let is_far = async || server.call(&["PTTL", RedisServer::WAITING]).await.integer() > Some(60_000);
    for key in ["exclusive", "shared"] {
        // A renewal meanwhile would set it right, too.
        let request = manager.lock(key).ttl(LONG);
        let request = if key == "shared" { request.shared() } else { request };
        let held = request.await.expect("free");
        // As a server has it whose clock was set back.
        let ahead = (server.clock().await + HOUR_MS).to_string();
        server.call(&["SET", RedisServer::WAITING, &ahead, "PX", &HOUR_MS.to_string()]).await;
        assert!(is_far().await);
        held.release().await.expect("held");
        assert!(!is_far().await, "after the release of {key}");
    }
    // A waiter is found by the queue, as before.
    let held = manager.lock("k").ttl(LONG).await.expect("free");
    let other = patient::connect(server.url()).await.expect("connects");
    let waiter = tokio::spawn(other.lock("k").ttl(LONG).wait(LONG).acquire());
    eventually(SOON, "it has a place", async || !server.keys("*queue*").await.is_empty()).await;
    let ahead = (server.clock().await + HOUR_MS).to_string();
    server.call(&["SET", RedisServer::WAITING, &ahead, "PX", &HOUR_MS.to_string()]).await;
    held.release().await.expect("held");
    let next = waiter.await.expect("no panic").expect("its turn");
    assert!(!is_far().await);
    next.release().await.expect("held");
}

#[tokio::test]
async fn a_release_that_a_server_has_forgotten_is_repeated_once_when_it_is_there_again() {
    let mut server = RedisServer::start().await;
    let manager = patient::connect(server.url()).await.expect("connects");
    let kept = manager.lock("kept").ttl(LONG).await.expect("free");
    let released = manager.lock("released").ttl(LONG).await.expect("free");
    // What a replica has that lags behind: the lease, and not its release.
    assert_eq!(server.call(&["SAVE"]).await, Reply::Status("OK".to_owned()));
    released.release().await.expect("held");
    server.restart().await;
    eventually(SOON, "only the other lease is left", async || server.left().await == ["kept"]).await;
    let again = manager.lock("released").ttl(LONG).wait(SOON).await.expect("free");
    again.release().await.expect("held");
    kept.release().await.expect("it was not lost");
}

/// Has an acquire get no answer, and drops its future.
async fn leave_in_doubt(manager: &LockManager, server: &RedisServer, proxy: &FaultProxy) {
    manager.lock("before").ttl(LONG).await.expect("free").release().await.expect("held");
    proxy.drop_replies();
    let request = tokio::spawn(manager.lock("k").ttl(LONG).acquire());
    eventually(SOON, "the key is set", async || server.left().await == ["k"]).await;
    request.abort();
    assert!(request.await.is_err());
    proxy.pass();
}

/// A manager whose shutdown would wait for twenty minutes for what is in doubt.
async fn behind_proxy(server: &RedisServer) -> (FaultProxy, LockManager) {
    let proxy = FaultProxy::start(server.address()).await;
    let url = server.url_at(&proxy.address());
    let manager = LockManager::builder().url(url).command_timeout(LONG).connect().await.expect("connects");
    (proxy, manager)
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_requests_of_a_connection_that_the_server_has_closed() {
    let server = RedisServer::start().await;
    let (proxy, manager) = behind_proxy(&server).await;
    leave_in_doubt(&manager, &server, &proxy).await;
    proxy.cut();
    within(SOON, manager.shutdown(Duration::ZERO)).await;
    assert_eq!(server.left().await, Vec::<String>::new());
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_requests_to_a_server_that_was_started_again() {
    let mut server = RedisServer::start().await;
    let (proxy, manager) = behind_proxy(&server).await;
    leave_in_doubt(&manager, &server, &proxy).await;
    server.restart().await;
    proxy.cut();
    within(SOON, manager.shutdown(Duration::ZERO)).await;
    assert_eq!(server.left().await, Vec::<String>::new());
}
