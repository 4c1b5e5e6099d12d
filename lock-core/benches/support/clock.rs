//! Clocks that `std` doesn't give: one that all processes share, and the processor time of this one.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// `CLOCK_MONOTONIC` in ns: the same in every process of the machine.
pub(crate) fn now() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// The processor time that this process has used, in all of its threads.
pub(crate) fn processor_time() -> Duration {
    Duration::from_nanos(nanoseconds(clock_gettime(ClockId::ProcessCPUTime)))
}

fn nanoseconds(time: Timespec) -> u64 {
    u64::try_from(i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)).expect("not before boot")
}
