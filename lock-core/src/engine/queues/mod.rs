//! Who has a key in this process, and who waits for it; pure: the moment is an argument, what is to be sent and who is
//! to be woken are results.
//!
//! A *tenure* is this process's stay in possession of a key, with one token; a *hold* is one local holder's part of it.
//! A guard knows (tenure, hold) and speaks to the tenure, never to the backend by token. Waiters of a key stand in one
//! line; the first is the *contender*, the only one who asks the backend. When it gets the key, its turn has come; when
//! it is done, the hold of the next one follows inside the process ([`tenure`] says for how long), and then the release
//! and the next contender's request travel together.
//!
//! A waiter whose turn has come takes the hold when its future is polled. One that is not polled in time loses its turn,
//! so that a future that is kept in a `select!` does not keep a key.

mod asking;
pub(crate) mod calls;
mod contender;
pub(crate) mod line;
mod outage;
mod requests;
mod succession;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    task::{Poll, Waker},
    time::Duration,
};

use rand::{RngExt, rngs::StdRng};
use slab::Slab;

use self::{
    calls::{Counted, InFlight, Item, List},
    line::{Lines, Newcomer, Standing, WaiterId},
};
use crate::{
    backend::{BackendError, Outcome, Token},
    clock::{Clock, Moment},
    end::End,
    engine::{
        asked::Asked,
        cleanup::{CleanUp, Parting},
        deferred::{Deferred, Losses},
        limits::Limits,
        tenure::{Acquired, Ended, HoldId, Offer, Renewing, TenureId, Tenures, Terms},
        wheel::Wheel,
    },
    error::{ACQUIRE, Error},
    key::{HashOfKey, LockKey},
    mutants::Mutant,
    ttl::Ttl,
};

/// Everything that this process has, wants, and has left behind.
#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) tenures: Tenures,
    pub(crate) cleanup: CleanUp,
    clock: Arc<dyn Clock>,
    /// Of tokens and jitter.
    random: StdRng,
    lines: Lines,
    /// Tenures that came without a line, by their key: as a rule one, as a rule none.
    taken_up: HashMap<LockKey, Vec<TenureId>, HashOfKey>,
    /// Tokens that were given away, and until when their leases may last: they are over here, and not to be cleaned up.
    handed_over: HashMap<Token, Moment>,
    /// Tokens that were released, and until when their keys stay busy all the same.
    kept: HashMap<Token, Moment>,
    /// A timer for each waiter: the end of its turn, the contender's next request, or the end of its patience.
    wheel: Wheel,
    /// What waits to be sent, in order.
    outbox: VecDeque<Item>,
    lists: Vec<List>,
    in_flight: Slab<InFlight>,
    counted: Counted,
    /// When to look for requests that were not answered in time.
    answers_due: Moment,
    /// When failing renewals may be logged again.
    complaint: Moment,
    deferred: Deferred,
    losses: Losses,
    /// When a request failed last, and why: what a waiter is told whose own request could not even be sent in time.
    trouble: Option<(Moment, BackendError)>,
    /// Where calls reach this process, and whether they do at present.
    channel: Arc<str>,
    no_channel: Arc<str>,
    listening: bool,
    /// Whether the backend has let this process call nobody: then others call it neither, in all likelihood.
    calls_refused: bool,
    /// The smoothed round trip of a call to the backend, in nanoseconds.
    round_trip: u64,
    limits: Limits,
}

/// What a holder that is done has to do.
#[derive(Debug)]
pub(crate) enum Departure {
    /// Nothing: the next hold of the tenure has followed.
    Passed,
    /// Nothing: the hold was over.
    Over,
    /// Wait for the answer to the release.
    Released,
}

impl Queues {
    pub(crate) fn new(clock: Arc<dyn Clock>, mut random: StdRng, limits: Limits) -> Self {
        let channel = format!("lock-core:calls:{:032x}", random.random::<u128>()).into();
        Self {
            tenures: Tenures::new(),
            cleanup: CleanUp::default(),
            clock,
            random,
            lines: Lines::default(),
            taken_up: HashMap::default(),
            handed_over: HashMap::new(),
            kept: HashMap::new(),
            wheel: Wheel::new(),
            outbox: VecDeque::new(),
            lists: Vec::new(),
            in_flight: Slab::new(),
            counted: Counted::default(),
            answers_due: Moment::NEVER,
            complaint: Moment::from_origin(Duration::ZERO),
            deferred: Deferred::default(),
            losses: Losses::new(),
            trouble: None,
            channel,
            no_channel: "".into(),
            listening: false,
            calls_refused: false,
            round_trip: 0,
            limits,
        }
    }

    pub(crate) fn channel(&self) -> &Arc<str> {
        &self.channel
    }

    pub(crate) fn token(&mut self) -> Token {
        Token::from_random(self.random.random())
    }

    /// Takes the answer to a renewal that was sent at `sent`.
    pub(crate) fn renewed(&mut self, renewal: &Renewing, outcome: Option<Outcome>, sent: Moment, now: Moment) {
        let jitter = self.jitter();
        let ended = self.tenures.renewed(renewal, outcome, sent, now, jitter, &mut self.deferred);
        self.bury(ended, now);
    }

    fn jitter(&mut self) -> f64 {
        self.random.random()
    }

    /// What is to be done when no lock is held.
    pub(crate) fn take_deferred(&mut self) -> Option<Deferred> {
        self.deferred.is_any().then(|| std::mem::take(&mut self.deferred))
    }

    /// Whether nobody has, wants or has left anything. There may be waiters left that need not be asked for: the futures
    /// that are to tell of their end were not polled yet.
    pub(crate) fn is_done(&self) -> bool {
        self.tenures.len() == 0 && self.is_released() && self.lines.is_empty()
    }

    /// The same, and that no waiter is left.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.is_done() && self.lines.ids().is_empty()
    }

    /// When there is something to do next.
    pub(crate) fn poll_timeout(&self) -> Moment {
        let [tenures, waiters] = [self.tenures.next(), self.wheel.next()].map(|at| at.unwrap_or(Moment::NEVER));
        let timers = tenures.min(waiters).min(self.losses.due()).min(self.answers_due);
        timers.min(self.next_to_send())
    }

    /// Whether nothing is left to be released.
    pub(crate) fn is_released(&self) -> bool {
        self.cleanup.is_empty() && self.outbox.is_empty()
    }

    // ---- waiters

    /// Begins an acquire.
    pub(crate) fn arrive(&mut self, newcomer: Newcomer<'_>, now: Moment) -> Result<WaiterId, Error> {
        let Newcomer { key, tries, waker, .. } = newcomer;
        let mut knows = false;
        let mut asks_again = None;
        if let Some(tenure) = self.lines.tenure(key) {
            // Of a process that was stopped, say: nobody may have noticed yet.
            let ended = self.tenures.settle(tenure);
            self.bury(ended, now);
        }
        let line = self.lines.of(key);
        let alone = line.is_none();
        if let Some(line) = line {
            let (waiters, possessed) = (line.waiters(), line.tenure.is_some());
            let contender = self.lines.first_contender(key);
            knows = possessed || contender.as_ref().is_some_and(|first| first.answered && first.trouble.is_none());
            // The backend may be well again.
            let troubled = contender.filter(|first| first.trouble.is_some() && !first.is_asking());
            asks_again = troubled.map(|first| first.token);
            if tries && knows {
                return Err(self.busy(key, now));
            }
            if !tries {
                let (limits, waiting) = (self.limits, self.lines.waiting());
                let free = limits.per_key(waiters).and_then(|()| limits.in_all(waiting));
                free.map_err(|error| error.on(key))?;
            }
        }
        let waiter = self.lines.enter(&newcomer, waker.cloned(), knows, now);
        self.look_at(waiter, Moment::NEVER);
        if alone {
            self.contend(waiter);
        } else if !tries {
            self.lines.wait(waiter);
        }
        if let Some(token) = asks_again {
            self.ask(key, token, false);
        }
        Ok(waiter)
    }

    /// Asks how a waiter stands, whose task is to be woken when that changes.
    pub(crate) fn poll(&mut self, id: WaiterId, waker: &Waker, now: Moment) -> Poll<Result<Offer, Error>> {
        let waiter = self.lines.waiter(id);
        match &waiter.state {
            Standing::InLine(_) => {}
            Standing::Turn(hold, _) => {
                let hold = *hold;
                if !self.tenures.begin(hold, &waiter.terms, now) {
                    // Its lease has ended before it came.
                    let ended = self.tenures.settle(hold.tenure);
                    self.bury(ended, now);
                    self.wheel.unset(id);
                    return self.again(id, waker, now);
                }
                let Standing::Turn(hold, arc) = self.forget(id) else { unreachable!("matched above") };
                return Poll::Ready(Ok((hold, arc)));
            }
            Standing::Missed => return self.again(id, waker, now),
            Standing::Failed(_) => {
                let Standing::Failed(error) = self.forget(id) else { unreachable!("matched above") };
                return Poll::Ready(Err(error));
            }
        }
        let registered = &mut self.lines.waiter(id).waker;
        if !registered.as_ref().is_some_and(|registered| registered.will_wake(waker)) {
            let unused = registered.replace(waker.clone());
            self.deferred.discard(unused);
        }
        Poll::Pending
    }

    /// Puts a waiter whose turn was missed into its line again, unless it has no time left.
    fn again(&mut self, id: WaiterId, waker: &Waker, now: Moment) -> Poll<Result<Offer, Error>> {
        let waiter = self.lines.waiter(id);
        if waiter.tries || waiter.overdue {
            let key = waiter.key.clone();
            let error = self.busy(&key, now);
            self.forget(id);
            return Poll::Ready(Err(error));
        }
        self.rejoin(id);
        self.poll(id, waker, now)
    }

    /// Ends the wait of a waiter whose time is over. It has to wait for the first answer if it does not know yet whether
    /// its key is busy, and one that has left the line since it was polled has to be polled for what it has come to.
    /// Returns the backend's trouble, if there is some, as nobody knows then what became of the key.
    pub(crate) fn give_up(&mut self, id: WaiterId, now: Moment) -> Poll<Error> {
        let waiter = self.lines.waiter(id);
        if !matches!(waiter.state, Standing::InLine(_)) || !waiter.knows {
            waiter.overdue = true;
            return Poll::Pending;
        }
        let key = waiter.key.clone();
        let trouble = self.lines.first_contender(&key).and_then(|contender| contender.trouble.clone());
        let error = trouble.unwrap_or_else(|| self.busy(&key, now));
        self.leave(id, now);
        Poll::Ready(error)
    }

    /// The error of a waiter that goes because the key is busy. It says for how long, as far as that was heard last: what
    /// this process has left of the key, or another holder's ttl, less the time since the answer.
    fn busy(&mut self, key: &LockKey, now: Moment) -> Error {
        let free_at = match self.lines.tenure(key) {
            Some(tenure) => self.tenures.end(tenure),
            None => self.lines.first_contender(key).map(|contender| contender.free_at),
        };
        let remaining = free_at.filter(|at| now < *at && *at < Moment::NEVER).map(|at| at.since(now));
        Error::busy(ACQUIRE, key, Duration::ZERO).free_in(remaining)
    }

    /// Forgets a waiter whose future is done or was dropped; what it leaves is passed on or cleaned up.
    pub(crate) fn leave(&mut self, id: WaiterId, now: Moment) {
        let contender = self.lines.take_out(id, Standing::Missed);
        let waiter = self.lines.waiter(id);
        let (key, terms, tries) = (waiter.key.clone(), waiter.terms, waiter.tries);
        match self.forget(id) {
            Standing::Turn(hold, offered) => {
                offered.finish(End::Released);
                self.depart(hold, now);
            }
            // What `take_out` makes of one that was in line.
            Standing::Missed => match contender {
                Some(contender) => self.succeed(&key, contender, &terms, tries, now),
                None => self.lines.tidy(&key),
            },
            Standing::InLine(_) | Standing::Failed(_) => {}
        }
    }

    // ---- holders

    /// Ends a hold as its holder wishes. The next waiter's hold follows, or the key is released.
    pub(crate) fn release(&mut self, hold: HoldId, asked: Asked) -> Departure {
        let now = asked.at;
        if self.pass(hold, now) {
            return Departure::Passed;
        }
        let Some(tenure) = self.tenures.leave(hold) else { return Departure::Over };
        let (parting, doubt) = (tenure.parting(), tenure.doubt());
        self.keep(&parting, now);
        let key = parting.key.clone();
        self.request_release(parting, doubt, asked);
        self.free(&key, hold.tenure, tenure.holds());
        Departure::Released
    }

    /// Ends a hold whose guard was dropped.
    pub(crate) fn depart(&mut self, hold: HoldId, now: Moment) {
        if self.pass(hold, now) || Mutant::DroppedGuardKeeps.is_on() {
            return;
        }
        if let Some(tenure) = self.tenures.leave(hold) {
            let parting = tenure.parting();
            let key = parting.key.clone();
            self.keep(&parting, now);
            self.cleanup.push(parting, tenure.doubt(), now);
            self.free(&key, hold.tenure, tenure.holds());
        }
    }

    /// Ends a hold whose token goes elsewhere.
    pub(crate) fn hand_over(&mut self, hold: HoldId, now: Moment) -> Option<(Parting, Ttl)> {
        let tenure = self.tenures.leave(hold)?;
        remember(&mut self.handed_over, tenure.token, tenure.doubt().until, now);
        self.free(tenure.key(), hold.tenure, tenure.holds());
        Some((tenure.parting(), tenure.ttl))
    }

    /// Remembers a token whose key stays busy after its release: another release of it has to leave the key so too.
    fn keep(&mut self, parting: &Parting, now: Moment) {
        if now < parting.keep_until {
            remember(&mut self.kept, parting.token, parting.keep_until, now);
        }
    }

    /// Enters the tenure of an acquire that did not go through a line, and begins its hold.
    pub(crate) fn enter(&mut self, key: &LockKey, terms: &Terms, acquired: Acquired, now: Moment) -> Offer {
        let (id, hold) = self.tenures.enter(key, terms, acquired, &self.clock, now);
        self.tenures.begin(id, terms, now);
        self.taken_up.entry(key.clone()).or_default().push(id.tenure);
        (id, hold)
    }

    /// Has the tokens of tenures that ended by themselves cleaned up; who waits goes on.
    pub(crate) fn bury(&mut self, ended: impl IntoIterator<Item = Ended>, now: Moment) {
        for Ended { tenure, parting, doubt, reason, lapsed, ending } in ended {
            if lapsed {
                self.tenures.slack.note(Duration::ZERO, now);
            }
            let key = parting.key.clone();
            self.cleanup.push(parting, doubt, now);
            self.deferred.end(ending);
            self.deferred.lost(key.clone(), reason, self.losses.has_line(now));
            self.free(&key, tenure, 0);
        }
    }

    // ---- time

    /// Does what is due `now`: leases and turns that end, requests that were not answered in time, and contenders that ask
    /// on their own account.
    pub(crate) fn handle_timeout(&mut self, now: Moment) {
        let ended = self.tenures.advance(now);
        self.bury(ended, now);
        self.fail_unanswered(now);
        self.deferred.lost_more(self.losses.take(now));
        let mut due = Vec::new();
        self.wheel.advance(now, |waiter| due.push(waiter));
        // The order within a tick is that of the wheel's lists; make it one that a replay repeats.
        due.sort_unstable();
        for id in due {
            let Some(waiter) = self.lines.get(id) else { continue };
            let too_late = waiter.is_unanswered(now, self.limits.answer);
            match &mut waiter.state {
                Standing::Turn(hold, offered) => {
                    let hold = *hold;
                    offered.finish(End::Released);
                    waiter.state = Standing::Missed;
                    self.depart(hold, now);
                }
                Standing::InLine(_) if too_late => self.was_not_answered(id, now),
                Standing::InLine(Some(contender)) => {
                    let (key, token) = (waiter.key.clone(), contender.token);
                    self.ask(&key, token, false);
                }
                Standing::InLine(None) | Standing::Missed | Standing::Failed(_) => {}
            }
        }
    }

    /// Forgets a waiter that is out of the line, and returns how it stood.
    fn forget(&mut self, id: WaiterId) -> Standing {
        self.wheel.unset(id);
        let line::Waiter { state, waker, .. } = self.lines.forget(id);
        self.deferred.discard(waker);
        state
    }
}

/// Enters a token until a moment. Those whose time is over are swept out when the map would have to grow, so that it costs
/// the same however many there were.
fn remember(tokens: &mut HashMap<Token, Moment>, token: Token, until: Moment, now: Moment) {
    if tokens.len() == tokens.capacity() {
        tokens.retain(|_, until| now < *until);
        tokens.reserve(tokens.len());
    }
    tokens.insert(token, until);
}

/// How long a waiter whose turn has come may take to be polled.
const TURN: Duration = Duration::from_millis(100);
/// The least time that others wait for a process that was called.
const LEAST_WINDOW: Duration = Duration::from_millis(100);
/// The least time that a place lasts without another request: three checks.
const LEAST_LIFE: Duration = Duration::from_millis(1_500);
/// What a round trip counts for at most, in nanoseconds: an hour.
const LONGEST_ROUND_TRIP: u64 = 3_600_000_000_000;
