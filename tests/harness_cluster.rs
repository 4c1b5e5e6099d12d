//! The harness of clusters itself: if this fails, look here first.

use std::net::TcpStream;

use lock_tests::{Cluster, RawClient, Reply, SOON, cluster::slot_of, eventually, ms};
use tokio::time::{Instant, timeout};

#[tokio::test]
async fn killed_primary_of_a_slot_is_replaced_with_what_was_replicated() {
    let mut cluster = Cluster::start().await;
    let slot = slot_of("k");
    let first = cluster.primary_of(slot).await;
    assert_eq!(cluster.call_on(slot, &["SET", "k", "v"]).await, ok());
    eventually(SOON, "the key is replicated", async || cluster.is_replicated(slot).await).await;
    cluster.node_mut(first).stop();
    let after = cluster.await_failover(slot, first, Instant::now()).await;
    println!("another primary {} ms after the death of the first", after.as_millis());
    assert_eq!(cluster.primary_of(slot).await, first + 3);
    assert_eq!(cluster.call_on(slot, &["GET", "k"]).await.text().as_deref(), Some("v"));
    cluster.node_mut(first).start_again().await;
    cluster.await_whole().await;
    assert_eq!(cluster.primary_of(slot).await, first + 3);
}

#[tokio::test]
async fn primary_that_goes_on_after_its_failover_loses_what_reached_no_replica() {
    let cluster = Cluster::start().await;
    let slot = slot_of("k");
    let first = cluster.primary_of(slot).await;
    cluster.stop_replication(slot).await;
    assert_eq!(cluster.call_on(slot, &["SET", "k", "v"]).await, ok());
    assert!(!cluster.is_replicated(slot).await);
    cluster.node(first).pause();
    cluster.await_failover(slot, first, Instant::now()).await;
    assert!(cluster.call_on(slot, &["GET", "k"]).await.is_nil());
    cluster.node(first).resume();
    assert_eq!(cluster.primary_of(slot).await, first + 3);
}

#[tokio::test]
async fn slot_moves_step_by_step_and_at_once() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let slot = slot_of("{t}");
    let from = cluster.primary_of(slot).await;
    let to = (from + 1) % 3;
    for key in ["{t}a", "{t}b", "{t}c"] {
        assert_eq!(cluster.call_on(slot, &["SET", key, "v"]).await, ok());
    }
    cluster.begin_migration(slot, to).await;
    assert_eq!(cluster.primary_of(slot).await, from);
    cluster.move_key("{t}b").await;
    let (asked, moved) = (format!("ASK {slot} "), format!("MOVED {slot} "));
    assert_eq!(cluster.node(from).call(&["GET", "{t}a"]).await.text().as_deref(), Some("v"));
    assert!(says(&cluster.node(from).call(&["GET", "{t}b"]).await, &(asked + &cluster.addresses()[to])));
    assert!(says(&cluster.node(to).call(&["GET", "{t}b"]).await, &(moved.clone() + &cluster.addresses()[from])));
    assert_eq!(cluster.move_keys(slot).await, 2);
    cluster.end_migration(slot).await;
    assert_eq!(cluster.primary_of(slot).await, to);
    for other in [from, (from + 2) % 3] {
        assert!(says(&cluster.node(other).call(&["GET", "{t}a"]).await, &(moved.clone() + &cluster.addresses()[to])));
    }
    cluster.migrate(slot, from).await;
    assert_eq!(cluster.primary_of(slot).await, from);
    assert_eq!(cluster.keys("*").await, ["{t}a", "{t}b", "{t}c"]);
}

#[tokio::test]
async fn cluster_asks_for_its_password_and_a_failover_by_hand_works_all_the_same() {
    let cluster = Cluster::builder().password("p@ss").start().await;
    let url = cluster.url();
    assert!(url.starts_with("redis+cluster://:p%40ss@127.0.0.1:"), "{url}");
    assert!(url.ends_with(&format!(",{}", cluster.addresses()[5])), "{url}");
    for address in cluster.addresses() {
        let mut stranger = RawClient::tcp(&address).await.unwrap();
        assert!(says(&stranger.call(&["PING"]).await.unwrap(), "NOAUTH"));
    }
    let slot = slot_of("k");
    cluster.call_on(slot, &["SET", "k", "v"]).await;
    let first = cluster.primary_of(slot).await;
    cluster.migrate(slot, (first + 1) % 3).await;
    let from = cluster.primary_of(slot).await;
    assert_eq!(cluster.call_on(slot, &["GET", "k"]).await.text().as_deref(), Some("v"));
    let replicas = cluster.replicas_of(from).await;
    assert_eq!(replicas, [from + 3]);
    let start = Instant::now();
    assert!(timeout(ms(100), cluster.await_failover(slot, from, start)).await.is_err());
    cluster.failover(replicas[0]).await;
    cluster.await_failover(slot, from, start).await;
    assert_eq!(cluster.primary_of(slot).await, replicas[0]);
}

#[tokio::test]
async fn cluster_without_full_coverage_goes_on_and_nothing_is_there_after_drop() {
    let mut cluster = Cluster::builder().replicas(0).without_full_coverage().start().await;
    for key in ["", "k", "{}", "a{b}c", "a{}{b}", "a{b", "{0}lock-core:fence", "ä{ö}ü"] {
        let slot = cluster.node(0).call(&["CLUSTER", "KEYSLOT", key]).await.integer();
        assert_eq!(slot, Some(slot_of(key).into()), "{key:?}");
    }
    for key in ["{0}lock-core:fence", "{a}lock-core:waiting", "{a}lock-core:queue:k", "k"] {
        cluster.call_on(slot_of(key), &["SET", key, "v"]).await;
    }
    assert_eq!(cluster.left().await, ["k", "{a}lock-core:queue:k"]);
    let gone = cluster.primary_of(slot_of("k")).await;
    let all: Vec<_> = cluster.nodes().iter().map(|node| (node.address(), node.folder().to_owned())).collect();
    cluster.node_mut(gone).stop();
    let other = (gone + 1) % 3;
    eventually(SOON, "the node is found down", async || {
        let seen = cluster.node(other).call(&["CLUSTER", "INFO"]).await.text().unwrap();
        !seen.contains("cluster_slots_ok:16384")
    })
    .await;
    let seen = cluster.node(other).call(&["CLUSTER", "INFO"]).await.text().unwrap();
    assert!(seen.contains("cluster_state:ok"), "{seen}");
    drop(cluster);
    for (address, folder) in all {
        assert!(TcpStream::connect(address).is_err());
        assert!(!folder.exists());
    }
}

fn says(answer: &Reply, prefix: &str) -> bool {
    matches!(answer, Reply::Error(text) if text.starts_with(prefix))
}

fn ok() -> Reply {
    Reply::Status("OK".to_owned())
}
