//! Several processes that want one key of a quorum: who gets it, how fast, and what is left.

use std::{
    sync::atomic::{AtomicU64, Ordering},
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
    for round in 0..100 {
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        for client in &clients {
            let client = Arc::clone(client);
            let key = format!("k{round}");
            tasks.spawn(async move {
                let held = client.acquire(&key, LONG, |request| request.wait(SOON)).await.expect("in its turn");
                held.release().await.expect("held");
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.expect("no panic");
        }
        slowest = slowest.max(begun.elapsed());
    }
    figure(20, "longest round of five holders", slowest);
    nodes.are_clean(SOON).await;
    judged(&run);
}

/// Clients that take one key again and again while nodes are killed, come back empty one at a time, and are stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_follow_one_another_while_one_node_after_the_other_fails() {
    let (mut nodes, run) = (Nodes::start(3).await, Run::new("quorum-nemesis"));
    let clients: Vec<_> = (0..4).map(|client| nodes.client(&run, &format!("p{client}"))).collect();
    let until = Instant::now() + for_seconds(6);
    let (holds, lost) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for client in clients {
        let (holds, lost) = (Arc::clone(&holds), Arc::clone(&lost));
        tasks.spawn(async move {
            while Instant::now() < until {
                // A minority of nodes never shows.
                let mut held = client.acquire("k", TTL, |request| request.wait(SOON)).await.expect("in its turn");
                assert!(held.check());
                holds.fetch_add(1, Ordering::Relaxed);
                // A lease that a bare majority had is gone with a node of it.
                lost.fetch_add(u64::from(held.release().await.is_err()), Ordering::Relaxed);
            }
        });
    }
    let mut round = 0;
    while Instant::now() < until {
        let node = round % 3;
        if round % 2 == 0 {
            nodes.servers[node].stop();
            tokio::time::sleep(ms(150)).await;
            nodes.servers[node].start_again().await;
        } else {
            nodes.servers[node].pause();
            tokio::time::sleep(ms(150)).await;
            nodes.servers[node].resume();
        }
        // It is to be up to date before the next one fails: a lease is put back within a third of its ttl, or over.
        tokio::time::sleep(TTL).await;
        round += 1;
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
    let (holds, lost) = (holds.load(Ordering::Relaxed), lost.load(Ordering::Relaxed));
    println!("{holds} holds while {round} nodes failed, {lost} of them lost");
    assert!(holds > 20 && lost <= round as u64, "{lost} of {holds} leases were lost");
    nodes.are_clean(SOON).await;
    judged(&run);
}
