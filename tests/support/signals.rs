//! Signals to other processes, and the end of those whose starter has died.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::SOON;

/// Stops the process `pid` where it stands, and returns when it stands still.
pub(crate) fn pause(pid: u32) {
    send(Signal::STOP, pid);
    let deadline = Instant::now() + SOON;
    while stands(pid) == Some(false) {
        assert!(Instant::now() < deadline, "process {pid} does not stop");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whether the process `pid` stands still; `None` when it is gone, or the system does not say.
pub(crate) fn stands(pid: u32) -> Option<bool> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The state is the first field behind the name, which stands in brackets and may hold anything.
    Some(text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
}

/// Lets a stopped process go on.
pub(crate) fn resume(pid: u32) {
    send(Signal::CONT, pid);
}

fn send(signal: Signal, pid: u32) {
    let process = Pid::from_raw(pid.cast_signed()).expect("a process has a number");
    kill_process(process, signal).expect("our own processes take signals");
}

/// Ends a process when the one that started it dies, however it dies.
///
/// A shell waits at a pipe that this process holds open. A reaper that is dropped does nothing any more.
#[derive(Debug)]
pub(crate) struct Reaper {
    shell: Child,
}

impl Reaper {
    /// Watches over the process `pid` and the `folder` that is to be removed with it.
    pub(crate) fn watch(pid: u32, folder: Option<&Path>) -> Self {
        let script = "read -r _; kill -s KILL \"$0\"; [ $# = 0 ] || rm -rf \"$1\"";
        let shell = Command::new("sh")
            .args(["-c", script, &pid.to_string()])
            .args(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh can be started");
        Self { shell }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        // Killed before `wait` closes the pipe, so it never comes to its second command.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
