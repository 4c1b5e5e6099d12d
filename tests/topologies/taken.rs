//! A lease whose key is taken away while it is held: told at once from its first renewal on.
//!
//! The renewals of these leases are minutes apart. A loss that is told before is told by the word of the server, at whatever speed.

use std::time::Duration;

use futures_util::future::join_all;
use lock_core::{LockManager, LossReason, backend::RedisBackend};
use lock_tests::{Cluster, LONG, RedisServer, SOON, eventually, eventually_some, ms, within};
use tokio::time::Instant;

use crate::patient;

/// Has the servers watch the key of a lease: a new connection has all leases renewed, and the keys of those are watched.
async fn watched(servers: &[&RedisServer]) {
    for server in servers {
        server.kill_clients().await;
    }
    for server in servers {
        eventually(SOON, "it was renewed", async || server.info("tracking_total_keys").await != "0").await;
    }
}

#[tokio::test]
async fn loss_of_a_key_that_was_taken_away_is_told_at_once() {
    let commands: [&[&str]; 5] =
        // An expiry in the past: a look at the key could still come before one in the future, and renew the lease.
        [&["DEL", "k"], &["SET", "k", "x"], &["RENAME", "k", "l"], &["FLUSHALL"], &["PEXPIREAT", "k", "1"]];
    join_all(commands.map(|command| async move {
        let server = RedisServer::start().await;
        let told = told_after(&server.url(), &server, async || drop(server.call(command).await)).await;
        println!("{command:?}: told after {told:?}");
    }))
    .await;
}

/// The server forgets with each write of the holder that it is to tell of the next one.
#[tokio::test]
async fn loss_of_a_lease_that_was_just_extended_is_told_at_once() {
    let server = RedisServer::start().await;
    let manager = LockManager::connect(server.url()).await.expect("the server answers");
    let mut guard = manager.lock("k").ttl(LONG).await.expect("free");
    watched(&[&server]).await;
    guard.extend(LONG).await.expect("held");
    server.call(&["DEL", "k"]).await;
    let end = within(SOON, guard.ended()).await;
    assert_eq!(end.loss(), Some(LossReason::Taken));
}

#[tokio::test]
async fn loss_by_force_of_another_process_is_told_at_once() {
    let server = RedisServer::start().await;
    let other = patient::connect(server.url()).await.expect("the server answers");
    let told = told_after(&server.url(), &server, async || {
        assert!(other.force_release("k").await.expect("answered"), "it is held");
    })
    .await;
    println!("by force: told after {told:?}");
}

#[tokio::test]
async fn loss_of_a_key_of_a_cluster_is_told_at_once() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let slot = lock_tests::cluster::slot_of("k");
    let server = cluster.node(cluster.primary_of(slot).await);
    let told = told_after(&cluster.url(), server, async || drop(server.call(&["DEL", "k"]).await)).await;
    println!("cluster: told after {told:?}");
}

#[tokio::test]
async fn loss_of_a_majority_of_a_quorum_is_told_at_once() {
    let servers = [RedisServer::start().await, RedisServer::start().await, RedisServer::start().await];
    let manager = patient::builder().quorum(servers.iter().map(RedisServer::url)).connect().await;
    let manager = manager.expect("the servers answer");
    let told = told_after_by(&manager, &servers.each_ref(), async || {
        // A key that is gone at one of them may be back there before it is gone at the next.
        for server in &servers[..2] {
            server.call(&["SET", "k", "x"]).await;
        }
    })
    .await;
    println!("a majority: told after {told:?}");
}

/// All requests take the newest connection, over which the server tells what has changed.
#[tokio::test]
async fn loss_is_told_at_once_to_each_of_two_managers_with_one_backend() {
    let server = RedisServer::start().await;
    let backend = RedisBackend::from_url(&server.url(), "both", SOON).expect("a sound URL");
    let managers = [(); 2].map(|()| LockManager::builder().backend(backend.clone()).build().expect("a backend"));
    for manager in &managers {
        manager.lock("other").await.expect("free").release().await.expect("held");
    }
    for manager in &managers {
        told_after_by(manager, &[&server], async || drop(server.call(&["DEL", "k"]).await)).await;
    }
}

#[tokio::test]
async fn loss_of_a_lease_with_the_data_of_its_server_is_told_when_that_is_back() {
    let mut server = RedisServer::start().await;
    let manager = patient::connect(server.url()).await.expect("the server answers");
    let renewed = manager.lock("renewed").ttl(LONG).await.expect("free");
    watched(&[&server]).await;
    let young = manager.lock("young").ttl(LONG).await.expect("free");
    server.restart().await;
    let begun = Instant::now();
    for guard in [renewed, young] {
        let end = within(SOON, guard.ended()).await;
        assert_eq!(end.loss(), Some(LossReason::Taken));
    }
    let told = begun.elapsed();
    println!("data lost: told {told:?} after the restart");
}

/// How long it takes until the holder of `k` is told that the key was `taken`.
async fn told_after(url: &str, server: &RedisServer, taken: impl AsyncFnOnce()) -> Duration {
    let manager = patient::connect(url).await.expect("the server answers");
    told_after_by(&manager, &[server], taken).await
}

async fn told_after_by(manager: &LockManager, servers: &[&RedisServer], taken: impl AsyncFnOnce()) -> Duration {
    let guard = manager.lock("k").ttl(LONG).await.expect("free");
    watched(servers).await;
    let begun = Instant::now();
    taken().await;
    let end = within(SOON, guard.ended()).await;
    let told = begun.elapsed();
    assert_eq!(end.loss(), Some(LossReason::Taken));
    told
}

#[tokio::test]
async fn lease_outlives_writes_that_leave_its_token() {
    let server = RedisServer::start().await;
    let manager = patient::connect(server.url()).await.expect("the server answers");
    let guard = manager.lock("k").ttl(LONG).renew_every(ms(100)).await.expect("free");
    eventually(SOON, "it was renewed", async || server.info("tracking_total_keys").await != "0").await;
    let renewals = async || server.calls_of("evalsha").await;
    let (begun, before) = (Instant::now(), renewals().await);
    let sent = eventually_some(SOON, "it is renewed on", async || {
        for _ in 0..100 {
            server.call(&["PEXPIRE", "k", "600000"]).await;
        }
        Some(renewals().await - before).filter(|sent| *sent >= 4)
    })
    .await;
    assert!(guard.is_held());
    let most = u64::try_from(begun.elapsed().as_millis() / 10 + 5).expect("a short test");
    assert!(sent <= most, "{sent} renewals in {:?}", begun.elapsed());
}
