//! What breaks, on one real Redis, with what is expected of it. Tests are called by the number of the fault.
//!
//! 1 holder killed, 5 waiters killed and 6 waiter stopped are in `contention.rs`. `FAULT_SECONDS` keeps up longer what
//! goes on for a while, and `HISTORY_DIR` keeps the histories; figures are printed. Limits are generous, since these
//! tests share a machine with others: the figures say what a limit hides.

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

pub(crate) use std::time::{Duration, Instant};

use lock_core::LockManager;
pub(crate) use lock_tests::for_seconds;
use lock_tests::history::{Checker, History, Op, Recorded, Run};

/// The ttl of most leases here.
pub(crate) const TTL: Duration = Duration::from_secs(1);
/// From release to the next holder, at most: 250 ms on a machine with nothing else to do.
pub(crate) const HANDOFF: Duration = Duration::from_millis(1_250);
/// What a busy machine may take longer.
pub(crate) const SLACK: Duration = Duration::from_millis(750);
/// For what has no business taking long.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// A ttl or a wait whose end is never waited for.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The history of the run, which breaks no rule.
pub(crate) fn judged(run: &Run) -> History {
    judged_by(run, Checker::new())
}

pub(crate) fn judged_by(run: &Run, checker: Checker) -> History {
    let history = run.history().expect("the files can be read");
    checker.bound(HANDOFF).assert_clean(&history);
    history
}

/// A client in the process of the test, whose requests end after 300 ms.
pub(crate) async fn client(run: &Run, url: &str, name: &str) -> (LockManager, Recorded) {
    let manager = LockManager::builder().url(url).client_name(name).command_timeout(LIMIT);
    let manager = manager.connect().await.expect("connects");
    let client = Recorded::new(&manager, &run.recorder(name), "");
    (manager, client)
}

/// How long a request of such a client may take.
pub(crate) const LIMIT: Duration = Duration::from_millis(300);

/// When somebody first got a lease that was asked for after `since`, or was got after it, on the clock of histories.
pub(crate) fn first_grant(history: &History, since: f64) -> f64 {
    let grants = history.events().iter().filter(|event| event.op == Op::Acquire && event.succeeded());
    let times = grants.filter_map(|event| event.t_return).filter(|at| *at >= since);
    times.fold(f64::INFINITY, f64::min)
}

/// A span on the clock of histories.
pub(crate) fn span(from: f64, to: f64) -> Duration {
    Duration::try_from_secs_f64((to - from) / 1_000.0).unwrap_or(Duration::MAX)
}
