//! Questions about holders: whom they reach, how long they take, and that nobody can harm a lease by asking.

use std::sync::Arc;

use futures_util::future::join_all;
use lock_core::{
    LockGuard,
    clock::{Clock, Moment, Sleep, SystemClock},
};

use super::*;

#[tokio::test]
async fn questions_stay_within_a_database() {
    let server = RedisServer::start().await;
    let of = async |database: u32, name| manager(&format!("{}/{database}", server.url()), name).await;
    let (first, second, asks) = (of(0, "first").await, of(1, "second").await, of(0, "asks").await);
    let _first = first.lock("k").ttl(LONG).await.expect("free");
    // The other database gives the higher fencing tokens.
    for _ in 0..10 {
        second.lock("x").await.expect("free").release().await.expect("held");
    }
    let _second = second.lock("k").ttl(LONG).await.expect("free");
    let _waits = tokio::spawn(second.lock("k").wait(LONG).acquire());
    let waits = async || second.inspect("k").await.expect("answers").waiters().len() == 1;
    eventually(SOON, "one waits in the second database", waits).await;
    let info = described(&asks, "k").await;
    assert_eq!(info.holder().map(|holder| holder.party().service()), Some("first"));
    assert_eq!(info.waiters(), []);
}

#[tokio::test]
async fn own_holders_are_described_though_a_node_of_the_quorum_is_stopped() {
    let servers = [RedisServer::start().await, RedisServer::start().await, RedisServer::start().await];
    let connect = async |name| {
        let builder = LockManager::builder().quorum(servers.each_ref().map(RedisServer::url)).client_name(name);
        builder.command_timeout(LIMIT).connect_timeout(SOON).connect().await.expect("connects")
    };
    let (own, other) = (connect("own").await, connect("other").await);
    let _guard = own.lock("k").ttl(LONG).await.expect("free");
    servers[2].pause();
    for manager in [&own, &other, &own, &other] {
        described(manager, "k").await;
    }
    servers[2].resume();
}

/// Stands still: the time that a look waits for answers is never over.
#[derive(Debug)]
struct Still;

impl Clock for Still {
    fn now(&self) -> Moment {
        Moment::from_origin(SOON)
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        SystemClock.sleep(duration)
    }
}

#[tokio::test]
async fn a_look_at_a_cluster_ends_when_all_have_answered() {
    // Before, a cluster does not tell how many were asked.
    if !is_redis_7("a_look_at_a_cluster_ends_when_all_have_answered") {
        return;
    }
    let cluster = Cluster::builder().replicas(0).start().await;
    let holds = manager(&cluster.url(), "holds").await;
    let _guard = holds.lock("k").ttl(LONG).await.expect("free");
    let asks = LockManager::builder().url(cluster.url()).command_timeout(LIMIT).clock(Arc::new(Still));
    let asks = asks.connect_timeout(SOON).connect().await.expect("connects");
    // How many were asked is known when both are connected to all nodes.
    eventually(3 * SOON, "a look ends though the time for answers does not", async || {
        let look = timeout(ms(5_000), asks.inspect("k")).await;
        look.is_ok_and(|info| info.expect("answers").holder().is_some())
    })
    .await;
}

#[tokio::test]
async fn a_user_of_a_cluster_who_may_not_count_subscribers_waits_for_all_answers() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let holds = manager(&cluster.url(), "holds").await;
    let _guard = holds.lock("k").ttl(LONG).await.expect("free");
    for node in cluster.nodes() {
        node.call(&["ACL", "SETUSER", "limited", "on", ">p", "~*", "&*", "+@all", "-pubsub"]).await;
    }
    let url = cluster.url().replacen("://", "://limited:p@", 1);
    let asks = manager(&url, "asks").await;
    let begun = Instant::now();
    asks.inspect("k").await.expect("answers");
    assert!(begun.elapsed() >= FOR_ANSWERS, "{:?}", begun.elapsed());
    described(&asks, "k").await;
}

/// Has a manager hold so many keys.
async fn hold(manager: &LockManager, keys: usize) -> Vec<LockGuard> {
    let keys: Vec<_> = (0..keys).map(|number| format!("k:some-entity:{number}")).collect();
    let mut guards = Vec::new();
    for keys in keys.chunks(500) {
        let acquires = keys
            .iter()
            .map(|key| manager.lock(key).label("k:some-entity:<id>").ttl(LONG).renew_every(OFTEN).wait(LONG).acquire());
        guards.extend(join_all(acquires).await.into_iter().map(|guard| guard.expect("free")));
    }
    guards
}

/// A client with the right to publish can ask as often as it likes, in the name of another manager.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_questions_cost_no_lease() {
    let server = RedisServer::start().await;
    let (holds, victim) = (manager(&server.url(), "holds").await, manager(&server.url(), "victim").await);
    let victims = victim.lock("victim").ttl(LONG).renew_every(OFTEN).await.expect("free");
    let channels = server.call(&["PUBSUB", "CHANNELS", "lock-core:calls:*"]).await;
    let channels: Vec<_> = channels.items().iter().filter_map(Reply::text).collect();
    let guards = hold(&holds, 5_000).await;
    // On a busy machine the store may not answer a look in time, either.
    let is_described = async || victim.inspect("k:some-entity:7").await.is_ok_and(|info| info.holder().is_some());
    eventually(SOON, "a holder is described", is_described).await;
    let mut client = server.connect().await.expect("connects");
    let to = channels.iter().filter(|channel| !channel.contains(":all:"));
    for (id, channel) in to.cycle().take(300).enumerate() {
        let id = id.to_string();
        let question = format!("lock-core:who:1 {}:{id},{}:{channel},6:prefix,0:,", id.len(), channel.len());
        client.call(&["PUBLISH", "lock-core:calls:all:0", &question]).await.expect("answers");
    }
    // Whatever is asked, every lease is renewed again, and others are granted between.
    let mut worst = Duration::ZERO;
    let mut deadlines: Vec<_> = guards.iter().map(LockGuard::deadline).collect();
    let begun = Instant::now();
    for _ in 0..2 {
        while guards.iter().zip(&deadlines).any(|(guard, before)| guard.deadline() <= *before) {
            assert!(begun.elapsed() < LONG / 2, "not all leases are renewed");
            let begun = Instant::now();
            holds.lock("pair").wait(LONG).await.expect("free").release().await.expect("held");
            worst = worst.max(begun.elapsed());
            sleep(ms(50)).await;
        }
        deadlines = guards.iter().map(LockGuard::deadline).collect();
    }
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    println!("the slowest acquire and release took {worst:?}");
    assert!(lost == 0 && victims.is_held(), "{lost} leases were lost");
    eventually(3 * SOON, "those that ask honestly are answered again", is_described).await;
}

/// From one renewal to the next of leases that are to be kept for long.
const OFTEN: Duration = ms(3_000);
/// How long a look waits for a process that does not answer.
const FOR_ANSWERS: Duration = ms(250);
