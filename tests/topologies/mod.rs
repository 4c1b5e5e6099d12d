//! Wherever Redis lives: a server, the primary that sentinels name, a cluster, a quorum. And what breaks there, with what is
//! expected of it: tests are called by the number of the fault, or of the bad input.
//!
//! Nothing here is judged by the time that it took: a machine may be ten times slower than usual. Limits only end a test that hangs.
//! `FAULT_SECONDS` keeps up longer what goes on for a while, and `HISTORY_DIR` keeps the histories; figures are printed.

mod bad_input;
mod cluster;
mod cluster_asks;
mod cluster_down;
mod cluster_failover;
mod cluster_slots;
mod conformance;
mod inspecting;
mod load;
mod old_servers;
mod questions;
mod sentinel;
mod sentinel_returns;
mod sentinel_split;
mod sentinels_down;
mod taken;

pub(crate) use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use lock_core::{Error, KeyInfo, LockManager};
use lock_tests::history::{Held, Recorded, Run};
pub(crate) use lock_tests::{
    Cluster, LONG, RedisServer, Reply, SOON, Sentinels,
    cluster::slot_of,
    eventually, eventually_some, figure, for_seconds,
    history::{judged, judged_by},
    is_redis_7, ms, server_version, within,
};
pub(crate) use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

/// The ttl of most leases here: more than any switch may take ([`SOON`]), of which two thirds are left when a renewal is due. So a
/// release that is missing shows, too.
pub(crate) const TTL: Duration = Duration::from_secs(120);

/// How long a request may take: longer than it does on a busy machine, and than a primary holds back writes if its replica does not take over
/// at once (`CLUSTER_MF_TIMEOUT * CLUSTER_MF_PAUSE_MULT` of Redis, ten seconds).
pub(crate) const LIMIT: Duration = ms(20_000);

/// For how long a key is kept at least for a waiter that it was granted to, less what rounding takes.
const KEPT: Duration = ms(95);

/// A manager of its own, as another process would have it.
pub(crate) async fn manager(url: &str, name: &str) -> LockManager {
    let builder = LockManager::builder().url(url).client_name(name).command_timeout(LIMIT);
    builder.connect_timeout(SOON).connect().await.expect("connects")
}

/// The same, whose operations are written down.
pub(crate) async fn client(run: &Run, url: &str, name: &str) -> Recorded {
    Recorded::new(&manager(url, name).await, &run.recorder(name), "")
}

/// Looks at a key until its holder is described. A single look leaves out holders that do not answer within 250 ms.
pub(crate) async fn described(looks: &LockManager, key: &str) -> KeyInfo {
    eventually_some(SOON, format!("{key} has a holder that answers"), async || {
        let info = looks.inspect(key).await.expect("answers");
        info.holder().is_some().then_some(info)
    })
    .await
}

/// Has a client wait for a key. Its lease is fixed, and has the whole ttl when it begins: one that is renewed has a second at most, and a
/// busy machine may need longer to renew it first.
pub(crate) fn waits(client: Recorded, key: &'static str) -> JoinHandle<Result<Held, Error>> {
    tokio::spawn(async move { client.acquire(key, TTL, |request| request.fixed().wait(LONG)).await })
}

/// Waits until a lease was renewed so often, by requests that were sent from now on: the answer to one that is in flight is not
/// counted.
pub(crate) async fn renewed(held: &Held, times: u32) {
    for _ in 0..=times {
        let before = held.guard().deadline();
        eventually(SOON, "the lease is renewed", async || held.guard().deadline() > before).await;
    }
}

/// The lease that such a client gets.
pub(crate) async fn served(waiter: JoinHandle<Result<Held, Error>>) -> Held {
    within(SOON, waiter).await.expect("no panic").expect("it is served in its turn")
}

/// Those who wait for a key on a server.
pub(crate) struct Line<'s> {
    server: &'s RedisServer,
    key: String,
    /// In the order of their places.
    tokens: Vec<String>,
    /// A moment before which none of these places ends, though nothing more is heard of it.
    end: Instant,
}

impl Line<'_> {
    /// Has the holder release the key, and each waiter after it. Judges that they come in the order of their places, until one of these
    /// can have ended, or a waiter needs longer to come than the key is kept for it.
    pub(crate) async fn serve(self, mut held: Held, waiters: Vec<JoinHandle<Result<Held, Error>>>) {
        let mut waiters: FuturesUnordered<_> = waiters.into_iter().map(served).collect();
        let (mut order, mut in_time) = (Vec::new(), true);
        loop {
            let released = Instant::now();
            held.release().await.expect("held");
            let Some(next) = waiters.next().await else { break };
            in_time &= released.elapsed() < KEPT && Instant::now() < self.end;
            held = next;
            assert!(held.check(), "one after the other");
            order.extend(self.server.call(&["GET", &self.key]).await.text());
            assert!(!in_time || self.tokens.starts_with(&order), "{order:?} instead of {:?}", self.tokens);
        }
        println!("served in the order {order:?}, all in time: {in_time}");
    }
}

/// Ends tasks, and drops what they have got.
pub(crate) async fn cancelled<T>(tasks: Vec<JoinHandle<T>>) {
    for task in tasks {
        task.abort();
        drop(task.await);
    }
}

/// Waits until so many have a live place in the queue of a key on the `server` that has it.
pub(crate) async fn queued<'s>(server: &'s RedisServer, key: &str, count: usize) -> Line<'s> {
    eventually_some(SOON, format!("{count} wait for {key}"), async || {
        let asked = Instant::now();
        let queue = server.keys(&format!("*lock-core:queue:{key}")).await.pop()?;
        let time = server.call(&["TIME"]).await;
        let time: Vec<u128> = time.items().iter().filter_map(|part| part.text()?.parse().ok()).collect();
        let now = u64::try_from(time.first()? * 1_000 + time.get(1)? / 1_000).expect("milliseconds since 1970");
        let mut client = server.connect().await.expect("connects");
        // Its slot may be on its way to this node. (A server without slots refuses that.)
        client.call(&["ASKING"]).await.expect("is answered");
        let queue = client.call(&["HGETALL", &queue]).await.expect("is answered");
        let fields: Vec<_> = queue.items().iter().filter_map(Reply::text).collect();
        // `#TICKET`, and then `TOKEN END …`, in milliseconds.
        let places = fields.chunks(2).filter(|field| field[0].starts_with('#'));
        let mut places: Vec<(u64, String, u64)> = places
            .filter_map(|field| {
                let mut words = field[1].split(' ');
                let (token, end) = (words.next()?.to_owned(), words.next()?.parse::<u64>().ok()?);
                Some((field[0][1..].parse().ok()?, token, end.checked_sub(now + 1)?))
            })
            .collect();
        places.sort();
        let left = places.iter().map(|(_, _, left)| *left).min().unwrap_or_default();
        let tokens: Vec<_> = places.into_iter().map(|(_, token, _)| token).collect();
        (tokens.len() == count).then(|| Line { server, key: key.to_owned(), tokens, end: asked + ms(left) })
    })
    .await
}

/// A cluster with replicas in which a busy machine replaces no primary, unless it is told to [be quick](nodes_be_quick).
pub(crate) async fn patient_cluster() -> Cluster {
    Cluster::builder().node_timeout(SOON).start().await
}

/// Has the nodes find one down that is silent for three seconds.
pub(crate) async fn nodes_be_quick(cluster: &Cluster) {
    for node in cluster.nodes() {
        let answer = node.call(&["CONFIG", "SET", "cluster-node-timeout", "3000"]).await;
        assert_eq!(answer, Reply::Status("OK".to_owned()));
    }
}

/// Has sentinels that [were patient](Sentinels::be_patient) find a server down that is silent for three seconds.
pub(crate) async fn sentinels_be_quick(sentinels: &Sentinels) {
    for sentinel in sentinels.sentinels() {
        let command = ["SENTINEL", "SET", Sentinels::SERVICE, "down-after-milliseconds", "3000"];
        assert_eq!(sentinel.call(&command).await, Reply::Status("OK".to_owned()));
    }
}

/// Has the replica of the node that serves a slot take its place by hand; returns how long that took. Nodes that stand still may miss the
/// votes, or the five seconds that Redis has for it: then the replica is told again.
pub(crate) async fn fail_over(cluster: &Cluster, slot: u16) -> Duration {
    let (from, begun) = (cluster.primary_of(slot).await, Instant::now());
    let to = cluster.replicas_of(from).await[0];
    for _ in 0..10 {
        // It refuses if it has taken over meanwhile.
        cluster.node(to).ask(&["CLUSTER", "FAILOVER"]).await;
        if let Ok(took) = timeout(ms(10_000), cluster.await_failover(slot, from, begun)).await {
            return took;
        }
    }
    panic!("node {from} serves slot {slot} still");
}

/// Has sentinels switch over from server 0 by hand; returns how long that took. They give it up if a server stands still meanwhile: then
/// they are told again.
pub(crate) async fn switch_over(sentinels: &Sentinels) -> Duration {
    let begun = Instant::now();
    for _ in 0..10 {
        if sentinels.primary().await == 0 {
            sentinels.failover().await;
        }
        if let Ok(took) = timeout(ms(15_000), sentinels.await_switch(0, begun)).await {
            return took;
        }
    }
    panic!("server 0 is the primary still");
}

/// Prints a time of recovery that began when the servers had done their part after `servers`.
pub(crate) fn recovered(fault: u32, what: &str, servers: Duration, took: Duration) {
    let after = took.saturating_sub(servers);
    figure(fault, &format!("{what}: the servers' own part"), servers);
    figure(fault, &format!("{what}: after that"), after);
}
