//! Slots that move to another node while their keys are held and waited for.

use lock_core::{
    ErrorKind,
    backend::{Backend, Batch, Calls, Notice, Operation, RedisBackend},
    key::LockKey,
};
use lock_tests::history::{Run, now};

use crate::topologies::{load::Load, *};

/// From one renewal to the next.
const OFTEN: Duration = ms(300);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_16_keys_of_a_slot_that_moves_stay_held_and_are_waited_for_in_order() {
    let (cluster, run) = (Cluster::builder().replicas(0).start().await, Run::new("fault-16-held"));
    let url = cluster.url();
    let slot = slot_of("{k}");
    let from = cluster.primary_of(slot).await;
    let to = (from + 1) % 3;
    let (one, two) = (client(&run, &url, "p1").await, client(&run, &url, "p2").await);
    let mut stays = one.acquire("{k}stays", LONG, |request| request.renew_every(OFTEN)).await.expect("free");
    let mut moves = two.acquire("{k}moves", LONG, |request| request.renew_every(OFTEN)).await.expect("free");
    let mut waiters = Vec::new();
    for number in 0..2 {
        waiters.push(waits(client(&run, &url, &format!("w{number}")).await, "{k}moves"));
        queued(cluster.node(from), "{k}moves", number + 1).await;
    }
    let mut check = async |state: &str| {
        renewed(&stays, 2).await;
        renewed(&moves, 2).await;
        assert!(stays.check() && moves.check(), "{state}");
    };
    cluster.begin_migration(slot, to).await;
    check("its move has begun").await;
    cluster.move_key("{k}moves").await;
    check("one key is here and one there").await;
    waiters.push(waits(client(&run, &url, "w2").await, "{k}moves"));
    cluster.move_keys(slot).await;
    // Whoever is sent there may ask there.
    queued(cluster.node(to), "{k}moves", 3).await;
    check("all keys have moved, and nobody was told").await;
    cluster.end_migration(slot).await;
    let ended = Instant::now();
    let line = queued(cluster.node(to), "{k}moves", 3).await;
    figure(16, "slot moved to waiting again", ended.elapsed());
    check("the slot has moved").await;
    stays.release().await.expect("held");
    line.serve(moves, waiters).await;
    eventually(SOON, "nothing is left", async || cluster.left().await.is_empty()).await;
    judged(&run);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_16_what_cannot_be_done_while_a_slot_moves_is_done_when_it_has_moved() {
    let (cluster, run) = (Cluster::builder().replicas(0).start().await, Run::new("fault-16-moving"));
    let slot = slot_of("{k}");
    let from = cluster.primary_of(slot).await;
    let (one, two) = (client(&run, &cluster.url(), "p1").await, client(&run, &cluster.url(), "p2").await);
    let dropped = one.acquire("{k}dropped", LONG, |request| request).await.expect("free");
    let held = two.acquire("{k}released", LONG, |request| request).await.expect("free");
    let third = client(&run, &cluster.url(), "p3").await;
    let since = now();
    cluster.begin_migration(slot, (from + 1) % 3).await;
    cluster.move_key("{k}dropped").await;
    cluster.move_key("{k}released").await;
    drop(dropped);
    let begun = Instant::now();
    // A process that stands still just before the limit hears of the limit alone: then it asks again.
    let refused = async {
        for _ in 0..10 {
            let refused = third.acquire("{k}free", TTL, |request| request.wait(ms(4_500))).await;
            let refused = refused.expect_err("the slot does not end to move");
            if refused.kind() != ErrorKind::Backend {
                return refused;
            }
            println!("not answered while the slot moves: {refused}");
        }
        panic!("a key of the slot does not count as busy");
    };
    let (released, refused) = tokio::join!(held.release(), refused);
    figure(16, "release while the slot moves: error", begun.elapsed());
    let error = released.expect_err("the slot does not end to move");
    println!("released while the slot moves: {error}");
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    println!("acquired while the slot moves: {refused}");
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
    cluster.move_keys(slot).await;
    cluster.end_migration(slot).await;
    let ended = Instant::now();
    // Long before the ttl would see to it.
    eventually(SOON, "nothing is left", async || cluster.left().await.is_empty()).await;
    figure(16, "slot moved to cleaned up", ended.elapsed());
    run.broken_since(since);
    third.acquire("{k}free", TTL, |request| request).await.expect("free").release().await.expect("held");
    judged(&run);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_16_many_slots_move_while_clients_work() {
    let (cluster, run) = (Cluster::builder().replicas(0).start().await, Run::new("fault-16-many"));
    let keys: Vec<_> = (0..12).map(|key| format!("k{key}")).collect();
    let load = Load::start(&run, &cluster.url(), 8, &keys, TTL).await;
    sleep(ms(300)).await;
    let (since, begun) = (now(), Instant::now());
    let (mut moved, mut longest) = (0, Duration::ZERO);
    while moved < keys.len() || begun.elapsed() < for_seconds(1) {
        let slot = slot_of(&keys[moved % keys.len()]);
        let from = cluster.primary_of(slot).await;
        let moves = Instant::now();
        cluster.begin_migration(slot, (from + 1) % 3).await;
        sleep(ms(30)).await;
        // What is written meanwhile has to be moved, too.
        eventually(SOON, "the slot is empty", async || cluster.move_keys(slot).await == 0).await;
        cluster.end_migration(slot).await;
        longest = longest.max(moves.elapsed());
        moved += 1;
    }
    run.broken_since(since);
    sleep(ms(500)).await;
    let done = load.stop().await;
    println!("{moved} slots moved, {longest:?} at most");
    done.is_without_error();
    done.all_had(1);
    eventually(SOON, "nothing is left", async || cluster.left().await.is_empty()).await;
    judged(&run);
}

/// As by `redis-cli --cluster fix` when a node is gone for good, and the keys with it. No connection is made then, which would have them
/// looked at.
#[tokio::test]
async fn fault_16_leases_are_looked_at_when_a_slot_is_given_to_a_node_that_is_connected_already() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let slot = slot_of("{k}");
    let from = cluster.primary_of(slot).await;
    let backend = RedisBackend::from_url(&cluster.url(), "raw", SOON).expect("a sound URL");
    let (calls, mut notices) = Calls::new("lock-core:calls:raw".into());
    let mut connected = async || {
        while !matches!(notices.recv().await.expect("it goes on"), Notice::Connected) {}
    };
    let work = async {
        let key = LockKey::new("{k}").expect("a sound key");
        let inspect = || backend.call(Batch::from([Operation::Inspect { key: key.clone() }]));
        inspect().await.expect("it answers");
        for _ in 0..3 {
            within(SOON, connected()).await;
        }
        cluster.migrate(slot, (from + 1) % 3).await;
        inspect().await.expect("it answers, and says where the slot is");
        within(SOON, connected()).await;
    };
    tokio::select! {
        () = backend.driver(calls) => unreachable!("the driver goes on for as long as it is polled"),
        () = work => {}
    }
}

#[tokio::test]
async fn fault_16_keys_on_their_way_are_listed_and_removed_by_force() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let manager = manager(&cluster.url(), "p1").await;
    let slot = slot_of("{k}");
    let from = cluster.primary_of(slot).await;
    let _guards = [
        manager.lock("{k}1").fixed().ttl(LONG).await.expect("free"),
        manager.lock("{k}2").fixed().ttl(LONG).await.expect("free"),
    ];
    let listed = async || manager.force_release_all("{k}").await;
    cluster.begin_migration(slot, (from + 1) % 3).await;
    cluster.move_keys(slot).await;
    // While they cannot be removed, that is an error and not a number.
    let error = listed().await.expect_err("their slot moves");
    println!("{error}");
    assert!(error.to_string().contains("{k}"), "{error}");
    cluster.end_migration(slot).await;
    assert_eq!(listed().await.expect("the nodes answer"), 2);
    eventually(SOON, "nothing is left", async || cluster.left().await.is_empty()).await;
}

/// A request that shares a call with one for a key of the slot waits for as long as that, and the others do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_16_a_slot_that_is_slow_to_move_does_not_hold_up_the_other_keys_of_a_process() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let manager = manager(&cluster.url(), "p1").await;
    let slot = slot_of("{k}");
    let from = cluster.primary_of(slot).await;
    let held = manager.lock("{k}0").ttl(LONG).await.expect("free");
    manager.lock("other").await.expect("free").release().await.expect("held");
    cluster.begin_migration(slot, (from + 1) % 3).await;
    cluster.move_keys(slot).await;
    let stuck = |key| tokio::spawn(manager.lock(format!("{{k}}{key}")).wait(LONG).acquire());
    let stuck: Vec<_> = (0..6).map(stuck).collect();
    // If each turn waited for the slot, it would fail; some are in a call of their own.
    let (begun, mut turns, mut done) = (Instant::now(), Vec::new(), 0);
    while done < 6 {
        assert!(begun.elapsed() < LONG / 2, "{turns:?}");
        let asked = Instant::now();
        let outcome = async { manager.lock("other").wait(Duration::ZERO).await?.release().await }.await;
        assert!(outcome.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::Backend), "{outcome:?}");
        done += u32::from(outcome.is_ok());
        turns.push(asked.elapsed());
        sleep(ms(10)).await;
    }
    let slow = turns.iter().filter(|turn| **turn > ms(500)).count();
    figure(16, "longest turn at a key of another slot", turns.iter().max().copied().unwrap_or_default());
    println!("{slow} of {} turns took more than half a second", turns.len());
    cluster.move_keys(slot).await;
    cluster.end_migration(slot).await;
    cancelled(stuck).await;
    held.release().await.expect("held");
    eventually(SOON, "nothing is left", async || cluster.left().await.is_empty()).await;
}
