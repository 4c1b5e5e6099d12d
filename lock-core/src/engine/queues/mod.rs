//! The holders and waiters of each key in this process; pure: the moment is an argument, requests to send and wakers to wake are
//! results.
//!
//! A *tenure* is this process's stay in possession of a key, with one token; a *hold* is one local holder's part of it.
//! A guard knows (tenure, hold) and calls the tenure, never the backend by token: so a late call of a guard whose hold has ended cannot
//! touch the hold that came after it. Waiters of a key are in one line; the first is the *candidate*, the only one that asks the
//! backend. When it gets the key, its turn has come. When it is done, the hold of the next waiter follows inside the process
//! ([`tenure`] says for how long), and then the release and the next candidate's request travel in one call.
//!
//! There are four kinds of methods, as in quinn-proto: *getters* (`is_done`, `is_released`, `can_send`, `is_quiet`); *handlers* of what the
//! task brings (`handle_timeout`, `handle_notice`, `handle_response`); *commands* of futures and guards (`arrive`, `give_up`, `leave`,
//! `release`, `abandon`, `hand_over`, `request`); and *polls* for what is to be done next (`poll`, `poll_transmit`, `poll_renewals`,
//! `poll_messages`, `poll_timeout`, `take_deferred`).
//!
//! A waiter whose turn has come takes the hold when its future is polled. One that is not polled in time loses its turn,
//! so that a future that is kept in a `select!` does not keep a key.

mod candidate;
mod contention;
mod handoff;
mod holding;
pub(crate) mod in_flight;
pub(crate) mod line;
mod outage;
mod questions;
mod recent;
mod requests;
#[cfg(test)]
mod tests;
mod waiting;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use rand::{
    RngExt, TryRng,
    rngs::{StdRng, SysRng},
};
use slab::Slab;

use self::{
    in_flight::{Counted, Item, List, SentCall},
    line::{Lines, Standing, WaiterId},
    recent::RecentlyBusy,
};
use crate::{
    backend::{BackendError, Notice, Token, cleanup::CleanUp},
    clock::Moment,
    end::End,
    engine::{
        deferred::{Deferred, Losses},
        limits::Limits,
        pulse::Pulse,
        question::{Looks, Message, Questions, explanations::Explanations, this_process},
        tenure::{Renewing, TenureId, Tenures},
        wheel::Wheel,
    },
    info::Party,
    key::{HashOfKey, LockKey},
};

/// Everything that this process has, wants, and has left behind.
#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) tenures: Tenures,
    pub(crate) cleanup: CleanUp,
    /// How many requests have ended because their key was busy.
    pub(crate) busy: u64,
    /// Of jitter, and of tokens if it is seeded.
    random: StdRng,
    pub(crate) is_seeded: bool,
    lines: Lines,
    /// Tenures beside the one that possesses its key in the line: those that were taken up, and those that share their key.
    beside: HashMap<LockKey, Vec<TenureId>, HashOfKey>,
    /// Tokens that were handed over. They are over in this process, but must not be cleaned up.
    pub(crate) handed_over: HashMap<Token, HandedOver>,
    /// Tokens that were released, and until when their keys stay busy all the same.
    kept: HashMap<Token, Moment>,
    /// Which keys other holders had lately.
    recently_busy: RecentlyBusy,
    /// A timer for each waiter: the end of its turn, the candidate's next request, or the end of its patience.
    wheel: Wheel,
    /// Requests that wait to be sent, in order.
    outbox: VecDeque<Item>,
    /// Requests for lists of keys that wait to be sent.
    pub(crate) lists: Vec<List>,
    /// This process as others see it.
    party: Party,
    /// Questions of this manager and of others.
    pub(super) questions: Questions,
    /// Questions and answers that wait to be published.
    messages: Vec<Message>,
    pub(crate) explanations: Explanations,
    in_flight: Slab<SentCall>,
    counted: Counted,
    /// When to look for requests that were not answered in time.
    answers_due: Moment,
    /// When permits of another total may be logged again.
    totals_told: Moment,
    /// When failing renewals may be logged again.
    complaint: Moment,
    deferred: Deferred,
    losses: Losses,
    /// When a request failed last, and why: the error of a waiter whose own request could not even be sent in time.
    last_error: Option<(Moment, BackendError)>,
    /// The channel on which messages reach this process; `listening` says whether they do at present.
    channel: Arc<str>,
    no_channel: Arc<str>,
    listening: bool,
    /// Whether a grant of the backend's is a lease.
    pub(crate) trusts: bool,
    /// How many shared calls may be in flight, and how many calls of renewals, if that is more than their usual number.
    pub(crate) calls_at_once: usize,
    /// Whether the backend has refused to notify a waiter for this process. Then it probably refuses that to other processes, too, and
    /// no message of a grant reaches this one.
    calls_refused: bool,
    /// The smoothed round trip of a call to the backend, in nanoseconds.
    round_trip: u64,
    limits: Limits,
}

/// The next step of a holder that is done.
#[derive(Debug)]
pub(crate) enum Departure<R> {
    /// Nothing: the next hold of the tenure has followed.
    Passed,
    /// Nothing: the hold was over.
    Over,
    /// Wait for the answer to the release.
    Released(R),
}

impl Queues {
    pub(crate) fn new(pulse: Arc<Pulse>, mut random: StdRng, limits: Limits, looks: Looks) -> Self {
        let channel = format!("lock-core:calls:{:032x}", random.random::<u128>()).into();
        Self {
            tenures: Tenures::new(pulse),
            cleanup: CleanUp::default(),
            busy: 0,
            random,
            is_seeded: true,
            lines: Lines::default(),
            beside: HashMap::default(),
            handed_over: HashMap::new(),
            kept: HashMap::new(),
            recently_busy: RecentlyBusy::new(),
            wheel: Wheel::new(),
            outbox: VecDeque::new(),
            lists: Vec::new(),
            party: this_process(&looks.service),
            questions: Questions::default(),
            messages: Vec::new(),
            explanations: Explanations::new(looks.explain_after),
            in_flight: Slab::new(),
            counted: Counted::default(),
            answers_due: Moment::NEVER,
            totals_told: Moment::from_origin(Duration::ZERO),
            complaint: Moment::from_origin(Duration::ZERO),
            deferred: Deferred::default(),
            losses: Losses::new(),
            last_error: None,
            channel,
            no_channel: "".into(),
            listening: false,
            trusts: false,
            calls_at_once: 2,
            calls_refused: false,
            round_trip: 0,
            limits,
        }
    }

    pub(crate) fn channel(&self) -> &Arc<str> {
        &self.channel
    }

    pub(crate) fn token(&mut self) -> Token {
        // Of the system, whose source a machine that is told of its restore from a snapshot seeds again: two copies would otherwise draw
        // the same.
        let mut bits = [0; 16];
        if self.is_seeded || SysRng.try_fill_bytes(&mut bits).is_err() {
            return Token::from_random(self.random.random());
        }
        Token::from_random(u128::from_le_bytes(bits))
    }

    fn jitter(&mut self) -> f64 {
        self.random.random()
    }

    /// Takes the work that must wait until no lock is held.
    pub(crate) fn take_deferred(&mut self) -> Option<Deferred> {
        self.put_off_losses();
        self.deferred.is_any().then(|| std::mem::take(&mut self.deferred))
    }

    /// Whether no key is held, wanted or to be released. Waiters may be left that are out of their lines and were not polled since.
    pub(crate) fn is_done(&self) -> bool {
        self.tenures.len() == 0 && self.is_released() && self.lines.is_empty()
    }

    /// Returns the number of entries in each list that must not grow forever, by name.
    pub(crate) fn sizes(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("tenures", self.tenures.len()),
            ("lines", self.lines.keys().count()),
            ("waiters", self.lines.ids().len()),
            ("waiting", self.lines.waiting()),
            ("beside", self.beside.len()),
            ("handed_over", self.handed_over.len()),
            ("kept", self.kept.len()),
            ("explained", self.explanations.len()),
            ("unreleased", usize::from(!self.is_released())),
        ]
    }

    /// Whether no call is in flight, or only abandoned ones.
    pub(crate) fn waits_for_nothing(&self) -> bool {
        self.in_flight.iter().all(|(_, call)| call.is_abandoned())
    }

    /// Records that replicas have the key of a tenure; see [`Tenures::replicated`].
    pub(crate) fn replicated(&mut self, confirmation: &Renewing, sent: Moment) {
        self.tenures.replicated(confirmation, sent, &mut self.deferred);
    }

    /// When there is something to do next.
    pub(crate) fn poll_timeout(&self) -> Moment {
        self.next_timer().min(self.next_to_send())
    }

    /// When there is something to do next, beside sending.
    pub(crate) fn next_timer(&self) -> Moment {
        let [tenures, waiters] = [self.tenures.wheel.next(), self.wheel.next()].map(|at| at.unwrap_or(Moment::NEVER));
        let timers = tenures.min(waiters).min(self.losses.due()).min(self.answers_due);
        timers.min(self.questions.next()).min(self.explanations.next)
    }

    /// Whether nothing is left to be released.
    pub(crate) fn is_released(&self) -> bool {
        self.cleanup.is_empty() && self.outbox.is_empty()
    }

    /// Handles all timers that are due `now`: the ends of leases and turns, requests that were not answered in time, and the checks
    /// of candidates.
    pub(crate) fn handle_timeout(&mut self, now: Moment) {
        let ended = self.tenures.advance(now);
        self.clean_up_ended(ended, now);
        self.fail_unanswered(now);
        self.put_off_losses();
        self.deferred.untold += self.losses.take(now);
        self.explain_waits(now);
        self.close_questions(now);
        let mut due = Vec::new();
        self.wheel.advance(now, |waiter| due.push(waiter));
        // The order within a tick is that of the wheel's lists; make it one that a replay repeats.
        due.sort_unstable();
        for id in due {
            let Some(waiter) = self.lines.get(id) else { continue };
            let too_late = now >= waiter.loses_patience(self.limits.answer);
            match &mut waiter.state {
                Standing::Turn(hold, offered) => {
                    let hold = *hold;
                    offered.finish_at(now, End::Released);
                    waiter.state = Standing::Missed;
                    self.abandon(hold, now);
                }
                Standing::InLine(_) if too_late => self.was_not_answered(id, now),
                Standing::InLine(Some(candidate)) => {
                    let (key, token) = (waiter.key.clone(), candidate.token);
                    self.ask(&key, token, false);
                }
                Standing::InLine(None) | Standing::Missed | Standing::Failed(_) => {}
            }
        }
    }

    /// Takes a message of the backend that was not asked for.
    pub(crate) fn handle_notice(&mut self, notice: Notice, now: Moment) {
        match notice {
            Notice::Granted(grant) => self.granted(grant, now),
            Notice::Listening(listening) => self.listen(listening),
            Notice::Changed(Some(keys)) => keys.iter().for_each(|key| self.changed(key, now)),
            Notice::Changed(None) => self.tenures.renew_all_soon(now),
            Notice::Connected => self.tenures.connected(now),
            Notice::Moved => self.cleanup.release_lately_released(now),
            Notice::Settled(epoch) => self.cleanup.settle(epoch, now),
            Notice::Message(message) => self.take_message(message),
        }
    }

    /// Has a waiter looked at again at a moment, or when it has waited for its first answer for too long.
    fn set_timer(&mut self, id: WaiterId, at: Moment) {
        let at = at.min(self.lines.waiter(id).loses_patience(self.limits.answer));
        if at < Moment::NEVER {
            self.wheel.set(id, at);
        }
    }

    fn wake(&mut self, id: WaiterId) {
        let waker = self.lines.waiter(id).waker.take();
        self.deferred.wake(waker);
    }
}

/// How long a line of the log about permits of another total stands for those that would follow it.
const TOTALS: Duration = Duration::from_secs(600);
/// How long the future of a waiter whose turn has come may take to be polled.
const TURN: Duration = Duration::from_millis(100);
/// How much more time one of many who share a key may have: a future that is kept aside holds up writers for as long.
const LONGEST_MORE: Duration = Duration::from_secs(2);
/// The least time that a key is kept for a waiter that it was granted to.
const LEAST_RESERVED: Duration = Duration::from_millis(100);
/// The least time that a key is kept for a waiter that cannot be notified, and polls.
const LEAST_UNHEARD: Duration = Duration::from_millis(250);
/// The least time that a place lasts without another request: three checks.
const LEAST_LIFE: Duration = Duration::from_millis(1_500);
/// A lease that was handed over.
#[derive(Debug)]
pub(crate) struct HandedOver {
    /// Until when it may last.
    until: Moment,
    /// When the newest request was sent that had found it.
    proven: Moment,
    /// The fencing token that it began with.
    fence: u64,
}

/// The longest time that a key is kept for a waiter that it was granted to.
const LONGEST_RESERVED: Duration = Duration::from_secs(1);
/// The longest round trip that counts, in nanoseconds: a process that stood still for a minute would otherwise have keys
/// kept for it for as long.
const LONGEST_ROUND_TRIP: u64 = 1_000_000_000;
/// The longest first round trip that counts, since the first one may have included connecting.
const LONGEST_FIRST_ROUND_TRIP: u64 = 250_000_000;
