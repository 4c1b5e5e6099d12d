//! The watcher's clock on a machine that was suspended.

use std::{fs, io::Write, os::unix::process::CommandExt, process::Command, time::Duration};

use crate::support::{BINARY, Done, Run};

/// For how long the machine seems to have been suspended.
const SUSPENDED: Duration = Duration::from_secs(3_600);

/// Prepares a program in a time namespace, where the clock that counts suspended time is ahead of the other one, as it is after the
/// machine was suspended.
fn after_a_suspend(program: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    let seconds = SUSPENDED.as_secs().to_string();
    command.args(["--user", "--map-root-user", "--time", "--fork", "--boottime", &seconds, "--"]).args(program);
    // The watcher ends its own group.
    command.process_group(0);
    command
}

/// Runs a watcher whose command may run until a moment: `ahead` of what the clock shows that counts suspended time, outside of the
/// namespace.
fn watched(ahead: Duration, orders: &[&str]) -> Done {
    let mut run = Run::start(after_a_suspend(&[BINARY, "__watcher", "--kill-after=1ms"]));
    assert_eq!(run.line(), "ready");
    let uptime = fs::read_to_string("/proc/uptime").expect("Linux has it");
    let uptime = uptime.split(' ').next().and_then(|seconds| seconds.parse().ok()).expect("seconds");
    run.say(&format!("until {}", (Duration::from_secs_f64(uptime) + ahead).as_nanos()));
    orders.iter().for_each(|order| run.say(order));
    run.done()
}

/// Where there are no time namespaces, the other test says nothing.
#[test]
fn the_watcher_asks_the_clock_that_counts_suspended_time() {
    let watcher = include_str!("../src/watcher.rs");
    assert!(watcher.contains("const CLOCK: ClockId = ClockId::Boottime;"), "the constant has another name by now?");
}

#[test]
fn the_time_of_a_suspended_machine_counts_for_the_end_of_a_lease() {
    let allowed = after_a_suspend(&["true"]).status().is_ok_and(|status| status.success());
    if !allowed {
        let _ =
            writeln!(std::io::stderr(), "left out: lockctl on a machine that was suspended: no time namespaces here");
        return;
    }
    // By the clock that stands still in the meantime, the command may run for half an hour.
    let done = watched(SUSPENDED / 2, &[]);
    assert!(done.err.starts_with("lockctl: lockctl stands still, and its lease is about to end"), "{done:?}");
    let done = watched(SUSPENDED * 2, &["done"]);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "the lease has not ended");
}
