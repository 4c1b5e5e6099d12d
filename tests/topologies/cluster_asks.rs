//! What a process says to the nodes of a cluster beside its batches: `ASKING` and `SSUBSCRIBE`. Retries hide a mistake, so these tests
//! count the commands at the nodes.

use lock_core::{ErrorKind, LockManager};

use crate::topologies::*;

/// Two nodes that do not agree: one sends the batch to the other, which sends it back. `ASK` holds for the next try alone, so each try
/// that was sent back goes to the node that has the slot, without `ASKING`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_16_a_node_is_asked_out_of_turn_once_for_each_time_that_another_says_so() {
    let cluster = Cluster::builder().replicas(0).node_timeout(SOON).start().await;
    let manager = LockManager::builder().url(cluster.url()).client_name("p1").command_timeout(LONG);
    let manager = manager.connect().await.expect("connects");
    let slot = slot_of("k").to_string();
    let from = cluster.primary_of(slot_of("k")).await;
    let (owner, other) = (cluster.node(from), cluster.node((from + 1) % 3));
    let id = other.call(&["CLUSTER", "MYID"]).await.text().expect("a node has an id");
    let ok = Reply::Status("OK".to_owned());
    // The other node is not told that it imports the slot.
    assert_eq!(owner.call(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id]).await, ok);
    let before = other.calls_of("asking").await;
    let tries = tokio::spawn(async move { manager.lock("k").ttl(LONG).try_acquire().await });
    eventually(SOON, "the batch has gone to and fro", async || other.errors_of("MOVED").await >= 3).await;
    assert_eq!(owner.call(&["CLUSTER", "SETSLOT", &slot, "STABLE"]).await, ok);
    let guard = within(SOON, tries).await.expect("no panic").expect("the nodes agree").expect("free");
    assert_eq!(other.calls_of("asking").await - before, owner.errors_of("ASK").await, "each because it was told to");
    assert_eq!(other.errors_of("MOVED").await, owner.errors_of("ASK").await, "and each was sent back");
    assert_eq!(owner.calls_of("asking").await, 0, "that node has the slot");
    guard.release().await.expect("held");
}

/// `ASKING` holds for one command. A node that does not have the script refuses that command, and the next one has the source.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_16_a_node_without_the_script_is_asked_out_of_turn_once_more() {
    let cluster = Cluster::builder().replicas(0).node_timeout(SOON).start().await;
    let manager = LockManager::builder().url(cluster.url()).client_name("p1").command_timeout(LONG);
    let manager = manager.connect().await.expect("connects");
    let slot = slot_of("k");
    let from = cluster.primary_of(slot).await;
    let (owner, other) = (cluster.node(from), cluster.node((from + 1) % 3));
    let mut guard = manager.lock("k").ttl(LONG).await.expect("free");
    cluster.begin_migration(slot, (from + 1) % 3).await;
    cluster.move_key("k").await;
    let before = other.calls_of("asking").await;
    guard.extend(LONG).await.expect("held");
    // The owner sends back the extension, and the command behind it that has the key watched.
    assert_eq!((owner.errors_of("ASK").await, other.errors_of("NOSCRIPT").await), (2, 1));
    assert_eq!(other.calls_of("asking").await - before, 2);
    cluster.move_keys(slot).await;
    cluster.end_migration(slot).await;
    guard.release().await.expect("held");
}

/// A batch that fails says nothing of the subscription that was sent in front of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_is_subscribed_to_again_when_the_batch_behind_the_subscription_was_refused() {
    if !is_redis_7("a_channel_is_subscribed_to_again_when_the_batch_behind_the_subscription_was_refused") {
        return;
    }
    let cluster = Cluster::builder().replicas(0).node_timeout(SOON).start().await;
    let allow = async |rules: &[&str]| {
        for node in cluster.nodes() {
            let answer = node.call(&[&["ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*"], rules].concat()).await;
            assert_eq!(answer, Reply::Status("OK".to_owned()));
        }
    };
    allow(&["+@all"]).await;
    let url = format!("redis+cluster://shop:secret@{}", cluster.addresses().join(","));
    let manager = manager(&url, "p1").await;
    let node = cluster.node(cluster.primary_of(slot_of("k")).await);
    let connection = async || {
        let clients = node.client_list().await;
        let ours = clients.iter().find(|client| client.name() == "p1").expect("it is connected to each node");
        ours.field("id").to_owned()
    };
    let holder = lock_tests::RawClient::tcp(&node.address()).await;
    holder.expect("it listens").call(&["SET", "k", "foreign", "PX", "600000"]).await.expect("it answers");
    assert!(manager.is_locked("k").await.expect("it is answered"), "and the node has the script from now on");
    let (first, before) = (connection().await, node.calls_of("ssubscribe").await);

    allow(&["-evalsha", "-eval"]).await;
    let error = manager.lock("k").wait(LONG).await.expect_err("the script is refused");
    assert!(matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unsupported), "{error}");
    assert_eq!(node.calls_of("ssubscribe").await - before, 1);

    allow(&["+evalsha", "+eval"]).await;
    let waits = tokio::spawn(manager.lock("k").wait(LONG).acquire());
    queued(node, "k", 1).await;
    assert_eq!(connection().await, first, "over the same connection");
    assert_eq!(node.calls_of("ssubscribe").await - before, 2, "again, with the next place");
    cancelled(vec![waits]).await;
}
