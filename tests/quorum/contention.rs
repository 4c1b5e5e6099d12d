//! Several processes that want one key of a quorum: who gets it, how fast, and what is left.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Instant,
};

use lock_tests::{figure, for_seconds};
use tokio::task::JoinSet;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_20_votes_that_split_are_cast_again_until_somebody_wins() {
    let (nodes, run) = (Nodes::start(5).await, Run::new("fault-20"));
    let clients: Vec<_> = (0..5).map(|client| Arc::new(nodes.client(&run, &format!("p{client}")))).collect();
    let mut slowest = Duration::ZERO;
    for round in 0..40 {
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        for client in &clients {
            let client = Arc::clone(client);
            let key = format!("k{round}");
            tasks.spawn(async move {
                let held = client.acquire(&key, LONG, |request| request.wait(LONG)).await.expect("in its turn");
                held.release().await.expect("held");
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.expect("no panic");
        }
        slowest = slowest.max(begun.elapsed());
    }
    figure(20, "longest round of five holders", slowest);
    nodes.are_clean().await;
    judged(&run);
}

/// Waits until some more leases have begun: all clients go on, whatever has become of a node.
async fn go_on(holds: &AtomicU64) {
    let before = holds.load(Ordering::Relaxed);
    eventually(SOON, "leases follow one another", async || holds.load(Ordering::Relaxed) > before + 8).await;
}

/// Clients that take one key again and again while nodes are killed, come back empty one at a time, and are stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_follow_one_another_while_one_node_after_the_other_fails() {
    let (mut nodes, run) = (Nodes::start(3).await, Run::new("quorum-nemesis"));
    let managers: Vec<_> = (0..4).map(|client| nodes.manager(&format!("p{client}"))).collect();
    let clients = managers
        .iter()
        .zip(0..)
        .map(|(manager, client)| Recorded::new(manager, &run.recorder(&format!("p{client}")), ""));
    let begun = Instant::now();
    let is_over = Arc::new(AtomicBool::new(false));
    let (holds, lost) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for client in clients {
        let (holds, lost, is_over) = (Arc::clone(&holds), Arc::clone(&lost), Arc::clone(&is_over));
        tasks.spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                // A minority of nodes never shows.
                let mut held = client.acquire("k", LONG, |request| request.wait(LONG)).await.expect("in its turn");
                assert!(held.check());
                holds.fetch_add(1, Ordering::Relaxed);
                // A lease that a bare majority had is gone with a node of it.
                lost.fetch_add(u64::from(held.release().await.is_err()), Ordering::Relaxed);
            }
        });
    }
    let mut round = 0;
    // Each node is stopped once, and stands still once.
    while round < 6 || begun.elapsed() < for_seconds(1) {
        let node = round % 3;
        if round % 2 == 0 {
            nodes.servers[node].stop();
            go_on(&holds).await;
            nodes.servers[node].start_again().await;
        } else {
            nodes.servers[node].pause();
            go_on(&holds).await;
            nodes.servers[node].resume();
        }
        // It is to be up to date before the next one fails: all have it again, and leases of before are over.
        eventually(SOON, "all nodes are up", async || {
            managers.iter().all(|manager| manager.health().nodes().iter().all(lock_core::NodeHealth::is_up))
        })
        .await;
        go_on(&holds).await;
        round += 1;
    }
    is_over.store(true, Ordering::Relaxed);
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
    let (holds, lost) = (holds.load(Ordering::Relaxed), lost.load(Ordering::Relaxed));
    println!("{holds} holds while {round} nodes failed, {lost} of them lost");
    assert!(lost <= round as u64, "{lost} of {holds} leases were lost");
    nodes.are_clean().await;
    judged(&run);
}
