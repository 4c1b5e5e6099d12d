//! The clock of histories.

use rustix::time::{ClockId, clock_gettime};

/// Returns the time on CLOCK_MONOTONIC, the same for every process of the machine, in milliseconds to the microsecond.
pub fn now() -> f64 {
    read(ClockId::Monotonic)
}

/// Returns the time on a clock in milliseconds.
pub(super) fn read(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    let microseconds = time.tv_sec * 1_000_000 + time.tv_nsec / 1_000;
    // Exact for the next two hundred years.
    microseconds as f64 / 1_000.0
}
