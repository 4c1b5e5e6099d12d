use std::{
    error::Error as _,
    io::{self, Write},
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

use lock_core::{BuildError, Error, ErrorKind, LossReason};

/// The answer is "no": the key that was asked about is free, or the release was not confirmed.
pub(crate) const NO: i32 = 1;

/// The command line is wrong (`EX_USAGE`).
pub(crate) const USAGE: i32 = 64;

/// Redis cannot be reached, or did not answer in time (`EX_UNAVAILABLE`).
pub(crate) const UNAVAILABLE: i32 = 69;

/// The system refused something, such as another process (`EX_OSERR`).
pub(crate) const OS_ERROR: i32 = 71;

/// Another holder has the key (`EX_TEMPFAIL`).
pub(crate) const BUSY: i32 = 75;

/// Redis refused the user, the password, or the access to the key (`EX_NOPERM`).
pub(crate) const DENIED: i32 = 77;

/// The URL, the key, an option or the server is not fit for a lock (`EX_CONFIG`).
pub(crate) const CONFIG: i32 = 78;

/// The lease was lost. `sysexits.h` ends at 78, so no program that follows it exits like this.
pub(crate) const LOST: i32 = 79;

/// The command was found, but could not be started, as in shells.
pub(crate) const NOT_STARTED: i32 = 126;

/// The command was not found, as in shells.
pub(crate) const NOT_FOUND: i32 = 127;

/// Added to the number of a signal, as in shells.
pub(crate) const SIGNALLED: i32 = 128;

/// Why `lockctl` itself failed: one line for people and a code for scripts.
#[derive(Debug)]
pub(crate) struct Failure {
    code: i32,
    /// Empty if there is nothing to say.
    message: String,
}

impl Failure {
    pub(crate) fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn code(&self) -> i32 {
        self.code
    }

    /// Returns the line for people.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Writes the line to the standard error.
    pub(crate) fn say(&self) {
        if !self.message.is_empty() {
            warn(&self.message);
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        // Not by `Error::case()`: a case tells only what clients of a service may know, and merges kinds that an operator has to tell
        // apart, such as a refused password and an option out of its range.
        let code = match error.kind() {
            ErrorKind::Busy => BUSY,
            ErrorKind::Lost(LossReason::ShutDown) | ErrorKind::ShutDown | ErrorKind::NoRuntime => OS_ERROR,
            ErrorKind::Lost(_) => LOST,
            ErrorKind::Backend | ErrorKind::NotReplicated | ErrorKind::Overloaded => UNAVAILABLE,
            ErrorKind::Denied => DENIED,
            _ => CONFIG,
        };
        Self::new(code, with_cause(&error))
    }
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Self {
        match error.cause() {
            Some(cause) => cause.clone().into(),
            None => Self::new(CONFIG, format!("could not use the options: {error}")),
        }
    }
}

/// Returns whether the answer was written: `false` if its reader, such as `head`, has read enough. That is not a failure, and the
/// command keeps the exit code that it has found: a script reads the code of `who`, and not what it writes.
pub(crate) fn written(answer: io::Result<()>) -> Result<bool, Failure> {
    match answer {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            Err(Failure::new(OS_ERROR, format!("could not write the answer: {error}; check where the output goes")))
        }
    }
}

/// Writes a line of `lockctl`'s own to the standard error, where the command writes, too.
pub(crate) fn warn(message: &str) {
    begin_warning(message).wait();
}

/// A line that is being written.
#[must_use]
pub(crate) struct Warning(Receiver<()>);

/// Begins to write such a line. Where nobody reads, as from a pipe that is full, a thread of its own waits for that, and not a command that
/// has to be stopped.
pub(crate) fn begin_warning(message: &str) -> Warning {
    let line = format!("lockctl: {message}\n");
    let (written, waits) = mpsc::channel();
    // Where the standard error cannot be written, nobody can be told.
    let is_short = line.len() < PIPE_BUF;
    let again = line.clone();
    let write = move || {
        let _ = io::stderr().write_all(line.as_bytes());
        let _ = written.send(());
    };
    if is_short && takes_a_line() {
        write();
    } else if thread::Builder::new().spawn(write).is_err() {
        let _ = io::stderr().write_all(again.as_bytes());
    }
    Warning(waits)
}

/// Whether the standard error is a pipe that takes a short line at once. (A file may be on a disk that does not answer.)
#[cfg(unix)]
fn takes_a_line() -> bool {
    use std::{fs::File, os::fd::AsFd, os::unix::fs::FileTypeExt};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    let stderr = io::stderr();
    let kind = stderr.as_fd().try_clone_to_owned().and_then(|stderr| File::from(stderr).metadata());
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    kind.is_ok_and(|kind| kind.file_type().is_fifo())
        && poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

#[cfg(not(unix))]
fn takes_a_line() -> bool {
    false
}

impl Warning {
    /// Waits until it is written, or nobody seems to read it.
    pub(crate) fn wait(self) {
        self.wait_for(A_SECOND);
    }

    /// The same, for a time of one's own.
    pub(crate) fn wait_for(self, within: Duration) {
        let _ = self.0.recv_timeout(within);
    }
}

/// How much a pipe takes at least that takes anything (`_POSIX_PIPE_BUF`).
const PIPE_BUF: usize = 512;

/// How long a line may take to be written.
const A_SECOND: Duration = Duration::from_secs(1);

/// Returns the message, and its first cause unless the message names it already.
fn with_cause(error: &Error) -> String {
    let message = error.to_string();
    match error.source().map(ToString::to_string) {
        Some(cause) if !message.contains(&cause) => format!("{message} ({})", cause.replace('\n', " ")),
        _ => message,
    }
}
