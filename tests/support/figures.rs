//! What tests measure beside what they assert.

use std::{env, time::Duration};

/// Prints one figure of a fault, by the number that the fault has in the list of faults.
pub fn figure(fault: u32, measure: &str, value: Duration) {
    let milliseconds = value.as_secs_f64() * 1_000.0;
    println!("{{\"fault\":{fault},\"measure\":\"{measure}\",\"value\":{milliseconds:.1},\"unit\":\"ms\"}}");
}

/// How long a fault is kept up: `FAULT_SECONDS`, and `short` where that is not set.
pub fn for_seconds(short: u64) -> Duration {
    let long = env::var("FAULT_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(long.unwrap_or(short))
}
