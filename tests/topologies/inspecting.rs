//! Who holds a key and who waits for it, wherever Redis lives.

use lock_core::KeyInfo;
use lock_tests::role;

use super::*;

/// What a look shows of a key: the holder's service and label, and those of the waiters.
fn seen(info: &KeyInfo) -> (Option<String>, Vec<String>) {
    let name = |party: &lock_core::Party| format!("{}/{}", party.service(), party.label());
    (
        info.holder().map(|holder| name(holder.party())),
        info.waiters().iter().map(|waiter| name(waiter.party())).collect(),
    )
}

/// Two managers describe what each has of several keys, and a third one asks.
async fn describe_each_other(connect: impl AsyncFn(&'static str) -> LockManager) {
    let (one, two, looks) = (connect("one").await, connect("two").await, connect("looks").await);
    let mut guards = Vec::new();
    for number in 0..4 {
        let guard = one.lock(format!("goods:{number}")).label("sale").ttl(LONG).await.expect("free");
        guards.push(guard);
    }
    let waiter = tokio::spawn(two.lock("goods:2").label("count").ttl(LONG).wait(LONG).acquire());
    let info = eventually_some(SOON, "both are described", async || {
        let info = looks.inspect("goods:2").await.expect("answers");
        (info.holder().is_some() && seen(&info).1 == ["two/count"]).then_some(info)
    })
    .await;
    let holder = info.holder().expect("it was described");
    assert_eq!(holder.fencing_token(), guards[2].fencing_token());
    assert_eq!((holder.ttl(), holder.party().process()), (LONG, std::process::id()));
    assert!(info.remaining().is_some_and(|remaining| remaining <= LONG), "{info:?}");
    assert_eq!(info.waiters()[0].place(), 1);
    let sale = || Some("one/sale".to_owned());
    let expected = [(sale(), vec![]), (sale(), vec![]), (sale(), vec!["two/count".to_owned()]), (sale(), vec![])];
    eventually(SOON, "all are described", async || {
        looks.list("goods:").await.expect("answers").iter().map(seen).collect::<Vec<_>>() == expected
    })
    .await;
    assert_eq!(looks.list("orders:").await.expect("answers"), []);
    // The store has been asked for nothing of that: the queue and the lease are as ever.
    guards.swap_remove(2).release().await.expect("held");
    let second = within(SOON, waiter).await.expect("no panic").expect("its turn");
    eventually(SOON, "the second holds", async || {
        seen(&looks.inspect("goods:2").await.expect("answers")) == (Some("two/count".to_owned()), vec![])
    })
    .await;
    drop((second, guards));
}

/// Two managers share a key, and a third lease of it has no process that could answer: it was handed over, and is not taken up.
async fn count_what_does_not_answer(connect: impl AsyncFn(&'static str) -> LockManager) {
    let (one, two, looks) = (connect("one").await, connect("two").await, connect("looks").await);
    let lock = |manager: &LockManager, ttl| manager.lock("shared").shared().ttl(ttl).acquire();
    let _guards = [lock(&one, LONG).await.expect("free"), lock(&two, LONG).await.expect("shared")];
    let counted = |info: &KeyInfo| (info.leases(), info.holders().len(), info.silent().map(|silent| silent.leases()));
    let all_answer = async || counted(&looks.inspect("shared").await.expect("answers")) == (2, 2, None);
    eventually(SOON, "two share it", all_answer).await;
    let handover = lock(&one, LONG / 2).await.expect("shared").hand_over().expect("held");
    let two_answer = |info: &KeyInfo| counted(info) == (3, 2, Some(1)) && !info.nobody_answered();
    let infos = eventually_some(SOON, "the third is counted", async || {
        let listed = looks.list("shared").await.expect("answers").into_iter().next()?;
        let infos = [looks.inspect("shared").await.expect("answers"), listed];
        infos.iter().all(two_answer).then_some(infos)
    })
    .await;
    for info in infos {
        let silent = info.silent().expect("it was counted");
        let (first, last) = (silent.first_end().expect("a ttl"), silent.last_end().expect("a ttl"));
        assert!(!first.is_zero() && first <= LONG / 2 && LONG / 2 < last && last <= LONG, "{info:?}");
    }
    let _third = two.take_up(handover).await.expect("it is held still");
    let all_answer = async || counted(&looks.inspect("shared").await.expect("answers")) == (3, 3, None);
    eventually(SOON, "three share it", all_answer).await;
}

#[tokio::test]
async fn managers_of_one_server_describe_each_other() {
    let server = RedisServer::start().await;
    let connect = async |name| manager(&server.url(), name).await;
    describe_each_other(connect).await;
    count_what_does_not_answer(connect).await;
}

#[tokio::test]
async fn managers_behind_sentinels_describe_each_other() {
    let sentinels = Sentinels::start().await;
    sentinels.be_patient().await;
    let connect = async |name| manager(&sentinels.url(), name).await;
    describe_each_other(connect).await;
    count_what_does_not_answer(connect).await;
}

#[tokio::test]
async fn managers_of_a_cluster_describe_each_other() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let connect = async |name| manager(&cluster.url(), name).await;
    describe_each_other(connect).await;
    count_what_does_not_answer(connect).await;
}

#[tokio::test]
async fn managers_of_a_quorum_describe_each_other() {
    let servers = [RedisServer::start().await, RedisServer::start().await, RedisServer::start().await];
    let urls = servers.each_ref().map(RedisServer::url);
    let connect = async |name| {
        let builder = LockManager::builder().quorum(&urls).client_name(name).command_timeout(LIMIT);
        builder.connect_timeout(SOON).connect().await.expect("connects")
    };
    describe_each_other(connect).await;
    count_what_does_not_answer(connect).await;
}

#[tokio::test]
async fn a_holder_that_is_stopped_is_not_described() {
    let server = RedisServer::start().await;
    let manager = manager(&server.url(), "looks").await;
    let mut holder = role!("hold", server.url(), "k", LONG.as_millis(), 0);
    holder.expect("held", SOON).await;
    described(&manager, "k").await;
    holder.pause();
    let info = within(SOON, manager.inspect("k")).await.expect("answers");
    assert!(info.is_locked() && info.nobody_answered(), "{info:?}");
    holder.resume();
    described(&manager, "k").await;
}

#[tokio::test]
async fn managers_that_no_message_reaches_are_not_described_and_see_themselves() {
    let server = RedisServer::start().await;
    let old = manager(&format!("{}?protocol=resp2", server.url()), "old").await;
    let looks = manager(&server.url(), "looks").await;
    let _guard = old.lock("k").label("import").ttl(LONG).await.expect("free");
    let info = looks.inspect("k").await.expect("answers");
    assert!(info.is_locked() && info.nobody_answered(), "{info:?}");
    assert_eq!(seen(&old.inspect("k").await.expect("answers")).0.as_deref(), Some("old/import"));
}

#[tokio::test]
async fn a_user_who_may_not_publish_sees_what_the_store_and_the_process_say() {
    let server = RedisServer::start().await;
    server.call(&["ACL", "SETUSER", "shop", "on", ">p", "~*", "+@all", "-publish", "&*"]).await;
    let shop = manager(&format!("redis://shop:p@{}", server.address()), "shop").await;
    let other = manager(&server.url(), "other").await;
    let _guard = other.lock("k").ttl(LONG).await.expect("free");
    let _own = shop.lock("own").label("own").ttl(LONG).await.expect("free");
    let info = shop.inspect("k").await.expect("answers");
    assert!(info.is_locked() && info.nobody_answered(), "{info:?}");
    assert_eq!(seen(&shop.inspect("own").await.expect("answers")).0.as_deref(), Some("shop/own"));
}

#[tokio::test]
async fn a_key_of_another_library_is_described_by_those_who_wait_for_it() {
    let server = RedisServer::start().await;
    let (waits, looks) = (manager(&server.url(), "waits").await, manager(&server.url(), "looks").await);
    server.call(&["SET", "k", "somebody", "PX", "600000"]).await;
    let _waiter = tokio::spawn(waits.lock("k").label("count").wait(LONG).acquire());
    let described = async || looks.list("").await.expect("answers").iter().map(seen).collect::<Vec<_>>();
    eventually(SOON, "the waiter", async || described().await == [(None, vec!["waits/count".to_owned()])]).await;
    let info = eventually_some(SOON, "the waiter answers", async || {
        let info = looks.inspect("k").await.expect("answers");
        (!info.nobody_answered()).then_some(info)
    })
    .await;
    assert!(info.is_foreign() && info.holder().is_none(), "{info:?}");
}

#[tokio::test]
async fn a_lease_publishes_nothing() {
    let server = RedisServer::start().await;
    let one = manager(&server.url(), "one").await;
    let _other = manager(&server.url(), "other").await;
    for _ in 0..10 {
        one.lock("k").label("sale").await.expect("free").release().await.expect("held");
    }
    let stats = server.call(&["INFO", "commandstats"]).await.text().expect("a text");
    assert!(!stats.contains("cmdstat_publish"), "{stats}");
}
