//! One primary, two replicas, three sentinels: another server becomes the primary.

use lock_core::{ErrorKind, LeaseOptions, LockManager};
use lock_tests::history::{Checker, Mark, Run, Undone, now};

use crate::{
    log::Log,
    topologies::{load::Load, *},
    trust::requests_of_a_handoff,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_13_leases_outlive_a_primary_that_is_killed_and_waiters_keep_their_order() {
    let (mut sentinels, run) = (Sentinels::start().await, Run::new("fault-13-killed"));
    sentinels.be_patient().await;
    let url = sentinels.url();
    let holder = client(&run, &url, "holder").await;
    let mut held = holder.acquire("k", TTL, |request| request).await.expect("free");
    // Two managers that live through it.
    let before = [manager(&url, "before0").await, manager(&url, "before1").await];
    let mut waiters = Vec::new();
    for number in 0..3 {
        waiters.push(waits(client(&run, &url, &format!("waiter{number}")).await, "k"));
        queued(&sentinels.servers()[0], "k", number + 1).await;
    }
    eventually(SOON, "all is replicated", async || sentinels.is_replicated().await).await;
    sentinels_be_quick(&sentinels).await;
    let (since, killed) = (now(), Instant::now());
    sentinels.servers_mut()[0].stop();
    let (switched, renewed) = tokio::join!(sentinels.await_switch(0, killed), async {
        eventually(SOON, "the lease is extended", async || held.extend(TTL).await.is_ok()).await;
        killed.elapsed()
    });
    recovered(13, "primary killed to extended", switched, renewed);
    sentinels.be_patient().await;
    assert!(held.check());
    // An outage outlasts their places; they have them back when they have asked again.
    let line = queued(&sentinels.servers()[sentinels.primary().await], "k", 3).await;
    figure(13, "primary killed to waiting again", killed.elapsed());
    run.broken_since(since);
    line.serve(held, waiters).await;
    let primary = sentinels.primary().await;
    let requests = requests_of_a_handoff(&sentinels.servers()[primary], "0", [&before[0], &before[1]], 2).await;
    assert_eq!(requests, 2, "the two releases: waiters are called by the new primary");
    eventually(SOON, "nothing is left", async || sentinels.servers()[primary].left().await.is_empty()).await;
    judged(&run);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_13_a_lease_that_reached_no_replica_is_told_after_the_switch_and_fences_rise() {
    let (mut sentinels, run) = (Sentinels::start().await, Run::new("fault-13-unreplicated"));
    sentinels.be_patient().await;
    let (one, two) = (client(&run, &sentinels.url(), "one").await, client(&run, &sentinels.url(), "two").await);
    one.acquire("k", TTL, |request| request).await.expect("free").release().await.expect("held");
    sentinels.stop_replication().await;
    let mut first = one.acquire("k", TTL, |request| request.renew_every(ms(3_000))).await.expect("free");
    sentinels_be_quick(&sentinels).await;
    let (from, killed) = (now(), Instant::now());
    sentinels.servers_mut()[0].stop();
    let switched = sentinels.await_switch(0, killed).await;
    // No replica has the second lease either: another switch would cost it, too.
    sentinels.be_patient().await;
    let second = eventually_some(SOON, "the new primary does not know it", async || {
        two.try_acquire("k", TTL).await.ok().flatten()
    })
    .await;
    recovered(13, "primary killed to the next grant", switched, killed.elapsed());
    assert!(second.fence() > first.fence());
    within(SOON, first.guard().ended()).await;
    recovered(13, "lease that was not replicated: primary killed to told", switched, killed.elapsed());
    assert!(!first.check());
    let error = first.release().await.expect_err("it was lost");
    assert!(matches!(error.kind(), ErrorKind::Lost(_)), "{error}");
    run.broken_since(from);
    second.release().await.expect("held");
    judged_by(&run, Checker::new().mark(Mark { key: None, from, to: now() }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_13_a_switch_by_hand_costs_no_lease_and_no_error() {
    let (sentinels, run) = (Sentinels::start().await, Run::new("fault-13-by-hand"));
    sentinels.be_patient().await;
    let url = sentinels.url();
    let (holder, waiter) = (client(&run, &url, "holder").await, client(&run, &url, "waiter").await);
    let mut held = holder.acquire("k", TTL, |request| request).await.expect("free");
    let waiter = waits(waiter, "k");
    queued(&sentinels.servers()[0], "k", 1).await;
    eventually(SOON, "all is replicated", async || sentinels.is_replicated().await).await;
    let keys: Vec<_> = (0..2).map(|key| format!("l{key}")).collect();
    let load = Load::start(&run, &url, 4, &keys, ms(1_500)).await;
    sleep(ms(300)).await;
    let from = now();
    let switched = switch_over(&sentinels).await;
    eventually(SOON, "all have left the former primary", async || {
        let clients = sentinels.servers()[0].ask(&["CLIENT", "LIST"]).await.and_then(|clients| clients.text());
        let names = [" name=load", " name=holder", " name=waiter"];
        clients.is_some_and(|clients| names.iter().all(|name| !clients.contains(*name)))
    })
    .await;
    // Longer than the ttl of what the former primary was told last, and no other was told.
    sleep(ms(2_500)).await;
    let to = now();
    run.broken_since(from);
    let done = load.stop().await;
    figure(13, "switch by hand", switched);
    done.all_had(1);
    // Of leases which the former primary has granted in its last moments the new one knows nothing.
    done.has_only_lost();
    assert!(held.check());
    held.release().await.expect("held");
    served(waiter).await.release().await.expect("held");
    let primary = sentinels.primary().await;
    eventually(SOON, "nothing is left", async || sentinels.servers()[primary].left().await.is_empty()).await;
    // Whatever was done by then may be undone.
    let history = run.history().expect("the files can be read");
    let tokens = history.events().iter().filter_map(|event| event.token.clone());
    let undone = tokens.map(|token| Undone { token, from, to, last: to }).collect();
    judged_by(&run, Checker { undone, ..Checker::new().mark(Mark { key: None, from, to }) });
}

#[tokio::test]
async fn fault_13_futures_dropped_while_the_primary_is_switched_leave_nothing() {
    let mut sentinels = Sentinels::start().await;
    let manager = LockManager::builder()
        .url(sentinels.url())
        .command_timeout(LIMIT)
        .defaults(LeaseOptions::new().ttl(LONG))
        .connect()
        .await
        .expect("connects");
    let other = manager.clone();
    let drops = tokio::spawn(async move {
        let mut dice = lock_tests::Dice::named("drops");
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(6) {
            let key = format!("k{}", dice.below(5));
            let patience = dice.between(Duration::ZERO, ms(30));
            // Held guards are dropped, too.
            drop(tokio::time::timeout(patience, other.lock(key).wait(LONG)).await);
            sleep(ms(2)).await;
        }
    });
    sleep(ms(300)).await;
    let killed = Instant::now();
    sentinels.servers_mut()[0].stop();
    sentinels.await_switch(0, killed).await;
    sentinels.be_patient().await;
    within(SOON, drops).await.expect("no panic");
    let primary = sentinels.primary().await;
    // Long before the ttl would see to it.
    eventually(SOON, "nothing is left", async || sentinels.servers()[primary].left().await.is_empty()).await;
    manager.lock("k0").await.expect("free").release().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_13_a_release_that_reached_no_replica_is_repeated_at_the_new_primary() {
    let mut sentinels = Sentinels::start().await;
    sentinels.be_patient().await;
    let manager = manager(&sentinels.url(), "p1").await;
    let (released, dropped) = (manager.lock("released").ttl(LONG), manager.lock("dropped").ttl(LONG));
    let (released, dropped) = (released.await.expect("free"), dropped.await.expect("free"));
    eventually(SOON, "all is replicated", async || sentinels.is_replicated().await).await;
    sentinels.stop_replication().await;
    released.release().await.expect("held");
    drop(dropped);
    eventually(SOON, "it is released", async || sentinels.servers()[0].left().await.is_empty()).await;
    sentinels_be_quick(&sentinels).await;
    let killed = Instant::now();
    sentinels.servers_mut()[0].stop();
    let switched = sentinels.await_switch(0, killed).await;
    let primary = sentinels.primary().await;
    eventually(SOON, "both are released again", async || sentinels.servers()[primary].left().await.is_empty()).await;
    recovered(13, "releases that were not replicated: primary killed to released", switched, killed.elapsed());
}

#[tokio::test]
async fn a_sentinel_of_another_deployment_is_outvoted_and_named_in_the_log() {
    let (log, _default) = Log::begin();
    let (sentinels, theirs) = (Sentinels::start().await, RedisServer::start().await);
    sentinels.be_patient().await;
    let stranger = Sentinels::of_configuration(&theirs, 7).await;
    let addresses = sentinels.sentinels().iter().map(RedisServer::address).chain([stranger.address()]);
    let url = format!("redis+sentinel://{}/{}", addresses.collect::<Vec<_>>().join(","), Sentinels::SERVICE);
    let manager = manager(&url, "p1").await;
    // A lease that the manager moves away from stays behind, so each has a key of its own.
    let mut number = 0;
    let mut is_ours = async || {
        number += 1;
        let key = format!("k:{number}");
        let guard = manager.lock(&key).ttl(LONG).await.ok()?;
        let is_ours = sentinels.servers()[0].call(&["EXISTS", &key]).await.integer() == Some(1);
        guard.release().await.ok()?;
        Some(is_ours)
    };
    // Until then the stranger may win, also after a first lease at ours: it answers when it can.
    let is_named = async || log.count("this sentinel alone names another primary") == 1;
    eventually(SOON, "the stranger is outvoted", is_named).await;
    eventually(SOON, "a lease is at our server", async || is_ours().await == Some(true)).await;
    for _ in 0..25 {
        assert_ne!(is_ours().await, Some(false), "the stranger has won again");
    }
    assert_eq!(log.count("this sentinel alone names another primary"), 1);
    assert_eq!(log.count(&format!("sentinel=\"{}\"", stranger.address())), 1);
}
