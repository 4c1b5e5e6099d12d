//! Waiting for a condition until a deadline: what a test does instead of sleeping and hoping.

use std::{fmt::Display, future::Future, panic::Location, time::Duration};

use tokio::time::{Instant, sleep, timeout};

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
