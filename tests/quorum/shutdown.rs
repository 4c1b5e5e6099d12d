//! How long it takes to shut a manager down while a server does not answer.

use std::time::Instant;

use lock_tests::figure;

use super::*;

/// How long a request to one node may take here: longer than what is measured, with all that a busy machine adds.
const SLOW_LIMIT: Duration = Duration::from_secs(3);
/// The ttl of leases that are released long before it is over, and after which nothing is in doubt.
const ENDS: Duration = Duration::from_secs(10);
/// How long a shutdown takes that waits for no limit: some milliseconds, and what a busy machine may take longer.
const AT_ONCE: Duration = ms(750);

/// Why a node does not answer.
#[derive(Clone, Copy, Debug)]
enum Node {
    Killed,
    Stopped,
    /// It was asked since, in vain.
    KnownToBeStopped,
}

/// Shuts a manager down that holds two leases, and tells how long that took.
async fn shut_down(nodes: &mut Nodes, node: Node) -> Duration {
    let manager = LockManager::builder().quorum(nodes.urls()).command_timeout(SLOW_LIMIT).client_name("ends");
    let manager = manager.build().expect("a sound quorum");
    let mut guards = Vec::new();
    for key in ["a", "b"] {
        guards.push(manager.lock(key).ttl(ENDS).await.expect("free"));
        eventually(SOON, "all have it", async || nodes.having(key).await == 3).await;
    }
    match node {
        Node::Killed => nodes.servers[1].stop(),
        Node::Stopped | Node::KnownToBeStopped => nodes.servers[1].pause(),
    }
    if let Node::KnownToBeStopped = node {
        manager.lock("c").ttl(ENDS).await.expect("free").release().await.expect("held");
        eventually(SOON, "it is known to be down", async || {
            manager.health().nodes().iter().filter(|node| node.is_up()).count() == 2
        })
        .await;
    }
    let begun = Instant::now();
    assert_eq!(manager.shutdown(Duration::ZERO).await, 2);
    let took = begun.elapsed();
    // A majority has released.
    for node in [0, 2] {
        assert_eq!(nodes.servers[node].call(&["EXISTS", "a", "b", "c"]).await.integer(), Some(0));
    }
    took
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_node_that_is_known_to_be_down() {
    let mut nodes = Nodes::start(3).await;
    for node in [Node::Killed, Node::KnownToBeStopped] {
        let took = shut_down(&mut nodes, node).await;
        figure(18, &format!("shutdown, one node {node:?}"), took);
        assert!(took < AT_ONCE, "{node:?}: {took:?}");
        match node {
            Node::Killed => nodes.servers[1].start_again().await,
            Node::Stopped | Node::KnownToBeStopped => nodes.servers[1].resume(),
        }
        // What it has is released when it is back, long before its ttl is over.
        nodes.are_clean(ENDS / 2).await;
        eventually(SOON, "the connections are closed", async || {
            nodes.servers[0].client_list().await.iter().all(|client| client.name() != "ends")
        })
        .await;
    }
}

#[tokio::test]
async fn a_shutdown_waits_for_a_node_that_has_just_stopped_for_one_limit_at_most() {
    let mut nodes = Nodes::start(3).await;
    let took = shut_down(&mut nodes, Node::Stopped).await;
    figure(18, "shutdown, one node stopped just before", took);
    assert!(took > SLOW_LIMIT * 9 / 10, "it may answer yet: {took:?}");
    assert!(took < SLOW_LIMIT + AT_ONCE, "{took:?}");
    nodes.servers[1].resume();
    nodes.are_clean(ENDS / 2).await;
}
