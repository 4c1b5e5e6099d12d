//! Clusters that cannot tell waiters of grants: users without rights, an older protocol. Waiters poll there.
//!
//! Older servers are tried by `REDIS_SERVER`, which is the redis-server that the tests start.

use lock_tests::history::Run;

use crate::topologies::*;

/// Two processes take turns at a key, with nobody to tell them: they ask each 80 ms at most, and the handoffs are printed.
async fn turns(cluster: &Cluster, run: &Run, url: &str) {
    let clients = [client(run, url, "p0").await, client(run, url, "p1").await];
    let mut handoffs = Vec::new();
    let [mut holder, mut other] = clients;
    for _ in 0..6 {
        let held = holder.acquire("k", TTL, |request| request).await.expect("free");
        let waiting = tokio::spawn(async move {
            let held = other.acquire("k", TTL, |request| request.wait(LONG)).await.expect("it is served");
            (held, other)
        });
        queued(cluster.node(cluster.primary_of(slot_of("k")).await), "k", 1).await;
        let released = Instant::now();
        held.release().await.expect("held");
        let (held, back) = within(SOON, waiting).await.expect("no panic");
        handoffs.push(released.elapsed());
        held.release().await.expect("held");
        (holder, other) = (back, holder);
    }
    eventually(SOON, "nothing is left", async || cluster.left().await.is_empty()).await;
    judged(run);
    println!("{handoffs:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_a_cluster_poll_over_the_older_protocol() {
    let (cluster, run) = (Cluster::builder().replicas(0).start().await, Run::new("cluster-resp2"));
    turns(&cluster, &run, &format!("{}?protocol=resp2", cluster.url())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_a_cluster_poll_without_rights_to_channels() {
    let (cluster, run) = (Cluster::builder().replicas(0).start().await, Run::new("cluster-rights"));
    for node in cluster.nodes() {
        let rules =
            ["ACL", "SETUSER", "poor", "on", ">word", "~*", "+@all", "-ssubscribe", "-subscribe", "resetchannels"];
        if node.call(&rules).await.text().as_deref() != Some("OK") {
            // Before Redis 7 there is no such command.
            let rules = ["ACL", "SETUSER", "poor", "on", ">word", "~*", "+@all", "-subscribe", "resetchannels"];
            assert_eq!(node.call(&rules).await.text().as_deref(), Some("OK"));
        }
    }
    turns(&cluster, &run, &cluster.url().replace("://", "://poor:word@")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_primary_is_followed_over_the_older_protocol() {
    let (mut cluster, run) = (patient_cluster().await, Run::new("cluster-resp2-lost"));
    let slot = slot_of("k");
    let from = cluster.primary_of(slot).await;
    let one = client(&run, &format!("{}?protocol=resp2", cluster.url()), "p0").await;
    let mut held = one.acquire("k", TTL, |request| request).await.expect("free");
    eventually(SOON, "all is replicated", async || cluster.is_replicated(slot).await).await;
    nodes_be_quick(&cluster).await;
    let (since, killed) = (lock_tests::history::now(), Instant::now());
    cluster.node_mut(from).stop();
    let (failed_over, renewed) = tokio::join!(cluster.await_failover(slot, from, killed), async {
        eventually(SOON, "the lease is extended", async || held.extend(TTL).await.is_ok()).await;
        killed.elapsed()
    });
    recovered(15, "primary killed to extended, over RESP2", failed_over, renewed);
    run.broken_since(since);
    held.release().await.expect("held");
    judged(&run);
}
