//! Holders and waiters: questions to all managers of a store, and their answers; pure.
//!
//! Nothing about holders is kept in the store, so a lease costs nothing more until somebody looks. A question is published
//! on a channel to which all managers listen; each answers on the channel of the manager that asks. (Scatter and gather, as
//! in Hohpe and Woolf, *Enterprise Integration Patterns*, 2003.) What is said is for people: no decision rests on it.

mod message;

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

pub(crate) use self::message::{Entry, Question, Statement, Subject, What};
use crate::{
    clock::Moment,
    engine::{asked::Asked, hold::Hold},
    key::LockKey,
};

/// The channel to which all managers of a store listen.
pub(crate) const EVERYONE: &str = "lock-core:calls:all";

/// How a manager is named in its answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manager {
    /// A number that no other manager has.
    pub(crate) id: Arc<str>,
    pub(crate) service: Arc<str>,
    pub(crate) host: Arc<str>,
    pub(crate) process: u32,
}

impl Manager {
    pub(crate) fn here(id: &str, service: &str) -> Self {
        let host = gethostname::gethostname().to_string_lossy().into_owned().into();
        Self { id: id.into(), service: service.into(), host, process: std::process::id() }
    }
}

/// A holder or waiter of this process, as it was when the question came. It is put into words when no lock is held.
#[derive(Debug)]
pub(crate) enum Seen {
    Holder { hold: Arc<Hold>, held: Duration },
    Waiter { key: LockKey, label: &'static str, waited: Duration, place: u32 },
}

impl Seen {
    pub(crate) fn entry(&self) -> Entry {
        match self {
            Self::Holder { hold, held } => Entry {
                key: hold.key.wire().to_owned(),
                label: hold.label().to_owned(),
                since: *held,
                trace: hold.trace().unwrap_or_default(),
                what: What::Holds { ttl: hold.ttl.get(), fence: hold.fence },
            },
            Self::Waiter { key, label, waited, place } => Entry {
                key: key.wire().to_owned(),
                label: (*label).to_owned(),
                since: *waited,
                trace: String::new(),
                what: What::Waits { place: *place },
            },
        }
    }
}

/// A message to be published.
#[derive(Debug)]
pub(crate) enum Message {
    /// A question to all managers, and what this one has to say itself.
    Ask(Question, Vec<Seen>),
    /// To the manager that asked.
    Tell(Question, Vec<Seen>),
}

/// The questions of this manager that are not answered yet, and those of others that were.
#[derive(Debug, Default)]
pub(crate) struct Inquiries {
    open: Vec<Open>,
    /// The numbers of the last questions of others. One that comes over several connections is answered once.
    heard: VecDeque<u64>,
    /// Questions of others that wait for their answer. One is answered at a time, or many questions at once would have the
    /// leases wait behind the answers.
    waiting: VecDeque<Question>,
    is_answering: bool,
}

/// A question of this manager.
#[derive(Debug)]
struct Open {
    id: u64,
    asked: Asked<Vec<Statement>>,
    /// Whether the first holder is enough.
    wants_holder: bool,
    /// The managers that have said all they have to say.
    done: Vec<Arc<str>>,
    /// The parts that have come, by manager and number.
    known: HashSet<(Arc<str>, u32)>,
    statements: Vec<Statement>,
    /// How many managers the question has reached, if that is known.
    reached: Option<usize>,
    until: Moment,
}

impl Open {
    fn is_done(&self, now: Moment) -> bool {
        now >= self.until
            || self.reached.is_some_and(|reached| self.done.len() >= reached)
            || self.wants_holder && self.statements.iter().any(|statement| !statement.entries.is_empty())
            || self.asked.is_cancelled()
    }
}

impl Inquiries {
    /// Enters a question of this manager.
    pub(crate) fn open(&mut self, question: &Question, asked: Asked<Vec<Statement>>, until: Moment) {
        let (id, wants_holder) = (question.id, matches!(question.subject, Subject::Holder(_)));
        let (done, known, statements) = (Vec::new(), HashSet::new(), Vec::new());
        self.open.push(Open { id, asked, wants_holder, done, known, statements, reached: None, until });
    }

    /// Takes note of how many managers a question has reached: zero if it could not be sent.
    pub(crate) fn reached(&mut self, id: u64, managers: usize) {
        if let Some(open) = self.open.iter_mut().find(|open| open.id == id) {
            open.reached = Some(managers);
        }
    }

    /// Adds an answer. One that was heard before, over another connection, is left out.
    pub(crate) fn add(&mut self, statement: Statement) {
        let Some(open) = self.open.iter_mut().find(|open| open.id == statement.id) else { return };
        if !open.known.insert((Arc::clone(&statement.manager.id), statement.part)) {
            return;
        }
        if statement.is_last {
            open.done.push(Arc::clone(&statement.manager.id));
        }
        open.statements.push(statement);
    }

    /// Takes the questions that are answered, or whose time is over.
    pub(crate) fn take_done(&mut self, now: Moment) -> Vec<(Asked<Vec<Statement>>, Vec<Statement>)> {
        let done = self.open.extract_if(.., |open| open.is_done(now));
        done.map(|open| (open.asked, open.statements)).collect()
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

    /// Forgets the questions of others.
    pub(crate) fn forget(&mut self) {
        self.waiting.clear();
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

/// How long to wait for answers, two round trips apart.
pub(crate) const FOR_ANSWERS: Duration = Duration::from_millis(250);

/// How many holders and waiters a manager names at most in one answer.
pub(crate) const MOST_ENTRIES: usize = 20_000;

/// How many waiters of one key a manager names at most.
pub(crate) const MOST_WAITERS: usize = 100;

#[cfg(test)]
mod tests;
