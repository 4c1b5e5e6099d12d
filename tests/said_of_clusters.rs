//! What a manager says of a cluster in the log. Each test begins with a log, see `log`.
#![expect(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use lock_core::LockManager;
use lock_tests::{Cluster, FaultProxy, LONG, RedisServer, Reply, SOON, cluster::slot_of, eventually, is_redis_7, ms};
use tokio::time::sleep;

use crate::log::Log;
use crate::patient;

/// What `docs/protocol.md` says that a user of a cluster needs.
fn rights() -> Vec<&'static str> {
    let text = include_str!("../docs/protocol.md");
    let user = text.split("ACL SETUSER shop on >password ").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let besides = text.split("On a cluster it needs ").nth(1).and_then(|rest| rest.split(" besides.").next()).unwrap();
    user.split_whitespace().chain(besides.split('`').skip(1).step_by(2).flat_map(str::split_whitespace)).collect()
}

#[tokio::test]
async fn user_with_the_rights_that_the_protocol_names_is_never_refused_by_a_cluster() {
    if !is_redis_7("user_with_the_rights_that_the_protocol_names_is_never_refused_by_a_cluster") {
        return;
    }
    let (log, _default) = Log::begin();
    let cluster = Cluster::builder().replicas(0).node_timeout(SOON).start().await;
    let command = [&["ACL", "SETUSER", "shop", "on", ">password"], &rights()[..]].concat();
    for node in cluster.nodes() {
        assert_eq!(node.call(&command).await.text().as_deref(), Some("OK"), "{command:?}");
    }
    let url = cluster.url().replace("://", "://shop:password@");
    for round in 0..3 {
        let (one, other) = (patient::connect(&url).await.unwrap(), patient::connect(&url).await.unwrap());
        let key = format!("shop:{round}");
        let held = one.lock(&key).ttl(LONG).await.unwrap();
        let waits = tokio::spawn(other.lock(&key).ttl(LONG).wait(LONG).acquire());
        let node = cluster.node(cluster.primary_of(slot_of(&key)).await);
        eventually(SOON, "it has a place", async || !node.keys("*lock-core:queue:*").await.is_empty()).await;
        let told = async || node.call(&["PUBSUB", "SHARDCHANNELS", "*lock-core:calls:*"]).await;
        eventually(SOON, "it waits to be told", async || !told().await.items().is_empty()).await;
        eventually(SOON, "both are described", async || {
            let info = other.inspect(&key).await.unwrap();
            info.holder().is_some() && info.waiters().len() == 1
        })
        .await;
        held.release().await.unwrap();
        waits.await.unwrap().unwrap().release().await.unwrap();
    }
    assert_eq!(log.count("WARN"), 0, "{log:?}");
    for node in cluster.nodes() {
        let refused = node.call(&["ACL", "LOG"]).await;
        let words = |entry: &Reply| entry.items().iter().filter_map(Reply::text).collect::<Vec<_>>();
        assert!(refused.items().is_empty(), "{:?}", refused.items().iter().map(words).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_user_of_a_cluster_who_may_subscribe_to_shards_only_is_told_once_that_holders_may_be_missed() {
    if !is_redis_7("a_user_of_a_cluster_who_may_subscribe_to_shards_only_is_told_once_that_holders_may_be_missed") {
        return;
    }
    let (log, _default) = Log::begin();
    let cluster = Cluster::builder().replicas(0).start().await;
    for node in cluster.nodes() {
        node.call(&["ACL", "SETUSER", "shop", "on", ">password", "~*", "&*", "+@all", "-subscribe"]).await;
    }
    let manager = patient::connect(&cluster.url().replace("://", "://shop:password@")).await.unwrap();
    let holds = patient::connect(&cluster.url()).await.unwrap();
    let _held = holds.lock("k").ttl(LONG).await.unwrap();
    assert!(manager.inspect("k").await.unwrap().nobody_answered());
    assert_eq!(log.count("could not subscribe"), 1, "{log:?}");
}

#[tokio::test]
async fn a_cluster_that_cannot_be_asked_is_told_of_once_and_when_it_can_again() {
    if !is_redis_7("a_cluster_that_cannot_be_asked_is_told_of_once_and_when_it_can_again") {
        return;
    }
    let (log, _default) = Log::begin();
    let cluster = Cluster::builder().replicas(0).start().await;
    let proxy = FaultProxy::start(cluster.addresses()[0].clone()).await;
    proxy.hole();
    let url = format!("redis+cluster://{}", proxy.address());
    let manager = LockManager::builder().url(&url).command_timeout(ms(6_000)).build().unwrap();
    let before = proxy.accepted();
    eventually(SOON, "it has tried three times", async || {
        manager.inspect("k").await.unwrap_err();
        proxy.accepted() > before + 3
    })
    .await;
    assert_eq!(log.count("could not connect; retrying"), 1, "{log:?}");
    assert_eq!(log.count("WARN"), 1, "{log:?}");
    let address = format!("address=\"{}\"", proxy.address());
    assert!(log.count(&address) == 1 && log.count("did not answer within 6s") == 1, "{log:?}");
    proxy.pass();
    proxy.reset();
    eventually(SOON, "it is found", async || manager.inspect("k").await.is_ok()).await;
    assert_eq!(log.count("found the cluster again"), 1, "{log:?}");
    assert_eq!(log.count("WARN"), 1, "{log:?}");

    log.clear();
    patient::connect(&url).await.unwrap();
    assert_eq!(log.count("found the cluster"), 0, "nobody had missed it: {log:?}");
}

#[tokio::test]
async fn a_cluster_that_refuses_is_told_of_once() {
    let (log, _default) = Log::begin();
    let server = RedisServer::start().await;
    let cluster = Cluster::builder().replicas(0).password("secret").start().await;
    let wrong = cluster.url().replace("secret", "secret-but-wrong");
    for (url, words) in [
        (format!("redis+cluster://{}", server.address()), "not a node of a Redis Cluster"),
        (wrong, "refused the user"),
    ] {
        let manager = patient::builder().url(&url).build().unwrap();
        for _ in 0..3 {
            manager.inspect("k").await.unwrap_err();
            sleep(ms(800)).await; // the pause after a refusal
        }
        assert_eq!((log.count("could not connect; retrying"), log.count("WARN")), (1, 1), "{log:?}");
        assert!(log.count(words) == 1 && log.count("secret") == 0, "{log:?}");
        log.clear();
    }
}

#[tokio::test]
async fn a_manager_that_connects_to_a_part_of_a_cluster_says_which_part_is_missing() {
    if !is_redis_7("a_manager_that_connects_to_a_part_of_a_cluster_says_which_part_is_missing") {
        return;
    }
    let (log, _default) = Log::begin();
    let mut cluster = Cluster::builder().replicas(0).without_full_coverage().start().await;
    assert_eq!(cluster.node(0).call(&["CLUSTER", "DELSLOTS", "0", "1", "2"]).await.text().as_deref(), Some("OK"));
    let first = format!("redis+cluster://{}", cluster.addresses()[0]);
    patient::connect(&first).await.unwrap();
    let words =
        "connected to a part of the cluster: no node has 3 of the 16,384 slots; keys of these slots cannot be locked";
    assert_eq!((log.count(words), log.count("WARN")), (1, 1), "{log:?}");
    log.clear();

    cluster.node_mut(2).stop();
    patient::connect(&first).await.unwrap();
    let words = format!(
        "connected to a part of the cluster: {} gave no sign of life, and no node has 3 of the 16,384 slots; keys of these \
         slots cannot be locked",
        cluster.addresses()[2]
    );
    assert_eq!((log.count(&words), log.count("connected to a part")), (1, 1), "{log:?}");
    // And the node itself, as of one server.
    assert_eq!((log.count("could not connect; retrying"), log.count("WARN")), (1, 2), "{log:?}");
}
