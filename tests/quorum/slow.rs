//! A node that answers, and late.

use std::time::Instant;

use lock_tests::{FaultProxy, figure};
use tokio::task::JoinSet;

use super::*;

/// How late: far longer than a pair takes, on a busy machine too.
const LATE: Duration = Duration::from_secs(1);
const PAIRS: u32 = 100;

/// The first node keeps the queue of a key, and the last one is only counted. Virtual time says how little such a node costs, to the
/// millisecond (`lock-core/src/backend/quorum/tests/outlier.rs`).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_53_a_node_that_answers_late_is_not_waited_for() {
    for late in [0, 2] {
        for contended in [false, true] {
            let (nodes, run) = (Nodes::start(3).await, Run::new(&format!("fault-53-{late}-{contended}")));
            let proxy = FaultProxy::start(nodes.servers[late].address()).await;
            proxy.delay(LATE, Duration::ZERO);
            let mut urls = nodes.urls();
            urls[late] = format!("redis://{}", proxy.address());
            let mut tasks = JoinSet::new();
            let begun = Instant::now();
            for process in 0..4 {
                let name = format!("p{process}");
                let manager = LockManager::builder().quorum(urls.clone()).client_name(&name).command_timeout(LIMIT);
                let manager = manager.build().expect("a sound quorum");
                let client = Recorded::new(&manager, &run.recorder(&name), "");
                let key = if contended { "k".to_owned() } else { name };
                tasks.spawn(async move {
                    for _ in 0..PAIRS / 4 {
                        let mut held = client.acquire(&key, LONG, |request| request.wait(LONG)).await.expect("in turn");
                        assert!(held.check());
                        held.release().await.expect("held");
                    }
                });
            }
            while let Some(done) = tasks.join_next().await {
                done.expect("no panic");
            }
            let took = begun.elapsed();
            figure(53, &format!("{PAIRS} pairs, node {late} late, contended: {contended}"), took);
            // The four wait side by side where each has a key of its own.
            let waits = if contended { PAIRS } else { PAIRS / 4 };
            assert!(took < waits * LATE, "{took:?}: each of them may have waited for the late node");
            proxy.pass();
            nodes.are_clean().await;
            judged(&run);
        }
    }
}
