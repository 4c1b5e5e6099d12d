//! The harness of sentinels itself: if this fails, look here first.

use std::net::TcpStream;

use lock_tests::{RawClient, Reply, SOON, Sentinels, eventually, ms};
use tokio::time::{Instant, sleep};

#[tokio::test]
async fn killed_primary_is_replaced_with_what_was_replicated() {
    let mut sentinels = Sentinels::start().await;
    let first = sentinels.primary().await;
    assert_eq!(first, 0);
    for sentinel in sentinels.sentinels() {
        let replicas = sentinel.call(&["SENTINEL", "REPLICAS", Sentinels::SERVICE]).await;
        let links: Vec<_> = replicas.items().iter().filter_map(|replica| replica.field("master-link-status")).collect();
        assert_eq!(links, ["ok", "ok"]);
    }
    sentinels.servers()[first].call(&["SET", "k", "v"]).await;
    eventually(SOON, "the key is replicated", async || sentinels.is_replicated().await).await;
    sentinels.servers_mut()[first].stop();
    let after = sentinels.await_switch(first, Instant::now()).await;
    println!("another primary {} ms after the death of the first", after.as_millis());
    let second = sentinels.primary().await;
    assert_ne!(second, first);
    assert_eq!(sentinels.servers()[second].call(&["GET", "k"]).await.text().as_deref(), Some("v"));
    assert_eq!(sentinels.servers()[second].call(&["SET", "k", "w"]).await, ok());
    // The third one finds in its file what the sentinels have told it, and not what the harness has.
    let third = 3 - first - second;
    eventually(SOON, "the third server follows", async || sentinels.is_replicated().await).await;
    sentinels.servers_mut()[third].restart().await;
    let port = sentinels.servers()[third].info("master_port").await;
    assert_eq!(port, sentinels.servers()[second].port().to_string());
}

#[tokio::test]
async fn write_that_reached_no_replica_is_gone_after_a_switch() {
    let mut sentinels = Sentinels::start().await;
    sentinels.stop_replication().await;
    assert_eq!(sentinels.servers()[0].call(&["SET", "k", "v"]).await, ok());
    assert!(!sentinels.is_replicated().await);
    sentinels.servers_mut()[0].stop();
    sentinels.await_switch(0, Instant::now()).await;
    let second = sentinels.primary().await;
    assert!(sentinels.servers()[second].call(&["GET", "k"]).await.is_nil());
    assert!(!sentinels.is_replicated().await);
}

#[tokio::test]
async fn patient_sentinels_do_not_replace_a_primary_that_stands_still_for_a_moment() {
    let mut sentinels = Sentinels::start().await;
    sentinels.servers_mut()[0].stop();
    sentinels.await_switch(0, Instant::now()).await;
    sentinels.be_patient().await;
    let second = sentinels.primary().await;
    sentinels.servers()[second].pause();
    // Longer than they take otherwise.
    sleep(ms(4_000)).await;
    assert_eq!(sentinels.primary().await, second);
    sentinels.servers()[second].resume();
    assert_eq!(sentinels.servers()[second].call(&["SET", "k", "v"]).await, ok());
}

#[tokio::test]
async fn every_sentinel_and_server_asks_for_its_password_and_a_switch_by_hand_works_all_the_same() {
    let (password, secret) = ("p@ss \"w\\rd", "s:ntinel");
    let builder = Sentinels::builder().password(password).sentinel_user("guard", secret).replicas(1);
    let sentinels = builder.start().await;
    let url = sentinels.url();
    assert!(url.starts_with("redis+sentinel://:p%40ss%20%22w%5Crd@127.0.0.1:"), "{url}");
    assert!(url.ends_with(&format!(",{}/{}", sentinels.sentinels()[2].address(), Sentinels::SERVICE)), "{url}");
    for server in sentinels.servers().iter().chain(sentinels.sentinels()) {
        let mut stranger = RawClient::tcp(&server.address()).await.unwrap();
        let answer = stranger.call(&["PING"]).await.unwrap();
        assert!(matches!(answer, Reply::Error(text) if text.starts_with("NOAUTH")));
    }
    let start = Instant::now();
    sentinels.failover().await;
    sentinels.await_switch(0, start).await;
    assert_eq!(sentinels.primary().await, 1);
}

#[tokio::test]
async fn sentinels_with_a_password_alone_know_one_another_and_are_gone_after_drop() {
    let sentinels = Sentinels::builder().sentinel_password("secret").sentinels(2).replicas(1).start().await;
    let all = sentinels.servers().iter().chain(sentinels.sentinels());
    let all: Vec<_> = all.map(|server| (server.address(), server.folder().to_owned())).collect();
    assert_eq!(all.len(), 4);
    drop(sentinels);
    for (address, folder) in all {
        assert!(TcpStream::connect(address).is_err());
        assert!(!folder.exists());
    }
}

fn ok() -> Reply {
    Reply::Status("OK".to_owned())
}
