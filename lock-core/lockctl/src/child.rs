//! The command that runs under the lock.

use std::{ffi::OsString, io, process::ExitStatus, time::Duration};

use tokio::process::{Child, Command};
#[cfg(unix)]
use tokio::time::{sleep, timeout};

use crate::{
    describe::printable,
    exit::{Failure, LOST, NOT_FOUND, NOT_STARTED, OS_ERROR},
};
#[cfg(unix)]
use crate::{group, watcher::Watcher};

/// A command that runs.
///
/// Off a terminal it has a process group of its own, led by a [`Watcher`]: signals reach all of its processes, and the
/// watcher stops them if this process cannot. On a terminal it stays in the foreground group, since it could not read
/// from the terminal otherwise; the group is then not its own, and only the command itself is signalled.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    /// `None` on a terminal.
    #[cfg(unix)]
    watcher: Option<Watcher>,
    /// Whether a signal that ends processes was sent to all of them.
    #[cfg(unix)]
    is_ending: bool,
}

impl Running {
    /// Starts the command with the key and the fencing token in its environment. It is stopped after the time that
    /// `may_run_for` returns, unless [`may_run_for`](Self::may_run_for) is called by then.
    pub(crate) async fn start(
        command: &[OsString],
        environment: [(&str, String); 2],
        kill_after: Duration,
        may_run_for: impl Fn() -> Duration,
    ) -> Result<Self, Failure> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(Failure::new(NOT_FOUND, "could not start a command: none was given"));
        };
        let mut command = Command::new(program);
        command.args(arguments).envs(environment);
        #[cfg(unix)]
        let mut watcher = if is_in_foreground() { None } else { Some(watcher(kill_after).await?) };
        #[cfg(unix)]
        if let Some(watcher) = &mut watcher {
            // Before the command begins: from then on this process may be stopped at any moment.
            watcher.allow(&may_run_for).await;
            command.process_group(watcher.group().as_raw_pid());
        }
        #[cfg(not(unix))]
        let _ = kill_after;
        // The start of a watcher takes its time.
        if may_run_for().is_zero() {
            #[cfg(unix)]
            if let Some(watcher) = watcher {
                watcher.dismiss().await;
            }
            return Err(Failure::new(LOST, "could not start the command: too little is left of the lease; try again"));
        }
        match command.spawn() {
            Ok(child) => Ok(Self {
                child,
                #[cfg(unix)]
                watcher,
                #[cfg(unix)]
                is_ending: false,
            }),
            Err(error) => {
                #[cfg(unix)]
                if let Some(watcher) = watcher {
                    watcher.dismiss().await;
                }
                let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_STARTED };
                let program = printable(&program.to_string_lossy());
                Err(Failure::new(
                    code,
                    format!("could not start \"{program}\": {error}; check its name and its rights"),
                ))
            }
        }
    }

    /// Waits until the command has ended, and returns its exit code. Dropping the future loses nothing.
    ///
    /// After a signal that ends processes, those that the command has started are waited for, too: a shell ends at once, while
    /// the program that it runs still ends its work, and needs the lock for that.
    pub(crate) async fn wait(&mut self) -> Result<i32, Failure> {
        let code = self.ended().await?;
        #[cfg(unix)]
        if self.is_ending {
            self.while_others(|others| others == Some(true)).await;
        }
        Ok(code)
    }

    /// Waits until the command alone has ended.
    async fn ended(&mut self) -> Result<i32, Failure> {
        match self.child.wait().await {
            Ok(status) => Ok(code(status)),
            Err(error) => Err(Failure::new(OS_ERROR, format!("could not wait for the command: {error}"))),
        }
    }

    /// Ends what watches over the command, which has ended.
    pub(crate) async fn finish(self) {
        #[cfg(unix)]
        if let Some(watcher) = self.watcher {
            watcher.dismiss().await;
        }
    }
}

#[cfg(unix)]
impl Running {
    /// Passes a signal on to the command and its processes.
    pub(crate) fn pass_on(&mut self, number: i32) {
        use rustix::process::Signal;

        let Some(signal) = Signal::from_named_raw(number) else { return };
        // The terminal has sent these to the whole foreground group; a second one often means "at once". A process that is stopped gets
        // them only when it goes on.
        if self.watcher.is_none() && matches!(signal, Signal::INT | Signal::QUIT) {
            return self.signal(Signal::CONT);
        }
        self.is_ending |= !matches!(signal, Signal::USR1 | Signal::USR2);
        self.signal(signal);
        if self.is_ending {
            // A process that is stopped gets the other one only when it goes on.
            self.signal(Signal::CONT);
        }
    }

    /// Has the command stopped after the time that `time` returns, unless this is called again by then.
    pub(crate) async fn may_run_for(&mut self, time: impl FnOnce() -> Duration) {
        if let Some(watcher) = &mut self.watcher {
            watcher.allow(time).await;
        }
    }

    /// Stops the command and the processes that it has started, and returns when they have ended.
    pub(crate) async fn stop(mut self, kill_after: Duration) -> Result<(), Failure> {
        use rustix::process::Signal;

        // The watcher leaves it to this process, unless this process is stopped or killed meanwhile.
        self.may_run_for(|| kill_after.saturating_add(A_SECOND)).await;
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
        let all = async {
            self.ended().await?;
            // If the system does not say what goes on, something may.
            self.while_others(|others| others != Some(false)).await;
            Ok(())
        };
        if let Ok(ended) = timeout(kill_after, all).await {
            self.finish().await;
            return ended;
        }
        // The watcher is one of the group.
        self.signal(Signal::KILL);
        self.ended().await?;
        // A process that the system itself keeps, as for a disk that does not answer, is not waited for.
        let _ = timeout(A_SECOND, self.while_others(|others| others == Some(true))).await;
        Ok(())
    }

    /// Waits while what the system says of the command's other processes goes on: `None` if it says nothing. On a terminal they
    /// share a group with others, and do not count.
    async fn while_others(&self, go_on: impl Fn(Option<bool>) -> bool) {
        let Some(watcher) = &self.watcher else { return };
        let mut pause = Duration::from_millis(10);
        while go_on(group::has_others(watcher.group())) {
            sleep(pause).await;
            // They may take minutes, and a look takes longer the more processes the machine has.
            pause = (pause * 2).min(SELDOM);
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        use rustix::process::{Pid, kill_process, kill_process_group};

        // It fails only for processes that have ended, and for those of another user, which nothing can be done about.
        let _ = match &self.watcher {
            // The watcher is not waited for before the end, so that its number stays the number of the group.
            Some(watcher) => kill_process_group(watcher.group(), signal),
            None => {
                let pid = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
                pid.map_or(Ok(()), |pid| kill_process(pid, signal))
            }
        };
    }
}

#[cfg(not(unix))]
impl Running {
    /// Does nothing: the command shares the console, and gets Ctrl-C by itself.
    pub(crate) fn pass_on(&mut self, _: i32) {}

    /// Does nothing: there is no watcher.
    pub(crate) async fn may_run_for(&mut self, _: impl FnOnce() -> Duration) {
        std::future::ready(()).await;
    }

    /// Kills the command, and returns when it has ended.
    pub(crate) async fn stop(mut self, _: Duration) -> Result<(), Failure> {
        let killed = self.child.kill().await;
        killed.map_err(|error| Failure::new(OS_ERROR, format!("could not stop the command: {error}")))
    }
}

#[cfg(unix)]
async fn watcher(kill_after: Duration) -> Result<Watcher, Failure> {
    let started = Watcher::start(kill_after).await;
    started.map_err(|error| {
        let message =
            format!("could not start the watcher of the command: {error}; check that lockctl can be executed");
        Failure::new(OS_ERROR, message)
    })
}

/// Returns whether this process is in the foreground of a terminal.
#[cfg(unix)]
fn is_in_foreground() -> bool {
    use rustix::{process::getpgrp, termios::tcgetpgrp};

    std::fs::File::open("/dev/tty").is_ok_and(|terminal| tcgetpgrp(terminal) == Ok(getpgrp()))
}

/// Returns the exit code of a command, as shells do.
fn code(status: ExitStatus) -> i32 {
    #[cfg(unix)]
    {
        use std::os::unix::process::ExitStatusExt;

        if let Some(signal) = status.signal() {
            return crate::exit::SIGNALLED + signal;
        }
    }
    status.code().unwrap_or(OS_ERROR)
}

#[cfg(unix)]
const A_SECOND: Duration = Duration::from_secs(1);

/// How often to look for the processes of the command at least.
#[cfg(unix)]
const SELDOM: Duration = Duration::from_millis(320);
