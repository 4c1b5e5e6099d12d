//! Questions about holders and waiters: answering those of other managers, and collecting the answers to this manager's own.

use std::time::Duration;

use rand::RngExt;

use super::Queues;
use crate::{
    clock::Moment,
    engine::{
        asked::Asked,
        inquiry::{FOR_ANSWERS, MOST_ENTRIES, MOST_WAITERS, Message, Question, Seen, Statement, Subject},
    },
    key::LockKey,
};

impl Queues {
    /// Begins to ask all managers of the store.
    pub(crate) fn inquire(&mut self, subject: Subject, asked: Asked<Vec<Statement>>, now: Moment) {
        let question = Question { id: self.random.random(), channel: self.channel.clone(), subject };
        let until = now + FOR_ANSWERS + 2 * Duration::from_nanos(self.round_trip);
        self.inquiries.open(&question, asked, until);
        let seen = self.seen(&question.subject, now);
        self.messages.push(Message::Ask(question, seen));
    }

    /// Whether a waiter may ask who holds its key: every process of the store has to answer, so not all waiters may at once.
    pub(crate) fn may_explain(&mut self, now: Moment) -> bool {
        let may = now >= self.next_explanation;
        if may {
            self.next_explanation = now + BETWEEN_EXPLANATIONS;
        }
        may
    }

    /// Takes the messages that are to be published.
    pub(crate) fn poll_messages(&mut self, now: Moment) -> Vec<Message> {
        let mut messages = std::mem::take(&mut self.messages);
        if let Some(question) = self.inquiries.begin_answer() {
            let seen = self.seen(&question.subject, now);
            messages.push(Message::Tell(question, seen));
        }
        messages
    }

    /// Whether a question or an answer is to be published.
    pub(super) fn has_messages(&self) -> bool {
        !self.messages.is_empty() || self.inquiries.has_answers()
    }

    /// Takes note that an answer was published.
    pub(crate) fn was_answered(&mut self) {
        self.inquiries.end_answer();
    }

    /// Ends the inquiries with what there is, and forgets the questions of others, since the task has ended.
    pub(super) fn end_inquiries(&mut self) {
        self.messages.clear();
        self.inquiries.forget();
        self.answer_inquiries(Moment::NEVER);
    }

    /// Takes note of how many managers a question of this one has reached.
    pub(crate) fn has_reached(&mut self, question: u64, managers: usize, now: Moment) {
        self.inquiries.reached(question, managers);
        self.answer_inquiries(now);
    }

    /// Takes a question of another manager.
    pub(super) fn take_question(&mut self, question: Question) {
        if question.channel != self.channel {
            self.inquiries.ask(question);
        }
    }

    /// Takes note of what a manager has answered.
    pub(crate) fn was_told(&mut self, statement: Statement, now: Moment) {
        self.inquiries.add(statement);
        self.answer_inquiries(now);
    }

    /// Ends the inquiries that are answered, or whose time is over `now`.
    pub(super) fn answer_inquiries(&mut self, now: Moment) {
        for (asked, statements) in self.inquiries.take_done(now) {
            self.deferred.wake(asked.answer(Ok(statements)));
        }
    }

    fn seen(&self, subject: &Subject, now: Moment) -> Vec<Seen> {
        let mut seen = Vec::new();
        match subject {
            Subject::Key(key) => {
                if let Ok(key) = LockKey::new(key) {
                    self.see(&key, now, &mut seen);
                }
            }
            Subject::Holder(key) => {
                if let Ok(key) = LockKey::new(key) {
                    self.see_holders(&key, now, &mut seen);
                }
            }
            Subject::Prefix(prefix) => {
                let taken_up = self.taken_up.keys().filter(|key| self.lines.of(key).is_none());
                let keys = self.lines.keys().chain(taken_up).filter(|key| key.wire().starts_with(prefix));
                for key in keys {
                    self.see(key, now, &mut seen);
                    if seen.len() >= MOST_ENTRIES {
                        break;
                    }
                }
            }
        }
        seen
    }

    fn see_holders(&self, key: &LockKey, now: Moment, seen: &mut Vec<Seen>) {
        let tenures = self.lines.tenure(key).into_iter().chain(self.taken_up.get(key).into_iter().flatten().copied());
        let holds = tenures.filter_map(|tenure| self.tenures.hold(tenure));
        seen.extend(holds.filter_map(|hold| Some(Seen::Holder { held: hold.held(now)?, hold: hold.clone() })));
    }

    fn see(&self, key: &LockKey, now: Moment, seen: &mut Vec<Seen>) {
        self.see_holders(key, now, seen);
        let mut place = 0;
        for (waiter, contender) in self.lines.waiters_of(key).take(MOST_WAITERS) {
            // The others of a process stand behind its contender.
            place = contender.and_then(|contender| contender.position).unwrap_or(place + 1);
            if !waiter.tries {
                let (label, waited) = (waiter.terms.label, now.since(waiter.asked));
                seen.push(Seen::Waiter { key: key.clone(), label, waited, place });
            }
        }
    }
}

/// The least time between two questions of waiters of this process.
const BETWEEN_EXPLANATIONS: Duration = Duration::from_millis(100);
