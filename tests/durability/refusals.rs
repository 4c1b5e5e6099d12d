//! Where replicas cannot be waited for: an error that says why, and a key that is free.

use lock_core::{Argument, ErrorKind, LeaseOptions, LockManager, LossReason, Replicas};
use lock_tests::{FaultProxy, LONG, RedisServer, SOON, eventually, ms, within};

use crate::durability::group::{Group, one};
use crate::patient;

#[tokio::test]
async fn user_who_may_not_wait_is_told_so_and_holds_nothing() {
    let group = Group::start(1).await;
    let rights = ["ACL", "SETUSER", "user", "on", ">secret", "~*", "&*", "+@all", "-wait"];
    assert_eq!(group.primary.call(&rights).await.text().as_deref(), Some("OK"));
    let url = format!("redis://user:secret@{}", group.primary.address());
    let manager = patient::connect(url).await.expect("connects");
    let error = manager.lock("k").ttl(LONG).durability(one(SOON)).await.expect_err("WAIT is forbidden");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("wait") && error.to_string().contains("released"), "{error}");
    assert_eq!(group.value("k").await, None);
    assert!(manager.lock("k").await.is_ok(), "without durability it is as ever");
    let second = second(&group).await;
    manager.lock("k").ttl(LONG).durability(one(SOON)).await.expect_err("WAIT is forbidden");
    assert_eq!(self::second(&group).await, second, "a refusal is no reason to log in again");
}

#[tokio::test]
async fn second_connection_that_cannot_be_made_is_an_error_and_leaves_the_key_free() {
    let group = Group::start(1).await;
    let manager = group.manager().await;
    manager.lock("k").await.expect("it is free").release().await.expect("it is held");
    let admin = async |most: &str| group.primary.call(&["CONFIG", "SET", "maxclients", most]).await;
    let mut harness = group.primary.connect().await.expect("connects");
    assert_eq!(admin("1").await.text().as_deref(), Some("OK"));
    let error =
        within(SOON, manager.lock("k").ttl(LONG).durability(one(ms(300))).acquire()).await.expect_err("no room");
    assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}");
    assert!(error.to_string().contains("no replica was known to have it"), "{error}");
    let value = harness.call(&["GET", "k"]).await.expect("it answers");
    assert!(value.is_nil(), "{value:?}");
    harness.call(&["CONFIG", "SET", "maxclients", "1000"]).await.expect("it answers");
    assert!(manager.lock("k").ttl(LONG).durability(one(SOON)).await.is_ok());
}

/// As with a name that has several addresses.
#[tokio::test]
async fn second_connection_that_led_to_a_replica_is_replaced() {
    let group = Group::start(1).await;
    let proxy = FaultProxy::start(group.primary.address()).await;
    let manager = patient::connect(format!("redis://{}", proxy.address())).await.expect("connects");
    let replicated = || manager.lock("k").ttl(LONG).durability(one(SOON));
    proxy.lead_to(group.replicas[0].server.address());
    let error = replicated().await.expect_err("a replica writes nothing");
    assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}");
    proxy.lead_to(group.primary.address());
    eventually(SOON, "another connection is made", async || replicated().await.is_ok()).await;
}

/// The number of the connection that waits for replicas, or did last.
async fn second(group: &Group) -> String {
    let clients = group.primary.client_list().await;
    clients.iter().find(|client| client.field("cmd") == "wait").expect("there is one").field("id").to_owned()
}

async fn kill_second(group: &Group) {
    let killed = group.primary.call(&["CLIENT", "KILL", "ID", &second(group).await]).await;
    assert_eq!(killed.integer(), Some(1));
}

#[tokio::test]
async fn connection_that_breaks_while_it_waits_is_an_error_and_one_that_broke_before_is_not_noticed() {
    let group = Group::start(1).await;
    let manager = group.manager().await;
    let replicated = || manager.lock("k").ttl(LONG).durability(one(SOON));
    replicated().await.expect("the replica confirms").release().await.expect("it is held");
    kill_second(&group).await;
    replicated().await.expect("over another connection").release().await.expect("it is held");

    group.replicas[0].server.pause();
    let waits = tokio::spawn(manager.lock("k").ttl(LONG).durability(one(LONG / 4)).acquire());
    eventually(SOON, "it waits", async || group.waits_now().await).await;
    kill_second(&group).await;
    let error = within(SOON, waits).await.expect("no panic").expect_err("the connection broke");
    assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}");
    assert_eq!(group.value("k").await, None);
    group.replicas[0].server.resume();
    assert!(replicated().await.is_ok());
}

#[tokio::test]
async fn key_that_is_taken_away_while_it_is_waited_for_is_lost() {
    let group = Group::start(1).await;
    let manager = group.manager().await;
    group.replicas[0].server.pause();
    let waits = tokio::spawn(manager.lock("k").ttl(LONG).durability(one(SOON)).acquire());
    eventually(SOON, "it waits", async || group.waits_now().await).await;
    assert!(manager.force_release("k").await.expect("it answers"));
    group.replicas[0].server.resume();
    let error = within(SOON, waits).await.expect("no panic").expect_err("its key is gone");
    assert_eq!(error.kind(), ErrorKind::Lost(LossReason::Forced), "{error}");
}

#[tokio::test]
async fn server_that_hangs_is_an_error_within_the_limit() {
    let group = Group::start(1).await;
    let builder = LockManager::builder().url(group.primary.url()).command_timeout(ms(6_000));
    let manager = builder.connect().await.expect("connects");
    group.replicas[0].server.pause();
    let waits = tokio::spawn(manager.lock("k").ttl(LONG).durability(one(SOON)).acquire());
    eventually(SOON, "it waits", async || group.waits_now().await).await;
    group.primary.pause();
    let error = within(SOON, waits).await.expect("no panic").expect_err("nobody answers");
    // The lease would live on for minutes: the limit has ended the wait.
    assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}");
    group.primary.resume();
    eventually(SOON, "the key is free", async || group.value("k").await.is_none()).await;
}

#[tokio::test]
async fn server_without_replicas_is_told_as_such() {
    let server = RedisServer::start().await;
    let manager = patient::connect(server.url()).await.expect("connects");
    let error = manager.lock("k").ttl(LONG).durability(one(ms(50))).await.expect_err("there are none");
    assert_eq!(error.kind(), ErrorKind::NotReplicated);
    let said = error.to_string();
    assert!(
        said.contains("0 of the 1 required replicas") && said.contains("check that the replicas are connected"),
        "{said}"
    );
    assert_eq!(server.left().await, Vec::<String>::new());
}

#[tokio::test]
async fn a_quorum_refuses_at_once_and_at_the_start() {
    let servers = [RedisServer::start().await, RedisServer::start().await, RedisServer::start().await];
    let urls = servers.each_ref().map(RedisServer::url);
    let quorum = patient::builder().quorum(&urls).connect().await.expect("connects");
    let memory = LockManager::builder().quorum(["memory://"; 3]).build().expect("three stores");
    for manager in [memory, quorum] {
        let one_key = manager.lock("k").durability(one(ms(50))).await.expect_err("unsupported");
        let several = manager.lock_all(["k", "l"]).durability(one(ms(50))).await.expect_err("unsupported");
        for error in [one_key, several] {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("a majority of its nodes"), "{error}");
            assert!(error.to_string().contains("leave `durability` out"), "{error}");
        }
        assert!(!manager.is_locked("k").await.expect("it answers"));
    }
    assert_eq!(servers[0].call(&["EXISTS", RedisServer::COUNTER]).await.integer(), Some(0), "nothing was acquired");
    let error = LockManager::builder()
        .quorum(&urls)
        .defaults(LeaseOptions::new().durability(one(ms(50))))
        .build()
        .expect_err("unsupported");
    assert!(error.to_string().contains("leave `durability` out"), "{error}");
}

#[tokio::test]
async fn durability_out_of_its_range_is_refused_before_anything_is_sent() {
    let server = RedisServer::start().await;
    let manager = patient::connect(server.url()).await.expect("connects");
    for wrong in [Replicas::new(0, ms(50)), one(ms(0)), one(ms(501)), one(SOON)] {
        let request = manager.lock("k").ttl(ms(1_000)).durability(wrong);
        let error = request.clone().await.expect_err("out of range");
        assert_eq!(error.kind(), ErrorKind::Invalid(Argument::Durability), "{error}");
        let all = manager.lock_all(["k"]).ttl(ms(1_000)).durability(wrong).await.expect_err("out of range");
        assert_eq!(all.kind(), ErrorKind::Invalid(Argument::Durability), "{all}");
        let built = LockManager::builder()
            .url(server.url())
            .defaults(LeaseOptions::new().ttl(ms(1_000)).durability(wrong))
            .build();
        assert!(built.expect_err("out of range").to_string().contains("the default of the durability"));
    }
    assert_eq!(server.call(&["EXISTS", RedisServer::COUNTER]).await.integer(), Some(0), "nothing was acquired");
}
