//! The signals that `lockctl` passes on to its command.

use std::io;

use tokio::sync::mpsc;

/// The signals that arrive, by their numbers.
#[derive(Debug)]
pub(crate) struct Signals {
    arrived: mpsc::UnboundedReceiver<i32>,
}

impl Signals {
    /// Begins to catch signals: from now on they no longer end this process.
    pub(crate) fn catch() -> io::Result<Self> {
        let (sender, arrived) = mpsc::unbounded_channel();
        platform::catch(&sender)?;
        Ok(Self { arrived })
    }

    /// Returns the next signal. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> i32 {
        match self.arrived.recv().await {
            Some(signal) => signal,
            // All of them were ignored from the start.
            None => std::future::pending().await,
        }
    }
}

#[cfg(unix)]
pub(crate) use self::platform::swallow;

#[cfg(unix)]
mod platform {
    use std::{fs, io};

    use rustix::process::Signal;
    use tokio::{
        signal::unix::{SignalKind, signal},
        sync::mpsc::UnboundedSender,
    };

    pub(super) fn catch(sender: &UnboundedSender<i32>) -> io::Result<()> {
        // If the parent process has this signal ignored, the system throws the exit code of the command away.
        drop(signal(SignalKind::child())?);
        let ignored = ignored();
        for number in PASSED_ON.map(Signal::as_raw) {
            // `nohup`, and shells without job control, ignore signals for us and for the command, which inherits that.
            if ignored & (1 << (number - 1)) != 0 {
                continue;
            }
            let mut signals = signal(SignalKind::from_raw(number))?;
            let sender = sender.clone();
            tokio::spawn(async move { while signals.recv().await.is_some() && sender.send(number).is_ok() {} });
        }
        Ok(())
    }

    /// Catches and drops what would end or stop this process, which lives in the group of the command: whatever that sends to
    /// its group, or the terminal does when a command in the background reads from it.
    pub(crate) fn swallow() -> io::Result<()> {
        let more = [Signal::ALARM, Signal::VTALARM, Signal::PROF, Signal::IO, Signal::TSTP, Signal::TTIN, Signal::TTOU];
        let mut all = PASSED_ON.into_iter().chain(more).map(Signal::as_raw);
        // The handler stays when nobody receives.
        all.try_for_each(|number| signal(SignalKind::from_raw(number)).map(drop))
    }

    /// Returns the signals that were ignored when this process began, as far as the system says: one bit for each, the lowest
    /// for signal 1.
    fn ignored() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    }

    const PASSED_ON: [Signal; 6] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];
}

#[cfg(not(unix))]
mod platform {
    use std::io;

    use tokio::sync::mpsc::UnboundedSender;

    /// Ctrl-C goes to the command as well, which shares the console; here it must not end the process.
    pub(super) fn catch(sender: &UnboundedSender<i32>) -> io::Result<()> {
        let sender = sender.clone();
        tokio::spawn(async move { while tokio::signal::ctrl_c().await.is_ok() && sender.send(2).is_ok() {} });
        Ok(())
    }
}
