//! An acquire of which a server has executed a part, and then refused the rest.

use lock_core::{ErrorKind, LockManager};
use lock_tests::{LONG, RedisServer, Reply, eventually};

/// Without MULTI, the commands of a transaction are executed each by itself.
#[tokio::test]
async fn a_key_that_was_set_without_a_fencing_token_is_released_after_the_error() {
    let server = RedisServer::start().await;
    let allow = async |rules: &[&str]| {
        let user = ["ACL", "SETUSER", "user", "on", ">secret", "~*", "&*"];
        assert_eq!(server.call(&[&user, rules].concat()).await, Reply::Status("OK".to_owned()));
    };
    allow(&["+@all"]).await;
    let url = format!("redis://user:secret@{}", server.address());
    let manager = LockManager::connect(url).await.expect("connects");
    // From the second acquire on, a free key is asked for by a transaction.
    manager.lock("first").await.expect("free").release().await.expect("held");

    let sets = async || {
        let stats = server.info("cmdstat_set").await;
        let calls = stats.strip_prefix("calls=").and_then(|stats| stats.split(',').next()?.parse::<u64>().ok());
        calls.expect("a number of calls")
    };
    let before = sets().await;

    allow(&["-multi", "-xadd"]).await;
    let error = manager.lock("k").ttl(10 * LONG).await.expect_err("there is no number for it");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().to_lowercase().contains("xadd"), "{error}");
    assert_eq!(sets().await, before + 1, "the key was set, outside of a transaction");
    eventually(LONG, "the key is released", async || server.left().await.is_empty()).await;
}
