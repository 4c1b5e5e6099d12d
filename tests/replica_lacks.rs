//! A replica that lacks a lease of its primary, as in the first moments of a failover: it must not say that the lease is gone.

use lock_core::{ErrorKind, LossReason};
use lock_tests::{LONG, RedisServer, Reply, SOON, eventually, free_port, ms, within};

use crate::patient;

/// A replica that never heard of its primary, and so has none of the data.
async fn empty_replica() -> RedisServer {
    let server = RedisServer::start().await;
    let nowhere = free_port().to_string();
    assert_eq!(server.call(&["REPLICAOF", "127.0.0.1", &nowhere]).await, Reply::Status("OK".to_owned()));
    server
}

#[tokio::test]
async fn each_form_of_the_script_is_an_error_at_a_replica_that_lacks_the_lease() {
    let script = include_str!("../lock-core/src/backend/redis/scripts/lock.lua");
    let replica = empty_replica().await;
    let token = "lock-core:1:00000000000000000000000000000007";
    let shared = &format!("{token}:shared");
    let side = ["{0}lock-core:fence", "{0}lock-core:waiting", "k"];
    let forms: [(&[&str], &[&str]); 6] = [
        (&["k"], &["renew", token, "30000"]),
        (&["k"], &["renew", shared, "30000"]),
        (&["k", "l"], &["renew", token, "30000", shared, "30000"]),
        (&side, &["release", token]),
        (&side, &["release", shared]),
        (&side, &["1", "", "", "renew", token, "30000", "32", "0"]),
    ];
    for (keys, arguments) in forms {
        let count = keys.len().to_string();
        let reply = replica.call(&[&["EVAL", script, &count], keys, arguments].concat()).await;
        assert!(matches!(&reply, Reply::Error(error) if error.contains("READONLY")), "{arguments:?}: {reply:?}");
    }
}

/// As when a former primary follows another server, and drops its data for that: it says that all keys have changed, so the leases are
/// renewed at once.
#[tokio::test]
async fn a_lease_is_kept_when_its_server_becomes_a_replica_without_data() {
    let server = RedisServer::start().await;
    let manager = patient::connect(server.url()).await.expect("connects");
    let exclusive = manager.lock("k").ttl(LONG).renew_every(ms(50)).await.expect("free");
    let shared = manager.lock("l").shared().ttl(LONG).renew_every(ms(50)).await.expect("free");
    eventually(SOON, "leases were renewed", async || server.info("tracking_total_keys").await != "0").await;
    let follow = format!("REPLICAOF 127.0.0.1 {}", free_port());
    let mut client = server.connect().await.expect("connects");
    for command in ["MULTI", "FLUSHALL", &follow, "EXEC"] {
        let reply = client.call(&command.split(' ').collect::<Vec<_>>()).await.expect("is answered");
        assert!(!matches!(reply, Reply::Error(_)), "{command:?}: {reply:?}");
    }
    eventually(SOON, "a renewal is answered", async || {
        let has_failed = manager.health().nodes()[0].last_error().is_some();
        has_failed || !exclusive.is_held() || !shared.is_held()
    })
    .await;
    let error = manager.lock("other").await.expect_err("a replica grants nothing");
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    assert!(exclusive.is_held() && shared.is_held(), "{exclusive:?}, {shared:?}");

    // A primary that lacks them has the last word.
    server.call(&["REPLICAOF", "NO", "ONE"]).await;
    for guard in [exclusive, shared] {
        assert_eq!(within(SOON, guard.ended()).await.loss(), Some(LossReason::Taken));
    }
}
