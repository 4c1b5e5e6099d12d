//! A second process of `lockctl`, which stops the command if the first one dies or stands still.
//!
//! The watcher leads the process group that the command is started in. So there is no moment at which the command runs
//! and the watcher does not know whom to stop, and the number of the group cannot become somebody else's: it is the
//! watcher's own. The watcher reads from a pipe that only the first process can write to, and which closes when that
//! process ends, however it ends. Each line is an order; an order `until` says how long the command may run.

use std::{
    env,
    io::{self, Write},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use humantime::format_duration;
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::{Pid, Signal, getpgrp, kill_process_group},
    time::{ClockId, Timespec, clock_gettime},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdin, Command},
    time::timeout,
};

use crate::{
    exit::{Failure, OS_ERROR, begin_warning},
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
        command.arg0("lockctl").arg(NAME).arg(format!("{KILL_AFTER}{}", format_duration(kill_after)));
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
            // Nobody waits until it is written: renewals go on.
            let _ = begin_warning(
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

/// Why the watcher has nothing more to wait for.
enum Over {
    /// The command has ended.
    Done,
    /// The first process has given no newer order in time.
    Late,
    /// The first process has ended.
    Killed,
}

/// What the watcher is told.
enum Order {
    /// The command may run until then.
    Until(Duration),
    /// The command has ended.
    Done,
}

/// Returns the time after which the watcher kills, if this process was started as a watcher. The command line of people lacks it: it
/// would stand in messages and completions.
pub(crate) fn asked_for() -> Option<Duration> {
    let mut arguments = env::args_os().skip(1);
    let _ = arguments.next().filter(|name| name == NAME)?;
    let time = arguments.next()?;
    humantime::parse_duration(time.to_str()?.strip_prefix(KILL_AFTER)?).ok()
}

/// Is the watcher.
pub(crate) fn watch(kill_after: Duration) -> Result<i32, Failure> {
    let failed = |error: io::Error| Failure::new(OS_ERROR, format!("could not watch the command: {error}"));
    // Signals to the command go to its group; the watcher outlives them.
    signals::swallow().map_err(failed)?;
    let mut output = io::stdout();
    output.write_all(READY).and_then(|()| output.flush()).map_err(failed)?;
    let (why, patience) = match until_over(Orders::default()).map_err(failed)? {
        Over::Done => return Ok(0),
        // The watcher is late, and the end of the lease is not.
        Over::Late => {
            let why = "lockctl stands still, and its lease is about to end; stopping the command";
            (why, kill_after.saturating_sub(LATE))
        }
        Over::Killed => ("lockctl was killed; stopping the command, and leaving the key to expire", kill_after),
    };
    let (warning, begun) = (begin_warning(why), Instant::now());
    for signal in [Signal::TERM, Signal::CONT] {
        // It cannot fail: this process is one of the group.
        let _ = kill_process_group(getpgrp(), signal);
    }
    warning.wait_for(patience.max(A_MOMENT));
    thread::sleep(patience.saturating_sub(begun.elapsed()));
    // This process is one of the group.
    kill_process_group(getpgrp(), Signal::KILL).map_err(|error| failed(error.into()))?;
    Ok(OS_ERROR)
}

/// Returns when the command has ended or must be stopped.
fn until_over(mut orders: Orders) -> io::Result<Over> {
    let mut until = Duration::MAX;
    while orders.come_before(until)? {
        match orders.read()? {
            Some(Order::Until(later)) => until = later,
            Some(Order::Done) => return Ok(Over::Done),
            None if orders.is_closed => return Ok(Over::Killed),
            None => {}
        }
    }
    Ok(Over::Late)
}

/// The orders that come in over standard input.
#[derive(Default)]
struct Orders {
    /// What was read and not yet taken.
    text: Vec<u8>,
    is_closed: bool,
}

impl Orders {
    /// Waits until there is something to read; returns whether that is so before the clock shows `until`. If the group was stopped
    /// for a while, this process was, too: what came in meanwhile counts, however late it is.
    fn come_before(&self, until: Duration) -> io::Result<bool> {
        let stdin = io::stdin();
        while !self.text.contains(&b'\n') {
            // The clock that `poll` waits by may stand still while the machine is suspended; ours does not.
            let left = until.saturating_sub(now());
            let time = Timespec::try_from(left.min(LONGEST)).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&time)) {
                Ok(0) if left.is_zero() => return Ok(false),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Takes the first order, reading once if there is none; a line of another form is skipped.
    fn read(&mut self) -> io::Result<Option<Order>> {
        if !self.text.contains(&b'\n') {
            let mut part = [0; 512];
            match rustix::io::read(io::stdin(), &mut part) {
                Ok(0) => self.is_closed = true,
                Ok(count) => self.text.extend_from_slice(&part[..count]),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let Some(end) = self.text.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
        let line: Vec<u8> = self.text.drain(..=end).collect();
        Ok(std::str::from_utf8(&line[..end]).ok().and_then(order))
    }
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

/// The first argument of a watcher.
const NAME: &str = "__watcher";

/// Its second one.
const KILL_AFTER: &str = "--kill-after=";

const READY: &[u8] = b"ready\n";

const UNTIL: &str = "until ";

const DONE: &str = "done";

/// How much later than the first process the watcher stops the command.
const LATE: Duration = Duration::from_millis(200);

/// The longest time to wait at once.
const LONGEST: Duration = Duration::from_secs(3_600);

const A_SECOND: Duration = Duration::from_secs(1);

/// How long the writing of a line may take before the process kills itself with the command.
const A_MOMENT: Duration = Duration::from_millis(50);
