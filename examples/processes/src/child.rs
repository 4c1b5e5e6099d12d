//! Second processes: an example that starts itself once more, and talks to its children in lines.

use std::env;
use std::io::{self, Write as _};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{self, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// This program as a process of its own; killed when dropped.
#[derive(Debug)]
pub struct Child {
    process: process::Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Child {
    /// Starts this program with other arguments. Needs a tokio runtime.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start<const N: usize>(arguments: [&str; N]) -> Result<Self> {
        let program = env::current_exe().context("cannot find the program of this example")?;
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a second process")?;
        let input = process.stdin.take().context("the process has no standard input")?;
        let output = process.stdout.take().context("the process has no standard output")?;
        Ok(Self { process, input, lines: BufReader::new(output).lines() })
    }

    /// Waits for the next line that the process says; `None` when it has ended.
    ///
    /// # Errors
    /// When the process says nothing for half a minute.
    ///
    /// # Cancel safety
    /// Nothing is lost: what was read of a line is kept for the next call.
    pub async fn line(&mut self) -> Result<Option<String>> {
        Ok(timeout(PATIENCE, self.lines.next_line()).await.context("a process fell silent")??)
    }

    /// Waits for a line that begins with `word`, and hands out what follows.
    ///
    /// # Errors
    /// When the process says something else, ends, or says nothing for half a minute.
    ///
    /// # Cancel safety
    /// As [`line`](Self::line).
    pub async fn expect(&mut self, word: &str) -> Result<String> {
        let Some(line) = self.line().await? else {
            bail!("a process ended without saying '{word}': {}", self.process.wait().await?);
        };
        let (first, rest) = line.split_once(' ').unwrap_or((&line, ""));
        ensure!(first == word, "a process said '{line}' instead of '{word}'");
        Ok(rest.to_owned())
    }

    /// Says a line to the process.
    ///
    /// # Errors
    /// When the process has ended.
    pub async fn say(&mut self, line: &str) -> Result<()> {
        self.input.write_all(format!("{line}\n").as_bytes()).await.context("a process ended early")
    }

    /// Kills the process where it stands (SIGKILL), and waits until it is gone.
    ///
    /// # Errors
    /// When the system refuses.
    pub async fn kill(&mut self) -> Result<()> {
        self.process.kill().await.context("cannot kill a process")
    }

    /// Stops the process where it stands (SIGSTOP): it keeps all that it has, and does nothing.
    ///
    /// # Errors
    /// When it has ended.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets a stopped process go on (SIGCONT).
    ///
    /// # Errors
    /// When it has ended.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.process.id().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.and_then(Pid::from_raw).context("the process has ended")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Says a line to the parent, in a child.
    ///
    /// # Errors
    /// When the parent is gone.
    pub fn tell_parent(line: &str) -> Result<()> {
        writeln!(io::stdout(), "{line}").context("the parent is gone")
    }

    /// Waits for a line from the parent, in a child; `None` when it is gone.
    ///
    /// The line is read by a thread of its own. Only one such call may be in flight.
    ///
    /// # Errors
    /// When the line is not text.
    ///
    /// # Cancel safety
    /// The thread reads on, and the line is lost.
    pub async fn hear_parent() -> Result<Option<String>> {
        tokio::task::spawn_blocking(|| Ok(io::stdin().lines().next().transpose()?)).await?
    }
}

/// How long a process may say nothing.
const PATIENCE: Duration = Duration::from_secs(30);
