//! The clock of a manager, and when its task should have looked at the clock: shows that the process stood still.
//!
//! The task says until when it sleeps, at most a quarter of a second while any lease is held. If it looks at the clock much later, its
//! threads were blocked, or the process was stopped, swapped out or suspended. A lease whose deadline has passed meanwhile was not lost
//! to the backend.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::late;
use crate::{
    clock::{Clock, Moment},
    lost::Observer,
    ttl::Ttl,
};

/// What all holds of a manager share: the clock, when the task was due, and the observer of losses.
#[derive(Debug)]
pub(crate) struct Pulse {
    clock: Arc<dyn Clock>,
    /// When the task has to look again, in nanoseconds since the origin.
    due: AtomicU64,
    /// From when until when it stood still last. Written by the task only, the end after the beginning.
    stood_still: [AtomicU64; 2],
    /// Whether the thread of the process looks when the task is late.
    pub(super) is_watched: AtomicBool,
    /// The function of the application that is told of losses.
    pub(super) observer: Option<Observer>,
}

impl Pulse {
    pub(crate) fn new(clock: Arc<dyn Clock>, observer: Option<Observer>) -> Arc<Self> {
        let (due, is_watched) = (AtomicU64::new(u64::MAX), AtomicBool::new(false));
        Arc::new(Self { clock, due, stood_still: Default::default(), is_watched, observer })
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// The task looks at the clock.
    pub(super) fn beat(&self, now: Moment) {
        let due = self.due();
        if now.since(due) >= LEAST {
            self.stood_still[0].store(due.nanoseconds(), Ordering::Relaxed);
            self.stood_still[1].store(now.nanoseconds(), Ordering::Release);
        }
    }

    /// The task sleeps, at most until then; [`Moment::NEVER`] if it has nothing to do, or has ended.
    pub(super) fn rest(&self, until: Moment) {
        self.due.store(until.nanoseconds(), Ordering::SeqCst);
        if until < Moment::NEVER && self.is_watched.load(Ordering::Relaxed) {
            late::look_again();
        }
    }

    /// Returns in how long the task is late, which is zero if it is; `None` if it has nothing to do.
    pub(super) fn until_late(&self) -> Option<Duration> {
        let due = self.due();
        (due < Moment::NEVER).then(|| (due + LEAST).since(self.now()))
    }

    /// Returns for how long the process has stood still by now, or stood still, while a lease lapsed that could have been renewed in
    /// that time.
    pub(super) fn stood_still(&self, deadline: Moment, ttl: Ttl, now: Moment) -> Option<Duration> {
        let until = Moment::from_nanoseconds(self.stood_still[1].load(Ordering::Acquire));
        let from = Moment::from_nanoseconds(self.stood_still[0].load(Ordering::Relaxed));
        let stands = [(from, until), (self.due(), now)];
        // If less was left, renewals had failed before, and the backend is to blame.
        let spare = (ttl.get() / 3).min(SPARE);
        let lapsed = |(from, until): &(Moment, Moment)| deadline.since(*from) >= spare && deadline <= *until;
        stands.into_iter().find(lapsed).map(|(from, until)| until.since(from))
    }

    fn due(&self) -> Moment {
        Moment::from_nanoseconds(self.due.load(Ordering::SeqCst))
    }
}

/// What a busy machine may be late by.
const LEAST: Duration = Duration::from_millis(100);

/// The time that a backend needs for a renewal.
const SPARE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::fixture::{Manual, at},
        error::LossReason,
        lost::Loss,
    };

    #[test]
    fn a_lease_that_lapsed_while_the_task_was_late_was_lost_to_that() {
        let clock = Arc::<Manual>::default();
        let pulse = Pulse::new(Arc::clone(&clock) as Arc<dyn Clock>, None);
        let ttl = Ttl::new(Duration::from_secs(1)).unwrap();
        pulse.beat(at(10));
        pulse.rest(at(260));
        clock.set(1_100);
        assert_eq!(
            pulse.stood_still(at(1_000), ttl, pulse.now()),
            Some(Duration::from_millis(840)),
            "as a holder sees it before the task"
        );
        pulse.beat(at(1_260));
        pulse.rest(at(1_500));
        assert_eq!(pulse.stood_still(at(1_000), ttl, at(1_260)), Some(Duration::from_secs(1)), "as the task saw it");
        for deadline in [300, 1_300] {
            assert_eq!(pulse.stood_still(at(deadline), ttl, at(1_260)), None, "renewals failed before, or later");
        }
        let loss = Loss { reason: LossReason::Expired, stood_still: Some(Duration::from_millis(4_860)) };
        assert!(loss.to_string().starts_with("this process stood still for 4.9 s"), "{loss}");
    }
}
