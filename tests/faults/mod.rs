//! What breaks, on one real Redis, with what is expected of it. Tests are called by the number of the fault.
//!
//! 1 holder killed, 5 waiters killed and 6 waiter stopped are in `contention.rs`. `FAULT_SECONDS` keeps up longer what
//! goes on for a while, and `HISTORY_DIR` keeps the histories; figures are printed.
//!
//! Nothing here is judged by the time that it took, since these tests share a machine with others: the figures print it, and
//! limits only end a test that hangs. The same deadlines are held to the millisecond by virtual time: when a holder knows (`lock-core/tests/lost.rs`), when it renews
//! and asks again (`lock-core/tests/renewal.rs`), when a clock that stepped is noticed (`lock-core/tests/clock_steps.rs`).

mod blocked;
mod clocks;
mod data;
mod foreign;
mod guards;
mod network;
mod outage;
mod processes;
mod refusals;
mod server;
mod soak;

use std::collections::HashMap;
pub(crate) use std::time::{Duration, Instant};

use lock_core::LockManager;
pub(crate) use lock_tests::{
    LONG, SOON, for_seconds, has_places,
    history::{judged, judged_by},
    ms,
};
use lock_tests::{
    Process, RedisServer, Team, eventually, eventually_some,
    history::{Event, Held, History, Op, Recorded, Run},
};

/// The ttl of leases that are to expire. Those that are to be kept have a longer one, of which a slow machine leaves enough.
pub(crate) const TTL: Duration = Duration::from_secs(1);
/// The ttl of leases that are to expire, but not before the test has looked: other processes may stand still for seconds before that.
pub(crate) const LASTS: Duration = Duration::from_secs(15);
/// From one renewal to the next of leases that are to be kept for long: they have the ttl [`LONG`].
pub(crate) const OFTEN: Duration = Duration::from_millis(300);

/// Has the server tell when somebody else writes at a lease, as it does from the first renewal on. A new connection has all leases
/// renewed at once, also those with the ttl [`LONG`]: the renewal after that one comes minutes later, and so a loss that is told
/// by then is told by the word of the server.
pub(crate) async fn watched(server: &RedisServer) {
    server.kill_clients().await;
    eventually(SOON, "a lease was renewed", async || server.info("tracking_total_keys").await != "0").await;
}

/// Waits until a lease was renewed so often, by requests that were sent from now on: the answer to one that is in flight is not
/// counted.
pub(crate) async fn renewed(held: &Held, times: u32) {
    for _ in 0..=times {
        let before = held.guard().deadline();
        eventually(SOON, "the lease is renewed", async || held.guard().deadline() > before).await;
    }
}

/// A client in the process of the test, whose requests may take far longer than they do on a busy machine.
pub(crate) async fn client(run: &Run, url: &str, name: &str) -> (LockManager, Recorded) {
    client_within(15 * TTL, run, url, name).await
}

/// A client whose requests end after a limit of its own: a short one if they are to end in vain. On a busy machine it may have to try
/// again to connect within that.
pub(crate) async fn client_within(limit: Duration, run: &Run, url: &str, name: &str) -> (LockManager, Recorded) {
    let builder = LockManager::builder().url(url).client_name(name).command_timeout(limit);
    let manager = eventually_some(SOON, "it connects", async || builder.clone().connect().await.ok()).await;
    let client = Recorded::new(&manager, &run.recorder(name), "");
    (manager, client)
}

/// How long a request may take that is to end in vain, beside others that are to be answered.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// Waits until each process of a team has had another lease.
pub(crate) async fn each_has_another(team: &mut Team) {
    for member in &mut team.members {
        let before = had(member).await;
        eventually(LONG, "it has had another lease", async || had(member).await > before).await;
    }
}

/// How many leases a process of a team has had.
async fn had(member: &mut Process) -> u64 {
    member.send("report").await;
    let report = member.expect("report ", LONG).await;
    report.split(' ').find_map(|count| count.strip_prefix("had=")?.parse().ok()).expect("it is reported")
}

/// How many leases were lost for nothing. One that has begun by a grant, and was not renewed since, lives for two seconds at most, and may
/// be lost if its process or a server stood still meanwhile.
pub(crate) fn lost_for_nothing(history: &History) -> usize {
    let events = || history.events().iter();
    let had_its_ttl = |lost: &Event| {
        let mut of_it = events().filter(|event| event.token == lost.token);
        of_it.any(|event| event.deadline.zip(event.t_return).is_some_and(|(deadline, at)| deadline > at + 10_000.0))
    };
    let stood_still = |lost: &Event| history.stood_still(&lost.process, lost.t_invoke - 2_000.0, lost.t_invoke) > 150.0;
    events().filter(|lost| lost.op == Op::Lost && (had_its_ttl(lost) || !stood_still(lost))).count()
}

/// When somebody first got a lease that was asked for after `since`, or was got after it, on the clock of histories.
pub(crate) fn first_grant(history: &History, since: f64) -> f64 {
    let grants = history.events().iter().filter(|event| event.op == Op::Acquire && event.succeeded());
    let times = grants.filter_map(|event| event.t_return).filter(|at| *at >= since);
    times.fold(f64::INFINITY, f64::min)
}

/// From each release after `since` to the next lease of the key, if that is of another process that waited for it.
pub(crate) fn handoffs(history: &History, since: f64) -> Vec<Duration> {
    let mut over: Vec<_> = history.events().iter().filter(|event| event.t_return >= Some(since)).collect();
    over.sort_by(|a, b| a.t_return.partial_cmp(&b.t_return).expect("times are numbers"));
    let process = |event: &Event| event.process.split('/').next().map(str::to_owned);
    let (mut released, mut handoffs) = (HashMap::new(), Vec::new());
    for event in over {
        match event.op {
            Op::Release => drop(released.insert(&event.key, event)),
            Op::Acquire if event.succeeded() => {
                if let Some(before) = released.remove(&event.key)
                    && process(before) != process(event)
                    && event.t_invoke < before.t_invoke
                {
                    handoffs.push(span(before.t_invoke, event.t_return.unwrap_or(f64::INFINITY)));
                }
            }
            _ => {}
        }
    }
    handoffs
}

/// A span on the clock of histories.
pub(crate) fn span(from: f64, to: f64) -> Duration {
    Duration::try_from_secs_f64((to - from) / 1_000.0).unwrap_or(Duration::MAX)
}
