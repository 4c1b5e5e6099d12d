//! Holders and waiters: questions to all managers of a store, and their answers; pure.
//!
//! Nothing about holders is kept in the store, so a lease costs nothing more until somebody looks. A question is published
//! on a channel to which all managers listen; each answers on the channel of the manager that asks. (Scatter and gather, as
//! in Hohpe and Woolf, *Enterprise Integration Patterns*, 2003.) What is said is for people: no decision rests on it.

mod message;
mod open;

use std::{
    collections::VecDeque,
    iter::{once, repeat},
    sync::Arc,
    time::Duration,
};

pub(crate) use self::message::{Entry, Question, Statement, Subject, What};
use self::open::Open;
use crate::{
    clock::Moment,
    engine::{asked::Asked, hold::Hold},
    key::LockKey,
    mode::Mode,
};

/// The channel to which all managers of a store listen.
pub(crate) const EVERYONE: &str = "lock-core:calls:all";

/// How a manager is named in its answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// A number that no other manager has.
    pub(crate) id: Arc<str>,
    pub(crate) process: Process,
}

/// The process of a manager, as people know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) service: Arc<str>,
    pub(crate) host: Arc<str>,
    pub(crate) number: u32,
}

impl Identity {
    pub(crate) fn here(id: &str, service: &str) -> Self {
        let host = gethostname::gethostname().to_string_lossy().into_owned().into();
        let process = Process { service: service.into(), host, number: std::process::id() };
        Self { id: id.into(), process }
    }
}

/// A holder or waiter of this process, as it was when the question came. It is put into words when no lock is held.
#[derive(Debug)]
pub(crate) enum Seen {
    Holder {
        hold: Arc<Hold>,
        held: Duration,
    },
    Waiter {
        key: LockKey,
        label: &'static str,
        mode: Mode,
        waited: Duration,
        place: u32,
    },
    /// The key has more holders or waiters than are named.
    More {
        key: LockKey,
    },
}

/// The holders and waiters of this process that a question is about.
#[derive(Debug, Default)]
pub(crate) struct Sight {
    pub(crate) seen: Vec<Seen>,
    /// Whether there are more keys than an answer may name.
    pub(crate) is_cut: bool,
}

impl Sight {
    /// Puts what was seen into the parts of an answer.
    pub(crate) fn answers<'a>(
        &'a self,
        question: &'a Question,
        manager: &'a Identity,
    ) -> impl Iterator<Item = Statement> + 'a {
        question.answers(manager, &self.seen, Seen::entry, self.is_cut)
    }
}

impl Seen {
    fn entry(&self) -> Entry {
        match self {
            Self::Holder { hold, held } => Entry {
                key: hold.key.wire().to_owned(),
                label: hold.label().to_owned(),
                since: *held,
                trace: hold.trace().unwrap_or_default(),
                mode: hold.mode(),
                what: What::Holds { ttl: hold.ttl.get(), fence: hold.fence },
            },
            Self::Waiter { key, label, mode, waited, place } => Entry {
                key: key.wire().to_owned(),
                label: (*label).to_owned(),
                since: *waited,
                trace: String::new(),
                mode: *mode,
                what: What::Waits { place: *place },
            },
            Self::More { key } => Entry {
                key: key.wire().to_owned(),
                label: String::new(),
                since: Duration::ZERO,
                trace: String::new(),
                mode: Mode::Exclusive,
                what: What::More,
            },
        }
    }
}

/// A message to be published.
#[derive(Debug)]
pub(crate) enum Message {
    /// A question to all managers, and what this one has to say itself.
    Ask(Question, Sight),
    /// To the manager that asked.
    Tell(Question, Sight),
}

/// What managers have answered to a question.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) statements: Vec<Statement>,
    /// When the question ended.
    pub(crate) at: Moment,
    /// Whether a manager had more to say: more than an answer may name, or than it could say in time.
    pub(crate) is_truncated: bool,
    /// Whether another request has asked, and this one shares the answer.
    pub(crate) is_shared: bool,
    /// How many managers the question has reached, if that is known.
    pub(crate) reached: Option<usize>,
    /// How many of them have said all they have to say.
    pub(crate) answered: usize,
}

/// The questions of this manager that are not answered yet, and those of others that were.
#[derive(Debug, Default)]
pub(crate) struct Inquiries {
    open: Vec<Open>,
    /// The last answers about the holder of a key, which other waiters for that key share.
    holders: VecDeque<(String, Heard)>,
    /// The numbers of the last questions of others. One that comes over several connections is answered once.
    heard: VecDeque<u64>,
    /// Questions of others that wait for their answer. One is answered at a time, or many questions at once would have the
    /// leases wait behind the answers.
    waiting: VecDeque<Question>,
    is_answering: bool,
}

impl Inquiries {
    /// Enters a question of this manager, which ends at `until`, or later if answers still come then.
    pub(crate) fn open(&mut self, question: &Question, asked: Asked<Heard>, now: Moment, until: Moment) {
        self.open.push(Open::new(question, asked, until, until.max(now + ANSWERS_WITHIN)));
    }

    /// Returns the holder of a key as another waiter was told of it less than a second ago.
    pub(crate) fn known_holder(&mut self, key: &str, now: Moment) -> Option<Heard> {
        self.holders.retain(|(_, heard)| now.since(heard.at) < SHARED);
        let (_, heard) = self.holders.iter().find(|(of, _)| of == key)?;
        Some(Heard { is_shared: true, ..heard.clone() })
    }

    /// Has a request share the answer to the question for the holder of a key that is in flight. Returns the request if there is
    /// no such question.
    pub(crate) fn join(&mut self, key: &str, asked: Asked<Heard>) -> Option<Asked<Heard>> {
        let Some(open) = self.open.iter_mut().find(|open| open.holder_of.as_deref() == Some(key)) else {
            return Some(asked);
        };
        open.asked.push(asked);
        None
    }

    /// Takes note of how many managers a question has reached: zero if it could not be sent.
    pub(crate) fn reached(&mut self, id: u64, managers: usize) {
        if let Some(open) = self.open.iter_mut().find(|open| open.id == id) {
            open.reached = Some(managers);
        }
    }

    /// Adds an answer. One that was heard before, over another connection, is left out.
    pub(crate) fn add(&mut self, statement: Statement, now: Moment) {
        if let Some(open) = self.open.iter_mut().find(|open| open.id == statement.id) {
            open.add(statement, now);
        }
    }

    /// Takes the questions that are answered, or whose time is over.
    pub(crate) fn take_done(&mut self, now: Moment) -> Vec<(Asked<Heard>, Heard)> {
        let mut answers = Vec::new();
        for open in self.open.extract_if(.., |open| open.is_done(now)) {
            let holder_of = open.holder_of.clone();
            let (asked, heard) = open.end(now);
            let shared = Heard { is_shared: true, ..heard.clone() };
            answers.extend(asked.into_iter().zip(once(heard.clone()).chain(repeat(shared))));
            self.holders.extend(holder_of.map(|key| (key, heard)));
        }
        answers
    }

    /// Takes all questions of this manager, and forgets those of others, since the task has ended.
    pub(crate) fn end(&mut self) -> Vec<(Asked<Heard>, Heard)> {
        self.waiting.clear();
        self.is_answering = false;
        let done = self.take_done(Moment::NEVER);
        self.holders.clear();
        done
    }

    /// Enters a question of another manager, unless it is known, or too many wait.
    pub(crate) fn ask(&mut self, question: Question) {
        if self.heard.contains(&question.id) || self.waiting.len() >= WAITING {
            return;
        }
        self.heard.truncate(HEARD - 1);
        self.heard.push_front(question.id);
        self.waiting.push_back(question);
    }

    /// Takes the next question to be answered, if no other one is being answered.
    pub(crate) fn begin_answer(&mut self) -> Option<Question> {
        if self.is_answering {
            return None;
        }
        let question = self.waiting.pop_front()?;
        self.is_answering = true;
        Some(question)
    }

    /// Whether a question waits for its answer, and may be answered.
    pub(crate) fn has_answers(&self) -> bool {
        !self.is_answering && !self.waiting.is_empty()
    }

    /// Takes note that an answer was sent.
    pub(crate) fn end_answer(&mut self) {
        self.is_answering = false;
    }

    /// When the time of a question is over.
    pub(crate) fn next(&self) -> Moment {
        self.open.iter().map(|open| open.until).min().unwrap_or(Moment::NEVER)
    }
}

/// How many numbers of questions are kept.
const HEARD: usize = 64;

/// How many questions of others wait for their answer at most.
const WAITING: usize = 32;

/// How long to wait for the next part of an answer, two round trips apart.
pub(crate) const FOR_ANSWERS: Duration = Duration::from_millis(250);

/// How long to wait for all parts of the answers, at most.
pub(crate) const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// For how long waiters share what one of them was told of the holder of their key.
const SHARED: Duration = Duration::from_secs(1);

/// How many holders and waiters a manager names at most in one answer.
pub(crate) const MOST_ENTRIES: usize = 20_000;

/// How many holders and how many waiters of one key a manager names at most.
pub(crate) const MOST_OF_KEY: usize = 100;

#[cfg(test)]
mod tests;
