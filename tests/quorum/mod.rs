//! Several independent servers as one lock, some of which fail. Tests are called by the number of the fault, or of the
//! bad input.

mod bad_input;
mod contention;
mod faults;
mod foreign;
mod places;
mod shutdown;

use std::{sync::Arc, time::Duration};

use lock_core::LockManager;
use lock_tests::{
    LONG, RedisServer, SOON, eventually,
    history::{Checker, History, Recorded, Run},
    ms,
};

/// How long a request to one node may take.
const LIMIT: Duration = Duration::from_millis(300);
/// The ttl of most leases here.
const TTL: Duration = Duration::from_secs(1);
/// What a busy machine may take longer.
const SLACK: Duration = Duration::from_millis(750);

/// Independent servers.
struct Nodes {
    servers: Vec<RedisServer>,
}

impl Nodes {
    async fn start(count: usize) -> Self {
        let mut servers = Vec::new();
        for _ in 0..count {
            servers.push(RedisServer::start().await);
        }
        Self { servers }
    }

    fn urls(&self) -> Vec<String> {
        self.servers.iter().map(RedisServer::url).collect()
    }

    /// A manager of its own, as another process would have it.
    fn manager(&self, name: &str) -> LockManager {
        let manager = LockManager::builder().quorum(self.urls()).client_name(name).command_timeout(LIMIT);
        manager.build().expect("a sound quorum")
    }

    /// The same, whose operations are written down.
    fn client(&self, run: &Run, name: &str) -> Recorded {
        Recorded::new(&self.manager(name), &run.recorder(name), "")
    }

    /// How many of the servers that answer have `key`.
    async fn having(&self, key: &str) -> usize {
        let mut having = 0;
        for server in &self.servers {
            if server.connect().await.is_ok() {
                having += usize::from(server.call(&["EXISTS", key]).await.integer() == Some(1));
            }
        }
        having
    }

    /// Waits until no server has anything of a lock.
    async fn are_clean(&self, within: Duration) {
        for server in &self.servers {
            if server.connect().await.is_err() {
                continue;
            }
            eventually(within, "nothing is left", async || server.left().await.is_empty()).await;
        }
    }
}

/// The history of the run, which breaks no rule.
fn judged(run: &Run) -> History {
    let history = run.history().expect("the files can be read");
    Checker::new().assert_clean(&history);
    history
}

/// All nodes begin with the same number, so a majority has counted to it at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_takes_one_request_to_each_node_as_a_rule() {
    let nodes = Nodes::start(3).await;
    let manager = nodes.manager("p1");
    // The first ones tell what the clocks of the nodes show.
    for _ in 0..20 {
        manager.lock("k").await.expect("free").release().await.expect("held");
    }
    let before = acquires(&nodes).await;
    for _ in 0..200 {
        manager.lock("k").await.expect("free").release().await.expect("held");
    }
    let sent = acquires(&nodes).await - before;
    println!("{sent} requests for 200 acquires of three nodes");
    assert!((600..660).contains(&sent), "{sent}");
}

/// How often any node has taken the key for somebody.
async fn acquires(nodes: &Nodes) -> u64 {
    let mut sum = 0;
    for server in &nodes.servers {
        let calls = server.info("cmdstat_set").await;
        let calls = calls.strip_prefix("calls=").and_then(|calls| calls.split(',').next()?.parse::<u64>().ok());
        sum += calls.expect("a number of calls");
    }
    sum
}
