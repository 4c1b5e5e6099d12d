//! A replica takes the place of its primary in a cluster.

use lock_core::{ErrorKind, LockManager};
use lock_tests::history::{Checker, Mark, Recorded, Run, now};

use crate::{
    topologies::{load::Load, *},
    trust::requests_of_a_handoff,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_15_leases_outlive_a_primary_that_is_killed_and_waiters_keep_their_order() {
    let (mut cluster, run) = (patient_cluster().await, Run::new("fault-15-killed"));
    let (url, slot) = (cluster.url(), slot_of("k"));
    let from = cluster.primary_of(slot).await;
    let mut held = client(&run, &url, "p1").await.acquire("k", TTL, |request| request).await.expect("free");
    // Two managers that live through it.
    let before = [manager(&url, "before0").await, manager(&url, "before1").await];
    let mut waiters = Vec::new();
    for number in 0..3 {
        waiters.push(waits(client(&run, &url, &format!("w{number}")).await, "k"));
        queued(cluster.node(from), "k", number + 1).await;
    }
    // This one's request outlasts the failover.
    let patient = LockManager::builder().url(&url).client_name("p2").command_timeout(LONG).connect().await;
    let patient = Recorded::new(&patient.expect("connects"), &run.recorder("p2"), "");
    patient.acquire("k2", TTL, |request| request).await.expect("free").release().await.expect("held");
    eventually(SOON, "all is replicated", async || cluster.is_replicated(slot).await).await;
    nodes_be_quick(&cluster).await;
    let (since, killed) = (now(), Instant::now());
    cluster.node_mut(from).stop();
    let key = (0..).map(|number| format!("o{number}")).find(|key| part(key) == part("k")).expect("one of them");
    let (failed_over, renewed, patient) = tokio::join!(
        cluster.await_failover(slot, from, killed),
        async {
            eventually(SOON, "the lease is extended", async || held.extend(TTL).await.is_ok()).await;
            killed.elapsed()
        },
        async {
            let held = patient.acquire(&key, TTL, |request| request).await.expect("it has time");
            let took = killed.elapsed();
            held.release().await.expect("held");
            took
        },
    );
    recovered(15, "primary killed to extended", failed_over, renewed);
    recovered(15, "primary killed to the grant of a request that waits for it", failed_over, patient);
    assert!(held.check());
    // An outage outlasts their places; they have them back when they have asked again.
    let line = queued(cluster.node(cluster.primary_of(slot).await), "k", 3).await;
    figure(15, "primary killed to waiting again", killed.elapsed());
    run.broken_since(since);
    line.serve(held, waiters).await;
    // Redis 6 has no channels of shards, so waiters check by themselves.
    let most = if server_version() < 7 { u64::MAX } else { 2 };
    let primary = cluster.node(cluster.primary_of(slot).await);
    let requests = requests_of_a_handoff(primary, "0", [&before[0], &before[1]], most).await;
    assert!(requests <= most, "{requests} requests beside two releases: the new primary calls the waiters");
    eventually(SOON, "nothing is left", async || cluster.left().await.is_empty()).await;
    judged(&run);
}

/// The part of the slots that a key is in: each primary has one.
fn part(key: &str) -> u32 {
    u32::from(slot_of(key)) * 3 / 16_384
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_15_a_lease_that_reached_no_replica_is_told_after_the_failover_and_fences_rise() {
    let (mut cluster, run) = (patient_cluster().await, Run::new("fault-15-unreplicated"));
    let slot = slot_of("k");
    let from = cluster.primary_of(slot).await;
    let (one, two) = (client(&run, &cluster.url(), "p1").await, client(&run, &cluster.url(), "p2").await);
    one.acquire("k", TTL, |request| request).await.expect("free").release().await.expect("held");
    cluster.stop_replication(slot).await;
    let mut first = one.acquire("k", TTL, |request| request.renew_every(ms(3_000))).await.expect("free");
    nodes_be_quick(&cluster).await;
    let (since, killed) = (now(), Instant::now());
    cluster.node_mut(from).stop();
    let failed_over = cluster.await_failover(slot, from, killed).await;
    let second = eventually_some(SOON, "the new primary does not know it", async || {
        two.try_acquire("k", TTL).await.ok().flatten()
    })
    .await;
    recovered(15, "primary killed to the next grant", failed_over, killed.elapsed());
    assert!(second.fence() > first.fence());
    within(SOON, first.guard().ended()).await;
    recovered(15, "lease that was not replicated: primary killed to told", failed_over, killed.elapsed());
    assert!(!first.check());
    let error = first.release().await.expect_err("it was lost");
    assert!(matches!(error.kind(), ErrorKind::Lost(_)), "{error}");
    run.broken_since(since);
    second.release().await.expect("held");
    judged_by(&run, Checker::new().mark(Mark { key: None, from: since, to: now() }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_15_a_release_that_reached_no_replica_is_repeated_at_the_new_primary() {
    let mut cluster = patient_cluster().await;
    let slot = slot_of("{k}");
    let from = cluster.primary_of(slot).await;
    let manager = manager(&cluster.url(), "p1").await;
    let (released, dropped) = (manager.lock("{k}released").ttl(LONG), manager.lock("{k}dropped").ttl(LONG));
    let (released, dropped) = (released.await.expect("free"), dropped.await.expect("free"));
    eventually(SOON, "all is replicated", async || cluster.is_replicated(slot).await).await;
    cluster.stop_replication(slot).await;
    released.release().await.expect("held");
    drop(dropped);
    let are_free = async |cluster: &Cluster, node: usize| {
        let exist = async || cluster.node(node).call(&["EXISTS", "{k}released", "{k}dropped"]).await.integer();
        eventually(SOON, "both are released", async || exist().await == Some(0)).await;
    };
    are_free(&cluster, from).await;
    nodes_be_quick(&cluster).await;
    let killed = Instant::now();
    cluster.node_mut(from).stop();
    let failed_over = cluster.await_failover(slot, from, killed).await;
    let primary = cluster.primary_of(slot).await;
    are_free(&cluster, primary).await;
    recovered(15, "releases that were not replicated: primary killed to released", failed_over, killed.elapsed());
}

/// The primary hands all over that it has before it goes, so nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_15_a_failover_by_hand_under_load_costs_no_lease_and_no_error() {
    let (cluster, run) = (Cluster::start().await, Run::new("fault-15-by-hand"));
    let slot = slot_of("k0");
    let keys: Vec<_> = (0..3).map(|key| format!("k{key}")).collect();
    let load = Load::start(&run, &cluster.url(), 4, &keys, TTL).await;
    let mut held =
        client(&run, &cluster.url(), "p1").await.acquire("{k0}", TTL, |request| request).await.expect("free");
    let begun = Instant::now();
    let mut failovers = 0;
    while failovers < 2 || begun.elapsed() < for_seconds(1) {
        sleep(ms(300)).await;
        let since = now();
        figure(15, "failover by hand", fail_over(&cluster, slot).await);
        sleep(ms(300)).await;
        run.broken_since(since);
        failovers += 1;
        if failovers > 1 && begun.elapsed() < for_seconds(1) {
            // Sooner than that the others do not vote for the same node again.
            sleep(ms(3_500)).await;
        }
        cluster.await_whole().await;
    }
    let done = load.stop().await;
    println!("{failovers} failovers");
    done.is_without_error();
    done.all_had(1);
    assert!(held.check());
    held.release().await.expect("held");
    eventually(SOON, "nothing is left", async || cluster.left().await.is_empty()).await;
    judged(&run);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_15_a_node_that_stands_still_is_replaced_and_left_when_it_goes_on() {
    let (cluster, run) = (patient_cluster().await, Run::new("fault-15-stopped"));
    let slot = slot_of("k");
    let from = cluster.primary_of(slot).await;
    let (first, two) = (manager(&cluster.url(), "p1").await, client(&run, &cluster.url(), "p2").await);
    let one = Recorded::new(&first, &run.recorder("p1"), "");
    let often = |request: lock_core::LockRequest| request.renew_every(ms(1_000));
    let mut held = one.acquire("k", TTL, often).await.expect("free");
    // A lease of the same process at another node, that is renewed in the same calls.
    let other = (0..).map(|number| format!("o{number}")).find(|key| part(key) != part("k")).expect("one of them");
    let beside = Recorded::new(&first, &run.recorder("p1"), "beside");
    let mut beside = beside.acquire(&other, TTL, often).await.expect("free");
    let waiter = waits(two, "k");
    queued(cluster.node(from), "k", 1).await;
    eventually(SOON, "all is replicated", async || cluster.is_replicated(slot).await).await;
    nodes_be_quick(&cluster).await;
    let (since, stopped) = (now(), Instant::now());
    cluster.node(from).pause();
    let (failed_over, extended) = tokio::join!(cluster.await_failover(slot, from, stopped), async {
        eventually(SOON, "the lease is extended", async || held.extend(TTL).await.is_ok()).await;
        stopped.elapsed()
    });
    recovered(15, "primary stopped to extended", failed_over, extended);
    renewed(&beside, 1).await;
    assert!(beside.check(), "its node has answered all the time");
    beside.release().await.expect("held");
    cluster.node(from).resume();
    cluster.await_whole().await;
    run.broken_since(since);
    assert!(held.check());
    held.release().await.expect("held");
    served(waiter).await.release().await.expect("held");
    eventually(SOON, "nothing is left", async || cluster.left().await.is_empty()).await;
    judged(&run);
}

/// Requests for several keys share calls, and a call is answered when all nodes have: so a process feels the node that stands
/// still at its other keys, too, until the node is known to be down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_15_a_node_that_stands_still_holds_up_the_keys_of_others_for_one_limit_at_most() {
    // No node is found down meanwhile.
    let cluster = Cluster::builder().replicas(0).node_timeout(LONG).start().await;
    let run = Run::new("fault-15-moment");
    let from = cluster.primary_of(slot_of("{k}")).await;
    let others: Vec<_> =
        (0..).map(|number| format!("o{number}")).filter(|key| part(key) != part("{k}")).take(2).collect();
    let url = cluster.url();
    let mut held = client(&run, &url, "p1").await.acquire("{k}", LONG, |request| request).await.expect("free");
    let (apart, shared) = (manager(&url, "p2").await, manager(&url, "p3").await);
    let turn = async |manager: &LockManager, key: &str| {
        let begun = Instant::now();
        let outcome = async { manager.lock(key).wait(Duration::ZERO).await?.release().await }.await;
        (begun.elapsed(), outcome)
    };
    for manager in [&apart, &shared] {
        turn(manager, "{k}1").await.1.expect("all nodes answer");
    }
    let since = now();
    cluster.node(from).pause();
    let mut longest = [Duration::ZERO; 2];
    let stuck = |key| tokio::spawn(shared.lock(format!("{{k}}{key}")).wait(LONG).acquire());
    let stuck: Vec<_> = (0..5).map(stuck).collect();
    // Turns that are held up for a limit each, or that fail, would outlast the limit of these.
    for _ in 0..30 {
        let (took, outcome) = within(SOON, turn(&apart, &others[0])).await;
        outcome.expect("its node answers");
        longest[0] = longest[0].max(took);
    }
    let (mut in_a_row, mut failed) = (0, 0);
    let turns = async {
        while in_a_row < 30 {
            let (took, outcome) = turn(&shared, &others[1]).await;
            match outcome {
                Ok(()) => in_a_row += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
                    (in_a_row, failed) = (0, failed + 1);
                }
            }
            longest[1] = longest[1].max(took);
        }
    };
    within(LONG / 2, turns).await;
    cancelled(stuck).await;
    cluster.node(from).resume();
    run.broken_since(since);
    figure(15, "one node stopped: longest turn at another", longest[0]);
    figure(15, "the same in a process that waits for the one", longest[1]);
    println!("{failed} turns at other nodes failed");
    eventually(SOON, "the lease is extended", async || held.extend(TTL).await.is_ok()).await;
    held.release().await.expect("held");
    eventually(SOON, "nothing is left", async || cluster.left().await.is_empty()).await;
    judged(&run);
}
