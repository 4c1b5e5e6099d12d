//! Nodes that are killed, stopped, or come back without what they knew.

use std::time::Instant;

use lock_core::ErrorKind;
use lock_tests::{eventually_some, figure, free_port};

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
        let manager = nodes.manager("p0");
        let (dead, begun) = (mask.count_ones() as usize, Instant::now());
        let result = manager.lock("k").ttl(TTL).wait(SOON).await;
        slowest[dead] = slowest[dead].max(begun.elapsed());
        match result {
            Ok(guard) => {
                assert!(dead <= 2, "{dead} of 5 are dead, and a lease was granted");
                guard.release().await.expect("held");
            }
            Err(error) => {
                assert!(dead >= 3, "{dead} of 5 are dead: {error}");
                assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
                assert!(begun.elapsed() < LIMIT + SLACK, "{:?}", begun.elapsed());
            }
        }
        // Long before the ttl would see to it.
        nodes.are_clean(TTL / 2).await;
        for node in of_mask(mask) {
            nodes.servers[node].start_again().await;
        }
    }
    for (dead, slowest) in slowest.into_iter().enumerate() {
        figure(17, &format!("longest acquire with {dead} of 5 dead"), slowest);
    }
}

#[tokio::test]
async fn fault_18_stopped_nodes_cost_one_limit_at_most_and_not_one_each() {
    let nodes = Nodes::start(5).await;
    let mut slowest = [Duration::ZERO; 6];
    for mask in 0..32_usize {
        let manager = nodes.manager("p0");
        // Connected, so that requests reach the sockets of those that are stopped then.
        manager.lock("first").await.expect("all are there").release().await.expect("held");
        for node in of_mask(mask) {
            nodes.servers[node].pause();
        }
        let (stopped, begun) = (mask.count_ones() as usize, Instant::now());
        let result = manager.lock("k").ttl(LONG).wait(SOON).await;
        let took = begun.elapsed();
        slowest[stopped] = slowest[stopped].max(took);
        match result {
            Ok(guard) => {
                assert!(stopped <= 2, "{stopped} of 5 are stopped, and a lease was granted");
                // A few milliseconds on an idle machine; lock-core's `a_node_that_hangs_costs_a_few_milliseconds…` has the exact time.
                assert!(took < LIMIT / 2, "a majority is not kept waiting: {took:?}");
                guard.release().await.expect("held");
            }
            Err(error) => {
                assert!(stopped >= 3, "{stopped} of 5 are stopped: {error}");
                assert!(took < LIMIT + SLACK, "{took:?}");
            }
        }
        for node in of_mask(mask) {
            nodes.servers[node].resume();
        }
        // Those that were stopped execute what is in their sockets; it is released long before the ttl would see to it.
        nodes.are_clean(SOON).await;
    }
    for (stopped, slowest) in slowest.into_iter().enumerate() {
        figure(18, &format!("longest acquire with {stopped} of 5 stopped"), slowest);
    }
}

#[tokio::test]
async fn a_lease_outlives_a_minority_of_the_nodes_and_is_put_back_on_one_that_returns_empty() {
    let (mut nodes, run) = (Nodes::start(3).await, Run::new("quorum-outlives"));
    let (client, other) = (nodes.client(&run, "p0"), nodes.client(&run, "p1"));
    let mut held = client.acquire("k", TTL, |request| request).await.expect("free");
    eventually(SOON, "all have it", async || nodes.having("k").await == 3).await;
    // One after the other, so that none of those that took part at first is left.
    for node in 0..3 {
        nodes.servers[node].restart().await;
        eventually(SOON, "it has the key again", async || nodes.having("k").await == 3).await;
        // It counts when the others were asked whether they had it then: at once, and by the next renewal at the latest.
        tokio::time::sleep(TTL / 3).await;
        assert!(held.check());
        assert!(other.try_acquire("k", TTL).await.expect("a majority answers").is_none());
    }
    held.release().await.expect("held");
    // Long before the ttl would see to it.
    nodes.are_clean(TTL / 2).await;
    other.acquire("k", TTL, |request| request).await.expect("free").release().await.expect("held");
    judged(&run);
}

/// One of the servers executes the acquire late, when the others have granted it. Then another one fails.
#[tokio::test]
async fn a_lease_that_a_node_was_late_to_take_outlives_any_other_node() {
    let mut nodes = Nodes::start(3).await;
    for restarts in [false, true] {
        for renewals in 0..3 {
            let manager = nodes.manager("p0");
            manager.lock("first").await.expect("all are there").release().await.expect("held");
            nodes.servers[2].pause();
            let guard = manager.lock("k").ttl(TTL).await.expect("a majority is there");
            tokio::time::sleep(ms(60)).await;
            nodes.servers[2].resume();
            eventually(SOON, "all have it", async || nodes.having("k").await == 3).await;
            tokio::time::sleep(ms(60) + TTL / 3 * renewals).await;
            nodes.servers[0].stop();
            if restarts {
                nodes.servers[0].start_again().await;
            }
            tokio::time::sleep(TTL * 3 / 2).await;
            assert!(guard.is_held(), "two of three have it, {renewals} renewals before the third failed");
            guard.release().await.expect("held");
            if !restarts {
                nodes.servers[0].start_again().await;
            }
            nodes.are_clean(TTL / 2).await;
        }
    }
}

#[tokio::test]
async fn a_lease_is_lost_when_a_majority_of_the_nodes_is_gone() {
    let (mut nodes, run) = (Nodes::start(3).await, Run::new("quorum-lost"));
    let client = nodes.client(&run, "p0");
    let mut held = client.acquire("k", TTL, |request| request).await.expect("free");
    let since = lock_tests::history::now();
    nodes.servers[0].stop();
    nodes.servers[2].stop();
    let stopped = Instant::now();
    held.guard().ended().await;
    assert!(stopped.elapsed() < TTL + SLACK, "{:?}", stopped.elapsed());
    figure(17, "a majority dead to lease lost", stopped.elapsed());
    assert!(!held.check());
    drop(held);
    nodes.servers[0].start_again().await;
    let back = Instant::now();
    // Until it has connected anew, the manager knows them to be down.
    let asks = async || client.acquire("k", TTL, |request| request.wait(SOON)).await.ok();
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
    // The first holder does not reach 3 and 4.
    let mut urls = nodes.urls();
    for url in &mut urls[3..] {
        *url = format!("redis://127.0.0.1:{}", free_port());
    }
    let cut_off = LockManager::builder().quorum(&urls).command_timeout(LIMIT).build().expect("a sound quorum");
    let one = Recorded::new(&cut_off, &run.recorder("p0"), "");
    let held = one.acquire("k", LONG, |request| request).await.expect("a majority is there");
    assert!(other.try_acquire("k", LONG).await.expect("all answer").is_none());
    eventually(SOON, "what the try got is given back", async || nodes.having("k").await == 3).await;
    // One of them forgets: with the two that never knew, that is a majority.
    nodes.servers[2].restart().await;
    let second = eventually_some(SOON, "that is the hole", async || {
        other.try_acquire("k", LONG).await.expect("a majority answers")
    })
    .await;
    assert!(held.guard().is_held(), "the first holder cannot know");
    assert!(second.fence() > held.fence(), "but its writes are refused: the second's fencing token is larger");
    drop((held, second));
}
