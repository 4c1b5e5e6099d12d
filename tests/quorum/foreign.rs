//! Clients of redlock-py on the nodes of a quorum of ours.

use std::path::{Path, PathBuf};

use lock_tests::{Process, RawClient, left_out};
use tokio::{process::Command, task::JoinSet};

use super::*;

/// A Python that has redlock-py: the one that `faults::foreign` has set up, or that of the machine.
async fn python() -> Option<PathBuf> {
    let set_up = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-clients").join("bin").join("python");
    for python in [set_up, "python3".into()] {
        let output = Command::new(&python).args(["-c", "import redis, redlock"]).output().await;
        if output.is_ok_and(|output| output.status.success()) {
            return Some(python);
        }
    }
    None
}

#[tokio::test]
async fn clients_of_redlock_py_and_ours_on_the_same_nodes_lose_no_update() {
    const ROUNDS: u64 = 40;
    let Some(python) = python().await else {
        left_out("redlock-py on a quorum", "no Python has the package; fault_43 installs it", false);
        return;
    };
    let (nodes, counter) = (Nodes::start(3).await, RedisServer::start().await);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("quorum").join("count_by_redlock.py");
    let mut arguments = vec![script.display().to_string(), counter.port().to_string(), ROUNDS.to_string()];
    arguments.extend(nodes.servers.iter().map(|server| server.port().to_string()));
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let mut theirs: Vec<_> = (0..2).map(|_| Process::start(&python, arguments.clone())).collect();
    let mut ours = JoinSet::new();
    for client in 0..2 {
        let (manager, address) = (nodes.manager(&format!("p{client}")), counter.address());
        ours.spawn(async move {
            let mut counter = RawClient::tcp(&address).await.expect("connects");
            for _ in 0..ROUNDS {
                let guard = manager.lock("shared").ttl(LONG).wait(LONG).await.expect("in its turn");
                let number: u64 = counter
                    .call(&["GET", "number"])
                    .await
                    .expect("is answered")
                    .text()
                    .map_or(0, |number| number.parse().expect("a number"));
                tokio::time::sleep(ms(2)).await;
                counter.call(&["SET", "number", &(number + 1).to_string()]).await.expect("is answered");
                guard.release().await.expect("held");
                tokio::time::sleep(ms(10)).await;
            }
        });
    }
    for process in &mut theirs {
        process.expect("counted", LONG).await;
    }
    while let Some(done) = ours.join_next().await {
        done.expect("no panic");
    }
    assert_eq!(counter.call(&["GET", "number"]).await.text(), Some((4 * ROUNDS).to_string()), "no update is lost");
    nodes.are_clean(TTL).await;
}
