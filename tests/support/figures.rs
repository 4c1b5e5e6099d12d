//! What tests say beside what they assert: what they measure, and what a machine cannot be asked for.

use std::{
    env,
    io::{self, Write},
    time::Duration,
};

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

/// Says that something is not tried here, and why, past what the harness of tests keeps to itself of those that pass.
///
/// # Panics
/// When `CI` is set and the machine `ought_to` be able to: there nobody reads what is left out.
pub fn left_out(what: &str, why: &str, ought_to: bool) {
    let told = format!("left out: {what}: {why}");
    assert!(!ought_to || env::var_os("CI").is_none(), "{told}");
    // Unlike `eprintln!`, this is not captured.
    let _ = writeln!(io::stderr(), "{told}");
}
