//! How long it takes to shut a manager down while a server does not answer.

use std::time::Instant;

use lock_tests::{figure, within};

use super::*;

/// How long a request to one node may take that ends in vain.
const SLOW_LIMIT: Duration = Duration::from_secs(8);

/// Why a node does not answer.
#[derive(Clone, Copy, Debug)]
enum Node {
    Killed,
    Stopped,
    /// It was asked since, in vain.
    KnownToBeStopped,
}

/// Shuts a manager down that holds two leases, and tells how long that took: since the node stopped, if that was not known.
async fn shut_down(nodes: &mut Nodes, node: Node, limit: Duration, ttl: Duration) -> Duration {
    let manager = LockManager::builder().quorum(nodes.urls()).command_timeout(limit).client_name(name(node));
    let manager = manager.build().expect("a sound quorum");
    let mut guards = Vec::new();
    for key in ["a", "b"] {
        let mut guard = manager.lock(key).ttl(ttl).await.expect("free");
        // One that was late is asked again: the next renewal is far away.
        eventually(SOON, "all have it", async || {
            nodes.having(key).await == 3 || {
                guard.extend(ttl).await.expect("held");
                false
            }
        })
        .await;
        guards.push(guard);
    }
    let mut begun = Instant::now();
    match node {
        Node::Killed => nodes.servers[1].stop(),
        Node::Stopped | Node::KnownToBeStopped => nodes.servers[1].pause(),
    }
    if let Node::KnownToBeStopped = node {
        manager.lock("c").ttl(ttl).await.expect("free").release().await.expect("held");
        eventually(SOON, "it is known to be down", async || {
            manager.health().nodes().iter().filter(|node| node.is_up()).count() == 2
        })
        .await;
        begun = Instant::now();
    }
    assert_eq!(within(SOON, manager.shutdown(Duration::ZERO)).await, 2);
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
    // If it is killed, that is known long before a request to it ends. One that is stopped is known by a request that has ended: how
    // long a shutdown takes then is in `lock-core/src/backend/quorum/tests/shutdown.rs`, in virtual time.
    for (node, limit) in [(Node::Killed, LONG), (Node::KnownToBeStopped, SLOW_LIMIT)] {
        let took = shut_down(&mut nodes, node, limit, LONG).await;
        figure(18, &format!("shutdown, one node {node:?}"), took);
        match node {
            Node::Killed => nodes.servers[1].start_again().await,
            Node::Stopped | Node::KnownToBeStopped => nodes.servers[1].resume(),
        }
        // What it has is released when it is back.
        nodes.are_clean().await;
        // Nothing is in doubt when the server was started again, or has closed the former connection, which carried requests in vain.
        eventually(SOON, "the connections are closed", async || {
            nodes.servers[0].client_list().await.iter().all(|client| client.name() != name(node))
        })
        .await;
    }
}

/// The name of a manager that is shut down then.
fn name(node: Node) -> String {
    format!("ends-{node:?}")
}

#[tokio::test]
async fn a_shutdown_waits_for_a_node_that_has_just_stopped_for_one_limit() {
    let mut nodes = Nodes::start(3).await;
    let took = shut_down(&mut nodes, Node::Stopped, SLOW_LIMIT, LONG).await;
    figure(18, "shutdown, one node stopped just before", took);
    // A sign of life that it was asked for just before may be missed sooner.
    assert!(took > SLOW_LIMIT / 2, "it may answer yet: {took:?}");
    nodes.servers[1].resume();
    nodes.are_clean().await;
}
