//! A node that answers, but much later than the others: locks per second of virtual time, which no machine makes slower.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{task::JoinSet, time::Instant};

use super::nodes::{LIMIT, TTL, a_while, manager, nodes, quorum};
use crate::{
    LockManager,
    backend::{Acquire, Answer, Backend, Batch, Operation, Outcome, Release, Token},
    key::LockKey,
};

/// How long the answers of a node take that is not slow, in ms. (Requests are executed at once, also if nobody waits for the answer.)
const WAY: u64 = 1;
/// How long a holder works on a key that others want: so long that a second round trip for a fencing token matters little.
const HOLDS: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_millis(10);

/// Locks and releases in virtual time by four processes on one key, or by one on four keys, if the answers of one node take `late` ms, and
/// those of the others `way`; and the time below which 99 of 100 acquires stay. (Within a process a key is passed on in no time.)
async fn pairs<const N: usize>(way: u64, node: usize, late: u64, contended: bool) -> (usize, Duration) {
    let nodes = nodes::<N>();
    nodes.iter().for_each(|node| node.slow.store(way, Ordering::Relaxed));
    nodes[node].slow.store(late, Ordering::Relaxed);
    let mut tasks = JoinSet::new();
    // The first requests find out which node is slow. Until shortly before it counts, a process pauses after each.
    let (warms_for, counts_for) = if contended { (12_000, 1_000) } else { (4_000, 300) };
    let warm = Instant::now() + Duration::from_millis(warms_for);
    let (pauses_until, end) = (warm - Duration::from_millis(200), warm + Duration::from_millis(counts_for));
    let managers = [(); 4].map(|()| manager(&nodes));
    for process in 0..4 {
        let (manager, key) = match contended {
            true => (managers[process].clone(), "k".to_owned()),
            // Several processes would count apart at times, and take a second round trip.
            false => (managers[0].clone(), format!("k{process}")),
        };
        tasks.spawn(async move {
            let mut took = Vec::new();
            while Instant::now() < end {
                let begun = Instant::now();
                let guard = manager.lock(&key).wait(TTL * 100).await.unwrap();
                took.extend((begun >= warm).then(|| begun.elapsed()));
                if contended {
                    tokio::time::sleep(HOLDS).await;
                }
                guard.release().await.unwrap();
                if begun < pauses_until {
                    tokio::time::sleep(PAUSE).await;
                }
            }
            took
        });
    }
    let mut took: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    took.sort_unstable();
    (took.len(), took[took.len() * 99 / 100])
}

/// Some nodes of `N` in turn answer late: the first, which keeps the queue, its deputy, and the last. The quorum is as fast as without a
/// late node.
async fn a_late_node_costs_little<const N: usize>(way: u64) {
    for contended in [false, true] {
        let (usual, usual_p99) = pairs::<N>(way, 0, way, contended).await;
        for (node, late) in [0, 1, N - 1].into_iter().flat_map(|node| [(node, 30), (node, 300)]) {
            let (with, p99) = pairs::<N>(way, node, late, contended).await;
            let case = format!("node {node} of {N} answers {late} ms late, contended: {contended}");
            println!("{case}: {with} of {usual} pairs, p99 {p99:?} of {usual_p99:?}");
            assert!(with * 10 >= usual * 8, "{case}: {with} of {usual} pairs");
            assert!(p99 <= usual_p99 * 2, "{case}: {p99:?} of {usual_p99:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn three_nodes_are_as_fast_as_the_fastest_two() {
    a_late_node_costs_little::<3>(WAY).await;
}

#[tokio::test(start_paused = true)]
async fn three_nodes_that_are_further_away_are_as_fast_as_the_fastest_two() {
    a_late_node_costs_little::<3>(3 * WAY).await;
}

#[tokio::test(start_paused = true)]
async fn five_nodes_are_as_fast_as_the_fastest_three() {
    a_late_node_costs_little::<5>(WAY).await;
}

/// Locks and releases until it is known which node is slow.
async fn compares(manager: &LockManager) {
    for _ in 0..20 {
        manager.lock("other").await.unwrap().release().await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_quick_again_keeps_the_queue_again() {
    let nodes = nodes::<3>();
    let quorum = quorum(&nodes);
    let ledger = Arc::clone(&quorum.quorum);
    let manager = LockManager::builder().backend(quorum).build().unwrap();
    let queue_node = || ledger.ledger().places().queue_node;
    compares(&manager).await;
    assert_eq!(queue_node(), 0);
    nodes[0].slow.store(300, Ordering::Relaxed);
    manager.lock("k").await.unwrap().release().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(queue_node(), 0, "it was heard, and one late answer says no more");
    for _ in 0..3 {
        compares(&manager).await;
        assert_eq!(queue_node(), 1);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(queue_node(), 1, "it answers, but later than the others");
    }
    nodes[0].slow.store(0, Ordering::Relaxed);
    manager.lock("k").await.unwrap().release().await.unwrap();
    a_while().await;
    assert_eq!(queue_node(), 0);
}

/// A waiter between two holders has nothing at the late node, so the next lease counts there, too.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_waited_for_outlives_another_node_than_the_late_one() {
    let nodes = nodes::<3>();
    nodes.iter().for_each(|node| node.slow.store(WAY, Ordering::Relaxed));
    nodes[2].slow.store(100, Ordering::Relaxed);
    let [first, second, third] = [manager(&nodes), manager(&nodes), manager(&nodes)];
    for manager in [&first, &second, &third] {
        compares(manager).await;
    }
    let guard = first.lock("k").await.unwrap();
    let mut waiting = Vec::new();
    for manager in [&second, &third] {
        let manager = manager.clone();
        waiting.push(tokio::spawn(async move { manager.lock("k").wait(TTL * 100).await.unwrap() }));
        a_while().await;
    }
    tokio::time::sleep(TTL).await;
    guard.release().await.unwrap();
    let guard = waiting.remove(0).await.unwrap();
    tokio::time::sleep(TTL).await;
    nodes[0].is_silent(true);
    tokio::time::sleep(TTL * 3).await;
    assert!(guard.is_held(), "two of three have it");
}

/// Another node has lost the lease, so the late one decides. (The search of the simulation found that it was not waited for.)
#[tokio::test(start_paused = true)]
async fn a_renewal_that_needs_the_late_node_waits_for_it() {
    let nodes = nodes::<3>();
    nodes.iter().for_each(|node| node.slow.store(WAY, Ordering::Relaxed));
    nodes[2].slow.store(100, Ordering::Relaxed);
    let manager = manager(&nodes);
    compares(&manager).await;
    let mut guard = manager.lock("k").ttl(TTL * 10).await.unwrap();
    tokio::time::sleep(LIMIT * 2).await;
    nodes[0].restart_empty();
    guard.extend(TTL * 10).await.unwrap();
    assert!(guard.is_held(), "two of three have it");
}

/// One of the others was away when the lease began, and it has no renewals that would put it back there.
#[tokio::test(start_paused = true)]
async fn a_lease_that_goes_on_by_another_token_waits_for_the_late_node() {
    for is_downgraded in [true, false] {
        let nodes = nodes::<3>();
        nodes.iter().for_each(|node| node.slow.store(WAY, Ordering::Relaxed));
        nodes[2].slow.store(100, Ordering::Relaxed);
        let [manager, other] = [manager(&nodes), manager(&nodes)];
        for manager in [&manager, &other] {
            compares(manager).await;
        }
        nodes[0].is_silent(true);
        let guard = manager.lock("k").ttl(TTL * 100).fixed().await.unwrap();
        nodes[0].is_silent(false);
        tokio::time::sleep(LIMIT * 2).await;
        let next = match is_downgraded {
            true => guard.downgrade().await,
            false => other.take_up(guard.hand_over().unwrap()).await,
        };
        assert!(next.unwrap().is_held(), "downgraded: {is_downgraded}; two of three have it");
    }
}

/// A token that nobody releases keeps one of the others from everybody.
#[tokio::test(start_paused = true)]
async fn a_key_is_had_by_the_late_node_where_another_one_keeps_it_from_all() {
    for node in [0, 1] {
        let nodes = nodes::<3>();
        nodes.iter().for_each(|node| node.slow.store(WAY, Ordering::Relaxed));
        nodes[2].slow.store(100, Ordering::Relaxed);
        let manager = manager(&nodes);
        compares(&manager).await;
        let key = LockKey::new("k").unwrap();
        let left = Operation::Acquire(Acquire::new(key, Token::from_random(7), TTL * 1_000));
        nodes[node].store().call(Batch::from([left])).await.unwrap();
        let guard = manager.lock("k").wait(TTL * 20).await.unwrap();
        assert!(guard.is_held());
    }
}

/// The others are against an acquire, which a node would have to count further for; that node stops, and a release in the same call does
/// not wait for it.
#[tokio::test(start_paused = true)]
async fn a_release_that_is_in_flight_when_a_node_fails_is_answered_by_the_others() {
    let nodes = nodes::<3>();
    nodes[1].far.store(1, Ordering::Relaxed);
    let quorum = quorum(&nodes).quorum;
    let key = |key: &str| LockKey::new(key).unwrap();
    let [ours, theirs, next] = [1, 2, 3].map(Token::from_random);
    let acquire = |name: &str, token| Operation::Acquire(Acquire::new(key(name), token, TTL));
    nodes[2].store().call(Batch::from([acquire("busy", theirs)])).await.unwrap();
    for node in &nodes {
        node.store().call(Batch::from([acquire("ours", ours)])).await.unwrap();
    }
    let release = Operation::Release(Release::new(key("ours"), ours));
    let call = tokio::spawn(quorum.call(Batch::from_vec(vec![release, acquire("busy", next)])));
    let begun = Instant::now();
    // The first node has answered, and the second one has not, which counts from a later time.
    tokio::time::sleep(Duration::from_micros(500)).await;
    nodes[0].stop();
    let answer: Answer = call.await.unwrap().unwrap();
    assert!(begun.elapsed() < Duration::from_millis(20), "{:?}", begun.elapsed());
    assert_eq!(answer.outcomes[0].as_ref().unwrap(), &Outcome::Released);
    assert!(matches!(answer.outcomes[1], Ok(Outcome::Split { .. })), "{:?}", answer.outcomes[1]);
}
