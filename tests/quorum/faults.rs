//! Nodes that are killed, stopped, or come back without what they knew.

use std::time::Instant;

use lock_core::{ErrorKind, LockGuard};
use lock_tests::{
    FaultProxy, eventually_some, figure, free_port, has_places,
    history::{Checker, Mark, judged_by, now},
    within,
};

use super::*;

/// The nodes of a mask.
fn of_mask(mask: usize) -> impl Iterator<Item = usize> {
    (0..5).filter(move |node| mask >> node & 1 == 1)
}

#[tokio::test]
async fn fault_17_a_majority_that_lives_grants_and_a_minority_leaves_nothing() {
    let mut nodes = Nodes::start(5).await;
    let mut slowest = [Duration::ZERO; 6];
    for mask in 0..32_usize {
        for node in of_mask(mask) {
            nodes.servers[node].stop();
        }
        let (dead, begun) = (mask.count_ones() as usize, Instant::now());
        // A majority is not kept waiting: the limit of a request is far longer than that of this test.
        let manager = nodes.manager_within(if dead <= 2 { LONG } else { BRIEF }, "p0");
        let result = within(SOON, manager.lock("k").ttl(LONG).wait(LONG).acquire()).await;
        slowest[dead] = slowest[dead].max(begun.elapsed());
        match result {
            Ok(guard) => {
                assert!(dead <= 2, "{dead} of 5 are dead, and a lease was granted");
                guard.release().await.expect("held");
            }
            Err(error) => {
                assert!(dead >= 3, "{dead} of 5 are dead: {error}");
                assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
            }
        }
        nodes.are_clean().await;
        for node in of_mask(mask) {
            nodes.servers[node].start_again().await;
        }
    }
    for (dead, slowest) in slowest.into_iter().enumerate() {
        figure(17, &format!("longest acquire with {dead} of 5 dead"), slowest);
    }
}

#[tokio::test]
async fn fault_18_stopped_nodes_keep_no_majority_waiting_and_a_minority_leaves_nothing() {
    let nodes = Nodes::start(5).await;
    let mut slowest = [Duration::ZERO; 6];
    for mask in 0..32_usize {
        let stopped = mask.count_ones() as usize;
        // A majority is not kept waiting: the limit of a request is far longer than that of this test. That several nodes which do not
        // answer cost one limit, and not one each, has lock-core's `silent_nodes_cost_one_limit_and_not_one_each` in virtual time.
        let manager = nodes.manager_within(if stopped <= 2 { LONG } else { BRIEF }, "p0");
        // Connected, so that requests reach the sockets of those that are stopped then.
        let all_are_there = async || match manager.lock("first").await {
            Ok(guard) => guard.release().await.is_ok(),
            Err(_) => false,
        };
        eventually(LONG, "all are there", all_are_there).await;
        for node in of_mask(mask) {
            nodes.servers[node].pause();
        }
        let begun = Instant::now();
        let result = within(SOON, manager.lock("k").ttl(LONG).wait(LONG).acquire()).await;
        let took = begun.elapsed();
        slowest[stopped] = slowest[stopped].max(took);
        match result {
            Ok(guard) => {
                assert!(stopped <= 2, "{stopped} of 5 are stopped, and a lease was granted");
                // A few milliseconds on an idle machine; lock-core's `a_node_that_hangs_costs_a_few_milliseconds…` has the exact time.
                guard.release().await.expect("held");
            }
            Err(error) => {
                assert!(stopped >= 3, "{stopped} of 5 are stopped: {error}");
            }
        }
        for node in of_mask(mask) {
            nodes.servers[node].resume();
        }
        // Those that were stopped execute what is in their sockets; it is released long before the ttl would see to it.
        nodes.are_clean().await;
    }
    for (stopped, slowest) in slowest.into_iter().enumerate() {
        figure(18, &format!("longest acquire with {stopped} of 5 stopped"), slowest);
    }
}

#[tokio::test]
async fn a_lease_outlives_a_minority_of_the_nodes_and_is_put_back_on_one_that_returns_empty() {
    let (mut nodes, run) = (Nodes::start(3).await, Run::new("quorum-outlives"));
    let (client, other) = (nodes.client(&run, "p0"), nodes.client(&run, "p1"));
    let mut held = client.acquire("k", LONG, |request| request.renew_every(OFTEN)).await.expect("free");
    eventually(SOON, "all have it", async || nodes.having("k").await == 3).await;
    // One after the other, so that none of those that took part at first is left.
    for node in 0..3 {
        nodes.servers[node].restart().await;
        eventually(SOON, "it has the key again", async || nodes.having("k").await == 3).await;
        // It counts when the others were asked whether they had it then: at once, and by the next renewal at the latest.
        renewed(held.guard(), 2).await;
        assert!(held.check());
        assert!(other.try_acquire("k", LONG).await.expect("a majority answers").is_none());
    }
    held.release().await.expect("held");
    nodes.are_clean().await;
    other.acquire("k", LONG, |request| request).await.expect("free").release().await.expect("held");
    judged(&run);
}

/// Where others wait, an empty node grants the key to one after the other, though none of them can have a majority.
#[tokio::test]
async fn a_lease_is_put_back_on_a_node_that_returns_empty_though_others_wait() {
    let mut nodes = Nodes::start(3).await;
    // Those who wait are quicker than the next renewal.
    let guard = nodes.manager("p0").lock("k").ttl(LONG).renew_every(ms(3_000)).await.expect("free");
    eventually(SOON, "all have it", async || nodes.having("k").await == 3).await;
    let token = nodes.servers[0].call(&["GET", "k"]).await.text();
    let wait = |name| {
        let manager = nodes.manager(name);
        tokio::spawn(async move { manager.lock("k").ttl(LONG).wait(LONG).await?.release().await })
    };
    let waiters = ["p1", "p2"].map(wait);
    has_places(&nodes.servers[0], 2).await;
    nodes.servers[0].restart().await;
    let asks = async || nodes.servers[0].call(&["EXISTS", "{0}lock-core:queue:k"]).await.integer() == Some(1);
    eventually(SOON, "one of them has asked it", asks).await;
    let is_back = async || nodes.servers[0].call(&["GET", "k"]).await.text() == token;
    eventually(SOON, "it has the lease again", is_back).await;
    renewed(&guard, 2).await;
    assert!(is_back().await && guard.is_held(), "it keeps it");
    guard.release().await.expect("held");
    for waiter in waiters {
        within(SOON, waiter).await.expect("no panic").expect("its turn comes");
    }
    nodes.are_clean().await;
}

/// Waits until a lease was renewed so often, by requests that were sent from now on: the answer to one that is in flight is not
/// counted.
async fn renewed(guard: &LockGuard, times: u32) {
    for _ in 0..=times {
        let before = guard.deadline();
        eventually(SOON, "the lease is renewed", async || guard.deadline() > before).await;
    }
}

/// One of the servers executes the acquire late, when the others have granted it. Then another one fails, after some renewals; that
/// it may fail before the first, lock-core has in virtual time.
#[tokio::test]
async fn a_lease_that_a_node_was_late_to_take_outlives_any_other_node() {
    let mut nodes = Nodes::start(3).await;
    for restarts in [false, true] {
        for renewals in 1..3 {
            let manager = nodes.manager("p0");
            manager.lock("first").await.expect("all are there").release().await.expect("held");
            nodes.servers[2].pause();
            let guard = manager.lock("k").ttl(LONG).renew_every(OFTEN).await.expect("a majority is there");
            nodes.servers[2].resume();
            eventually(SOON, "all have it", async || nodes.having("k").await == 3).await;
            renewed(&guard, renewals).await;
            nodes.servers[0].stop();
            if restarts {
                nodes.servers[0].start_again().await;
            }
            renewed(&guard, 2).await;
            assert!(guard.is_held(), "two of three have it, {renewals} renewals before the third failed");
            guard.release().await.expect("held");
            if !restarts {
                nodes.servers[0].start_again().await;
            }
            nodes.are_clean().await;
        }
    }
}

#[tokio::test]
async fn a_lease_is_lost_when_a_majority_of_the_nodes_is_gone() {
    let (mut nodes, run) = (Nodes::start(3).await, Run::new("quorum-lost"));
    let client = nodes.client(&run, "p0");
    // If the answer takes longer than the ttl, it asks again.
    let mut held = client.acquire("k", TTL, |request| request.wait(LONG)).await.expect("free");
    let since = now();
    nodes.servers[0].stop();
    nodes.servers[2].stop();
    let stopped = Instant::now();
    within(SOON, held.guard().ended()).await;
    figure(17, "a majority dead to lease lost", stopped.elapsed());
    assert!(!held.check());
    drop(held);
    nodes.servers[0].start_again().await;
    let back = Instant::now();
    // Until it has connected anew, the manager knows them to be down.
    let asks = async || client.acquire("k", LONG, |request| request.wait(SOON)).await.ok();
    let held = eventually_some(SOON, "a majority is back", asks).await;
    figure(17, "a majority back to grant", back.elapsed());
    run.broken_since(since);
    held.release().await.expect("held");
    judged(&run);
}

#[tokio::test]
async fn fault_19_a_node_that_forgets_while_others_are_cut_off_can_make_two_holders_but_no_fence_twice() {
    let (mut nodes, run) = (Nodes::start(5).await, Run::new("fault-19"));
    let other = nodes.client(&run, "p1");
    // The first holder does not reach 3 and 4, and does not see what becomes of 2: it would put its lease back there.
    let (mut urls, proxy) = (nodes.urls(), FaultProxy::start(nodes.servers[2].address()).await);
    urls[2] = format!("redis://{}", proxy.address());
    for url in &mut urls[3..] {
        *url = format!("redis://127.0.0.1:{}", free_port());
    }
    let cut_off = LockManager::builder().quorum(&urls).command_timeout(LIMIT).build().expect("a sound quorum");
    let one = Recorded::new(&cut_off, &run.recorder("p0"), "");
    let mut held = one.acquire("k", LONG, |request| request).await.expect("a majority is there");
    assert!(other.try_acquire("k", LONG).await.expect("all answer").is_none());
    eventually(SOON, "what the try got is given back", async || nodes.having("k").await == 3).await;
    // One of them forgets: with the two that never knew, that is a majority.
    let from = now();
    proxy.hole();
    nodes.servers[2].restart().await;
    let second = eventually_some(SOON, "that is the hole", async || {
        other.try_acquire("k", LONG).await.expect("a majority answers")
    })
    .await;
    let to = now();
    assert!(held.check(), "the first holder cannot know");
    assert!(second.fence() > held.fence(), "but its writes are refused: the second's fencing token is larger");
    drop((held, second));
    judged_by(&run, Checker::new().mark(Mark { key: None, from, to }));
}
