//! What a manager says of its server in the log: once, however often it connects.
#![expect(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::pin::Pin;

use futures_util::stream::{self, Stream, StreamExt};
use lock_core::{
    LockManager,
    redis::{BasicAuth, RedisResult, StreamingCredentialsProvider},
};
use lock_tests::{RedisServer, SOON, eventually, free_port, is_redis_7, ms};
use tokio::time::sleep;

use crate::log::Log;
use crate::patient;

/// Has a manager connect four times, and use the lock each time.
async fn connects_often(server: &RedisServer, log: &Log, user: &str) {
    let url = format!("redis://{user}:secret@{}", server.address());
    let manager = patient::builder().url(&url).client_name("ours").connect().await.unwrap();
    for times in 1..4 {
        manager.lock("k").await.unwrap().release().await.unwrap();
        // Connections that break as soon as they are made are not all told of.
        sleep(ms(150)).await;
        server.kill_clients().await;
        eventually(SOON, "it reconnects", async || log.count("reconnecting") >= times).await;
    }
    // One waits, so that the one who releases has somebody to call: at least once, if a place is over before on a busy machine.
    let other = patient::connect(&url).await.unwrap();
    for _ in 0..3 {
        let held = manager.lock("k").wait(SOON).await.unwrap();
        let waits = tokio::spawn(other.lock("k").wait(SOON).acquire());
        eventually(SOON, "it has a place", async || server.keys("*queue:k").await.len() == 1).await;
        held.release().await.unwrap();
        waits.await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn what_is_amiss_with_a_server_is_said_once_however_often_it_is_connected_to() {
    if !is_redis_7("what_is_amiss_with_a_server_is_said_once_however_often_it_is_connected_to") {
        return;
    }
    let (log, _default) = Log::begin();

    let server = RedisServer::start().await;
    server.call(&["ACL", "SETUSER", "all", "on", ">secret", "~*", "&*", "+@all"]).await;
    connects_often(&server, &log, "all").await;
    assert_eq!(log.count("evicts keys") + log.count("will poll") + log.count("PUBLISH"), 0);
    log.clear();

    // It may forget what has a ttl, as locks have.
    server.call(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]).await;
    connects_often(&server, &log, "all").await;
    assert_eq!(log.count("evicts keys"), 0, "there is no limit yet");
    log.clear();
    server.call(&["CONFIG", "SET", "maxmemory", "1gb"]).await;
    connects_often(&server, &log, "all").await;
    assert_eq!(log.count("evicts keys"), 2, "once by each of the two managers");
    assert!(log.count("policy=\"volatile-lru\"") == 2 && log.count("noeviction") == 2);
    log.clear();

    // Where it may not be asked, nothing is said; and it cannot be told from others at a reconnect either.
    server.call(&["ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "-info", "-client|id"]).await;
    connects_often(&server, &log, "mute").await;
    assert_eq!(log.count("evicts keys"), 0);
    assert_eq!(log.count("could not subscribe"), 2, "once by each of the two managers");
    log.clear();

    // An older protocol, over which nobody can be called.
    let old = RedisServer::builder().without_command("HELLO").start().await;
    old.call(&["ACL", "SETUSER", "all", "on", ">secret", "~*", "&*", "+@all"]).await;
    connects_often(&old, &log, "all").await;
    assert_eq!(log.count("does not support RESP3"), 2, "once by each of the two managers");
    log.clear();

    // Who may hear but not call.
    server.call(&["ACL", "SETUSER", "hears", "on", ">secret", "~*", "&*", "+@all", "-publish", "-info"]).await;
    connects_often(&server, &log, "hears").await;
    assert_eq!(log.count("may not PUBLISH"), 1, "by the one who releases while another waits");
    assert_eq!(log.count("secret"), 0);
    log.clear();

    // No request waits, but one looks at holders: of a user without PUBLISH, or without the channels.
    let holds = patient::connect(server.url()).await.unwrap();
    let _held = holds.lock("held").await.unwrap();
    for (rights, expected) in [("&* -publish", "may not PUBLISH"), ("resetchannels +publish", "could not subscribe")] {
        let mut rules = vec!["ACL", "SETUSER", "looks", "on", ">secret", "~*", "+@all", "-info"];
        rules.extend(rights.split(' '));
        server.call(&rules).await;
        let url = format!("redis://looks:secret@{}", server.address());
        let looks = patient::builder().url(&url).client_name("ours").connect().await.unwrap();
        for _ in 0..3 {
            assert!(looks.inspect("held").await.unwrap().nobody_answered());
        }
        assert_eq!(log.count("may not PUBLISH"), 1, "{rights}");
        assert_eq!(log.count(expected), 1, "{rights}");
        let misses = "`inspect` and `list` may miss holders and waiters of other processes; grant the rights";
        assert!(log.count(misses) > 0 && log.count("secret") == 0, "{rights}");
        log.clear();
    }
    drop(holds);

    // Of several addresses it is said which is a sentinel's.
    let url = format!("redis+sentinel://127.0.0.1:{}/goods", free_port());
    LockManager::builder().url(url).command_timeout(ms(10_000)).connect().await.unwrap_err();
    let text = format!("{log:?}");
    let lines: Vec<_> = text.lines().filter(|line| line.contains("could not connect")).collect();
    assert!(lines.iter().any(|line| line.contains("role=\"sentinel\"")), "{lines:?}");
    assert!(lines.iter().all(|line| line.contains("retrying for as long as the manager lives")), "{lines:?}");
    log.clear();

    // A provider whose second login and all that follow are refused.
    let manager = patient::builder().url(server.url()).credentials(Wrong).connect().await.unwrap();
    eventually(SOON, "it has tried three of them", async || server.errors_of("WRONGPASS").await >= 3).await;
    manager.lock("k").await.unwrap().release().await.unwrap();
    assert_eq!(log.count("could not renew the credentials"), 1);
    assert_eq!(log.count("secret"), 0);
}

/// Has one login that is right, and then others that are wrong.
struct Wrong;

impl StreamingCredentialsProvider for Wrong {
    fn subscribe(&self) -> Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send + 'static>> {
        let login = |password: &str| Ok(BasicAuth::new("all".to_owned(), password.to_owned()));
        stream::iter([login("secret")]).chain(stream::repeat_with(move || login("secret-expired"))).boxed()
    }
}
