//! Waiting for a condition until a deadline: what a test does instead of sleeping and hoping.

use std::{fmt::Display, future::Future, panic::Location, time::Duration};

use tokio::time::{Instant, sleep, timeout};

/// The deadline of what happens at once, or at most some seconds later. It only ends tests that hang: no test may prove with it
/// that something is quick, since a machine may be ten times slower than usual.
pub const SOON: Duration = Duration::from_secs(60);

/// A ttl or a wait whose end no test waits for. Leases that a test expects to be released have this ttl: if the release
/// is missing, the test fails long before the lease expires. So it is far above all deadlines.
pub const LONG: Duration = Duration::from_secs(600);

/// The deadline from a release to the next holder, and for how long a history may show waiters of a free key: less than a wait
/// of teams, and much more than a waiter needs whose message is lost. That waiters are called is proven by counting
/// requests (`tests/trust.rs`), and how long they may be left waiting in virtual time (`tests/simulation`).
pub const HANDOFF: Duration = Duration::from_secs(20);

/// Milliseconds.
pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Waits until `is_locked` answers `false`: until a key whose lease has the ttl [`LONG`] was released.
///
/// # Panics
/// After [`SOON`], a tenth of that ttl; the message says `why` the key should be free, and where that was awaited.
#[track_caller]
pub fn until_free(why: impl Display, mut is_locked: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    eventually(SOON, format!("the key is free: {why}"), async move || !is_locked().await)
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
