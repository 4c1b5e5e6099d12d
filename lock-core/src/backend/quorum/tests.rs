//! A quorum of stores in the process, in virtual time, some of which fail.

mod nodes;
mod outlier;
mod places;
mod shutdown;
mod twins;

use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use self::nodes::{LIMIT, Node, TTL, a_while, manager, nodes, quorum};
use super::{ballot::Ballot, call::Asking, verdict::Certainty};
use crate::{
    ErrorKind, LockManager, LossReason,
    backend::{Acquire, Answer, Backend, Batch, Operation, Outcome, Release, Renew, Token},
    key::LockKey,
};

#[tokio::test(start_paused = true)]
async fn fencing_tokens_rise_whichever_majority_a_holder_has() {
    let nodes = nodes::<3>();
    let managers = [manager(&nodes), manager(&nodes)];
    let mut last = None;
    for round in 0..60 {
        for (index, node) in nodes.iter().enumerate() {
            node.is_silent(round % 4 == index);
        }
        let guard = managers[round % 2].lock("k").await.unwrap();
        assert!(last < Some(guard.fencing_token()), "round {round}");
        last = Some(guard.fencing_token());
        guard.release().await.unwrap();
    }
}

/// Once the first ones, longer on their way, have told what the clocks of the nodes show; also where one answers later than others.
#[tokio::test(start_paused = true)]
async fn an_acquire_takes_one_request_to_each_node() {
    for late in [0, 1, 15] {
        let nodes = nodes::<3>();
        nodes[2].slow.store(late, Ordering::Relaxed);
        let manager = manager(&nodes);
        for round in 0..200 {
            nodes.iter().for_each(|node| node.far.store(if round < 10 { 2 } else { 1 }, Ordering::Relaxed));
            manager.lock("k").await.unwrap().release().await.unwrap();
            a_while().await;
            let acquires = nodes.each_ref().map(|node| node.acquires.swap(0, Ordering::Relaxed));
            assert!(round < 10 || acquires == [1; 3], "{acquires:?} if the third node answers {late} ms late");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_did_not_hear_a_release_is_told_again_until_it_has() {
    let nodes = nodes::<3>();
    let manager = manager(&nodes);
    let guard = manager.lock("k").ttl(TTL * 10).await.unwrap();
    assert!(nodes[2].has("k").await);
    nodes[2].is_silent(true);
    guard.release().await.unwrap();
    tokio::time::sleep(TTL).await;
    assert!(nodes[2].has("k").await && !nodes[0].has("k").await, "it has heard nothing");
    nodes[2].is_silent(false);
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert!(!nodes[2].has("k").await, "now it has");
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_is_dropped_tells_its_nodes_first() {
    let nodes = nodes::<3>();
    let manager = manager(&nodes);
    let guard = manager.lock("k").ttl(TTL * 10).await.unwrap();
    a_while().await;
    nodes[0].is_silent(true);
    drop((guard, manager));
    tokio::time::sleep(LIMIT * 3).await;
    nodes[0].is_silent(false);
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert!(!nodes[0].has("k").await);
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0, "then its task ends");
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_is_dropped_does_not_wait_for_ever_for_a_node() {
    let nodes = nodes::<3>();
    let manager = manager(&nodes);
    let guard = manager.lock("k").await.unwrap();
    nodes[0].is_silent(true);
    drop((guard, manager));
    tokio::time::sleep(TTL + LIMIT * 4).await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_put_back_where_it_is_missing_by_its_next_renewal() {
    let nodes = nodes::<3>();
    let manager = manager(&nodes);
    nodes[1].is_silent(true);
    let guard = manager.lock("k").await.unwrap();
    nodes[1].is_silent(false);
    assert!(!nodes[1].has("k").await);
    tokio::time::sleep(TTL / 2).await;
    assert!(nodes[1].has("k").await, "it was renewed");
    guard.release().await.unwrap();
    a_while().await;
    assert!(!nodes[1].has("k").await, "and is released there, too");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_slower_than_the_others_counts_all_the_same() {
    let nodes = nodes::<3>();
    nodes[2].slow.store(30, Ordering::Relaxed);
    let (manager, other) = (manager(&nodes), manager(&nodes));
    let guard = manager.lock("k").await.unwrap();
    let waiting = tokio::spawn(async move { other.lock("k").wait(TTL * 20).await.map(|guard| guard.fencing_token()) });
    tokio::time::sleep(TTL * 2).await;
    nodes[0].is_silent(true);
    tokio::time::sleep(TTL * 3).await;
    assert!(guard.is_held(), "two of three have it");
    nodes[0].is_silent(false);
    tokio::time::sleep(TTL * 3).await;
    let first = guard.fencing_token();
    guard.release().await.unwrap();
    let released = tokio::time::Instant::now();
    assert!(waiting.await.unwrap().unwrap() > first);
    assert!(released.elapsed() < Duration::from_millis(200), "{:?}", released.elapsed());
}

/// Another node fails when so many renewals have been sent.
async fn a_lease_whose_acquire_a_node_executed_late_outlives(renewals: u32, fail: fn(&Node)) {
    let nodes = nodes::<3>();
    let manager = manager(&nodes);
    nodes[2].stop();
    let begun = tokio::time::Instant::now();
    let guard = manager.lock("k").await.unwrap();
    assert!(begun.elapsed() < Duration::from_millis(10), "a majority is there");
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert!(!nodes[2].has("k").await);
    nodes[2].go_on();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(nodes[2].has("k").await, "now all have it");
    tokio::time::sleep(TTL / 3 * renewals).await;
    fail(&nodes[0]);
    tokio::time::sleep(TTL * 4).await;
    assert!(guard.is_held(), "two of three had it all the time, {renewals} renewals before the third failed");
    guard.release().await.unwrap();
    a_while().await;
    assert!(!nodes[1].has("k").await && !nodes[2].has("k").await);
}

#[tokio::test(start_paused = true)]
async fn a_lease_whose_acquire_a_node_executed_late_outlives_any_other_node() {
    for renewals in 0..3 {
        a_lease_whose_acquire_a_node_executed_late_outlives(renewals, |node| node.is_silent(true)).await;
        a_lease_whose_acquire_a_node_executed_late_outlives(renewals, Node::restart_empty).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_hangs_costs_a_few_milliseconds_and_no_places() {
    let nodes = nodes::<3>();
    let quorum = quorum(&nodes);
    let ledger = Arc::clone(&quorum.quorum);
    let manager = LockManager::builder().backend(quorum).build().unwrap();
    manager.lock("k").await.unwrap().release().await.unwrap();
    nodes[0].stop();
    for _ in 0..10 {
        let begun = tokio::time::Instant::now();
        let guard = manager.lock("k").await.unwrap();
        assert!(begun.elapsed() <= Duration::from_millis(6), "{:?}", begun.elapsed());
        assert_eq!(ledger.ledger().places().queue_node, 1, "now the next one keeps the places");
        guard.release().await.unwrap();
    }
    nodes[0].go_on();
    tokio::time::sleep(LIMIT * 3).await;
    assert_eq!(ledger.ledger().places().queue_node, 0, "and it again, since it has given a sign of life");
}

#[tokio::test(start_paused = true)]
async fn silent_nodes_cost_one_limit_and_not_one_each() {
    let nodes = nodes::<5>();
    let manager = manager(&nodes);
    for silent in 0..=5 {
        nodes.iter().enumerate().for_each(|(index, node)| node.is_silent(index < silent));
        let begun = tokio::time::Instant::now();
        let result = manager.lock("k").wait(TTL).await;
        let took = begun.elapsed();
        match result {
            Ok(guard) => {
                assert!(silent <= 2 && took <= Duration::from_millis(10), "{silent} are silent: {took:?}");
                guard.release().await.unwrap();
            }
            Err(error) => {
                assert!(
                    silent >= 3 && took >= LIMIT && took <= LIMIT + Duration::from_millis(10),
                    "{silent}: {took:?}"
                );
                assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
            }
        }
        tokio::time::sleep(LIMIT * 2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_puts_a_lease_back_answers_while_it_can_be_tried_again() {
    let nodes = nodes::<3>();
    nodes[2].is_silent(true);
    let quorum = quorum(&nodes).quorum;
    let (key, token) = (LockKey::new("k").unwrap(), Token::from_random(7));
    quorum.clone().call(Batch::from([Operation::Acquire(Acquire::new(key.clone(), token, TTL))])).await.unwrap();
    nodes[2].is_silent(false);
    nodes[2].stop();
    let mut renew = Renew::new(key, token, TTL);
    renew.within = Duration::from_millis(40);
    let (within, begun) = (renew.within, tokio::time::Instant::now());
    let places = quorum.ledger().places();
    let request = quorum.ask(2, places, &Batch::from([Operation::Renew(renew)]), None);
    assert!(matches!(request.asked.batch[0], Operation::Acquire(_)), "it is put back");
    assert!(request.await.is_err());
    assert_eq!(begun.elapsed(), within);
}

#[tokio::test]
async fn an_order_that_one_node_broke_is_broken() {
    let nodes = nodes::<3>();
    let quorum = quorum(&nodes);
    let mut epochs = HashSet::from([quorum.epoch()]);
    for node in &nodes {
        node.epoch.fetch_add(1, Ordering::Relaxed);
        assert!(epochs.insert(quorum.epoch()), "it reconnected");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_lost_with_a_majority_and_not_with_less() {
    let nodes = nodes::<5>();
    let manager = manager(&nodes);
    let guard = manager.lock("k").await.unwrap();
    nodes[0].is_silent(true);
    nodes[4].is_silent(true);
    tokio::time::sleep(TTL * 3).await;
    assert!(guard.is_held());
    nodes[2].is_silent(true);
    tokio::time::sleep(TTL * 3).await;
    assert!(!guard.is_held());
    let error = manager.lock("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(error.to_string().contains("3 of 5 nodes failed, and a lock needs 3: silence"), "{error}");
    let error = manager.force_release_all("").await.unwrap_err();
    assert!(error.to_string().contains("3 of 5 nodes failed"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_token_that_was_released_is_not_written_back() {
    let nodes = nodes::<3>();
    let _ahead = manager_of_one(&nodes[1]).lock("other").await.unwrap();
    let quorum = quorum(&nodes).quorum;
    let (key, token) = (LockKey::new("k").unwrap(), Token::from_random(7));
    let acquire = Batch::from([Operation::Acquire(Acquire::new(key.clone(), token, TTL))]);
    let release = Batch::from([Operation::Release(Release::new(key, token))]);
    let places = quorum.ledger().places();
    nodes[2].is_silent(true);
    let _asking = Asking::begin(&quorum, &acquire);
    let mut ballot = Ballot::new(acquire.clone(), 3, 0);
    for node in 0..3 {
        let request = quorum.ask(node, places, &acquire, None);
        ballot.vote(node, request.await);
    }
    assert_eq!(ballot.certainty(), Certainty::Open, "two have it, and do not count alike");
    quorum.clone().call(release).await.unwrap();
    assert!(quorum.write_backs(&mut ballot, places).is_empty(), "nobody would release it");
    assert_eq!(ballot.certainty(), Certainty::Sure, "but it is not a lease");
    assert!(!matches!(ballot.answer().map(Answer::single), Ok(Ok(Outcome::Held { .. }))));
    assert!(!nodes[0].has("k").await && !nodes[1].has("k").await);
}

#[tokio::test(start_paused = true)]
async fn a_token_that_was_released_is_not_acquired_by_a_later_part_of_its_call() {
    let nodes = nodes::<3>();
    nodes.iter().for_each(|node| node.slow.store(10, Ordering::Relaxed));
    let quorum = quorum(&nodes).quorum;
    let key = |name: &str| LockKey::new(name).unwrap();
    let [first, ours, next] = [1, 2, 3].map(Token::from_random);
    let acquire = |name: &str, token| Operation::Acquire(Acquire::new(key(name), token, TTL));
    let release = |name: &str, token| Operation::Release(Release::new(key(name), token));
    let parts = [acquire("a", first), release("a", first), acquire("b", ours), acquire("c", next)];
    let call = tokio::spawn(quorum.clone().call(parts.into_iter().collect()));
    tokio::time::sleep(Duration::from_millis(5)).await;
    let released = tokio::spawn(quorum.clone().call(Batch::from([release("b", ours)])));
    tokio::time::sleep(Duration::from_millis(6)).await;
    assert!(!nodes[0].has("b").await && nodes[0].has("c").await, "the second part has left");
    let outcomes = call.await.unwrap().unwrap().outcomes;
    assert!(matches!(outcomes[..3], [Ok(Outcome::Held { .. }), Ok(Outcome::Released), Err(_)]), "{outcomes:?}");
    assert!(outcomes[2].as_ref().is_err_and(|error| !error.may_have_happened()));
    assert!(matches!(outcomes[3..], [Ok(Outcome::Held { .. })]), "{outcomes:?}");
    assert!(matches!(released.await.unwrap().and_then(Answer::single), Ok(Outcome::Gone)));
}

#[tokio::test(start_paused = true)]
async fn keys_are_listed_where_a_majority_has_them_and_released_by_force() {
    let nodes = nodes::<3>();
    let manager = manager(&nodes);
    let one = manager.lock("a:1").await.unwrap();
    let stray = manager_of_one(&nodes[1]).lock("a:2").await.unwrap();
    assert!(!manager.inspect("a:2").await.unwrap().is_locked(), "one node is not a majority");
    assert_eq!(manager.force_release_all("a:").await.unwrap(), 1);
    assert!(!one.is_held() && stray.is_held());
    let one = manager.lock("a:1").await.unwrap();
    nodes[0].is_silent(true);
    assert!(manager.inspect("a:1").await.unwrap().is_locked());
    assert!(manager.inspect("a:2").await.unwrap().is_locked(), "with the one that is silent it may be");
    let error = manager.force_release("a:1").await.unwrap_err();
    assert!(error.to_string().contains("1 of 3 nodes failed"), "it may have it, and be told later: {error}");
    drop(one);
}

fn manager_of_one(node: &Node) -> LockManager {
    LockManager::builder().backend(node.clone()).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_taken_up_leaves_nothing_on_a_node_that_has_missed_it() {
    let nodes = nodes::<3>();
    let (from, to) = (manager(&nodes), manager(&nodes));
    let handover = from.lock("k").ttl(TTL * 20).await.unwrap().hand_over().unwrap();
    nodes[2].is_silent(true);
    let taken = to.take_up(handover).await.unwrap();
    nodes[2].is_silent(false);
    tokio::time::sleep(TTL * 10).await;
    taken.release().await.unwrap();
    a_while().await;
    assert!(!nodes[2].has("k").await, "the former token would be there for ten more");
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_handed_over_once() {
    let nodes = nodes::<3>();
    let (from, to) = (manager(&nodes), manager(&nodes));
    for is_silent in [false, true] {
        let guard = from.lock("k").await.unwrap();
        let first = guard.fencing_token();
        let handover = guard.hand_over().unwrap();
        nodes[2].is_silent(is_silent);
        let taken = to.take_up(handover.clone()).await.unwrap();
        assert!(taken.fencing_token() > first);
        nodes[2].is_silent(false);
        // The node that did not hear of it is told that the former token is over.
        a_while().await;
        assert_eq!(from.take_up(handover).await.unwrap_err().kind(), ErrorKind::NotHeld);
        assert!(taken.is_held());
        taken.release().await.unwrap();
        a_while().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_a_majority_has_lost_is_not_held_though_another_node_is_silent() {
    for is_downgraded in [true, false] {
        let nodes = nodes::<3>();
        let (from, to) = (manager(&nodes), manager(&nodes));
        let guard = from.lock("k").ttl(TTL * 1_000).fixed().await.unwrap();
        nodes[..2].iter().for_each(Node::restart_empty);
        nodes[2].stop();
        let (kind, wanted) = match is_downgraded {
            true => (guard.downgrade().await.unwrap_err().kind(), ErrorKind::Lost(LossReason::Taken)),
            false => (to.take_up(guard.hand_over().unwrap()).await.unwrap_err().kind(), ErrorKind::NotHeld),
        };
        assert_eq!(kind, wanted);
        nodes[2].go_on();
        tokio::time::sleep(TTL).await;
        assert!(!nodes[2].has("k").await, "downgraded: {is_downgraded}; it was taken there, and is released");
    }
}
