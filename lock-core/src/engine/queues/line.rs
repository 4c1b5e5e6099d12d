//! The waiters of each key in this process, in the order of arrival; pure.
//!
//! The waiters of all keys are in one slab and linked through it, so that a waiter which gives up in the middle of a line
//! leaves it in constant time.

use std::{collections::HashMap, sync::Arc, task::Waker};

use slab::Slab;
use smallvec::SmallVec;

use super::candidate::Candidate;
use crate::{
    backend::Token,
    clock::Moment,
    engine::{
        hold::Hold,
        tenure::{HoldId, TenureId},
        terms::Terms,
    },
    error::Error,
    key::{HashOfKey, LockKey},
    mode::Mode,
};

/// All lines. A key has one exactly while this process possesses the key or a request waits for it.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    lines: HashMap<LockKey, Line, HashOfKey>,
    waiters: Slab<Waiter>,
    /// How many waiters are known to wait.
    waiting: usize,
}

#[derive(Debug)]
pub(crate) struct Line {
    first: Link,
    last: Link,
    /// How many waiters it has.
    pub(crate) length: u32,
    /// How many of them do not know yet whether the key is busy.
    unknowing: u32,
    /// How many of them try only once, and leave when they know that the key is busy.
    tries: u32,
    /// The tenure whose holds may follow one another in the process.
    pub(crate) tenure: Option<TenureId>,
    /// How many holds followed one another in the last tenure.
    pub(crate) holds: u32,
}

/// Names a waiter: a number of the slab, owned by one future.
pub(crate) type WaiterId = usize;

/// The parameters of a new waiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Newcomer<'a> {
    pub(crate) key: &'a LockKey,
    pub(crate) terms: Terms,
    /// Whether it tries once and takes no place.
    pub(crate) tries: bool,
}

#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) key: LockKey,
    pub(crate) terms: Terms,
    /// Whether it tries once and takes no place.
    pub(crate) tries: bool,
    /// When it asked for the key.
    pub(crate) asked: Moment,
    /// Whether it knows that the key is, or was, busy. Until then it waits for the first answer, and no longer than a
    /// request may take. From then on it waits in line, through outages of the backend.
    pub(crate) knows: bool,
    /// Whether its wait is over and only the first answer is missing.
    pub(crate) overdue: bool,
    /// Whether it is known to wait, and counts as such: the key is busy.
    pub(crate) waits: bool,
    pub(crate) waker: Option<Waker>,
    pub(crate) state: Standing,
    previous: Link,
    next: Link,
}

#[derive(Debug)]
pub(crate) enum Standing {
    /// In line; those at its [front](Front) are candidates, unless they came while the process possessed the key.
    InLine(Option<Candidate>),
    /// Its turn has come: the hold is its own as soon as its future is polled.
    Turn(HoldId, Arc<Hold>),
    /// Its turn has passed because its future was not polled. It is out of the line until its future is polled again.
    Missed,
    /// Out of the line, with the error for its future.
    Failed(Error),
}

/// A waiter in a line, in less memory: there is a line for each lease.
type Link = u32;

const NOBODY: Link = Link::MAX;

/// How many waiters of a line contend at once at most.
pub(super) const TOGETHER: usize = 64;

/// Which waiters contend, from the first on: those who share the key each have a place of their own, and of exclusive ones
/// that follow one another the first. If a waiter does not contend, those behind it do not
/// either, so that the order of the line is that of the places.
#[derive(Debug, Default)]
struct Front {
    last: Option<Mode>,
    /// How many permits those take who follow one another.
    taken: u64,
    /// Whether the last one asks without a place. A place that was made meanwhile would come before its own.
    is_blocked: bool,
}

impl Front {
    /// Takes a waiter in, if it contends too.
    fn takes_waiter(&mut self, waiter: &Waiter) -> bool {
        let takes = self.takes(waiter.terms.mode);
        self.is_blocked = matches!(&waiter.state, Standing::InLine(Some(candidate)) if candidate.asks_without_place);
        takes
    }

    /// Takes the next one in, if it contends too.
    fn takes(&mut self, mode: Mode) -> bool {
        if self.is_blocked {
            return false;
        }
        let follows = self.last.replace(mode).is_some_and(|last| last == mode || last.goes_with(mode));
        match mode {
            // The key is passed on to it inside the process.
            Mode::Exclusive => !follows,
            Mode::Shared => true,
            Mode::Permits { total, take } => {
                self.taken = u64::from(take) + if follows { self.taken } else { 0 };
                self.taken <= u64::from(total)
            }
        }
    }
}

impl Lines {
    /// The line of a key that this process has or wants.
    pub(crate) fn of(&self, key: &LockKey) -> Option<&Line> {
        self.lines.get(key)
    }

    /// The keys that this process has or wants.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &LockKey> {
        self.lines.keys()
    }

    /// The waiters in the line of a key, in order, each with its candidate if it is one.
    pub(crate) fn waiters_of(&self, key: &LockKey) -> impl Iterator<Item = (&Waiter, Option<&Candidate>)> {
        self.onward(key).map(|id| {
            let waiter = &self.waiters[id];
            match &waiter.state {
                Standing::InLine(candidate) => (waiter, candidate.as_ref()),
                _ => (waiter, None),
            }
        })
    }

    /// How many waiters there are for whom the key is busy.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// The tenure that passes the key on in the process.
    pub(crate) fn tenure(&self, key: &LockKey) -> Option<TenureId> {
        self.lines.get(key)?.tenure
    }

    pub(crate) fn first(&self, key: &LockKey) -> Option<WaiterId> {
        self.lines.get(key)?.first()
    }

    /// The candidate of a key that has this token.
    pub(crate) fn candidate(&mut self, key: &LockKey, token: Token) -> Option<(WaiterId, &mut Candidate)> {
        let front = self.onward(key).take(TOGETHER);
        let is_it = |id: &WaiterId| matches!(&self.waiters[*id].state, Standing::InLine(Some(candidate)) if candidate.token == token);
        let id = front.into_iter().find(is_it)?;
        match &mut self.waiters[id].state {
            Standing::InLine(Some(candidate)) => Some((id, candidate)),
            _ => None,
        }
    }

    /// The waiters in the line of a key, in order.
    fn onward(&self, key: &LockKey) -> impl Iterator<Item = WaiterId> {
        let next = |id: &WaiterId| {
            let next = self.waiters[*id].next;
            (next != NOBODY).then_some(next as WaiterId)
        };
        std::iter::successors(self.first(key), next)
    }

    /// The waiters at the front of a line that contend together; see [`Front`]. There are none while the process possesses the key.
    fn front(&self, key: &LockKey) -> impl Iterator<Item = (WaiterId, &Waiter)> {
        let waiters = self.onward(key).map(|id| (id, &self.waiters[id]));
        let is_possessed = self.tenure(key).is_some();
        let mut front = Front::default();
        waiters.take(TOGETHER).take_while(move |(_, waiter)| !is_possessed && front.takes_waiter(waiter))
    }

    /// The waiters at the front that do not contend yet.
    pub(crate) fn next_to_contend(&self, key: &LockKey) -> SmallVec<[WaiterId; 1]> {
        let waits = |waiter: &Waiter| matches!(waiter.state, Standing::InLine(None));
        self.front(key).filter(|(_, waiter)| waits(waiter)).map(|(id, _)| id).collect()
    }

    /// Whether a newcomer with this mode would contend at once.
    pub(crate) fn would_contend(&self, key: &LockKey, mode: Mode) -> bool {
        let Some(line) = self.of(key) else { return true };
        if line.tenure.is_some() || line.length as usize >= TOGETHER {
            return false;
        }
        let mut front = Front::default();
        self.onward(key).all(|id| front.takes_waiter(&self.waiters[id])) && front.takes(mode)
    }

    /// Whether a waiter asks the backend.
    pub(crate) fn is_candidate(&self, id: WaiterId) -> bool {
        matches!(self.waiters[id].state, Standing::InLine(Some(_)))
    }

    /// A waiter's own candidate, if it is one.
    pub(crate) fn candidate_of(&mut self, id: WaiterId) -> Option<&mut Candidate> {
        match &mut self.waiters[id].state {
            Standing::InLine(candidate) => candidate.as_mut(),
            _ => None,
        }
    }

    /// The candidate that asks for a waiter: its own, or the first of its line.
    pub(crate) fn candidate_for(&mut self, id: WaiterId) -> Option<&mut Candidate> {
        if self.is_candidate(id) {
            return self.candidate_of(id);
        }
        let key = self.waiters[id].key.clone();
        self.first_candidate(&key)
    }

    /// Puts a newcomer at the end of the line; `knows` says that the key is known to be busy.
    pub(crate) fn enter(&mut self, newcomer: &Newcomer<'_>, knows: bool, now: Moment) -> WaiterId {
        let id = self.waiters.insert(Waiter {
            key: newcomer.key.clone(),
            terms: newcomer.terms,
            tries: newcomer.tries,
            asked: now,
            knows,
            overdue: false,
            waits: false,
            waker: None,
            state: Standing::InLine(None),
            previous: NOBODY,
            next: NOBODY,
        });
        self.append(id);
        id
    }

    /// Puts a waiter that is out of the line at its end again.
    pub(crate) fn reenter(&mut self, id: WaiterId) {
        self.waiters[id].state = Standing::InLine(None);
        self.waiters[id].knows = true;
        self.append(id);
        self.wait(id);
    }

    /// Counts a waiter that is in line as one for whom the key is busy.
    pub(crate) fn wait(&mut self, id: WaiterId) {
        self.waiting += usize::from(!std::mem::replace(&mut self.waiters[id].waits, true));
    }

    fn append(&mut self, id: WaiterId) {
        let link = Link::try_from(id).expect("memory ends before four billion waiters do");
        let line = self.lines.entry(self.waiters[id].key.clone()).or_insert(Line::EMPTY);
        let last = std::mem::replace(&mut line.last, link);
        line.length += 1;
        line.unknowing += u32::from(!self.waiters[id].knows);
        line.tries += u32::from(self.waiters[id].tries);
        if last == NOBODY {
            line.first = link;
        } else {
            self.waiters[last as WaiterId].next = link;
        }
        self.waiters[id].previous = last;
        self.waiters[id].next = NOBODY;
    }

    /// Takes a waiter out of its line, gives it a new state, and returns its candidate. Must be followed by [`tidy`](Self::tidy)
    /// unless the process possesses the key or another waiter contends for it.
    pub(crate) fn take_out(&mut self, id: WaiterId, state: Standing) -> Option<Candidate> {
        let waiter = &mut self.waiters[id];
        let Standing::InLine(candidate) = &mut waiter.state else { return None };
        let candidate = candidate.take();
        waiter.state = state;
        self.waiting -= usize::from(std::mem::take(&mut waiter.waits));
        let (previous, next) = (waiter.previous, waiter.next);
        if let Some(line) = self.lines.get_mut(&waiter.key) {
            line.length -= 1;
            line.unknowing -= u32::from(!waiter.knows);
            line.tries -= u32::from(waiter.tries);
            if previous == NOBODY {
                line.first = next;
            }
            if next == NOBODY {
                line.last = previous;
            }
        }
        if previous != NOBODY {
            self.waiters[previous as WaiterId].next = next;
        }
        if next != NOBODY {
            self.waiters[next as WaiterId].previous = previous;
        }
        candidate
    }

    /// The candidate of a key, if there is one.
    pub(crate) fn first_candidate(&mut self, key: &LockKey) -> Option<&mut Candidate> {
        let first = self.first(key)?;
        self.candidate_of(first)
    }

    /// The waiters of a key that do not know whether it is busy, the last first. They are the newest, so that a
    /// search from the end usually passes few others.
    pub(crate) fn unknowing(&self, key: &LockKey) -> Vec<WaiterId> {
        let mut found = Vec::new();
        let Some(line) = self.lines.get(key) else { return found };
        let mut link = line.last;
        while found.len() < line.unknowing as usize && link != NOBODY {
            let waiter = &self.waiters[link as WaiterId];
            if !waiter.knows {
                found.push(link as WaiterId);
            }
            link = waiter.previous;
        }
        found
    }

    /// Notes that a waiter in line knows that its key is busy.
    pub(crate) fn note_busy(&mut self, id: WaiterId) {
        let waiter = &mut self.waiters[id];
        if !std::mem::replace(&mut waiter.knows, true)
            && let Some(line) = self.lines.get_mut(&waiter.key)
        {
            line.unknowing -= 1;
        }
    }

    /// Forgets a waiter that is out of the line.
    pub(crate) fn forget(&mut self, id: WaiterId) -> Waiter {
        self.waiters.remove(id)
    }

    pub(crate) fn waiter(&mut self, id: WaiterId) -> &mut Waiter {
        &mut self.waiters[id]
    }

    pub(crate) fn get(&mut self, id: WaiterId) -> Option<&mut Waiter> {
        self.waiters.get_mut(id)
    }

    /// Every waiter, in an order that a replay repeats.
    pub(crate) fn ids(&self) -> Vec<WaiterId> {
        self.waiters.iter().map(|(id, _)| id).collect()
    }

    /// Says that a tenure possesses the key for the process.
    pub(crate) fn possess(&mut self, key: &LockKey, tenure: TenureId) {
        match self.lines.get_mut(key) {
            Some(line) => line.tenure = Some(tenure),
            None => _ = self.lines.insert(key.clone(), Line { tenure: Some(tenure), ..Line::EMPTY }),
        }
    }

    /// Ends a tenure that had so many local holds. Returns whether it possessed the key for the process.
    pub(crate) fn dispossess(&mut self, key: &LockKey, tenure: TenureId, holds: u32) -> bool {
        let Some(line) = self.lines.get_mut(key).filter(|line| line.tenure == Some(tenure)) else { return false };
        (line.tenure, line.holds) = (None, holds);
        true
    }

    /// Removes the line of a key that this process neither possesses nor wants.
    pub(crate) fn tidy(&mut self, key: &LockKey) {
        if self.lines.get(key).is_some_and(|line| line.length == 0 && line.tenure.is_none()) {
            self.lines.remove(key);
        }
    }

    /// Whether there is no line. There may still be waiters that are out of their lines.
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

impl Line {
    const EMPTY: Self = Self { first: NOBODY, last: NOBODY, length: 0, unknowing: 0, tries: 0, tenure: None, holds: 0 };

    /// How many waiters in it do not leave when they know that the key is busy.
    pub(crate) fn waiters(&self) -> usize {
        (self.length - self.tries) as usize
    }

    pub(crate) fn first(&self) -> Option<WaiterId> {
        (self.first != NOBODY).then_some(self.first as WaiterId)
    }
}
