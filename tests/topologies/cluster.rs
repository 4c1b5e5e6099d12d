//! A cluster in good order: keys of many slots, several managers, all nodes at once.

use lock_core::{
    ErrorKind, LockManager,
    backend::{Acquire, Backend, Batch, Calls, Operation, Outcome, Place, RedisBackend, Release, Renew, Token},
    clock::Moment,
    key::LockKey,
};
use lock_tests::history::{Recorded, Run};

use crate::topologies::*;

#[tokio::test]
async fn keys_of_all_slots_and_with_any_braces_are_locked_together_and_nothing_is_left() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let manager = manager(&cluster.url(), "p1").await;
    let odd = ["{", "}", "{}", "}{", "{{a}}", "a{b", "a}b", "{a}{b}", "a{}{b}", "{0}lock", "ä{ö}ü", "a b{c d}", "{\n}"];
    let keys: Vec<_> = (0..200).map(|number| format!("k{number}")).chain(odd.map(str::to_owned)).collect();
    for _ in 0..2 {
        let all = manager.lock_all(keys.iter().map(String::as_str)).ttl(LONG).wait(LONG).await.expect("free keys");
        eventually(SOON, "all nodes show their keys", async || {
            let held = cluster.keys("*").await;
            keys.iter().all(|key| held.contains(key))
        })
        .await;
        assert!(all.is_held());
        all.release().await.expect("held");
        eventually(SOON, "nothing is left", async || cluster.left().await.is_empty()).await;
    }
}

#[tokio::test]
async fn keys_of_many_slots_are_given_back_when_one_is_busy() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let (one, two) = (manager(&cluster.url(), "p1").await, manager(&cluster.url(), "p2").await);
    let keys: Vec<_> = (0..30).map(|number| format!("k{number:02}")).collect();
    let busy = one.lock("k20").ttl(LONG).await.expect("free");
    let request = || two.lock_all(keys.iter().map(String::as_str)).ttl(LONG);
    // On a busy machine the wait may be over at a key before that.
    eventually(LONG, "the busy key is named", async || {
        let error = request().wait(ms(2_000)).await.expect_err("one is busy");
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        error.to_string().contains("k20")
    })
    .await;
    assert!(request().try_acquire().await.expect("the nodes answer").is_none());
    eventually(SOON, "what was taken is given back", async || cluster.left().await == ["k20"]).await;
    // Two who want the same keys do not block one another.
    busy.release().await.expect("held");
    let other = one.lock_all(keys.iter().rev().map(String::as_str)).ttl(LONG).wait(LONG);
    let (first, second) =
        tokio::join!(async { request().wait(LONG).await.expect("one after the other").release().await }, async {
            other.await.expect("one after the other").release().await
        },);
    first.expect("held");
    second.expect("held");
    eventually(SOON, "nothing is left", async || cluster.left().await.is_empty()).await;
}

#[tokio::test]
async fn keys_of_all_nodes_are_removed_by_force_and_others_stay() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let (one, two) = (manager(&cluster.url(), "p1").await, manager(&cluster.url(), "p2").await);
    let keys: Vec<_> = (0..60).map(|number| format!("shop:{number}")).collect();
    // Those that are not watched yet are told by their next renewal.
    let held = one.lock_all(keys.iter().map(String::as_str)).ttl(LONG).renew_every(ms(3_000)).wait(LONG);
    let held = held.await.expect("free");
    let _other = one.lock("other").ttl(LONG).await.expect("free");
    let foreign = "shop:foreign";
    cluster.call_on(slot_of(foreign), &["SET", foreign, "somebody"]).await;
    assert_eq!(two.force_release_all("shop:").await.expect("all nodes answer"), 60);
    eventually(SOON, "all others stay", async || cluster.left().await == ["other", foreign]).await;
    within(SOON, held.ended()).await;
}

#[tokio::test]
async fn a_node_that_is_gone_is_an_error_of_the_list_and_not_a_smaller_number() {
    let mut cluster = Cluster::builder().replicas(0).without_full_coverage().start().await;
    let manager = manager(&cluster.url(), "p1").await;
    let keys: Vec<_> = (0..20).map(|number| format!("shop:{number}")).collect();
    let _held = manager.lock_all(keys.iter().map(String::as_str)).ttl(LONG).wait(LONG).await.expect("free");
    let gone = cluster.primary_of(slot_of("shop:0")).await;
    cluster.node_mut(gone).stop();
    let error = manager.force_release_all("shop:").await.expect_err("a node is gone");
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    assert!(error.to_string().contains(&cluster.addresses()[gone]), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_of_another_process_is_told_of_a_release() {
    let (cluster, run) = (Cluster::builder().replicas(0).start().await, Run::new("cluster-told"));
    let mut handoffs = Vec::new();
    let (one, two) = (manager(&cluster.url(), "p1").await, manager(&cluster.url(), "p2").await);
    for number in 0..12 {
        let key: &'static str = ["a", "b", "c", "d{e}", "{a}{b}", "{", "g", "h", "i", "j", "k", "l"][number];
        let client = |manager: &LockManager, name: &str| Recorded::new(manager, &run.recorder(name), key);
        let held = client(&one, "p1").acquire(key, TTL, |request| request).await.expect("free");
        let waiter = waits(client(&two, "p2"), key);
        let node = cluster.primary_of(slot_of(key)).await;
        queued(cluster.node(node), &key.replace('{', "[{]"), 1).await;
        let released = Instant::now();
        held.release().await.expect("held");
        let held = served(waiter).await;
        handoffs.push(released.elapsed());
        held.release().await.expect("held");
    }
    println!("handoffs: {handoffs:?}");
    eventually(SOON, "nothing is left", async || cluster.left().await.is_empty()).await;
    judged(&run);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn managers_that_share_a_backend_are_told_each_of_its_own_grants() {
    let (cluster, run) = (Cluster::builder().replicas(0).start().await, Run::new("cluster-shared"));
    let backend = RedisBackend::from_url(&cluster.url(), "shared", LIMIT).expect("a valid URL");
    let built = |name: &str| {
        let manager = LockManager::builder().backend(backend.clone()).build().expect("sound");
        Recorded::new(&manager, &run.recorder(name), "")
    };
    let holder = client(&run, &cluster.url(), "holder").await;
    let mut handoffs = Vec::new();
    // The one that connected last may be gone, and the other has to be told all the same.
    let kept = LockManager::builder().backend(backend.clone()).build().expect("sound");
    kept.lock("first").await.expect("free").release().await.expect("held");
    for number in 0..4 {
        let held = holder.acquire("k", TTL, |request| request).await.expect("free");
        let node = cluster.node(cluster.primary_of(slot_of("k")).await);
        let mut waiters = Vec::new();
        for waiter in 0..2 {
            waiters.push(waits(built(&format!("w{number}{waiter}")), "k"));
            queued(node, "k", waiter + 1).await;
        }
        waiters.push(waits(Recorded::new(&kept, &run.recorder(&format!("kept{number}")), ""), "k"));
        queued(node, "k", 3).await;
        let released = Instant::now();
        held.release().await.expect("held");
        // When a manager goes, so may the connection over which the others listen: then another comes first. And so may the answer
        // to a release.
        let mut waiters: FuturesUnordered<_> = waiters.into_iter().map(served).collect();
        while let Some(mut held) = waiters.next().await {
            assert!(held.check(), "one after the other");
            if let Err(error) = held.release().await {
                assert!(error.to_string().contains("the key is no longer held"), "{error}");
            }
        }
        handoffs.push(released.elapsed() / 3);
    }
    println!("handoffs: {handoffs:?}");
    eventually(SOON, "nothing is left", async || cluster.left().await.is_empty()).await;
    judged(&run);
}

#[tokio::test]
async fn what_a_node_refuses_stands_in_its_health() {
    let cluster = patient_cluster().await;
    let manager = manager(&cluster.url(), "refused").await;
    for node in cluster.nodes() {
        node.call(&["CONFIG", "SET", "maxmemory", "1"]).await;
    }
    manager.lock("k").await.expect_err("there is no memory");
    let health = manager.health();
    let faults: Vec<_> = health.nodes().iter().filter_map(|node| Some(node.last_error()?.message())).collect();
    // On a busy machine another node may have been too slow once.
    assert_eq!(faults.iter().filter(|fault| fault.contains("out of memory")).count(), 1, "{faults:?}");
}

/// A former primary that has become a replica accepts subscriptions, and the bus of the cluster carries messages to it. A waiter that heard of
/// its grant only there would hold the key beside the next waiter.
#[tokio::test]
async fn a_grant_that_nobody_hears_at_the_primary_is_heard_at_no_replica() {
    if !is_redis_7("channels of shards") {
        return;
    }
    let cluster = patient_cluster().await;
    let primary = cluster.primary_of(slot_of("k")).await;
    let replica = cluster.replicas_of(primary).await[0];
    let (primary, replica) = (cluster.node(primary), cluster.node(replica));
    let backend = RedisBackend::from_url(&cluster.url(), "raw", SOON).expect("a sound URL");
    let key = || LockKey::new("k").expect("a sound key");
    let [holder, waits] = [1, 2].map(Token::from_random);
    let work = async {
        let place = Place::new("lock-core:calls:elsewhere".into(), LONG, ms(1_000), Moment::from_origin(SOON));
        let call =
            async |operation| backend.call(Batch::from([operation])).await.expect("it answers").outcomes.remove(0);
        let held = call(Operation::Acquire(Acquire::new(key(), holder, LONG))).await;
        assert!(matches!(held, Ok(Outcome::Held { .. })), "{held:?}");
        let busy = call(Operation::Acquire(Acquire::new(key(), waits, LONG).or_wait(place))).await;
        assert!(matches!(busy, Ok(Outcome::Busy { position: Some(1), .. })), "{busy:?}");
        let queue = primary.keys("*queue:k").await.remove(0);
        let places = primary.call(&["HVALS", &queue]).await;
        let mut texts = places.items().iter().filter_map(Reply::text);
        let place = texts.find(|text| text.contains("calls:elsewhere")).expect("it has a place");
        let channel = place.rsplit(' ').next().expect("a channel");
        let mut listener = replica.connect().await.expect("the replica is up");
        let subscribed = listener.call(&["SSUBSCRIBE", channel]).await.expect("it answers");
        assert!(!matches!(subscribed, Reply::Error(_)), "{subscribed:?}");
        let released = call(Operation::Release(Release::new(key(), holder))).await;
        assert!(matches!(released, Ok(Outcome::Released)), "{released:?}");
        assert_eq!(primary.call(&["EXISTS", "k"]).await.integer(), Some(0), "nobody has it");
        primary.call(&["SPUBLISH", channel, "end"]).await;
        let said = listener.read().await.expect("a message comes");
        assert_eq!(said.items().last().and_then(Reply::text).as_deref(), Some("end"));
    };
    tokio::select! {
        () = backend.driver(Calls::to_nobody()) => unreachable!("the driver goes on for as long as it is polled"),
        () = work => {}
    }
}

/// The lease of a trusted grant has a second left, and others that are renewed with it have minutes.
#[tokio::test]
async fn a_renewal_that_shares_a_call_with_one_at_a_node_that_hangs_is_answered_in_its_own_time() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let primary = cluster.primary_of(slot_of("k")).await;
    let mut other = "k0".to_owned();
    while cluster.primary_of(slot_of(&other)).await == primary {
        other.push('0');
    }
    let hangs = cluster.node(cluster.primary_of(slot_of(&other)).await);
    let backend = RedisBackend::from_url(&cluster.url(), "raw", LONG).expect("a sound URL");
    let [key, other] = [LockKey::new("k"), LockKey::new(other)].map(|key| key.expect("a sound key"));
    let token = Token::from_random(1);
    let work = async {
        let acquires = [&key, &other].map(|key| Operation::Acquire(Acquire::new(key.clone(), token, LONG)));
        let held = backend.call(Batch::from(acquires.to_vec())).await.expect("it answers");
        assert!(held.outcomes.iter().all(|outcome| matches!(outcome, Ok(Outcome::Held { .. }))), "{held:?}");
        hangs.pause();
        let mut renews = [key, other].map(|key| Renew::new(key, token, LONG));
        renews[0].within = ms(1_000);
        let batch = Batch::from(renews.map(Operation::Renew).to_vec());
        let answer = within(SOON, backend.call(batch)).await.expect("an answer for each");
        let [renewed, unanswered] = &answer.outcomes[..] else { panic!("{answer:?}") };
        assert!(matches!(renewed, Ok(Outcome::Renewed { .. })) && unanswered.is_err(), "{answer:?}");
    };
    tokio::select! {
        () = backend.driver(Calls::to_nobody()) => unreachable!("the driver goes on for as long as it is polled"),
        () = work => {}
    }
}
