//! Clients of redlock-py on the nodes of a quorum of ours.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use lock_core::ErrorKind;
use lock_tests::{Process, RawClient, figure, left_out, python};
use tokio::task::JoinSet;

use super::*;

/// A Python that has redlock-py, or a word on what is left out.
async fn python_or_left_out() -> Option<PathBuf> {
    let python = python(Path::new(env!("CARGO_TARGET_TMPDIR"))).await;
    if python.is_none() {
        left_out("redlock-py on a quorum", "the Python libraries cannot be installed", false);
    }
    python
}

fn script(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("quorum").join(name).display().to_string()
}

/// A process of redlock-py that locks as it is told.
struct Theirs(Process);

impl Theirs {
    fn start(python: &Path, nodes: &Nodes) -> Self {
        let ports = nodes.servers.iter().map(|server| server.port().to_string());
        Self(Process::start(python, [script("hold_by_redlock.py")].into_iter().chain(ports)))
    }

    async fn says(&mut self, line: &str) -> String {
        self.0.send(line).await;
        self.0.line(SOON).await.expect("it runs")
    }

    /// Whether it gets `k` for so long.
    async fn locks(&mut self, ttl: Duration) -> bool {
        match &*self.says(&format!("lock k {}", ttl.as_millis())).await {
            "held" => true,
            "refused" => false,
            said => panic!("{said:?}"),
        }
    }
}

#[tokio::test]
#[ignore = "needs Python clients; run by .ci/run"]
async fn holders_by_redlock_py_and_ours_exclude_each_other_until_they_release_or_expire() {
    let Some(python) = python_or_left_out().await else { return };
    let nodes = Nodes::start(3).await;
    let (manager, mut theirs) = (nodes.manager("p0"), Theirs::start(&python, &nodes));

    // Ours, released.
    let guard = manager.lock("k").ttl(LONG).await.expect("free");
    eventually(SOON, "all have it", async || nodes.having("k").await == 3).await;
    assert!(!theirs.locks(LONG).await, "our holder excludes theirs");
    assert!(guard.is_held());
    assert_eq!(nodes.having("k").await, 3, "what they tried has removed nothing of ours");
    guard.release().await.expect("held all the time");
    nodes.are_clean().await;
    assert!(theirs.locks(LONG).await, "it is free then");

    // Theirs, released.
    let error = manager.lock("k").wait(TTL).await.expect_err("their holder excludes ours");
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(manager.lock("k").try_acquire().await.expect("all answer").is_none());
    assert_eq!(nodes.having("k").await, 3, "what we tried has removed nothing of theirs");
    let waiting = tokio::spawn({
        let manager = manager.clone();
        async move { manager.lock("k").ttl(2 * TTL).fixed().wait(LONG).await.map(|guard| (guard, Instant::now())) }
    });
    eventually(SOON, "it has a place", async || {
        nodes.servers[0].call(&["EXISTS", "{0}lock-core:queue:k"]).await.integer() == Some(1)
    })
    .await;
    let unlocked = Instant::now();
    assert_eq!(theirs.says("unlock").await, "unlocked");
    let (guard, acquired) = waiting.await.expect("no panic").expect("in its turn");
    figure(43, "released by redlock-py to our grant", acquired - unlocked);

    // Ours, expired: they get it when its ttl is over, and we know by then.
    let mut locked = Instant::now();
    eventually(SOON, "their client gets it", async || {
        locked = Instant::now();
        let gets = theirs.locks(2 * TTL).await;
        assert!(!(gets && guard.is_held()), "our lease is over before they get the key");
        gets
    })
    .await;
    assert!(guard.release().await.is_err(), "it was lost");
    // The keys do not expire in one moment, so that one node may have refused it.
    assert!(nodes.having("k").await >= 2, "our late release removes nothing of theirs");

    // Theirs, expired.
    assert!(manager.lock("k").try_acquire().await.expect("all answer").is_none(), "their holder excludes ours");
    let guard = manager.lock("k").ttl(LONG).wait(LONG).await.expect("when their ttl is over");
    // A server may round its time down to a millisecond.
    assert!(locked.elapsed() > 2 * TTL - ms(10), "{:?}", locked.elapsed());
    assert_eq!(theirs.says("unlock").await, "unlocked");
    assert!(guard.is_held());
    assert!(nodes.having("k").await >= 2, "their late release removes nothing of ours");
    guard.release().await.expect("held");
    nodes.are_clean().await;
}

#[tokio::test]
#[ignore = "needs Python clients; run by .ci/run"]
async fn clients_of_redlock_py_and_ours_on_the_same_nodes_lose_no_update() {
    const ROUNDS: u64 = 40;
    let Some(python) = python_or_left_out().await else { return };
    let (nodes, counter) = (Nodes::start(3).await, RedisServer::start().await);
    let mut arguments = vec![script("count_by_redlock.py"), counter.port().to_string(), ROUNDS.to_string()];
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
        process.expect("counted", 3 * SOON).await;
    }
    while let Some(done) = ours.join_next().await {
        done.expect("no panic");
    }
    assert_eq!(counter.call(&["GET", "number"]).await.text(), Some((4 * ROUNDS).to_string()), "no update is lost");
    nodes.are_clean().await;
}
