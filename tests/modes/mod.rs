//! Shared leases and permits beside exclusive ones, of several processes that break: rows 47 to 52 of the faults.
//!
//! The history judges by mode. `FAULT_SECONDS` keeps up longer what goes on for a while, and `HISTORY_DIR` keeps the
//! histories; figures are printed.

mod cut;
mod downgraded;
mod foreign;
mod handed_over;
mod killed;
mod queue;
pub(crate) mod state;

use std::collections::BTreeMap;
pub(crate) use std::time::{Duration, Instant};

pub(crate) use lock_tests::{
    Actor, LONG, RedisServer, SOON, actor, figure, for_seconds, has_places,
    history::{Mode, Run, judged, now},
    ms,
};
use lock_tests::{
    Reply, eventually_some,
    history::{Event, Op, Outcome},
};
use tokio::time::sleep;

/// The ttl of leases that are to end.
pub(crate) const TTL: Duration = Duration::from_secs(2);

/// The ttl of those that go on while others break: they are renewed every three seconds, and survive a machine that stands still for six.
pub(crate) const KEPT: Duration = Duration::from_secs(9);

/// The tokens that share `key` now, with the time in ms by the server's clock at which each share ends.
pub(crate) async fn shares(server: &RedisServer, key: &str) -> BTreeMap<String, u64> {
    let now = server.clock().await.to_string();
    let reply = server.call(&["ZRANGEBYSCORE", key, &now, "(+inf", "WITHSCORES"]).await;
    let texts: Vec<_> = reply.items().iter().filter_map(Reply::text).collect();
    texts.chunks(2).map(|share| (share[0].clone(), share[1].parse().expect("an end is a number"))).collect()
}

/// Waits until a share was renewed, from now on.
pub(crate) async fn renewed(server: &RedisServer, token: &str) {
    let end = async || shares(server, "k").await.get(token).copied();
    let before = end().await;
    eventually_some(SOON, "its share is renewed", async || end().await.filter(|end| Some(*end) > before)).await;
}

/// Waits until a waiter holds, and was renewed; returns the fencing token. What it is granted lasts for a second: if its process stands still
/// for longer, it has lost that, and waits once more.
pub(crate) async fn holds(waiter: &mut Actor, mode: Mode, ttl: Duration) -> u64 {
    loop {
        let fence = waiter.held(SOON).await;
        if keeps(waiter).await {
            return fence;
        }
        waiter.begin_in(mode, "k", ttl, LONG).await;
    }
}

/// Waits until a lease that was granted was renewed. Returns false if it was lost before.
pub(crate) async fn keeps(holder: &mut Actor) -> bool {
    loop {
        let check = holder.tell("check").await;
        match check.strip_prefix("check held ").map(|left| left.parse::<u64>().expect("a number")) {
            // Longer than any grant.
            Some(2_001..) => return true,
            Some(_) => sleep(ms(5)).await,
            None => {
                let said = holder.tell("release").await;
                assert!(said.starts_with("failed Lost("), "{}: {said}", holder.name);
                return false;
            }
        }
    }
}

/// When a lease was granted, in ms by the server's clock: its fencing token was drawn in the same step.
pub(crate) fn granted_at(fence: u64) -> u64 {
    fence / 1_000
}

/// A span on the clock of histories.
pub(crate) fn span(from: f64, to: f64) -> Duration {
    Duration::try_from_secs_f64((to - from) / 1_000.0).unwrap_or(Duration::MAX)
}

/// It holds its lease, and gives it back.
pub(crate) async fn releases(actor: &mut Actor) {
    let check = actor.tell("check").await;
    assert!(check.starts_with("check held"), "{}: {check}", actor.name);
    assert_eq!(actor.tell("release").await, "released", "{}", actor.name);
}

/// The registers of so many keys have all updates that were answered, and none that was not sent.
pub(crate) async fn no_update_is_lost(server: &RedisServer, keys: usize, events: &[Event]) {
    let writes = |result| events.iter().filter(|event| event.op == Op::Write && event.result == result).count();
    let (written, unknown) = (writes(Outcome::Ok), writes(Outcome::Info));
    let mut counted = 0;
    for key in 0..keys {
        let value = server.call(&["HGET", &format!("register:k{key}"), "value"]).await.text();
        counted += value.map_or(0, |value| value.parse::<usize>().expect("a number"));
    }
    println!("{written} writes, {unknown} of which nobody knows, {counted} updates");
    let never_back = events.iter().filter(|event| event.op == Op::Write && event.t_return.is_none()).count();
    assert!((written - never_back..=written + unknown).contains(&counted), "{counted} of {written} updates");
}
