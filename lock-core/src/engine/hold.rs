//! One local holder's part of a tenure, shared by its guard, its leases and the engine.
//!
//! A hold has a mutex of its own, under which no other lock is taken, so a guard reads its deadline without the engine. The first thread
//! that finds the deadline in the past ends the hold, and an end never changes: an answer to a renewal that comes later raises nothing.
//! Each end returns an [`Ending`], which wakes and reports when it is dropped, after all locks.

use std::{
    panic::Location,
    sync::{Arc, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use slab::Slab;

use super::{
    deferred,
    pulse::Pulse,
    sync::{Mutex, MutexGuard},
    terms::Terms,
};
use crate::{
    clock::Moment,
    end::End,
    error::{Error, LossReason},
    fencing::FencingToken,
    key::LockKey,
    lost::{Loss, LostLease, Observer},
    metrics,
    mode::Mode,
    trace::TraceContext,
    ttl::Ttl,
};

/// One local holder's part of a tenure, shared by its guard, its leases and the engine.
pub(crate) struct Hold {
    pub(crate) key: LockKey,
    pub(crate) fence: FencingToken,
    /// Where it was asked for, to be named when the same task asks again.
    pub(crate) since: &'static Location<'static>,
    /// Its label in metrics.
    pub(crate) label: &'static str,
    pub(crate) mode: Mode,
    /// The ttl of its request.
    pub(crate) ttl: Ttl,
    /// Whether it was asked for without renewal.
    fixed: bool,
    pulse: Arc<Pulse>,
    state: Mutex<State>,
}

/// How far a lease may be relied on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validity {
    pub(crate) deadline: Moment,
    /// From when on it is in danger; see [`schedule::danger`](super::schedule::danger).
    pub(crate) danger: Moment,
    /// Grows when the user shortens the deadline: answers to requests of an older version do not raise it again.
    pub(crate) version: u32,
}

struct State {
    /// How it ended, or `None` while it is held. Never changes back.
    ended: Option<End>,
    /// Until when the holder may rely on the lease; only raised before it has passed.
    deadline: Moment,
    /// From when on it is in danger, unless it is renewed before.
    danger: Moment,
    /// When `max_hold` ends the hold.
    latest: Moment,
    /// Grows when the user shortens the deadline: answers to requests of an older version do not raise it again.
    version: u32,
    /// When it began; [`Moment::NEVER`] before that, and then it is not counted.
    begun: Moment,
    /// Whether its last renewal failed: then it is the backend that is late, and not this process.
    renewal_failed: bool,
    /// The trace context of its request.
    trace: Option<Box<TraceContext>>,
    /// The wakers of futures that wait for the end; few leases have any.
    wakers: Option<Box<Slab<Waker>>>,
}

impl Hold {
    pub(crate) fn new(key: LockKey, fence: u64, terms: &Terms, pulse: &Arc<Pulse>, validity: Validity) -> Arc<Self> {
        let Validity { deadline, danger, version } = validity;
        let state = State {
            ended: None,
            deadline,
            danger,
            latest: Moment::NEVER,
            version,
            begun: Moment::NEVER,
            renewal_failed: false,
            trace: None,
            wakers: None,
        };
        Arc::new(Self {
            key,
            fence: FencingToken::new(fence),
            since: terms.since,
            label: terms.label,
            mode: terms.mode,
            ttl: terms.ttl,
            fixed: !terms.is_renewed(),
            pulse: Arc::clone(pulse),
            state: Mutex::new(state),
        })
    }

    /// The error of a request about this hold, which has ended.
    pub(crate) fn error(&self, attempt: &'static str, end: End) -> Error {
        let error = Error::ended(attempt, &self.key, end);
        match end {
            End::Lost(LossReason::Expired) if self.fixed => error.detail(
                "the lease was lost: its deadline passed, and `fixed` switches renewal off; raise the ttl, extend the lease, \
                 or let it be renewed",
            ),
            End::Lost(reason) => match self.loss_of(reason, self.now()) {
                loss @ Loss { stood_still: Some(_), .. } => error.detail(format!("the lease was lost: {loss}")),
                _ => error,
            },
            _ => error,
        }
    }

    /// Returns why the hold was lost, and whether that is because this process stood still.
    pub(crate) fn loss_of(&self, reason: LossReason, now: Moment) -> Loss {
        let State { deadline, renewal_failed, .. } = *self.state();
        let is_late = reason == LossReason::Expired && !self.fixed && !renewal_failed;
        Loss { reason, stood_still: is_late.then(|| self.pulse.stood_still(deadline, self.ttl, now)).flatten() }
    }

    /// Records whether its last renewal failed.
    pub(crate) fn note_renewal(&self, failed: bool) {
        self.state().renewal_failed = failed;
    }

    /// Sets from when on it is in danger, after a success.
    pub(crate) fn note_danger(&self, danger: Moment) {
        self.state().danger = danger;
    }

    /// Whether it is in danger, or over.
    pub(crate) fn is_in_danger(&self) -> bool {
        let now = self.now();
        let state = self.state();
        state.ended.is_some() || state.over(now).is_some() || now >= state.danger
    }

    pub(crate) fn now(&self) -> Moment {
        self.pulse.now()
    }

    /// Begins the hold `now`; false if it has ended, or its time is over. The caller counts it as held ([`count`](Self::count))
    /// when no lock is held.
    pub(crate) fn begin(&self, now: Moment) -> bool {
        let mut state = self.state();
        if state.ended.is_some() || state.over(now).is_some() {
            return false;
        }
        state.begun = now;
        true
    }

    /// Has it end at `latest`, however long it is renewed.
    pub(crate) fn end_by(&self, latest: Moment) {
        self.state().latest = latest;
    }

    /// Counts it as held, in the metrics.
    pub(crate) fn count(&self) {
        metrics::begun(self.label);
    }

    /// The validity that a following hold of the same tenure inherits.
    pub(crate) fn validity(&self) -> Validity {
        let state = self.state();
        Validity { deadline: state.deadline, danger: state.danger, version: state.version }
    }

    /// Whether the hold goes on. A hold whose deadline has passed ends here, if that was not noticed before.
    pub(crate) fn check(&self) -> Result<(), End> {
        self.settle(self.now(), None).0.map_or(Ok(()), Err)
    }

    /// Ends the hold if its time is over at `now` or `end` is given; one that ended before stays as it ended. Returns the end that
    /// stands, and its announcement, to be dropped when no lock is held.
    pub(crate) fn settle(&self, now: Moment, end: Option<End>) -> (Option<End>, Ending) {
        let mut state = self.state();
        if state.ended.is_some() {
            return (state.ended, Ending::default());
        }
        // The clock decides before the caller does: a release that comes after the deadline ends the hold as lost, because another
        // holder may have had the key since. Comparing and ending are one step under this lock, so a renewal that is answered at the
        // same moment on another thread cannot raise a deadline that has been found to have passed.
        let Some(end) = state.over(now).map(End::Lost).or(end) else { return (None, Ending::default()) };
        state.ended = Some(end);
        let wakers = std::mem::take(&mut state.wakers);
        let counted = (state.begun != Moment::NEVER).then(|| (self.label, end, now.since(state.begun)));
        drop(state);
        let lost = counted.and_then(|(_, end, held)| self.told(end.loss()?, held, now));
        (Some(end), Ending { wakers, counted, lost })
    }

    /// The loss and whom to tell of it, if the application wants to know.
    fn told(&self, reason: LossReason, held: Duration, now: Moment) -> Option<Box<(Observer, LostLease)>> {
        let observer = self.pulse.observer.clone()?;
        let (key, loss) = (self.key.clone(), self.loss_of(reason, now));
        Some(Box::new((observer, LostLease { key, fence: self.fence, label: self.label, held, loss })))
    }

    /// Records the trace context of its request.
    pub(crate) fn note_trace(&self, trace: Box<TraceContext>) {
        self.state().trace = Some(trace);
    }

    pub(crate) fn trace(&self) -> Option<String> {
        self.state().trace.as_ref().map(|trace| trace.0.clone())
    }

    /// Returns for how long it has been held at `now`; `None` if it has not begun, or is over.
    pub(crate) fn held(&self, now: Moment) -> Option<Duration> {
        let state = self.state();
        let is_held = state.ended.is_none() && state.over(now).is_none() && state.begun != Moment::NEVER;
        is_held.then(|| now.since(state.begun))
    }

    /// Returns why it was lost, if it had begun and was lost.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        let state = self.state();
        state.ended.filter(|_| state.begun != Moment::NEVER).and_then(End::loss)
    }

    pub(crate) fn remaining(&self) -> Duration {
        let now = self.pulse.now();
        let state = self.state();
        if state.ended.is_some() { Duration::ZERO } else { state.deadline.min(state.latest).since(now) }
    }

    /// The moment at which it ends if nothing happens.
    pub(crate) fn end(&self) -> Moment {
        let state = self.state();
        state.deadline.min(state.latest)
    }

    /// When `max_hold` ends it, if it is bounded.
    pub(crate) fn latest(&self) -> Option<Moment> {
        Some(self.state().latest).filter(|latest| *latest < Moment::NEVER)
    }

    pub(crate) fn version(&self) -> u32 {
        self.state().version
    }

    /// Ends the hold, unless it has ended before; returns the end that stands.
    pub(crate) fn finish(&self, end: End) -> End {
        self.finish_at(self.now(), end)
    }

    pub(crate) fn finish_at(&self, now: Moment, end: End) -> End {
        self.settle(now, Some(end)).0.unwrap_or(end)
    }

    /// Ends the hold as its holder wishes, unless it is over already.
    pub(crate) fn release_at(&self, now: Moment) -> Result<(), LossReason> {
        let (ended, ending) = self.settle(now, Some(End::Released));
        if let Some(reason) = ended.and_then(End::loss) {
            return Err(reason);
        }
        if let Some((_, _, held)) = ending.counted {
            log!(debug, key = %self.key, fencing_token = self.fence.get(), ?held, "lease released");
        }
        Ok(())
    }

    /// Raises the deadline after an answer, if the hold goes on and the request was sent by its present version. A
    /// lapsed hold is not revived: it has to be settled. Returns what the old deadline had left, for the metrics.
    ///
    /// `now` was read from the clock after the answer came. It may be too early, as if this thread had waited for the lock: another
    /// thread that saw the deadline pass has ended the hold.
    pub(crate) fn raise(&self, now: Moment, deadline: Moment, version: u32) -> Option<Duration> {
        let mut state = self.state();
        let lapsed = state.over(now).is_some();
        if state.ended.is_some() || lapsed {
            return None;
        }
        let slack = state.deadline.since(now);
        // A request that was sent before the deadline was lowered (`extend` to less) promised more than the holder wants now. Its
        // answer must not move the deadline out again, so each lowering begins a new version.
        if state.version == version {
            state.deadline = state.deadline.max(deadline);
        }
        Some(slack)
    }

    /// Lowers the deadline, if `deadline` is earlier; returns the version that the next request belongs to.
    pub(crate) fn lower(&self, deadline: Moment) -> u32 {
        let mut state = self.state();
        if deadline < state.deadline {
            state.deadline = deadline;
            state.version = state.version.wrapping_add(1);
        }
        state.version
    }

    pub(crate) fn poll_ended(&self, registered: &mut Option<usize>, cx: &mut Context<'_>) -> Poll<End> {
        if let Err(end) = self.check() {
            return Poll::Ready(end);
        }
        let mut state = self.state();
        // Checked again under the lock: the hold may have ended since, and its wakers were taken then. A waker that is registered after
        // that would never be woken.
        if let Some(end) = state.ended {
            return Poll::Ready(end);
        }
        let wakers = state.wakers.get_or_insert_default();
        let unused = match registered.and_then(|index| wakers.get_mut(index)) {
            Some(waker) if waker.will_wake(cx.waker()) => None,
            Some(waker) => Some(std::mem::replace(waker, cx.waker().clone())),
            None => {
                *registered = Some(wakers.insert(cx.waker().clone()));
                None
            }
        };
        // The lock is released before the old waker is dropped: a waker may own a task, the task a guard, and the drop of that guard
        // would take this lock again.
        drop(state);
        drop(unused);
        Poll::Pending
    }

    /// Forgets the waker that a lease has registered.
    pub(crate) fn unregister(&self, registered: usize) {
        let mut state = self.state();
        let unused = state.wakers.as_mut().and_then(|wakers| wakers.try_remove(registered));
        // The lock is released first, as above.
        drop(state);
        drop(unused);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns why the hold is over at `now`, or `None` if it is not.
    fn over(&self, now: Moment) -> Option<LossReason> {
        if now >= self.latest {
            Some(LossReason::MaxHold)
        } else if now >= self.deadline {
            Some(LossReason::Expired)
        } else {
            None
        }
    }
}

/// The end of a hold, still to be announced: when this is dropped, watchers are woken, metrics recorded, and losses told.
///
/// A waker may run code of the user's executor, which may ask the engine for something, and a recorder of metrics and an observer of
/// losses may block: none of that may happen under a lock of the engine's.
#[must_use = "dropped at once, it is done at once"]
#[derive(Debug, Default)]
pub(crate) struct Ending {
    wakers: Option<Box<Slab<Waker>>>,
    /// Label, end and duration for the metrics, if the hold had begun.
    counted: Option<(&'static str, End, Duration)>,
    /// The observer of losses and what it is told, if the hold had begun and was lost.
    lost: Option<Box<(Observer, LostLease)>>,
}

impl Ending {
    /// Wakes the watchers, before anything else is announced.
    pub(super) fn wake(&mut self) {
        if let Some(mut wakers) = self.wakers.take() {
            wakers.drain().for_each(deferred::wake);
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.wake();
        if let Some((label, end, held)) = self.counted.take() {
            metrics::ended(label, end.loss(), held);
        }
        if let Some((observer, lost)) = self.lost.as_deref() {
            observer.tell(lost);
        }
    }
}

shows!(Hold, key, fence);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::{
        clock::{Clock, Sleep},
        engine::fixture::{key, terms},
        lease::Lease,
    };

    /// A clock that stands where the test puts it.
    #[derive(Debug, Default)]
    struct Hand(AtomicU64);

    impl Clock for Hand {
        fn now(&self) -> Moment {
            at(self.0.load(Ordering::SeqCst))
        }

        fn sleep(&self, _: Duration) -> Sleep {
            Box::pin(std::future::pending())
        }
    }

    fn at(ms: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(ms))
    }

    /// A hold until 1,000 ms, at most until 5,000 ms, and its clock.
    fn hold() -> (Arc<Hold>, Arc<Hand>) {
        let clock = Arc::new(Hand::default());
        let validity = Validity { deadline: at(1_000), danger: Moment::NEVER, version: 0 };
        let hold = Hold::new(key(), 1, &terms(1_000), &Pulse::new(Arc::clone(&clock) as _, None), validity);
        hold.begin(at(0));
        hold.end_by(at(5_000));
        (hold, clock)
    }

    impl Hold {
        /// Returns how many wakers are registered.
        fn registered(&self) -> usize {
            self.state().wakers.as_ref().map_or(0, |wakers| wakers.len())
        }
    }

    #[test]
    fn a_lapsed_hold_is_not_revived_by_an_answer_that_comes_before_anybody_looked() {
        let (hold, clock) = hold();
        clock.0.store(1_000, Ordering::SeqCst);
        assert_eq!(hold.raise(at(1_000), at(2_000), hold.version()), None);
        assert_eq!(hold.check(), Err(End::Lost(LossReason::Expired)));
        assert_eq!(hold.remaining(), Duration::ZERO);
    }

    #[test]
    fn a_deadline_is_raised_up_to_the_longest_hold_and_never_lowered_by_an_answer() {
        let (hold, clock) = hold();
        hold.raise(at(0), at(9_000), hold.version());
        hold.raise(at(0), at(500), hold.version());
        assert_eq!(hold.remaining(), Duration::from_millis(5_000));
        clock.0.store(5_000, Ordering::SeqCst);
        assert_eq!(hold.check(), Err(End::Lost(LossReason::MaxHold)));
    }

    #[test]
    fn a_process_that_stood_still_is_not_blamed_for_renewals_that_had_failed_before() {
        let (hold, clock) = hold();
        hold.pulse.rest(at(700));
        clock.0.store(1_000, Ordering::SeqCst);
        for failed in [false, true] {
            hold.note_renewal(failed);
            let loss = hold.loss_of(LossReason::Expired, at(1_000));
            assert_eq!(loss.stood_still, (!failed).then(|| Duration::from_millis(300)));
        }
    }

    #[test]
    fn the_first_end_stands() {
        let (hold, clock) = hold();
        let forced = End::Lost(LossReason::Forced);
        assert_eq!(hold.finish(forced), forced);
        clock.0.store(1_000, Ordering::SeqCst);
        assert_eq!(hold.finish(End::Lost(LossReason::Taken)), forced);
        assert_eq!(hold.finish(End::HandedOver), forced);
        assert_eq!(hold.release_at(at(1_000)), Err(LossReason::Forced));
        assert_eq!(hold.check(), Err(forced));
    }

    #[test]
    fn a_lease_that_is_dropped_leaves_no_waker() {
        let (hold, _) = hold();
        let mut leases: Vec<_> = (0..3).map(|_| Lease::new(Arc::clone(&hold))).collect();
        let mut cx = Context::from_waker(Waker::noop());
        for lease in &mut leases {
            assert!(lease.poll_ended(&mut cx).is_pending());
            assert!(lease.poll_ended(&mut cx).is_pending());
        }
        assert_eq!(hold.registered(), 3);
        leases.pop();
        assert_eq!(hold.registered(), 2);
    }
}
