//! Second processes: a lock between tasks of one process proves little.

use std::{
    ffi::OsStr,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use crate::signals::{self, Reaper};

/// Starts the helper program of these tests in one of its roles: `role!("hold", server.url(), "goods:1", "2000")`.
///
/// The roles are listed in `tests/roles/main.rs`. Only tests of this package can use it.
#[macro_export]
macro_rules! role {
    ($($argument:expr),+ $(,)?) => {
        $crate::Process::start(
            env!("CARGO_BIN_EXE_lock-role"),
            [$(::std::string::ToString::to_string(&$argument)),+],
        )
    };
}

/// A process that a test talks to in lines; it is killed on drop or when the test process dies.
///
/// What it writes to its standard error is shown as it comes.
#[derive(Debug)]
pub struct Process {
    reaper: Option<Reaper>,
    child: Child,
    pid: u32,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts `program`. Needs a tokio runtime.
    ///
    /// # Panics
    /// When it can't be started.
    pub fn start(program: impl AsRef<OsStr>, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        let program = program.as_ref();
        let mut child = match Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
        {
            Ok(child) => child,
            Err(error) => panic!("can't start {}: {error}", program.display()),
        };
        let pid = child.id().expect("a new process has a number");
        let output = child.stdout.take().expect("its output is a pipe");
        Self {
            reaper: Some(Reaper::watch(pid, None)),
            pid,
            input: child.stdin.take(),
            output: BufReader::new(output).lines(),
            child,
        }
    }

    /// The process number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends one line to its standard input.
    ///
    /// # Panics
    /// When it has ended, or its input was closed.
    pub async fn send(&mut self, line: &str) {
        let input = self.input.as_mut().expect("its input is open");
        let sent = input.write_all(format!("{line}\n").as_bytes()).await;
        if let Err(error) = sent {
            panic!("can't send {line:?} to process {}: {error}", self.pid);
        }
    }

    /// Closes its standard input, at which every role ends.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Reads one line of its standard output; `None` when it has ended.
    ///
    /// # Panics
    /// When nothing comes within `within`.
    pub async fn line(&mut self, within: Duration) -> Option<String> {
        match timeout(within, self.output.next_line()).await {
            Ok(Ok(line)) => line,
            Ok(Err(error)) => panic!("process {}: {error}", self.pid),
            Err(_) => panic!("process {} says nothing within {within:?}", self.pid),
        }
    }

    /// Reads lines until one begins with `prefix`, and hands out what comes after it, trimmed.
    ///
    /// # Panics
    /// When no such line comes within `within`.
    pub async fn expect(&mut self, prefix: &str, within: Duration) -> String {
        let mut others = Vec::new();
        let found = timeout(within, async {
            while let Ok(Some(line)) = self.output.next_line().await {
                if let Some(rest) = line.strip_prefix(prefix) {
                    return Some(rest.trim().to_owned());
                }
                others.push(line);
            }
            None
        });
        match found.await {
            Ok(Some(rest)) => rest,
            Ok(None) => panic!("process {} ended without {prefix:?}; it said {others:?}", self.pid),
            Err(_) => panic!("process {}: no {prefix:?} within {within:?}; it said {others:?}", self.pid),
        }
    }

    /// Stops the process where it stands (SIGSTOP).
    ///
    /// # Panics
    /// When it has ended.
    pub fn pause(&self) {
        signals::pause(self.pid);
    }

    /// Lets a paused process go on (SIGCONT).
    ///
    /// # Panics
    /// When it has ended.
    pub fn resume(&self) {
        signals::resume(self.pid);
    }

    /// Kills the process (SIGKILL), and returns when it is gone.
    ///
    /// # Panics
    /// When the system refuses.
    pub async fn kill(&mut self) {
        self.reaper = None;
        if let Err(error) = self.child.kill().await {
            panic!("can't kill process {}: {error}", self.pid);
        }
    }

    /// Waits until the process ends by itself. Its standard input stays open: see [`close_input`](Self::close_input).
    ///
    /// # Panics
    /// When it still runs after `within`.
    pub async fn wait(&mut self, within: Duration) -> ExitStatus {
        match timeout(within, self.child.wait()).await {
            Ok(Ok(status)) => {
                self.reaper = None;
                status
            }
            Ok(Err(error)) => panic!("process {}: {error}", self.pid),
            Err(_) => panic!("process {} still runs after {within:?}", self.pid),
        }
    }
}
