//! An outage while many ask: when the first and the last of them are told, and what.

use std::collections::BTreeMap;

use futures_util::FutureExt;
use lock_core::{ErrorKind, LockManager};
use lock_tests::{RedisServer, SOON, eventually, figure, within};
use tokio::{
    sync::mpsc::unbounded_channel,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{faults::*, patient};

/// How the requests of one moment ended.
struct Told {
    kinds: BTreeMap<String, usize>,
}

/// Asks for `count` keys at once, each for a key of its own and without a wait, and prints when the errors came.
async fn told(manager: &LockManager, count: u32, state: &str) -> Told {
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for key in 0..count {
        let manager = manager.clone();
        tasks.spawn(async move {
            let outcome = manager.lock(format!("{key}")).wait(Duration::ZERO).await.map(drop);
            (begun.elapsed(), outcome.map_err(|error| error.kind()))
        });
    }
    let outcomes = tasks.join_all().await;
    let times = || outcomes.iter().map(|(time, _)| *time);
    let mut kinds = BTreeMap::new();
    for (_, outcome) in &outcomes {
        *kinds.entry(format!("{outcome:?}")).or_default() += 1;
    }
    let told = Told { kinds };
    figure(32, &format!("{state}, {count} at once: first error"), times().min().unwrap_or_default());
    figure(32, &format!("{state}, {count} at once: last error"), times().max().unwrap_or_default());
    println!("{state}, {count} at once: {:?}", told.kinds);
    told
}

fn only_backend(told: &Told) {
    let backend = format!("{:?}", Err::<(), _>(ErrorKind::Backend));
    assert_eq!(told.kinds.keys().collect::<Vec<_>>(), [&backend]);
}

#[tokio::test]
async fn outage_is_told_to_all_who_ask_and_at_once_while_the_server_is_known_to_be_down() {
    // Longer than `told_within` divided by the calls of ten thousand requests, two at a time, or by a hundred requests: each outlasts it
    // if one call waits for the limit after another, or one request that could be told at once.
    let (limit, told_within) = (10 * TTL, 3 * SOON);
    for (how, killed) in [("stopped", false), ("killed", true)] {
        for count in [1, 100, 10_000] {
            let mut server = RedisServer::start().await;
            let manager = LockManager::builder().url(server.url()).command_timeout(limit).connect().await;
            let manager = manager.expect("connects");
            manager.lock("warm").await.expect("free").release().await.expect("held");
            if killed {
                server.stop();
            } else {
                server.pause();
            }
            let unknown = within(told_within, told(&manager, count, how)).await;
            only_backend(&unknown);
            eventually(SOON, "it is known to be down", async || !manager.health().is_up()).await;
            let known = within(told_within, told(&manager, count, &format!("{how}, known to be down"))).await;
            // 20 ms on a machine with nothing else to do: the figures say.
            only_backend(&known);
            let one_by_one = async {
                for _ in 0..100 {
                    manager.lock("k").wait(Duration::ZERO).await.map(drop).expect_err("it is down");
                }
            };
            within(told_within, one_by_one).await;
            if !killed {
                server.resume();
            }
        }
    }
}

#[tokio::test]
async fn restart_that_is_shorter_than_the_limit_of_a_command_is_ridden_out() {
    let mut server = RedisServer::start().await;
    let manager = LockManager::builder().url(server.url()).command_timeout(LONG).connect().await;
    let manager = manager.expect("connects");
    manager.lock("warm").await.expect("free").release().await.expect("held");
    server.stop();
    let asks = tokio::spawn(manager.lock("k").wait(Duration::ZERO).acquire());
    eventually(SOON, "the connection is lost", async || !manager.health().is_up()).await;
    assert!(!asks.is_finished());
    server.start_again().await;
    let started = Instant::now();
    let _guard = timeout(SOON, asks).await.expect("in time").expect("no panic").expect("the server is back");
    figure(7, "restarted to grant of a request that waits", started.elapsed());
}

#[tokio::test]
async fn outage_is_told_as_such_to_all_who_ask_for_one_key_that_is_free() {
    // The last wait is longer than the limit.
    for wait in [0, 200, 30_000] {
        let server = RedisServer::start().await;
        let manager = LockManager::builder().url(server.url()).command_timeout(LIMIT).connect().await;
        let manager = manager.expect("connects");
        manager.lock("warm").await.expect("free").release().await.expect("held");
        server.pause();
        let mut tasks = JoinSet::new();
        for _ in 0..20 {
            let acquire = manager.lock("one").wait(ms(wait)).acquire();
            tasks.spawn(async { acquire.await.map(drop).map_err(|error| error.kind()) });
        }
        let outcomes = timeout(SOON, tasks.join_all()).await.expect("in time");
        assert_eq!(outcomes, [Err(ErrorKind::Backend); 20], "a wait of {wait} ms");
        server.resume();
    }
}

#[tokio::test]
async fn waiters_that_know_their_key_to_be_busy_outlast_a_stop_of_the_server() {
    for _ in 0..3 {
        let order = served_after_a_stop().await;
        if order == [0, 1, 2, 3, 4] {
            return;
        }
        // On a busy machine one may miss its turn, and goes to the end then: but not each time.
        println!("{order:?}");
    }
    panic!("they are served in another order");
}

/// Has five wait while their server stops; returns the order in which they are served.
async fn served_after_a_stop() -> Vec<u32> {
    let server = RedisServer::start().await;
    let holder = patient::connect(server.url()).await.expect("connects");
    let manager = patient::builder().url(server.url()).command_timeout(LIMIT).connect().await.expect("connects");
    let guard = holder.lock("k").ttl(LONG).await.expect("free");
    let (served, mut order) = unbounded_channel();
    let mut tasks = JoinSet::new();
    for number in 0..5 {
        let (mut acquire, served) = (manager.lock("k").wait_forever().acquire(), served.clone());
        // In this order.
        assert!((&mut acquire).now_or_never().is_none());
        tasks.spawn(async move {
            let guard = acquire.await.expect("it waits on");
            served.send(number).expect("somebody listens");
            guard.release().await.expect("held");
        });
    }
    eventually(SOON, "they have a place", async || !server.keys("*queue:k").await.is_empty()).await;
    server.pause();
    // Its wait ends long after the candidate has asked in vain.
    let hurried = tokio::spawn(manager.lock("k").wait(3 * LIMIT).acquire());
    let error = timeout(SOON, hurried).await.expect("it ends").expect("no panic").expect_err("its wait is over");
    assert_eq!(error.kind(), ErrorKind::Backend, "nobody knows who has the key: {error}");
    assert_eq!(tasks.try_join_next().map(|_| ()), None, "the others wait on");
    server.resume();
    // Its own manager may not have found out yet that the server is back: it goes out when it has.
    drop(guard);
    timeout(SOON, tasks.join_all()).await.expect("all are served");
    std::iter::from_fn(|| order.try_recv().ok()).collect()
}

#[tokio::test]
async fn waiters_outlast_a_restart_of_the_server() {
    let mut server = RedisServer::start().await;
    let holder = patient::connect(server.url()).await.expect("connects");
    let manager = patient::builder().url(server.url()).command_timeout(LIMIT).connect().await.expect("connects");
    let _guard = holder.lock("k").ttl(LONG).await.expect("free");
    let waiting = tokio::spawn(manager.lock("k").wait(LONG).acquire());
    let has_place = async || !server.keys("*queue:k").await.is_empty();
    eventually(SOON, "it has a place", has_place).await;
    server.stop();
    // For longer than a request may take.
    manager.lock("other").await.expect_err("the server is down");
    assert!(!waiting.is_finished());
    server.start_again().await;
    let begun = Instant::now();
    let guard = timeout(SOON, waiting).await.expect("it asks again").expect("no panic").expect("it has the key");
    assert!(guard.is_held());
    figure(32, "restarted: next grant", begun.elapsed());
}

#[tokio::test]
async fn first_request_after_an_outage_of_a_quiet_service_is_granted() {
    let mut server = RedisServer::start().await;
    let mut managers = Vec::new();
    for _ in 0..20 {
        let manager = LockManager::builder().url(server.url()).command_timeout(LIMIT).connect().await;
        managers.push(manager.expect("connects"));
    }
    server.stop();
    // The server is known to be down after the limit. Nobody asks meanwhile, so that the attempts to connect are up to a second apart.
    sleep(LIMIT + ms(3_000)).await;
    server.start_again().await;
    // Attempts that failed while it started are over: the next may begin.
    sleep(ms(150)).await;
    let mut refused = 0;
    for (index, manager) in managers.iter().enumerate() {
        let asked = Instant::now();
        if let Err(error) = manager.lock(format!("k{index}")).await {
            // A request watches an attempt for 15 ms, and it takes longer on a busy machine; which attempts it watches, `link.rs` tests.
            refused += usize::from(asked.elapsed() < ms(10));
            println!("manager {index} was refused after {:?}: {error}", asked.elapsed());
        }
        let granted = async || manager.lock(format!("k{index}")).await.is_ok();
        eventually(SOON, format!("manager {index} is connected"), granted).await;
    }
    assert!(refused < managers.len(), "each was refused without a look");
}
