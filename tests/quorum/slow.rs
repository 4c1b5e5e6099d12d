//! A node that answers, and late.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Instant,
};

use lock_tests::{FaultProxy, figure};
use tokio::task::JoinSet;

use super::*;

/// How late: far longer than a pair takes, and no longer than a node is waited for that is not known to be late.
const LATE: Duration = Duration::from_secs(1);
const PAIRS: u64 = 40;
/// How often pairs are tried that do not wait: on a busy machine each may take as long as if it did.
const TRIES: usize = 15;

/// The first node keeps the queue of a key, and the last one is only counted. Virtual time says how little such a node costs, to the
/// millisecond (`lock-core/src/backend/quorum/tests/outlier.rs`).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_53_a_node_that_answers_late_is_not_waited_for() {
    for late in [0, 2] {
        for contended in [false, true] {
            let (nodes, run) = (Nodes::start(3).await, Run::new(&format!("fault-53-{late}-{contended}")));
            let proxy = FaultProxy::start(nodes.servers[late].address()).await;
            let mut urls = nodes.urls();
            urls[late] = format!("redis://{}", proxy.address());
            let (pairs, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
            let quick = Arc::new(AtomicU64::new(0));
            let mut clients = JoinSet::new();
            for process in 0..4 {
                let name = format!("p{process}");
                let manager = LockManager::builder().quorum(urls.clone()).client_name(&name).command_timeout(LIMIT);
                let manager = manager.build().expect("a sound quorum");
                manager.lock(&name).wait(LONG).await.expect("free").release().await.expect("held");
                eventually(SOON, "all nodes are up", async || {
                    manager.health().nodes().iter().all(lock_core::NodeHealth::is_up)
                })
                .await;
                let client = Recorded::new(&manager, &run.recorder(&name), "");
                let key = if contended { "k".to_owned() } else { name };
                let (pairs, quick, is_over) = (Arc::clone(&pairs), Arc::clone(&quick), Arc::clone(&is_over));
                clients.spawn(async move {
                    while !is_over.load(Ordering::Relaxed) {
                        let begun = Instant::now();
                        let mut held = client.acquire(&key, LONG, |request| request.wait(LONG)).await.expect("in turn");
                        assert!(held.check());
                        held.release().await.expect("held");
                        quick.fetch_add(u64::from(begun.elapsed() < LATE), Ordering::Relaxed);
                        pairs.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(ms(100)).await; // other tests run beside
                    }
                });
            }
            let reached = async |count: u64| {
                eventually(LONG, "leases follow one another", async || pairs.load(Ordering::Relaxed) >= count).await;
            };
            reached(PAIRS).await;
            proxy.delay(LATE / 2, Duration::ZERO);
            // A node is late when all its answers of half a second were, four at least: until then they are waited for.
            tokio::time::sleep(8 * LATE).await;
            let before = nodes.servers[late].calls_of("set").await;
            // A pair that waits for the late node is never this quick; one that does not may be slow, on a busy machine or behind others.
            let enough = PAIRS / 20;
            let mut tried = Vec::new();
            while tried.last().is_none_or(|quick| *quick < enough) {
                assert!(tried.len() < TRIES, "of {PAIRS} pairs, {tried:?} cannot have waited for the late node");
                let (begun, from, quick_before) =
                    (Instant::now(), pairs.load(Ordering::Relaxed), quick.load(Ordering::Relaxed));
                reached(from + PAIRS).await;
                figure(53, &format!("{PAIRS} pairs, node {late} late, contended: {contended}"), begun.elapsed());
                tried.push(quick.load(Ordering::Relaxed) - quick_before);
            }
            assert!(nodes.servers[late].calls_of("set").await > before, "it has leases all the same");
            proxy.pass();
            is_over.store(true, Ordering::Relaxed);
            while let Some(done) = clients.join_next().await {
                done.expect("no panic");
            }
            nodes.are_clean().await;
            judged(&run);
        }
    }
}
