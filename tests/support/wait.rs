//! Waiting for a condition until a deadline: what a test does instead of sleeping and hoping.

use std::{fmt::Display, future::Future, panic::Location, time::Duration};

use tokio::time::{Instant, sleep, timeout};

/// The limit of what has no business taking long, on a machine that does other things too.
pub const SOON: Duration = Duration::from_secs(20);

/// A ttl or a wait whose end no test waits for. Leases that a test expects to be released have this ttl: if the release
/// is missing, the test fails long before the lease expires.
pub const LONG: Duration = Duration::from_secs(60);

/// From a release to the next holder, at most: 250 ms on a machine with nothing else to do.
pub const HANDOFF: Duration = ms(1_250);

/// From a release to the waiter behind one that was granted the key and does not come: the key is kept for that one for
/// 1,025 ms, and the next check of the waiter, which finds out for how long still, is 625 ms away at most; half a second more on a
/// busy machine.
pub const PASSED_OVER: Duration = ms(1_025 + 500);

/// From the end of a run until nothing is left, at most: before a lease would expire whose release is missing.
pub const SETTLED: Duration = ms(750);

/// Milliseconds.
#[must_use]
pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Waits until `is_locked` answers `false`: until a key whose lease has the ttl [`LONG`] was released.
///
/// # Panics
/// After a sixth of that ttl; the message says `why` the key should be free, and where that was awaited.
#[track_caller]
pub fn until_free(why: impl Display, mut is_locked: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    eventually(LONG / 6, format!("the key is free: {why}"), async move || !is_locked().await)
}

/// Waits until `condition` answers `true`; it is asked every 5 ms.
///
/// # Panics
/// When `within` has passed; the message says `what` was awaited and where.
#[track_caller]
pub fn eventually(
    within: Duration,
    what: impl Display,
    mut condition: impl AsyncFnMut() -> bool,
) -> impl Future<Output = ()> {
    eventually_some(within, what, async move || condition().await.then_some(()))
}

/// Waits until `probe` answers `Some`, and hands out what is in it; it is asked every 5 ms.
///
/// # Panics
/// When `within` has passed; the message says `what` was awaited and where.
#[track_caller]
pub fn eventually_some<T>(
    within: Duration,
    what: impl Display,
    mut probe: impl AsyncFnMut() -> Option<T>,
) -> impl Future<Output = T> {
    let caller = Location::caller();
    async move {
        let deadline = Instant::now() + within;
        loop {
            if let Some(found) = probe().await {
                return found;
            }
            assert!(Instant::now() < deadline, "{caller}: not within {within:?}: {what}");
            sleep(PACE).await;
        }
    }
}

/// Waits for what should come `within` a time, and hands it out.
///
/// # Panics
/// When the time has passed; the message says where.
#[track_caller]
pub fn within<F: Future>(within: Duration, future: F) -> impl Future<Output = F::Output> {
    let caller = Location::caller();
    async move {
        match timeout(within, future).await {
            Ok(output) => output,
            Err(_) => panic!("{caller}: waited in vain for {within:?}"),
        }
    }
}

const PACE: Duration = Duration::from_millis(5);
