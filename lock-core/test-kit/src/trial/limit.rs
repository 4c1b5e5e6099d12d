//! For how long one run of a test may go on.

use std::{
    fmt,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};

use super::watch::Trial;

/// Why a run has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stuck {
    /// All of it waits, and nothing comes.
    Waits,
    /// It goes on and on, and never waits for time.
    Spins,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waits => "the test did not end within a day of virtual time; look for a wait without a timeout",
            Self::Spins => {
                "the test did not end within a minute, and virtual time stood still; look for a loop that never waits for \
                 time, as with `yield_now`, and have it sleep"
            }
        })
    }
}

/// Completes when a run has had its time.
pub(super) async fn reached(trial: &Trial) -> Stuck {
    tokio::select! {
        biased;
        () = a_day(trial) => Stuck::Waits,
        () = real(A_MINUTE) => Stuck::Spins,
    }
}

/// Ends when a day of virtual time has passed, besides the time for which the trial itself has let the process stand still, and the
/// test has had time for what it does on other threads.
///
/// The clock leaps as soon as all tasks wait, also if they wait for a thread. It stands still while this one sleeps.
async fn a_day(trial: &Trial) {
    let day = Instant::now() + A_DAY;
    while Instant::now() < day + trial.stood_still() {
        sleep_until(day + trial.stood_still()).await;
    }
    let _ = tokio::task::spawn_blocking(|| thread::sleep(Duration::from_secs(2))).await;
}

/// Ends when this much real time has passed. The paused clock of a runtime that is never idle does not move.
async fn real(time: Duration) {
    let (done, told) = oneshot::channel();
    let (_until_dropped, dropped) = mpsc::channel::<()>();
    thread::spawn(move || {
        if dropped.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
            // The run may have ended just now.
            let _ = done.send(());
        }
    });
    let _ = told.await;
}

const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);

const A_MINUTE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_never_waits_for_time_ends_by_real_time() {
        let spins = async {
            loop {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = spins => {}
            () = real(Duration::from_millis(20)) => {}
        }
    }
}
