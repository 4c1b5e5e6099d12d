//! A cluster of three beside one server and beside raw commands on the same nodes, and a quorum of five beside raw commands on all
//! five at once; and a quorum with one server that is far away beside the others alone:
//! `cargo bench -p lock-benches --bench topologies -- --json`.
//!
//! How long a failover takes is measured by the tests that cause one: `cargo test -p lock-tests --test system topologies:: --
//! --nocapture`.

mod support;

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::future::join_all;
use lock_core::LockManager;
use support::{
    pairs,
    relay::far_away,
    report::{Report, Target},
    server::{Server, join_cluster, processor},
    sides::{Locks, Ours, Raw, RawHeld},
    stats::Rounds,
    task::{Turn, in_turn},
};

/// How often the sides take turns, after a round that warms up.
const ROUNDS: usize = 5;

#[tokio::main]
async fn main() {
    let mut report = Report::from_arguments();
    cluster(&mut report).await;
    quorum(&mut report).await;
    for count in [3, 5] {
        quorum_with_a_server_far_away(&mut report, count).await;
    }
}

/// Slots share nodes, but no scripts: each needs a call of its own.
async fn cluster(report: &mut Report) {
    let one = Server::start().await;
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(Server::start_with(&["--cluster-enabled", "yes"]).await);
    }
    join_cluster(&nodes).await;
    let hosts: Vec<_> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
    let (alone, spread) =
        (Ours::connect(&one.url).await, Ours::connect(&format!("redis+cluster://{}", hosts.join(","))).await);
    let urls: Vec<_> = nodes.iter().map(|node| node.url.clone()).collect();
    let raw = RawOnNodes::connect(&urls.join(",")).await;
    let (mut times, mut rates, mut costs) = (Rounds::default(), Rounds::default(), Rounds::default());
    let mut beside_raw = Rounds::default();
    for round in 0..=ROUNDS {
        let sides: [Turn<'_>; 2] = [Box::pin(pairs::sequential(&spread)), Box::pin(pairs::sequential(&alone))];
        let [time, time_alone] = in_turn(round, sides).await;
        let before = [processor(&nodes).await, processor([&one]).await];
        let sides: [Turn<'_>; 2] =
            [Box::pin(pairs::on_own_keys(&spread, 64)), Box::pin(pairs::on_own_keys(&alone, 64))];
        let [rate, rate_alone] = in_turn(round, sides).await;
        let after = [processor(&nodes).await, processor([&one]).await];
        let raw_rate = pairs::on_own_keys(&raw, 64).await;
        if round > 0 {
            beside_raw.add(rate, raw_rate);
            times.add(time, time_alone);
            rates.add(rate, rate_alone);
            let cost =
                |side: usize, rate: f64| 1e6 * (after[side] - before[side]) / (rate * pairs::WINDOW.as_secs_f64());
            costs.add(cost(0, rate), cost(1, rate_alone));
        }
    }
    report.figure("cluster_pair_p50", "us", &times, "one server", Target::None);
    report.figure("cluster_server_cpu_per_pair_64", "us", &costs, "one server", Target::None);
    report.figure("cluster_pairs_per_second_64", "pairs/s", &rates, "one server", Target::RatioAtLeast(0.9));
    report.figure("cluster_pairs_per_second_64", "pairs/s", &beside_raw, "raw on its nodes", Target::None);
}

async fn quorum(report: &mut Report) {
    let mut nodes = Vec::new();
    for _ in 0..5 {
        nodes.push(Server::start().await);
    }
    let urls: Vec<_> = nodes.iter().map(|node| node.url.clone()).collect();
    let quorum = LockManager::builder().quorum(&urls).connect().await.expect("the servers answer");
    let (ours, raw) = (Ours(quorum), RawOnAll::connect(&urls.join(",")).await);
    let mut times = Rounds::default();
    for round in 0..=ROUNDS {
        let sides: [Turn<'_>; 2] = [Box::pin(pairs::sequential(&ours)), Box::pin(pairs::sequential(&raw))];
        let [time, raw_time] = in_turn(round, sides).await;
        if round > 0 {
            times.add(time, raw_time);
        }
    }
    report.figure("quorum_of_5_pair_p50", "us", &times, "slowest of five raw", Target::RatioAtMost(1.5));
}

/// The others alone are a quorum one of whose servers is down: the first, which keeps the queues, or the last. One that is as near as they
/// are tells what the work of one more server costs on this machine.
async fn quorum_with_a_server_far_away(report: &mut Report, count: usize) {
    let mut nodes = Vec::new();
    for _ in 0..count {
        nodes.push(Server::start().await);
    }
    for (place, name, ms) in
        [(count - 1, "last", 0), (0, "first", 30), (count - 1, "last", 30), (0, "first", 300), (count - 1, "last", 300)]
    {
        let far = match ms {
            0 => nodes[place].url.clone(),
            _ => far_away(nodes[place].port, Duration::from_millis(ms)),
        };
        let managers = |at_place: &str| -> [Ours; 4] {
            let mut urls: Vec<_> = nodes.iter().map(|node| node.url.as_str()).collect();
            urls[place] = at_place;
            [(); 4].map(|()| Ours(LockManager::builder().quorum(&urls).build().expect("sound URLs")))
        };
        // Nothing listens there.
        let (with, alone) = (managers(&far), managers("redis://127.0.0.1:1"));
        let (mut own_keys, mut one_key) = (Rounds::default(), Rounds::default());
        for round in 0..=ROUNDS {
            let sides: [Turn<'_>; 2] =
                [Box::pin(pairs::on_own_keys(&with[0], 8)), Box::pin(pairs::on_own_keys(&alone[0], 8))];
            let [own, own_alone] = in_turn(round, sides).await;
            let sides: [Turn<'_>; 2] = [Box::pin(of_all(&with)), Box::pin(of_all(&alone))];
            let [one, one_alone] = in_turn(round, sides).await;
            if round > 0 {
                own_keys.add(own, own_alone);
                one_key.add(one, one_alone);
            }
        }
        let target = if ms == 0 { Target::None } else { Target::RatioAtLeast(0.8) };
        let name = |keys: &str| format!("quorum_of_{count}_{name}_at_{ms}_ms_{keys}");
        report.figure(&name("own_keys"), "pairs/s", &own_keys, "the others alone", target);
        report.figure(&name("one_key"), "pairs/s", &one_key, "the others alone", target);
    }
}

/// Pairs a second of several processes on one key.
async fn of_all(managers: &[Ours]) -> f64 {
    join_all(managers.iter().map(|manager| pairs::on_one_key(manager, 2))).await.into_iter().sum()
}

/// Raw commands to whichever node of a cluster has the key.
#[derive(Clone)]
struct RawOnNodes {
    nodes: Vec<Raw>,
    /// Which of them has which key.
    owners: Arc<HashMap<String, usize>>,
}

impl Locks for RawOnNodes {
    type Held = RawHeld;
    const NAME: &'static str = "raw-on-nodes";

    async fn connect(urls: &str) -> Self {
        let mut nodes = join_all(urls.split(',').map(Raw::connect)).await;
        let mut owners = HashMap::new();
        for task in 0..64 {
            let key = format!("{}:{task}", Self::NAME);
            let mut ask = redis::cmd("CLUSTER");
            ask.arg("KEYSLOT").arg(&key);
            let slot: usize = ask.query_async(&mut nodes[0].connection).await.expect("CLUSTER KEYSLOT");
            // As `join_cluster` gives them out.
            let owner = (0..nodes.len()).rfind(|node| node * 16_384 / 3 <= slot).expect("the first begins at 0");
            owners.insert(key, owner);
        }
        Self { nodes, owners: Arc::new(owners) }
    }

    async fn acquire(&self, key: &str) -> RawHeld {
        self.nodes[self.owners[key]].acquire(key).await
    }

    async fn release(held: RawHeld) {
        Raw::release(held).await;
    }
}

/// Raw commands on several servers at once, each time until the slowest has answered.
#[derive(Clone)]
struct RawOnAll(Vec<Raw>);

impl Locks for RawOnAll {
    type Held = Vec<RawHeld>;
    const NAME: &'static str = "raw-on-all";

    async fn connect(urls: &str) -> Self {
        Self(join_all(urls.split(',').map(Raw::connect)).await)
    }

    async fn acquire(&self, key: &str) -> Vec<RawHeld> {
        join_all(self.0.iter().map(|raw| raw.acquire(key))).await
    }

    async fn release(held: Vec<RawHeld>) {
        join_all(held.into_iter().map(Raw::release)).await;
    }
}
