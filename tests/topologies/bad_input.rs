//! URLs of sentinels and clusters that lead elsewhere than they say: each is an error that names the address, what was found
//! there, and what to do. Tests are called by the rows.

use std::error::Error as _;

use lock_core::{Error, ErrorKind, LockManager};
use lock_tests::{FaultProxy, free_port};

use crate::topologies::*;

/// The error of connecting that comes at once: long before a limit of ours could end what is waited for.
async fn refusal(url: &str) -> Error {
    within(SOON, refusal_within(LONG, url)).await
}

/// The error of connecting when the limit of it is over.
async fn refusal_in_vain(url: &str) -> Error {
    refusal_within(ms(10_000), url).await
}

async fn refusal_within(limit: Duration, url: &str) -> Error {
    let begun = Instant::now();
    let builder = LockManager::builder().url(url).command_timeout(limit / 2).connect_timeout(limit);
    let error = builder.connect().await.expect_err("it leads elsewhere");
    let took = begun.elapsed();
    let cause = error.cause().expect("the URL is sound").clone();
    println!("after {took:?}: {cause}");
    assert!(!format!("{error} {error:?} {cause} {cause:?}").contains("secret"), "no password in an error");
    cause
}

/// An error that no waiting mends says all of this.
#[track_caller]
fn is_final(error: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.retry_after().is_none(), "{error}");
    for words in words {
        assert!(error.to_string().contains(words), "{words:?} is not in: {error}");
    }
}

#[tokio::test]
async fn bad_input_90_to_93_sentinels_that_do_not_know_or_do_not_answer() {
    let mut sentinels = Sentinels::builder().replicas(0).start().await;
    let addresses: Vec<_> = sentinels.sentinels().iter().map(RedisServer::address).collect();
    let wrong_name = refusal(&sentinels.url().replace(Sentinels::SERVICE, "shop")).await;
    is_final(
        &wrong_name,
        ErrorKind::Unsupported,
        &[&addresses[0], &addresses[2], "\"shop\"", "goods", "name after the last /"],
    );
    // Two that watch different servers under one name.
    let other = RedisServer::start().await;
    let (stranger, another) = (Sentinels::alone(&other).await, Sentinels::alone(&sentinels.servers()[0]).await);
    let url = format!("redis+sentinel://{},{}/{}", stranger.address(), another.address(), Sentinels::SERVICE);
    // One that answers alone is believed, as it may be on a busy machine.
    let error = eventually_some(LONG, "both are heard", async || {
        let builder = LockManager::builder().url(&url).command_timeout(ms(1_000)).connect_timeout(ms(2_000));
        builder.connect().await.err()?.cause().filter(|cause| cause.to_string().contains("do not agree")).cloned()
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    for words in [&stranger.address(), &other.address(), &another.address()] {
        assert!(error.to_string().contains(words), "{error}");
    }
    let plain = refusal(&format!("redis+sentinel://{}/{}", other.address(), Sentinels::SERVICE)).await;
    is_final(&plain, ErrorKind::Unsupported, &[&other.address(), "not a Redis Sentinel", "redis://"]);
    for sentinel in sentinels.sentinels_mut() {
        sentinel.stop();
    }
    let error = refusal_in_vain(&sentinels.url().replace("://", "://:secret@")).await;
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    assert!(addresses.iter().all(|address| error.to_string().contains(address)), "{error}");
    let source = error.source().expect("the cause of one of them").to_string();
    assert!(source.contains("refused"), "{source}");
}

#[tokio::test]
async fn bad_input_94_and_95_a_plain_url_to_a_sentinel_a_node_or_a_replica() {
    let sentinels = Sentinels::builder().sentinels(1).replicas(1).start().await;
    sentinels.be_patient().await;
    let sentinel = sentinels.sentinels()[0].address();
    let refused = refusal_in_vain(&format!("redis://:secret@{sentinel}")).await;
    // A sentinel without a password refuses ours.
    println!("{refused}");
    let refused = refusal(&format!("redis://{sentinel}")).await;
    is_final(&refused, ErrorKind::Unsupported, &[&sentinel, "is a Redis Sentinel", "redis+sentinel://"]);
    let replica = sentinels.servers()[1].address();
    let error = refusal_in_vain(&format!("redis://{replica}")).await;
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    assert!(error.to_string().contains(&replica) && error.to_string().contains("replica"), "{error}");
    let refused = refusal(&format!("redis+cluster://{sentinel}")).await;
    is_final(&refused, ErrorKind::Unsupported, &[&sentinel, "is a Redis Sentinel", "redis+sentinel://"]);
}

#[tokio::test]
async fn bad_input_93_to_95_a_url_of_another_topology_than_a_clusters() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let node = cluster.addresses()[0].clone();
    let refused = refusal(&format!("redis://{node}")).await;
    is_final(&refused, ErrorKind::Unsupported, &[&node, "node of a Redis Cluster", "redis+cluster://"]);
    let refused = refusal(&format!("redis+sentinel://{node}/goods")).await;
    is_final(&refused, ErrorKind::Unsupported, &[&node, "node of a Redis Cluster"]);
    let server = RedisServer::start().await;
    let refused = refusal(&format!("redis+cluster://{}", server.address())).await;
    is_final(&refused, ErrorKind::Unsupported, &[&server.address(), "not a node of a Redis Cluster", "redis://"]);
    // The others of the URL are heard, and found right.
    let mixed = format!("redis+cluster://{},{node},127.0.0.1:{}", server.address(), free_port());
    manager(&mixed, "shop").await.lock("k").await.expect("free").release().await.expect("held");
    let error = refusal_in_vain(&format!("redis+cluster://127.0.0.1:{}", free_port())).await;
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
}

#[tokio::test]
async fn bad_input_96_a_cluster_that_does_not_cover_all_slots() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let node = lacking(&cluster).await;
    let refused = refusal(&format!("redis+cluster://{}", cluster.addresses()[node])).await;
    is_final(&refused, ErrorKind::Unsupported, &[&cluster.addresses()[node], "3 of its 16,384", "--cluster fix"]);
    // One that goes on without them is as good as can be.
    let cluster = Cluster::builder().replicas(0).without_full_coverage().start().await;
    let node = lacking(&cluster).await;
    let url = format!("redis+cluster://{}", cluster.addresses()[node]);
    let partial = manager(&url, "shop").await;
    let covered = (0..).map(|number| format!("k{number}")).find(|key| slot_of(key) > 2).expect("one of them");
    partial.lock(covered).await.expect("its slot is there").release().await.expect("held");
    let key = (0..).map(|number| format!("k{number}")).find(|key| slot_of(key) <= 2).expect("one of them");
    let error = partial.lock(&key).await.expect_err("its slot is nowhere");
    println!("{error}");
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    // A cluster that has no slots at all.
    let empty = Cluster::empty_node().await;
    let error = refusal_in_vain(&format!("redis+cluster://{}", empty.address())).await;
    assert!(error.to_string().contains(&empty.address()), "{error}");
    let mixed = format!("redis+cluster://{},{}", empty.address(), cluster.addresses()[node]);
    manager(&mixed, "shop").await;
    // One that has left the cluster, and knows of its own slots only.
    let left = Cluster::empty_node().await;
    assert_eq!(left.call(&["CLUSTER", "ADDSLOTS", "0", "1", "2"]).await.text().as_deref(), Some("OK"));
    let whole = Cluster::builder().replicas(0).start().await;
    let mixed = format!("redis+cluster://{},{}", left.address(), whole.addresses()[0]);
    let manager = manager(&mixed, "shop").await;
    manager.lock("k").await.expect("its slot is there").release().await.expect("held");
}

/// Takes three slots from a node. Returns which one that is.
async fn lacking(cluster: &Cluster) -> usize {
    let node = cluster.primary_of(0).await;
    assert_eq!(cluster.node(node).call(&["CLUSTER", "DELSLOTS", "0", "1", "2"]).await.text().as_deref(), Some("OK"));
    node
}

#[tokio::test]
async fn bad_input_98_addresses_that_stand_in_no_url_and_lead_nowhere() {
    let server = RedisServer::start().await;
    let sentinel = Sentinels::alone(&server).await;
    let (address, url) = (server.address(), format!("redis+sentinel://{}/{}", sentinel.address(), Sentinels::SERVICE));
    drop(server);
    let error = refusal_in_vain(&url).await;
    assert_eq!(
        error.to_string(),
        format!(
            "could not connect to the backend: {address}, which the sentinels name as the primary of \"goods\", could not be \
             reached; check that it runs, and that they name an address that this machine can reach (sentinel announce-ip)"
        )
    );
    let node = Cluster::empty_node().await;
    let all: Vec<_> = (0..16_384).map(|slot: u16| slot.to_string()).collect();
    let all: Vec<_> = ["CLUSTER", "ADDSLOTS"].into_iter().chain(all.iter().map(String::as_str)).collect();
    assert_eq!(node.call(&all).await.text().as_deref(), Some("OK"));
    let url = format!("redis+cluster://{}", node.address());
    let announce = ["CONFIG", "SET", "cluster-announce-ip", "127.0.0.9"];
    assert_eq!(node.call(&announce).await.text().as_deref(), Some("OK"));
    let error = refusal_in_vain(&url).await;
    assert_eq!(
        error.to_string(),
        format!(
            "could not connect to the backend: 127.0.0.9:{}, which the cluster names for some of its slots, could not be \
             reached; check that it runs, and that the nodes announce an address that this machine can reach \
             (cluster-announce-ip)",
            node.port()
        )
    );
    // What stands in the URL is checked there.
    drop(node);
    let error = refusal_in_vain(&url).await;
    assert!(error.to_string().ends_with("check that it runs and listens there"), "{error}");
}

#[tokio::test]
async fn bad_input_97_wrong_passwords_of_servers_and_of_sentinels() {
    let sentinels = Sentinels::builder().password("secret-a").sentinel_password("secret-b").replicas(1).start().await;
    sentinels.be_patient().await;
    let url = sentinels.url();
    let with = |words: &str| format!("{url}?{words}");
    let right = manager(&with("sentinel_pass=secret-b"), "shop").await;
    right.lock("k").await.expect("free").release().await.expect("held");
    let sentinel = &sentinels.sentinels()[0].address()[..9];
    is_final(
        &refusal(&url).await,
        ErrorKind::Denied,
        &["the sentinel ", sentinel, "requires a password", "?sentinel_pass="],
    );
    is_final(
        &refusal(&with("sentinel_pass=secret-c")).await,
        ErrorKind::Denied,
        &["the sentinel ", sentinel, "sentinel_pass (invalid username-password pair or user is disabled); check"],
    );
    let builder = LockManager::builder().url(url.as_str()).sentinel_password("secret-b");
    builder.command_timeout(LIMIT).connect().await.expect("the builder has the password of the sentinels");
    let wrong =
        refusal(&with("sentinel_pass=secret-b").replace("secret%2Da", "secret-c").replace("secret-a", "secret-c"))
            .await;
    is_final(&wrong, ErrorKind::Denied, &[&sentinels.servers()[0].address(), "refused"]);

    let cluster = Cluster::builder().password("secret-a").replicas(0).start().await;
    let node = cluster.addresses()[0].clone();
    is_final(&refusal(&format!("redis+cluster://{node}")).await, ErrorKind::Denied, &[&node, "requires a password"]);
    is_final(&refusal(&format!("redis+cluster://:secret-c@{node}")).await, ErrorKind::Denied, &[&node, "refused"]);
    // Nobody hammers a server that refuses.
    let proxy = FaultProxy::start(node).await;
    let begun = Instant::now();
    let builder = LockManager::builder().url(format!("redis+cluster://:secret-c@{}", proxy.address()));
    let manager = builder.command_timeout(LIMIT).build().expect("a sound URL");
    while begun.elapsed() < ms(2_000) {
        let error = manager.lock("k").await.expect_err("a wrong password");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        sleep(ms(10)).await;
    }
    let (connections, seconds) = (proxy.accepted() as f64, begun.elapsed().as_secs_f64());
    println!("{connections} connections in {seconds:.1} s of refusals");
    assert!(connections <= 6.0 * seconds, "{connections} connections in {seconds:.1} s");
}
