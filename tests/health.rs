//! What a manager tells of its servers without asking them: `health`, and the gauge of connections.

use std::time::Duration;

use lock_core::LockManager;
use lock_tests::{LONG, RedisServer, SOON, eventually};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

use crate::patient::builder;

async fn until_up(manager: &LockManager, up: bool) {
    eventually(SOON, if up { "up" } else { "down" }, async || manager.health().is_up() == up).await;
}

#[tokio::test]
async fn a_manager_that_nobody_uses_connects_when_it_is_asked_and_follows_its_server() {
    let mut server = RedisServer::start().await;
    let manager = builder().url(server.url()).database(3).build().expect("a valid URL");
    until_up(&manager, true).await;
    let health = manager.health();
    assert_eq!((health.nodes().len(), health.nodes()[0].address()), (1, server.address().as_str()));
    assert_eq!(health.nodes()[0].database(), Some(3));
    assert!(health.last_error().is_none());

    server.stop();
    until_up(&manager, false).await;
    let what = "the reason that nobody listens there";
    eventually(SOON, what, async || {
        let health = manager.health();
        health.last_error().is_some_and(|fault| fault.message().contains("refused"))
    })
    .await;
    let health = manager.health();
    let fault = health.last_error().expect("it was there before");
    assert!(fault.message().contains(&server.address()), "{fault:?}");
    assert!(fault.age() <= health.age().expect("it is known") + SOON);

    server.start_again().await;
    until_up(&manager, true).await;
    assert!(manager.health().last_error().is_some(), "it is over, and told with its age");
}

#[tokio::test]
async fn no_password_is_told_and_what_the_server_refuses_is() {
    let server = RedisServer::builder().password("secret").start().await;
    let url = format!("redis://:secret-but-wrong@{}", server.address());
    let manager = builder().url(&url).build().expect("a valid URL");
    let is_told = async || format!("{:?}", manager.health()).contains("password");
    eventually(SOON, "the refusal", is_told).await;
    let health = manager.health();
    let told = format!("{health:?}");
    assert!(!health.is_up() && !told.contains("secret"), "{told}");
}

#[tokio::test]
async fn a_silent_server_is_down_once_the_heartbeat_has_noticed() {
    let server = RedisServer::start().await;
    let manager = builder().url(server.url()).connect().await.expect("it answers");
    assert!(manager.health().is_up());
    server.pause();
    until_up(&manager, false).await;
    server.resume();
    until_up(&manager, true).await;
}

#[tokio::test]
async fn a_quorum_is_up_with_a_majority_of_its_nodes() {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(RedisServer::start().await);
    }
    let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
    let manager = builder().quorum(&urls).connect().await.expect("they answer");
    let up = || manager.health().nodes().iter().map(|node| node.is_up()).collect::<Vec<_>>();
    eventually(SOON, "all up", async || up() == [true; 3]).await;
    servers[1].stop();
    eventually(SOON, "one down", async || up() == [true, false, true]).await;
    assert!(manager.health().is_up());
    servers[0].stop();
    eventually(SOON, "two down", async || up() == [false, false, true]).await;
    let health = manager.health();
    assert!(!health.is_up() && health.age().is_some_and(|age| age < LONG));
}

#[tokio::test]
async fn a_server_under_two_names_counts_once() {
    let servers = [RedisServer::start().await, RedisServer::start().await];
    let named_twice = servers[0].url_at(&format!("localhost:{}", servers[0].port()));
    let manager = builder().quorum([servers[0].url(), servers[1].url(), named_twice]).build().expect("three places");
    let up = || manager.health().nodes().iter().filter(|node| node.is_up()).count();
    let twin = || manager.health().last_error().is_some_and(|fault| fault.message().contains("the same server"));
    eventually(SOON, "two votes", async || up() == 2 && twin()).await;
}

/// The value of the gauge for a node.
fn connection(snapshotter: &Snapshotter, node: &str) -> Option<f64> {
    let snapshot = snapshotter.snapshot().into_vec();
    snapshot.into_iter().find_map(|(key, _, description, value)| {
        let key = key.key();
        let is_it = key.name() == "lock_connection_up" && key.labels().any(|label| label.value() == node);
        match value {
            DebugValue::Gauge(gauge) if is_it && description.is_some() => Some(gauge.into_inner()),
            _ => None,
        }
    })
}

#[test]
fn the_gauge_of_a_connection_is_one_while_there_is_one() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let mut server = RedisServer::start().await;
            let address = server.address();
            let manager = builder().url(server.url()).connect().await.expect("it answers");
            assert_eq!(connection(&snapshotter, &address), Some(1.0));
            server.stop();
            eventually(SOON, "0", async || connection(&snapshotter, &address) == Some(0.0)).await;
            server.start_again().await;
            eventually(SOON, "1", async || connection(&snapshotter, &address) == Some(1.0)).await;
            let other = builder().url(server.url()).connect().await.expect("it answers");
            other.shutdown(Duration::ZERO).await;
            drop(other);
            assert_eq!(connection(&snapshotter, &address), Some(1.0), "of the manager that is left");
            manager.shutdown(Duration::ZERO).await;
            assert!(connection(&snapshotter, &address).is_some_and(f64::is_nan), "nobody needs it any more");
        });
    });
}
