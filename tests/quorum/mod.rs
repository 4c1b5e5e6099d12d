//! Several independent servers as one lock, some of which fail. Tests are called by the number of the fault, or of the
//! bad input.
//!
//! Nothing here is judged by the time that it took, except in `slow.rs`: a machine may be ten times slower than usual. How long nodes that do not answer
//! cost is held to the millisecond in virtual time (`lock-core/src/backend/quorum/tests`).

mod bad_input;
mod contention;
mod faults;
mod foreign;
mod places;
mod shutdown;
mod slow;

use std::{sync::Arc, time::Duration};

use lock_core::{LeaseOptions, LockManager};
use lock_tests::{
    LONG, RedisServer, SOON, eventually,
    history::{Recorded, Run, judged},
    ms,
};

/// How long a request to one node may take: far longer than it does on a busy machine.
const LIMIT: Duration = Duration::from_secs(15);
/// How long a request may take that is to end in vain.
const BRIEF: Duration = Duration::from_secs(2);
/// The ttl of leases that are to expire.
const TTL: Duration = Duration::from_secs(3);
/// From one renewal to the next of leases that are to be kept for long: they have the ttl [`LONG`].
const OFTEN: Duration = Duration::from_millis(300);

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
        self.manager_within(LIMIT, name)
    }

    /// The same, whose requests to one node end after a limit of their own.
    fn manager_within(&self, limit: Duration, name: &str) -> LockManager {
        let manager = LockManager::builder().quorum(self.urls()).client_name(name).command_timeout(limit);
        manager.defaults(LeaseOptions::new().ttl(LONG)).build().expect("a sound quorum")
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

    /// Waits until no server has anything of a lock. Leases whose release is awaited so have the ttl [`LONG`].
    async fn are_clean(&self) {
        for server in &self.servers {
            if server.connect().await.is_err() {
                continue;
            }
            eventually(SOON, "nothing is left", async || server.left().await.is_empty()).await;
        }
    }
}

/// All nodes begin with the same number, so a majority has counted to it at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_takes_one_request_to_each_server_as_a_rule() {
    let nodes = Nodes::start(3).await;
    let manager = nodes.manager("p1");
    // The first ones tell what the clocks of the nodes show.
    for _ in 0..20 {
        manager.lock("k").await.expect("free").release().await.expect("held");
    }
    // If a node is slow, the others count without it, and then there is a second request to it: so each acquire is counted. If more
    // than one request were the rule of these servers, none would do with one; that it is exactly one is tested in virtual time.
    let mut with_one = 0;
    for _ in 0..50 {
        let before = acquires(&nodes).await;
        let guard = manager.lock("k").await.expect("free");
        eventually(SOON, "all have it", async || nodes.having("k").await == 3).await;
        with_one += u32::from(acquires(&nodes).await - before == 3);
        guard.release().await.expect("held");
        nodes.are_clean().await;
    }
    println!("{with_one} of 50 acquires of three nodes took one request to each");
    assert!(with_one > 0, "{with_one} of 50");
}

/// How often any node has taken the key for somebody.
async fn acquires(nodes: &Nodes) -> u64 {
    let mut sum = 0;
    for server in &nodes.servers {
        sum += server.calls_of("set").await;
    }
    sum
}
