//! Work put off until no lock is held: tasks to wake, wakers to drop, losses to log, metrics to record.
//!
//! Wakers, log writers and recorders of metrics are the user's code. Under the engine's lock they could ask the engine
//! for something and wait for themselves, or keep every other request waiting while they write. If they panic, the panic is
//! caught, and the rest is done all the same.

use std::{task::Waker, time::Duration};

use smallvec::SmallVec;

use crate::{
    backend::BackendError, caught::caught, clock::Moment, engine::hold::Ending, info::Holder, key::LockKey, lost::Loss,
    metrics, mode::Mode,
};

/// The work put off, done when this is dropped.
#[must_use = "dropped at once, it is done at once"]
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    /// The tasks to wake: one as a rule, which is kept without an allocation.
    woken: SmallVec<[Waker; 1]>,
    /// Wakers to drop. The drop of a waker may drop a task, and with the task a guard of this manager.
    unused: SmallVec<[Waker; 1]>,
    /// Holds that ended by themselves.
    pub(super) endings: Vec<Ending>,
    /// Leases that were lost, and whether each has a line of its own in the log.
    pub(super) losses: Vec<(LockKey, Loss, bool)>,
    /// How many leases were lost beyond those in `losses`.
    pub(super) untold: u32,
    /// Calls for renewals that failed: how many leases each was for, why, and whether that is logged.
    pub(super) failed: Vec<(usize, BackendError, bool)>,
    /// The time that the deadlines of renewed leases had left, by label.
    slacks: Vec<(&'static str, Duration)>,
    /// A request for permits that meets those of another total: its key, its mode, and the other total.
    pub(super) other_total: Option<(LockKey, Mode, u32)>,
    /// Keys that requests have waited for, and who holds them if a process says so.
    pub(super) explained: Vec<(LockKey, Option<Box<Holder>>)>,
}

impl Deferred {
    pub(super) fn is_any(&self) -> bool {
        !self.woken.is_empty()
            || !self.unused.is_empty()
            || !self.endings.is_empty()
            || !self.losses.is_empty()
            || self.untold > 0
            || !self.failed.is_empty()
            || !self.slacks.is_empty()
            || self.other_total.is_some()
            || !self.explained.is_empty()
    }

    /// Wakes a task.
    pub(super) fn wake(&mut self, waker: Option<Waker>) {
        self.woken.extend(waker);
    }

    /// Drops a waker without waking its task.
    pub(super) fn discard(&mut self, waker: Option<Waker>) {
        self.unused.extend(waker);
    }

    /// Records what the old deadline of a renewed lease had left.
    pub(super) fn renewed(&mut self, label: &'static str, slack: Option<Duration>) {
        if metrics::ARE_RECORDED {
            self.slacks.extend(slack.map(|slack| (label, slack)));
        }
    }
}

/// Wakes a task of the application, or of an executor of its own.
pub(super) fn wake(waker: Waker) {
    let _ = caught("waker", || waker.wake());
}

impl Drop for Deferred {
    fn drop(&mut self) {
        // Tasks and watchers come before the log and the observer of losses: slow code there must not delay a holder that has to stop.
        self.woken.drain(..).for_each(wake);
        self.unused.drain(..).for_each(|waker| _ = caught("drop of a waker", || drop(waker)));
        self.endings.iter_mut().for_each(Ending::wake);
        self.endings.clear();
        for (key, reason, own_line) in self.losses.drain(..) {
            if own_line {
                log!(warn, %key, %reason, "lease lost");
            } else {
                log!(debug, %key, %reason, "lease lost");
            }
        }
        if self.untold > 0 {
            log!(warn, leases = self.untold, "more leases lost within a second");
        }
        for (renewals, error, logged) in self.failed.drain(..) {
            metrics::renewal_failed();
            if logged {
                log!(warn, renewals, %error, "renewals failed and will be retried");
            }
        }
        if let Some((key, mode, total)) = self.other_total.take() {
            log!(warn, %key, wanted = %mode, held = total, "another limit is in use for a key; requests wait for each other");
        }
        for (key, holder) in self.explained.drain(..) {
            if let Some(holder) = holder {
                log!(info, %key, holder = %holder.party(), held = ?holder.held(), "still waiting for the lock");
            } else {
                log!(info, %key, "still waiting for the lock; no process says that it holds the key");
            }
        }
        for (label, slack) in self.slacks.drain(..) {
            metrics::renewed(label, slack);
        }
    }
}

/// Which losses have a line of their own in the log: an outage costs a few lines, not one for each lease.
#[derive(Debug)]
pub(super) struct Losses {
    /// When the present span began.
    since: Moment,
    /// How many lines it has had.
    lines: u32,
    /// How many losses had none.
    untold: u32,
}

impl Losses {
    pub(super) const fn new() -> Self {
        Self { since: Moment::from_origin(Duration::ZERO), lines: 0, untold: 0 }
    }

    /// Returns whether a lease that was lost `now` has a line of its own.
    pub(super) fn has_line(&mut self, now: Moment) -> bool {
        if now >= self.since + SPAN && self.untold == 0 {
            (self.since, self.lines) = (now, 0);
        }
        if self.lines < LINES {
            self.lines += 1;
            return true;
        }
        self.untold += 1;
        false
    }

    /// When the losses without a line are due to be logged as a number.
    pub(super) fn due(&self) -> Moment {
        if self.untold == 0 { Moment::NEVER } else { self.since + SPAN }
    }

    /// Returns how many losses had no line, due or not: the engine stops.
    pub(super) fn take_all(&mut self) -> u32 {
        std::mem::take(&mut self.untold)
    }

    /// Returns how many losses without a line are due `now`. They begin another span without lines.
    pub(super) fn take(&mut self, now: Moment) -> u32 {
        if now < self.due() {
            return 0;
        }
        self.since = now;
        std::mem::take(&mut self.untold)
    }
}

/// The lines in one span.
const LINES: u32 = 5;
const SPAN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::fixture::at;

    #[test]
    fn a_mass_of_losses_has_a_few_lines_and_a_number_each_second() {
        let mut losses = Losses::new();
        let lines = (0..1_000).filter(|index| losses.has_line(at(5_000 + index / 10))).count();
        assert_eq!((lines, losses.due()), (5, at(6_000)));
        assert_eq!((losses.take(at(5_999)), losses.take(at(6_000)), losses.due()), (0, 995, Moment::NEVER));
        assert!(!losses.has_line(at(6_500)), "the same mass goes on");
        assert_eq!(losses.take(at(7_000)), 1);
        assert!(losses.has_line(at(8_000)), "a quiet second later");
    }
}
