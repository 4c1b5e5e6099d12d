//! Places of waiters while a node hangs, and the meaning of grants of single nodes.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::{sync::mpsc, task::JoinSet, time::Instant};

use super::nodes::{LIMIT, Node, TTL, a_while, manager, nodes, quorum};
use crate::{
    LockManager,
    backend::{
        Acquire, Answer, Backend, Batch, Calls, Notice, Operation, Outcome, Place, QuorumBackend, Release, Token,
    },
    clock::Moment,
    key::LockKey,
    mode::Mode,
};

const WAITERS: usize = 5;
/// From a release to the next holder while a node hangs: some waits for it, and no check.
const HANDOFF: Duration = Duration::from_millis(30);

/// Waiters of as many managers, one after the other; every other one is a reader if `mixed`.
async fn line_up(nodes: &[Node], mixed: bool) -> (JoinSet<()>, mpsc::UnboundedReceiver<(usize, Instant)>) {
    let (mut waiters, (sender, served)) = (JoinSet::new(), mpsc::unbounded_channel());
    for number in 0..WAITERS {
        let (manager, sender) = (manager(nodes), sender.clone());
        waiters.spawn(async move {
            let request = manager.lock("k").wait(TTL * 100);
            let guard = if mixed && number % 2 == 1 { request.shared() } else { request }.await.unwrap();
            sender.send((number, Instant::now())).unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
            guard.release().await.unwrap();
        });
        a_while().await;
    }
    (waiters, served)
}

#[tokio::test(start_paused = true)]
async fn waiters_keep_their_places_and_are_called_while_any_one_node_hangs() {
    for (hung_for, mixed) in [0, 700, 10_000].into_iter().flat_map(|time| [(time, false), (time, true)]) {
        for hangs in 0..3 {
            let nodes = nodes::<3>();
            let guard = manager(&nodes).lock("k").await.unwrap();
            let (mut waiters, mut served) = line_up(&nodes, mixed).await;
            nodes[hangs].stop();
            tokio::time::sleep(Duration::from_millis(hung_for)).await;
            let mut last = Instant::now();
            guard.release().await.unwrap();
            for expected in 0..WAITERS {
                let (number, at) = served.recv().await.unwrap();
                assert_eq!(number, expected, "node {hangs} hung for {hung_for} ms before, mixed: {mixed}");
                assert!(at - last <= HANDOFF, "{:?}, node {hangs} hung for {hung_for} ms before", at - last);
                last = at;
            }
            while waiters.join_next().await.is_some() {}
            nodes[hangs].go_on();
            tokio::time::sleep(LIMIT * 4).await;
            assert!(!nodes[hangs].has("k").await, "and nothing is left");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_behind_a_writer_keeps_its_place_though_most_nodes_do_not_know_of_the_writer() {
    let nodes = nodes::<5>();
    let reading = manager(&nodes).lock("k").shared().await.unwrap();
    let (sender, mut served) = mpsc::unbounded_channel();
    let mut waiters = JoinSet::new();
    for (number, shares) in [false, true, true, false, true].into_iter().enumerate() {
        let (manager, sender) = (manager(&nodes), sender.clone());
        waiters.spawn(async move {
            let request = manager.lock("k").wait(TTL * 100);
            let guard = if shares { request.shared() } else { request }.await.unwrap();
            sender.send(number).unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
            guard.release().await.unwrap();
        });
        a_while().await;
    }
    // Each has asked again several times.
    tokio::time::sleep(TTL * 2).await;
    let released = Instant::now();
    reading.release().await.unwrap();
    let mut order = Vec::new();
    while let Some(number) = served.recv().await {
        order.push(number);
        if order.len() == 5 {
            break;
        }
    }
    order[1..3].sort_unstable();
    assert_eq!(order, [0, 1, 2, 3, 4], "in the order in which they came, and the two readers together");
    assert!(
        released.elapsed() < Duration::from_millis(50 * 3 + 30),
        "nobody waits for a check: {:?}",
        released.elapsed()
    );
    while let Some(done) = waiters.join_next().await {
        done.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn readers_get_a_key_that_only_the_queue_node_says_is_held() {
    for count in [3, 5] {
        let nodes = nodes::<5>();
        let nodes = &nodes[..count];
        let of_one = LockManager::builder().backend(nodes[0].clone()).build().unwrap();
        let _stray = of_one.lock("k").await.unwrap();
        let (one, two) = (manager(nodes), manager(nodes));
        let lock = |manager: &LockManager| manager.lock("k").shared().wait(TTL);
        let guards = tokio::join!(lock(&one), lock(&one), lock(&two));
        assert!(guards.0.is_ok() && guards.1.is_ok() && guards.2.is_ok(), "{guards:?}, {count} nodes");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_whose_request_a_node_executed_late_keeps_nobody_from_that_node() {
    let nodes = nodes::<3>();
    nodes[2].is_silent(true);
    let writing = manager(&nodes).lock("k").await.unwrap();
    nodes[2].is_silent(false);
    nodes[2].stop();
    let reader = manager(&nodes);
    let reading = tokio::spawn(async move { reader.lock("k").shared().ttl(TTL * 20).wait(TTL * 100).await });
    a_while().await;
    nodes[2].go_on();
    tokio::time::sleep(TTL).await;
    let key = LockKey::new("k").unwrap();
    let said = nodes[2].call(Batch::from([Operation::Inspect { key }])).await.unwrap().single();
    assert!(matches!(said, Ok(Outcome::Busy { .. })), "the writer's lease is put back there: {said:?}");
    nodes[0].is_silent(true);
    tokio::time::sleep(TTL * 2).await;
    assert!(writing.is_held(), "two of three have it");
    nodes[0].is_silent(false);
    writing.release().await.unwrap();
    assert!(reading.await.unwrap().is_ok());
}

/// The acquire of a share, with a place.
fn reads(token: Token) -> Operation {
    let place = Place::new("ours".into(), TTL, TTL, Moment::from_origin(Duration::ZERO));
    Operation::Acquire(Acquire::new(LockKey::new("k").unwrap(), token, TTL).or_wait(place))
}

fn shared() -> Token {
    Token::from_random(1).in_mode(Mode::Shared)
}

#[tokio::test(start_paused = true)]
async fn a_reader_gets_a_key_though_the_queue_node_hangs_and_the_others_are_slow() {
    let nodes = nodes::<3>();
    nodes[0].stop();
    nodes[1..].iter().for_each(|node| node.slow.store(20, Ordering::Relaxed));
    let begun = Instant::now();
    let said = quorum(&nodes).call(Batch::from([reads(shared())])).await.unwrap().single();
    assert!(matches!(said, Ok(Outcome::Held { .. })), "{said:?}");
    assert!(begun.elapsed() < LIMIT, "it waits for the queue node no longer than for any other: {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_asked_in_turn_has_as_long_to_answer_as_any() {
    let nodes = nodes::<3>();
    [0, 2].iter().for_each(|node: &usize| nodes[*node].slow.store(4, Ordering::Relaxed));
    let of_deputy = LockManager::builder().backend(nodes[1].clone()).build().unwrap();
    let _stray = of_deputy.lock("k").await.unwrap();
    let quorum = quorum(&nodes);
    for node in 0..nodes.len() {
        quorum.quorum.ledger().listens(node, true);
    }
    let said = quorum.call(Batch::from([reads(shared())])).await.unwrap().single();
    assert!(matches!(said, Ok(Outcome::Held { .. })), "it was asked late, and did not answer late: {said:?}");
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_is_released_before_its_turn_is_asked_for_nowhere_else() {
    let nodes = nodes::<3>();
    nodes[0].slow.store(3, Ordering::Relaxed);
    let quorum = quorum(&nodes).quorum;
    let asking = tokio::spawn(quorum.clone().call(Batch::from([reads(shared())])));
    tokio::time::sleep(Duration::from_millis(1)).await;
    let release = Release::new(LockKey::new("k").unwrap(), shared());
    quorum.call(Batch::from([Operation::Release(release)])).await.unwrap();
    let said = asking.await.unwrap().map(Answer::single);
    assert!(!matches!(said, Ok(Ok(Outcome::Held { .. }))), "{said:?}");
    a_while().await;
    for node in &nodes {
        assert!(!node.has("k").await, "nobody would release it");
    }
}

/// A node grants the key to a place of this process: when the engine is told, and whether it is the turn of the waiter.
async fn grant_of_a_node(quorum: &QuorumBackend, node: &Node) -> (Duration, bool) {
    let (calls, mut notices) = Calls::new("ours".into());
    let _driver = tokio::spawn(quorum.driver(calls));
    a_while().await;
    let (key, [holder, ours]) = (LockKey::new("k").unwrap(), [1, 2].map(Token::from_random));
    let place = Place::new("ours".into(), TTL, TTL, Moment::from_origin(Duration::ZERO));
    let store = node.store();
    store.call(Batch::from([Operation::Acquire(Acquire::new(key.clone(), holder, TTL))])).await.unwrap();
    store.call(Batch::from([Operation::Acquire(Acquire::new(key.clone(), ours, TTL).or_wait(place))])).await.unwrap();
    store.call(Batch::from([Operation::Release(Release::new(key.clone(), holder))])).await.unwrap();
    let released = Instant::now();
    let told = async {
        loop {
            if let Notice::Granted(grant) = notices.recv().await.unwrap() {
                return grant;
            }
        }
    };
    let grant = tokio::time::timeout(LIMIT, told).await.expect("the engine is told of every grant");
    assert_eq!(grant.token, ours);
    (released.elapsed(), !grant.out_of_turn)
}

#[tokio::test(start_paused = true)]
async fn a_waiter_comes_when_any_node_grants_it_the_key_unless_another_has_it_at_the_queue_node() {
    let nodes = nodes::<3>();
    assert_eq!(grant_of_a_node(&quorum(&nodes), &nodes[0]).await, (Duration::ZERO, true), "it decides");
    for other in 1..3 {
        let nodes = super::nodes::nodes::<3>();
        assert_eq!(grant_of_a_node(&quorum(&nodes), &nodes[other]).await, (Duration::ZERO, true), "free there");
        let nodes = super::nodes::nodes::<3>();
        let node = LockManager::builder().backend(nodes[0].clone()).build().unwrap();
        let _guard = node.lock("k").await.unwrap();
        assert_eq!(grant_of_a_node(&quorum(&nodes), &nodes[other]).await, (Duration::ZERO, false), "another has it");
        let nodes = super::nodes::nodes::<3>();
        let node = LockManager::builder().backend(nodes[0].clone()).build().unwrap();
        let _guard = node.lock("k").shared().await.unwrap();
        assert_eq!(grant_of_a_node(&quorum(&nodes), &nodes[other]).await, (Duration::ZERO, false), "others share it");
        let nodes = super::nodes::nodes::<3>();
        nodes[0].stop();
        let (told, in_turn) = grant_of_a_node(&quorum(&nodes), &nodes[other]).await;
        assert!(in_turn && told <= Duration::from_millis(6), "it is not waited for: {told:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn all_who_wait_ask_again_when_a_node_is_back_that_may_have_given_them_the_key() {
    for asks_meanwhile in [true, false] {
        let nodes = nodes::<3>();
        let _guard = manager(&nodes).lock("k").await.unwrap();
        a_while().await;
        let quorum = quorum(&nodes);
        let (calls, mut notices) = Calls::new("ours".into());
        let _driver = tokio::spawn(quorum.driver(calls));
        a_while().await;
        let place = Place::new("ours".into(), TTL, TTL, Moment::from_origin(Duration::ZERO));
        let acquire = Acquire::new(LockKey::new("k").unwrap(), Token::from_random(1), TTL).or_wait(place);
        let acquire = Batch::from([Operation::Acquire(acquire)]);
        quorum.call(acquire.clone()).await.unwrap();
        nodes[0].stop();
        let asked = if asks_meanwhile { acquire } else { Batch::new() };
        quorum.call(asked).await.unwrap();
        while notices.try_recv().is_ok() {}
        nodes[0].go_on();
        let told = tokio::time::timeout(LIMIT * 4, notices.recv()).await;
        assert_eq!(matches!(told, Ok(Some(Notice::Listening(true)))), asks_meanwhile, "{told:?}");
    }
}
