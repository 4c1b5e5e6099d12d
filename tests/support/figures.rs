//! What tests measure beside what they assert.

use std::{env, time::Duration};

/// Prints one figure of a fault, by the number that the fault has in the list of faults.
pub fn figure(fault: u32, measure: &str, value: Duration) {
    let milliseconds = value.as_secs_f64() * 1_000.0;
    println!("{{\"fault\":{fault},\"measure\":\"{measure}\",\"value\":{milliseconds:.1},\"unit\":\"ms\"}}");
}

/// How long a fault is kept up: `FAULT_SECONDS`, and `short` where that is not set.
#[must_use]
pub fn for_seconds(short: u64) -> Duration {
    let long = env::var("FAULT_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(long.unwrap_or(short))
}

/// Judges that these handoffs came by calls. A waiter that is not called finds the key free at its next look, which is a
/// quarter of a second away on average; each handoff alone may take longer on a busy machine.
///
/// # Panics
/// When they took 100 ms or more on average.
#[track_caller]
pub fn were_called(handoffs: &[Duration]) {
    let all: Duration = handoffs.iter().sum();
    assert!(all < handoffs.len() as u32 * Duration::from_millis(100), "nobody was called: {handoffs:?}");
}
