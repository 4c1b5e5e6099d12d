//! Questions about holders and waiters, and their answers; pure.
//!
//! Nothing about holders is kept in the store, so a lease costs nothing more until somebody asks. A question is published on a
//! channel to which all managers listen, and each publishes one answer on the channel of the manager that asks. (Scatter and
//! gather, as in Hohpe and Woolf, *Enterprise Integration Patterns*, 2003.) The question ends when as many have answered as it
//! reached, or when its time is over. Answers are for people: no decision rests on them.
//!
//! A manager answers one question in each turn of its engine, while no other answer of its own is on its way, and names at most 500
//! holders and waiters. So a flood of questions waits behind the leases, and not the leases behind the questions. Answers of
//! others are kept as text, which is read by the task that asked, without a lock.

pub(crate) mod explanations;
pub(crate) mod message;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use self::message::Question;
use crate::{clock::Moment, engine::responder::Responder, info::Party, key::LockKey};

/// Settings for `inspect`.
#[derive(Debug)]
pub(crate) struct Looks {
    /// How the manager names itself.
    pub(crate) service: String,
    /// After which wait of a request to ask who holds its key.
    pub(crate) explain_after: Option<Duration>,
}

/// A message to be published.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) channel: Arc<str>,
    pub(crate) text: String,
    /// The number of the question, or `None` for an answer.
    pub(crate) asks: Option<u64>,
}

/// The purpose of a question of this manager.
#[derive(Debug)]
pub(crate) enum Asker {
    /// A request waits for the answers of all managers.
    Request(Responder<Heard>),
    /// The waits for a key are to be explained; the first answer is enough, since managers that do not hold the key are silent.
    Waits(LockKey),
}

/// The answers to a question.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    /// By manager: one that answers twice counts once.
    pub(crate) answers: BTreeMap<String, String>,
    /// How many managers the question has reached, if that is known; zero if it could not be sent.
    pub(crate) reached: Option<usize>,
}

/// A question of this manager that is not answered yet.
#[derive(Debug)]
struct Open {
    id: u64,
    asker: Asker,
    heard: Heard,
    until: Moment,
}

impl Open {
    fn is_done(&self, now: Moment) -> bool {
        let Heard { answers, reached } = &self.heard;
        let is_enough = match &self.asker {
            Asker::Request(responder) => responder.is_cancelled(),
            Asker::Waits(_) => !answers.is_empty(),
        };
        is_enough || now >= self.until || reached.is_some_and(|reached| answers.len() >= reached)
    }
}

/// The questions of this manager that are not answered yet, and those of others that this manager has to answer.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    open: Vec<Open>,
    /// The numbers of the last questions of others. One that comes over several connections is answered once.
    known: VecDeque<u64>,
    waiting: VecDeque<Question>,
    /// Whether an answer of this manager is on its way.
    is_answering: bool,
}

impl Questions {
    /// Enters a question of this manager.
    pub(crate) fn open(&mut self, id: u64, asker: Asker, until: Moment) {
        self.open.push(Open { id, asker, heard: Heard::default(), until });
    }

    /// Records how many managers a question has reached.
    pub(crate) fn reached(&mut self, id: u64, managers: usize) {
        self.open.iter_mut().filter(|open| open.id == id).for_each(|open| open.heard.reached = Some(managers));
    }

    /// Adds the answer of a manager. An answer to a question that is not open is dropped.
    pub(crate) fn add(&mut self, id: u64, manager: &str, answer: String) {
        if let Some(open) = self.open.iter_mut().find(|open| open.id == id)
            && open.heard.answers.len() < MOST_ANSWERS
        {
            open.heard.answers.entry(manager.to_owned()).or_insert(answer);
        }
    }

    /// Returns the key whose waits a question is to explain, if it is one of these.
    pub(crate) fn key_of_waits(&self, id: u64) -> Option<&LockKey> {
        self.open.iter().find(|open| open.id == id).and_then(|open| match &open.asker {
            Asker::Waits(key) => Some(key),
            Asker::Request(_) => None,
        })
    }

    /// Drops the questions of others, since nothing is left here to be told of.
    pub(crate) fn forget_others(&mut self) {
        self.waiting.clear();
    }

    /// Takes the questions that are answered, or whose time is over.
    pub(crate) fn take_done(&mut self, now: Moment) -> Vec<(Asker, Heard)> {
        self.open.extract_if(.., |open| open.is_done(now)).map(|open| (open.asker, open.heard)).collect()
    }

    /// Takes all questions of this manager, and drops those of others, since the task has ended.
    pub(crate) fn end(&mut self) -> Vec<(Asker, Heard)> {
        self.waiting.clear();
        self.is_answering = false;
        self.take_done(Moment::NEVER)
    }

    /// Enters a question of another manager, unless it is known, or too many wait.
    pub(crate) fn ask(&mut self, question: Question) {
        if self.known.contains(&question.id) || self.waiting.len() >= WAITING {
            return;
        }
        self.known.truncate(KNOWN - 1);
        self.known.push_front(question.id);
        self.waiting.push_back(question);
    }

    /// Whether a question is to be answered now.
    pub(crate) fn has_answers(&self) -> bool {
        !self.is_answering && !self.waiting.is_empty()
    }

    /// Takes the next question to be answered, if no other answer is on its way.
    pub(crate) fn begin_answer(&mut self) -> Option<Question> {
        if self.is_answering {
            return None;
        }
        let question = self.waiting.pop_front();
        self.is_answering = question.is_some();
        question
    }

    /// Records that an answer was sent, or is not needed.
    pub(crate) fn end_answer(&mut self) {
        self.is_answering = false;
    }

    /// When the time of a question is over.
    pub(crate) fn next(&self) -> Moment {
        self.open.iter().map(|open| open.until).min().unwrap_or(Moment::NEVER)
    }
}

/// Returns this process as others see it.
pub(crate) fn this_process(service: &str) -> Party {
    let host = gethostname::gethostname().to_string_lossy().as_ref().into();
    Party { service: service.into(), host, process: std::process::id(), label: String::new() }
}

/// How many managers' answers to one question are kept.
const MOST_ANSWERS: usize = 10_000;

/// How many numbers of questions are kept.
const KNOWN: usize = 64;

/// How many questions of others wait for their answer at most.
const WAITING: usize = 32;

/// How long to wait for answers, two round trips apart.
pub(crate) const FOR_ANSWERS: Duration = Duration::from_millis(250);

/// How long a question takes at most: the longest round trip that counts is a second.
pub(crate) const LONGEST: Duration = Duration::from_millis(2_250);

#[cfg(test)]
mod tests;
