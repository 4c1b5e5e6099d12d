//! Acquires of free keys, which go without the script.

use lock_core::{ErrorKind, LockManager};
use lock_tests::{LONG, RedisServer, SOON, eventually};

use crate::patient;

async fn pair(manager: &LockManager, key: &str) -> u64 {
    // A renewal would count as a request.
    let guard = manager.lock(key).ttl(LONG).wait(SOON).await.expect("it is free, or soon will be");
    let fence = guard.fencing_token().get();
    guard.release().await.expect("it is held");
    fence
}

#[tokio::test]
async fn an_acquire_of_a_free_key_is_one_transaction_once_the_script_has_run() {
    let server = RedisServer::start().await;
    let manager = patient::connect(&server.url()).await.expect("connects");
    pair(&manager, "first").await;
    assert_eq!(server.calls_of("exec").await, 0, "the server might refuse the script, and with it the release");
    let scripts = server.calls_of("evalsha").await;
    let mut last = 0;
    for _ in 0..20 {
        let fence = pair(&manager, "k").await;
        assert!(fence > last, "{fence} follows {last}");
        last = fence;
    }
    assert_eq!(server.calls_of("exec").await, 20);
    assert_eq!(server.calls_of("evalsha").await - scripts, 20, "the releases");
    assert!(server.left().await.is_empty());
}

#[tokio::test]
async fn a_counter_without_numbers_left_in_its_millisecond_is_gone_on_with_by_the_script() {
    let server = RedisServer::start().await;
    let manager = patient::connect(&server.url()).await.expect("connects");
    pair(&manager, "first").await;
    // Far ahead of the clock.
    server.call(&["XADD", RedisServer::COUNTER, "MAXLEN", "0", "8000000000000-995", "", ""]).await;
    let fences = [pair(&manager, "a").await, pair(&manager, "b").await, pair(&manager, "c").await];
    assert_eq!(fences, [8_000_000_000_000_996, 8_000_000_000_000_997, 8_000_000_000_000_998]);
    let fences = [pair(&manager, "a").await, pair(&manager, "a").await, pair(&manager, "a").await];
    assert_eq!(fences, [8_000_000_000_000_999, 8_000_000_000_001_000, 8_000_000_000_001_001]);
    assert!(server.left().await.is_empty());
}

#[tokio::test]
async fn a_counter_that_another_version_keeps_is_an_error_and_leaves_no_key() {
    let server = RedisServer::start().await;
    let manager = patient::connect(&server.url()).await.expect("connects");
    pair(&manager, "first").await;
    server.call(&["SET", RedisServer::COUNTER, "7"]).await;
    let error = manager.lock("k").await.expect_err("there is no number for it");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    manager.shutdown(SOON).await;
    assert!(server.left().await.is_empty(), "it was taken by the transaction, and is released");
}

#[tokio::test]
async fn a_key_that_another_process_has_is_waited_for_in_the_queue() {
    let server = RedisServer::start().await;
    let one = patient::connect(&server.url()).await.expect("connects");
    let two = patient::connect(&server.url()).await.expect("connects");
    pair(&one, "first").await;
    pair(&two, "first").await;
    let held = one.lock("k").ttl(LONG).await.expect("free");
    let waiter = tokio::spawn(async move { pair(&two, "k").await });
    let waits = async || server.call(&["EXISTS", RedisServer::WAITING]).await.integer() == Some(1);
    eventually(SOON, "it has a place", waits).await;
    let first = held.fencing_token().get();
    held.release().await.expect("it is held");
    assert!(first < waiter.await.expect("no panic"));
}

async fn signed_in(server: &RedisServer, rights: &[&str]) -> LockManager {
    server.call(&[&["ACL", "SETUSER", "user", "reset", "on", ">secret", "&*", "+@all"], rights].concat()).await;
    patient::connect(&format!("redis://user:secret@{}", server.address())).await.expect("connects")
}

#[tokio::test]
async fn a_key_that_the_user_may_not_touch_leaves_nothing_to_be_released() {
    let server = RedisServer::start().await;
    let manager = signed_in(&server, &["~shop:*", "~{*}lock-core:*"]).await;
    pair(&manager, "shop:1").await;
    let error = manager.lock("other:1").await.expect_err("it is not for this user");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let before = server.script_calls().await;
    assert_eq!(manager.shutdown(SOON).await, 0);
    assert_eq!(server.script_calls().await, before, "nothing is released");
}

#[tokio::test]
async fn rights_that_do_not_let_a_key_be_released_cost_one_key_at_most() {
    let server = RedisServer::start().await;
    let names = ["~shop:*", "~cart:*", "~{0}lock-core:fence", "~{0}lock-core:waiting", "~{0}lock-core:queue:shop:*"];
    let manager = signed_in(&server, &names).await;
    pair(&manager, "shop:1").await;
    let first = manager.lock("cart:1").await.expect("its queue is not looked at");
    first.release().await.expect_err("its queue may not be touched");
    let error = manager.lock("cart:2").await.expect_err("from now on the script is asked");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test]
async fn a_user_without_transactions_pays_for_one_of_them() {
    for rights in [&["allkeys", "-multi", "-exec"][..], &["allkeys", "-multi"], &["allkeys", "-exec"]] {
        let server = RedisServer::start().await;
        let manager = signed_in(&server, rights).await;
        for _ in 0..10 {
            pair(&manager, "k").await;
        }
        let sets = server.calls_of("set").await;
        // Each acquire sets the key once, in the script, but for one that was tried without.
        assert!(sets <= 11, "{rights:?}: {sets}");
        assert!(server.calls_of("multi").await <= 1, "{rights:?}: none is begun any more");
        assert!(server.left().await.is_empty());
    }
}

#[tokio::test]
async fn a_server_that_executes_no_transaction_is_left_with_none_open() {
    let server = RedisServer::builder().without_command("EXEC").start().await;
    let manager = patient::connect(&server.url()).await.expect("connects");
    for _ in 0..5 {
        pair(&manager, "k").await;
    }
    assert!(server.left().await.is_empty());
}
