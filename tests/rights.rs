//! Users who may not do everything, and servers that cannot: they contend all the same, or are told what is missing.

use std::time::Duration;

use lock_core::{ErrorKind, Replicas};
use lock_tests::{
    LONG, RedisServer, Reply, SOON, eventually,
    history::{Run, judged},
    server_version, team,
};

use crate::patient;
use crate::{contention::contend, trust::requests_of_a_handoff};

/// A team whose user may do everything but what `rules` forbid.
async fn contends_without(server: RedisServer, name: &str, rules: &str) {
    let url = signed_in(&server, &format!("~* &* +@all {rules}")).await;
    contends_as(&server, name, url).await;
}

/// Makes a user of these rights; the URL to sign in with.
async fn signed_in(server: &RedisServer, rights: &str) -> String {
    let mut command = vec!["ACL", "SETUSER", "user", "on", ">secret"];
    command.extend(rights.split(' '));
    assert_eq!(server.call(&command).await.text().as_deref(), Some("OK"), "{rights}");
    format!("redis://user:secret@{}", server.address())
}

async fn contends_as(server: &RedisServer, name: &str, url: String) {
    let (run, url) = (Run::new(name), format!("url={url}"));
    let register = format!("register={}", server.address());
    let mut team = team!(run, "contend", 2, "p", [url, register, "ttl=600000", "tasks=3", "keys=2", "pause=3"]).await;
    team.go().await;
    contend(server).await;
    let rounds = team.stop(SOON).await;
    run.settle(server).await;
    judged(&run);
    println!("{name}: {rounds:?} rounds");
    assert!(rounds.iter().all(|rounds| *rounds > 5), "{rounds:?}");
}

#[tokio::test]
async fn user_without_any_channel_gets_along() {
    contends_without(RedisServer::start().await, "contention-no-channels", "resetchannels").await;
}

/// The rules but for the last one, about channels of shards, which Redis 6 does not know.
fn known(rules: &str) -> &str {
    if server_version() < 7 { rules.rsplit_once(' ').expect("two rules").0 } else { rules }
}

#[tokio::test]
async fn user_who_may_not_publish_gets_along() {
    contends_without(RedisServer::start().await, "contention-no-publish", known("-publish -spublish")).await;
}

#[tokio::test]
async fn user_who_may_not_subscribe_gets_along() {
    let rules = known("-subscribe -psubscribe -ssubscribe");
    contends_without(RedisServer::start().await, "contention-no-subscribe", rules).await;
}

#[tokio::test]
async fn user_without_transactions_gets_along() {
    contends_without(RedisServer::start().await, "contention-no-transactions", "-multi -exec").await;
    contends_without(RedisServer::start().await, "contention-no-multi", "-multi").await;
}

#[tokio::test]
async fn server_without_resp3_gets_along() {
    let server = RedisServer::builder().without_command("HELLO").start().await;
    contends_as(&server, "contention-resp2", server.url()).await;
}

/// What `docs/protocol.md` says that a user needs, for the keys of a team instead of those that it names.
fn rights() -> String {
    let text = include_str!("../docs/protocol.md");
    let rights = text.split("ACL SETUSER shop on >password ~shop:* ").nth(1).and_then(|rest| rest.split("```").next());
    let rights: Vec<_> = rights.expect("there is such a user").split_whitespace().collect();
    format!("~k* {}", rights.join(" "))
}

#[tokio::test]
async fn user_with_the_rights_that_the_protocol_names_may_wait_for_replicas() {
    let server = RedisServer::start().await;
    let manager = patient::connect(signed_in(&server, &rights()).await).await.expect("connects");
    let replicated = Replicas::new(1, Duration::from_millis(50));
    let error = manager.lock("k1").ttl(LONG).durability(replicated).await.expect_err("there are no replicas");
    assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}");
    assert_eq!(server.left().await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_with_the_rights_that_the_protocol_names_is_never_refused() {
    for (database, number, more) in [("", "0", ""), ("/3", "3", " +select")] {
        let server = RedisServer::start().await;
        let url = signed_in(&server, &format!("{}{more}", rights())).await + database;
        contends_as(&server, &format!("contention-rights{}", more.len()), url.clone()).await;
        // It is called, too, and does not have to poll.
        let manager = patient::connect(&url).await.expect("connects");
        let subscribers = async || server.call(&["PUBSUB", "CHANNELS", "lock-core:calls:*"]).await;
        // Its own channel, and that of all managers. The team may be about to leave.
        eventually(SOON, "it can be called", async || subscribers().await.items().len() == 2).await;
        let other = patient::connect(&url).await.expect("connects");
        assert_eq!(requests_of_a_handoff(&server, number, [&manager, &other], 2).await, 2, "the two releases");
        drop(other);
        let refused = server.call(&["ACL", "LOG"]).await;
        let words = |entry: &Reply| entry.items().iter().filter_map(Reply::text).collect::<Vec<_>>();
        assert!(refused.items().is_empty(), "{:?}", refused.items().iter().map(words).collect::<Vec<_>>());

        let held = manager.lock("k").await.expect("free");
        signed_in(&server, "+scan").await;
        let error = manager.list("k").await.expect_err("a right is missing");
        assert!(error.to_string().contains("getrange"), "{error}");
        signed_in(&server, "+getrange").await;
        assert_eq!(manager.list("k").await.expect("with two rights more").len(), 1);
        assert_eq!(manager.force_release_all("k").await.expect("with the same rights"), 1);
        assert!(held.release().await.is_err());
    }
}

#[tokio::test]
async fn right_that_is_missing_inside_the_script_is_named_and_not_retried() {
    let server = RedisServer::start().await;
    let all = ["ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all"];
    for command in ["set", "mget", "xadd"] {
        server.call(&["ACL", "DELUSER", "limited"]).await;
        server.call(&[&all[..], &[&format!("-{command}")]].concat()).await;
        let manager = patient::connect(&format!("redis://limited:secret@{}", server.address())).await.unwrap();
        let error = manager.lock("k").await.expect_err("a right is missing");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "-{command}: {error}");
        assert!(error.retry_after().is_none());
        // Redis 8 names it itself.
        let told = error.to_string().to_lowercase();
        assert!(told.contains(&format!("{command})")) || told.contains(&format!("'{command}'")), "{error}");
        server.call(&["DEL", "k"]).await;
    }
}

#[tokio::test]
async fn command_that_the_server_lacks_is_named_and_not_retried() {
    for command in ["SET", "MGET", "XADD"] {
        let server = RedisServer::builder().without_command(command).start().await;
        let manager = patient::connect(&server.url()).await.unwrap();
        let error = manager.lock("k").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{command}: {error}");
        assert!(error.to_string().contains(command), "{command}: {error}");
    }
}

#[tokio::test]
async fn scripts_that_are_missing_or_forbidden_are_told_at_connect() {
    for command in ["EVAL", "EVALSHA"] {
        let server = RedisServer::builder().without_command(command).start().await;
        let error = patient::connect(&server.url()).await.expect_err("no lock could be released");
        let cause = error.cause().expect("the URL is sound");
        assert_eq!(cause.kind(), ErrorKind::Unsupported, "{command}: {cause}");
        assert!(
            cause
                .to_string()
                .replace('`', "'")
                .contains(&format!("lacks a command that the lock needs: unknown command '{command}'")),
            "{cause}"
        );
    }
    let server = RedisServer::start().await;
    for rights in ["-eval", "-evalsha", "-eval -evalsha"] {
        let url = signed_in(&server, &format!("~* &* +@all {rights}")).await;
        let error = patient::connect(&url).await.expect_err("no lock could be released");
        let cause = error.cause().expect("the URL is sound");
        assert_eq!(cause.kind(), ErrorKind::Unsupported, "{rights}: {cause}");
        assert!(cause.to_string().contains("grant the rights that docs/protocol.md lists"), "{rights}: {cause}");
    }
    server.call(&["ACL", "DELUSER", "user"]).await;
    let url = signed_in(&server, &rights()).await;
    patient::connect(&url).await.expect("the rights of the protocol are enough");
}

#[tokio::test]
async fn rights_that_only_renewals_and_releases_need_are_told_at_connect() {
    let server = RedisServer::start().await;
    for command in ["pexpire", "pexpireat", "pttl", "del", "zscore", "zadd", "zrevrangebyscore", "zrem"] {
        server.call(&["ACL", "DELUSER", "user"]).await;
        let url = signed_in(&server, &format!("~* &* +@all -{command}")).await;
        let error = patient::connect(&url).await.expect_err("no lease could be kept and released");
        let cause = error.cause().expect("the URL is sound").to_string();
        assert!(cause.to_lowercase().contains(&format!("'{command}'")), "-{command}: {cause}");
        assert!(cause.contains("grant the rights that docs/protocol.md lists"), "-{command}: {cause}");
    }
    assert_eq!(server.left().await, Vec::<String>::new(), "the trial leaves nothing");
    for command in ["PEXPIRE", "PTTL", "DEL", "ZREM"] {
        let server = RedisServer::builder().without_command(command).start().await;
        let error = patient::connect(&server.url()).await.expect_err("no lease could be kept and released");
        let cause = error.cause().expect("the URL is sound");
        assert_eq!(cause.kind(), ErrorKind::Unsupported, "{command}: {cause}");
        assert!(cause.to_string().contains(&format!("unknown command '{command}'")), "{command}: {cause}");
    }
}

#[tokio::test]
async fn a_process_that_no_message_reaches_says_that_the_others_did_not_answer() {
    let server = RedisServer::start().await;
    let holder = patient::connect(server.url()).await.expect("connects");
    let _guard = holder.lock("k").ttl(LONG).await.expect("free");
    let deaf = signed_in(&server, "~* &* +@all -subscribe").await;
    let deaf = patient::connect(deaf).await.expect("connects");
    // The server may be too slow to say how many were asked, but not each time.
    eventually(SOON, "two were asked", async || {
        let info = deaf.inspect("k").await.expect("it may look");
        assert!(info.nobody_answered());
        let processes = info.processes();
        assert_eq!(processes.answered(), 1);
        processes.asked() == Some(2)
    })
    .await;
}

#[tokio::test]
async fn a_user_without_rights_to_the_key_is_denied() {
    let server = RedisServer::start().await;
    server.call(&["ACL", "SETUSER", "limited", "on", ">secret", "~shop:*", "~{*}lock-core:*", "+@all"]).await;
    let manager = patient::connect(&format!("redis://limited:secret@{}", server.address())).await.unwrap();
    assert!(manager.lock("shop:1").await.is_ok());
    let error = manager.lock("other:1").await.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Denied, Some("other:1")), "{error}");
}
