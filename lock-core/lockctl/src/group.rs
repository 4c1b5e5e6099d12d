//! The processes of a group, as Linux lists them under `/proc`.

use std::{fs, path::Path, process};

use rustix::process::Pid;

/// Returns whether a process group has processes besides its leader. Returns `None` if the system does not say.
///
/// A process that has ended and is not waited for does not count: nothing may ever wait for it, as in a container without an
/// init process.
pub(crate) fn has_others(leader: Pid) -> Option<bool> {
    let proc = Path::new("/proc");
    // The numbers of another pid namespace would say nothing about this one.
    if fs::read_link(proc.join("self")).ok()?.to_str()? != process::id().to_string() {
        return None;
    }
    let numbers = fs::read_dir(proc).ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let mut others = numbers.filter(|number| *number != leader.as_raw_pid());
    Some(others.any(|number| {
        // A process that has ended meanwhile has no file.
        let stat = fs::read_to_string(proc.join(number.to_string()).join("stat"));
        stat.is_ok_and(|stat| lives_in(&stat) == Some(leader.as_raw_pid()))
    }))
}

/// Reads the process group from a line of `/proc/PID/stat`. Returns `None` if the process has ended.
fn lives_in(stat: &str) -> Option<i32> {
    // The name of the program stands in parentheses, and may itself contain some.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    let group = fields.nth(1)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(group)
}
