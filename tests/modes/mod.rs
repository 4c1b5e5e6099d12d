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

use std::collections::BTreeMap;
pub(crate) use std::time::{Duration, Instant};

use lock_tests::Reply;
pub(crate) use lock_tests::{
    Actor, HANDOFF, LONG, RedisServer, SOON, actor, figure, for_seconds, has_places,
    history::{Mode, Run, judged, now},
    ms,
};

/// The ttl of most leases here.
pub(crate) const TTL: Duration = Duration::from_secs(2);

/// The ttl of those that go on while others break: they are renewed each two seconds, and survive a machine that stands still for four.
pub(crate) const KEPT: Duration = Duration::from_secs(6);

/// The tokens that share `key` now, with the time in ms by the server's clock at which each share ends.
pub(crate) async fn shares(server: &RedisServer, key: &str) -> BTreeMap<String, u64> {
    let now = server.clock().await.to_string();
    let reply = server.call(&["ZRANGEBYSCORE", key, &now, "(+inf", "WITHSCORES"]).await;
    let texts: Vec<_> = reply.items().iter().filter_map(Reply::text).collect();
    texts.chunks(2).map(|share| (share[0].clone(), share[1].parse().expect("an end is a number"))).collect()
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
