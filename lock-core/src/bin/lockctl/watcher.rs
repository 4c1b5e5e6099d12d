//! A second process of `lockctl`, which stops the command if the first one dies or stands still.
//!
//! The watcher leads the process group that the command is started in. So there is no moment at which the command runs
//! and the watcher does not know whom to stop, and the number of the group cannot become somebody else's: it is the
//! watcher's own. The watcher reads from a pipe that only the first process can write to, and which closes when that
//! process ends, however it ends. Each line is an order; an order `until` says how long the command may run.

use std::{
    io::{self, Write},
    process::Stdio,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use humantime::format_duration;
use rustix::{
    process::{Pid, Signal, getpgrp, kill_process_group},
    time::{ClockId, clock_gettime},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdin, Command},
    time::timeout,
};

use crate::{
    exit::{Failure, OS_ERROR, warn},
    signals,
};

/// The watcher, as the first process sees it.
#[derive(Debug)]
pub(crate) struct Watcher {
    child: Child,
    input: ChildStdin,
    group: Pid,
    /// Whether it has stopped reading, which is said once.
    is_gone: bool,
}

impl Watcher {
    /// Starts a watcher, and returns when it can no longer be ended by what is sent to its group.
    pub(crate) async fn start(kill_after: Duration) -> io::Result<Self> {
        let mut command = Command::new(own_program()?);
        command.arg0("lockctl").arg("__watcher").arg(format!("--kill-after={}", format_duration(kill_after)));
        let mut child = command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let group = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let (Some(input), Some(mut output), Some(group)) = (child.stdin.take(), child.stdout.take(), group) else {
            return Err(io::Error::other("it has no pipes"));
        };
        let mut said = [0; READY.len()];
        output.read_exact(&mut said).await?;
        Ok(Self { child, input, group, is_gone: false })
    }

    /// Returns the process group that the watcher leads.
    pub(crate) fn group(&self) -> Pid {
        self.group
    }

    /// Lets the command run for as long as `time` returns, and a little longer: the watcher stops it only if this process
    /// does not.
    pub(crate) async fn allow(&mut self, time: impl FnOnce() -> Duration) {
        // In this order, since this process may be stopped between the two: rather too short than too long.
        let now = now();
        let until = now.saturating_add(time()).saturating_add(LATE);
        if !self.is_gone && self.order(&format!("{UNTIL}{}", until.as_nanos())).await.is_err() {
            self.is_gone = true;
            warn(
                "the watcher of the command has ended; if lockctl is killed now, the command goes on without the lock",
            );
        }
    }

    /// Ends the watcher: the command has ended by itself.
    pub(crate) async fn dismiss(mut self) {
        // A watcher that is gone already is as good.
        let _ = self.order(DONE).await;
        // It has nothing else to do. If it was stopped it is left alone, as nobody waits for it.
        let _ = timeout(A_SECOND, self.child.wait()).await;
    }

    async fn order(&mut self, order: &str) -> io::Result<()> {
        // A watcher that stands still must not keep this process from looking at its lease. A line fits into the pipe whole.
        timeout(A_SECOND, self.input.write_all(format!("{order}\n").as_bytes())).await?
    }
}

/// What the watcher is told.
enum Order {
    /// The command may run until then.
    Until(Duration),
    /// The command has ended.
    Done,
}

/// Is the watcher.
pub(crate) fn watch(kill_after: Duration) -> Result<i32, Failure> {
    let failed = |error: io::Error| Failure::new(OS_ERROR, format!("could not watch the command: {error}"));
    // Signals to the command go to its group; the watcher outlives them.
    signals::swallow().map_err(failed)?;
    let mut output = io::stdout();
    output.write_all(READY).and_then(|()| output.flush()).map_err(failed)?;
    let (sender, orders) = mpsc::channel();
    thread::spawn(move || {
        let lines = io::stdin().lines().map_while(Result::ok);
        lines.filter_map(|line| order(&line)).try_for_each(|order| sender.send(order))
    });
    let (mut until, mut is_over) = (Duration::MAX, false);
    let patience = loop {
        let left = if is_over { GLANCE } else { until.saturating_sub(now()) };
        match orders.recv_timeout(left) {
            Ok(Order::Until(later)) => (until, is_over) = (later, false),
            Ok(Order::Done) => return Ok(0),
            // The clock that the channel waits by may stand still while the machine is suspended; ours does not.
            Err(RecvTimeoutError::Timeout) if now() < until => {}
            // If the group was stopped for a while, this process was, too, and later orders are still in the pipe.
            Err(RecvTimeoutError::Timeout) if !is_over => is_over = true,
            Err(RecvTimeoutError::Timeout) => {
                warn("lockctl stands still, and its lease is about to end; stopping the command");
                // The watcher is late, and the end of the lease is not.
                break kill_after.saturating_sub(LATE + GLANCE);
            }
            Err(RecvTimeoutError::Disconnected) => {
                warn("lockctl was killed; stopping the command, and leaving the key to expire");
                break kill_after;
            }
        }
    };
    for signal in [Signal::TERM, Signal::CONT] {
        // It cannot fail: this process is one of the group.
        let _ = kill_process_group(getpgrp(), signal);
    }
    thread::sleep(patience);
    // This process is one of the group.
    kill_process_group(getpgrp(), Signal::KILL).map_err(|error| failed(error.into()))?;
    Ok(OS_ERROR)
}

fn order(line: &str) -> Option<Order> {
    match line {
        DONE => Some(Order::Done),
        _ => line.strip_prefix(UNTIL)?.parse().ok().map(|time| Order::Until(Duration::from_nanos(time))),
    }
}

/// Returns what a clock shows that both processes read, and that nobody sets.
fn now() -> Duration {
    let time = clock_gettime(CLOCK);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns this program's file: the one that runs, even if another has taken its name.
fn own_program() -> io::Result<std::path::PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}

/// It runs on while the machine is suspended, as the expiry of the key does.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;

#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

const READY: &[u8] = b"ready\n";

const UNTIL: &str = "until ";

const DONE: &str = "done";

/// How much later than the first process the watcher stops the command.
const LATE: Duration = Duration::from_millis(200);

/// How long to look for a later order before the command is stopped.
const GLANCE: Duration = Duration::from_millis(50);

const A_SECOND: Duration = Duration::from_secs(1);
