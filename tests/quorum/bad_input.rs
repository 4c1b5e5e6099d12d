//! The rows of bad input that are about quorums, on real servers. (34 and 36 need none: they are with the builder.)

use lock_core::ErrorKind;
use lock_tests::{eventually_some, free_port};

use super::*;

#[tokio::test]
async fn bad_input_35_a_quorum_of_one_is_that_server() {
    let nodes = Nodes::start(1).await;
    let (manager, other) = (nodes.manager("p0"), nodes.manager("p1"));
    let guard = manager.lock("k").ttl(LONG).await.unwrap();
    assert!(other.lock("k").try_acquire().await.unwrap().is_none());
    // As there, waiters are called.
    let waiting = tokio::spawn(async move { other.lock("k").wait(SOON).await.map(|guard| guard.fencing_token()) });
    eventually(SOON, "it has a place", async || {
        nodes.servers[0].call(&["EXISTS", "{0}lock-core:queue:k"]).await.integer() == Some(1)
    })
    .await;
    let first = guard.fencing_token();
    guard.release().await.unwrap();
    assert!(waiting.await.unwrap().unwrap() > first);
    nodes.are_clean().await;
}

#[tokio::test]
async fn bad_input_37_of_an_even_number_more_than_half_are_needed() {
    let mut nodes = Nodes::start(4).await;
    let (manager, other) = (nodes.manager("p0"), nodes.manager("p1"));
    nodes.servers[3].stop();
    let guard = manager.lock("k").ttl(LONG).await.expect("three of four are a majority");
    assert!(other.lock("k").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    nodes.servers[2].stop();
    let error = manager.lock("k").ttl(LONG).await.expect_err("two of four are none");
    assert_eq!(error.kind(), ErrorKind::Backend);
    let said = error.to_string();
    assert!(said.contains("2 of 4 nodes failed, and a lock needs 3"), "{said}");
    assert!(said.contains(&nodes.servers[3].address()) && said.contains(&nodes.servers[2].address()), "{said}");
    nodes.are_clean().await;
}

#[tokio::test]
async fn bad_input_38_a_replica_among_the_nodes_has_no_vote() {
    let mut nodes = Nodes::start(3).await;
    let primary = nodes.servers[0].port().to_string();
    nodes.servers[1].call(&["REPLICAOF", "127.0.0.1", &primary]).await;
    eventually(SOON, "it replicates", async || nodes.servers[1].info("master_link_status").await == "up").await;
    let manager = nodes.manager("p0");
    let guard = manager.lock("k").ttl(LONG).await.expect("the two others are a majority");
    assert_eq!(nodes.servers[2].call(&["EXISTS", "k"]).await.integer(), Some(1));
    guard.release().await.unwrap();
    // With one of the two gone, the replica does not make up for it, though it holds what its primary does.
    nodes.servers[2].stop();
    let error = manager.lock("k").ttl(LONG).await.expect_err("the replica's vote failed");
    assert_eq!(error.kind(), ErrorKind::Backend);
    let said = error.to_string();
    assert!(said.contains("2 of 3 nodes failed, and a lock needs 2"), "{said}");
    assert!(said.contains("is a replica"), "{said}");
    nodes.are_clean().await;
}

/// The URLs of servers, the first of which has another name, too.
fn with_a_second_name(nodes: &Nodes, further: Option<String>) -> Vec<String> {
    let port = nodes.servers[0].port();
    let names = [format!("redis://localhost:{port}"), format!("redis://127.0.0.1:{port}")];
    names.into_iter().chain(further).collect()
}

#[tokio::test]
async fn a_server_under_two_names_has_one_vote() {
    let nodes = Nodes::start(1).await;
    let urls = with_a_second_name(&nodes, Some(format!("redis://127.0.0.1:{}", free_port())));
    let builder =
        || LockManager::builder().quorum(&urls).command_timeout(LIMIT / 3).defaults(LeaseOptions::new().ttl(LONG));
    for _ in 0..3 {
        let error = builder().build().expect("three URLs").lock("k").await.expect_err("one server is no majority");
        assert!(error.to_string().contains("2 of 3 nodes failed, and a lock needs 2"), "{error}");
        assert!(error.to_string().contains("is the same server as node"), "{error}");
        nodes.are_clean().await;
    }
    let error = builder().connect().await.expect_err("nor does it connect");
    let cause = error.cause().expect("the details").to_string();
    assert!(cause.contains("is the same server as node"), "{cause}");
}

#[tokio::test]
async fn a_server_under_two_names_that_forgets_makes_no_second_holder() {
    let mut nodes = Nodes::start(2).await;
    let urls = with_a_second_name(&nodes, Some(nodes.servers[1].url()));
    let builder = || LockManager::builder().quorum(&urls).command_timeout(LIMIT);
    let error = builder().connect().await.expect_err("it is said at once");
    assert_eq!(error.cause().expect("the details").kind(), ErrorKind::Unsupported, "{error}");
    let manager = || builder().build().expect("three URLs");
    for _ in 0..3 {
        let (one, other) = (manager(), manager());
        let guard = one.lock("k").ttl(LONG).await.expect("two servers");
        nodes.servers[0].restart().await;
        let tried =
            eventually_some(SOON, "both servers answer", async || other.lock("k").try_acquire().await.ok()).await;
        assert!(tried.is_none(), "one server of two");
        assert!(guard.is_held());
        let _ = guard.release().await;
        nodes.are_clean().await;
    }
}

#[tokio::test]
async fn bad_input_39_the_databases_may_differ() {
    let nodes = Nodes::start(3).await;
    let urls: Vec<_> = nodes.urls().iter().enumerate().map(|(db, url)| format!("{url}/{db}")).collect();
    let manager = LockManager::builder().quorum(&urls).command_timeout(LIMIT).build().unwrap();
    let guard = manager.lock("k").ttl(LONG).await.unwrap();
    for (db, server) in nodes.servers.iter().enumerate() {
        let keyspace = |info: String| info.contains(&format!("db{db}:"));
        eventually(SOON, "each has it in its own database", async || {
            keyspace(server.call(&["INFO", "keyspace"]).await.text().unwrap_or_default())
        })
        .await;
    }
    guard.release().await.unwrap();
}
