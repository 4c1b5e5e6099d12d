//! Questions about holders and waiters: answering those of other managers, and collecting the answers to this manager's own.

use std::time::Duration;

use rand::RngExt;

use super::Queues;
use crate::{
    clock::Moment,
    engine::{
        asked::Asked,
        inquiry::{FOR_ANSWERS, Heard, MOST_ENTRIES, MOST_OF_KEY, Message, Question, Seen, Sight, Statement, Subject},
    },
    key::LockKey,
};

impl Queues {
    /// Begins to ask all managers of the store.
    pub(crate) fn inquire(&mut self, subject: Subject, asked: Asked<Heard>, now: Moment) {
        let question = Question { id: self.random.random(), channel: self.channel.clone(), subject };
        let until = now + FOR_ANSWERS + 2 * Duration::from_nanos(self.round_trip);
        self.inquiries.open(&question, asked, now, until);
        let sight = self.sight(&question.subject, now);
        self.messages.push(Message::Ask(question, sight));
    }

    /// Asks who holds the key of a waiter. Returns after which time the waiter may try again if it may not ask now.
    ///
    /// Each question reaches every process of the store. So the waiters of a key share an answer, and those of different keys ask
    /// one after the other.
    pub(crate) fn explain(&mut self, key: &str, asked: Asked<Heard>, now: Moment) -> Result<(), Duration> {
        if let Some(heard) = self.inquiries.known_holder(key, now) {
            self.deferred.wake(asked.answer(Ok(heard)));
            return Ok(());
        }
        let Some(asked) = self.inquiries.join(key, asked) else { return Ok(()) };
        if now < self.next_explanation {
            // Random, or waiters that came together would all try again together, and all but one of them in vain.
            return Err(BEFORE_NEXT_TRY.mul_f64(0.5 + self.jitter()));
        }
        self.next_explanation = now + BETWEEN_EXPLANATIONS;
        self.inquire(Subject::Holder(key.to_owned()), asked, now);
        Ok(())
    }

    /// Takes the messages that are to be published.
    pub(crate) fn poll_messages(&mut self, now: Moment) -> Vec<Message> {
        let mut messages = std::mem::take(&mut self.messages);
        if let Some(question) = self.inquiries.begin_answer() {
            let sight = self.sight(&question.subject, now);
            messages.push(Message::Tell(question, sight));
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
        for (asked, heard) in self.inquiries.end() {
            self.deferred.wake(asked.answer(Ok(heard)));
        }
    }

    /// Takes note of how many managers a question of this one has reached, or that it could not be sent.
    pub(crate) fn has_reached(&mut self, question: u64, managers: Option<usize>, now: Moment) {
        // This manager answers itself, also if no message reaches it: then the store did not count it.
        let managers = managers.map(|managers| if self.listening { managers.max(1) } else { managers + 1 });
        self.inquiries.reached(question, managers.unwrap_or(0));
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
        self.inquiries.add(statement, now);
        self.answer_inquiries(now);
    }

    /// Ends the inquiries that are answered, or whose time is over `now`.
    pub(super) fn answer_inquiries(&mut self, now: Moment) {
        for (asked, heard) in self.inquiries.take_done(now) {
            self.deferred.wake(asked.answer(Ok(heard)));
        }
    }

    fn sight(&self, subject: &Subject, now: Moment) -> Sight {
        let mut sight = Sight::default();
        let seen = &mut sight.seen;
        match subject {
            Subject::Key(key) => {
                if let Ok(key) = LockKey::new(key) {
                    self.see(&key, now, seen);
                }
            }
            Subject::Holder(key) => {
                if let Ok(key) = LockKey::new(key) {
                    self.see_holders(&key, now, seen);
                }
            }
            Subject::Prefix(prefix) => {
                let without_line = self.beside.keys().filter(|key| self.lines.of(key).is_none());
                let keys = self.lines.keys().chain(without_line).filter(|key| key.wire().starts_with(prefix));
                for key in keys {
                    if seen.len() >= MOST_ENTRIES {
                        sight.is_cut = true;
                        break;
                    }
                    self.see(key, now, seen);
                }
            }
        }
        sight
    }

    fn see_holders(&self, key: &LockKey, now: Moment, seen: &mut Vec<Seen>) {
        let holds = self.tenures_of(key).filter_map(|tenure| self.tenures.hold(tenure));
        let mut holders = holds.filter_map(|hold| Some(Seen::Holder { held: hold.held(now)?, hold: hold.clone() }));
        seen.extend(holders.by_ref().take(MOST_OF_KEY));
        if holders.next().is_some() {
            seen.push(Seen::More { key: key.clone() });
        }
    }

    fn see(&self, key: &LockKey, now: Moment, seen: &mut Vec<Seen>) {
        self.see_holders(key, now, seen);
        let mut place = 0;
        let mut waiters = self.lines.waiters_of(key);
        for (waiter, contender) in waiters.by_ref().take(MOST_OF_KEY) {
            // The others of a process stand behind its contender.
            place = contender.and_then(|contender| contender.position).unwrap_or(place + 1);
            if !waiter.tries {
                let (label, waited) = (waiter.terms.label, now.since(waiter.asked));
                seen.push(Seen::Waiter { key: key.clone(), label, mode: waiter.terms.mode, waited, place });
            }
        }
        if waiters.next().is_some() {
            seen.push(Seen::More { key: key.clone() });
        }
    }
}

/// The least time between two questions of waiters of this process.
const BETWEEN_EXPLANATIONS: Duration = Duration::from_millis(100);

/// After how long, on average, a waiter tries again that could not ask because another one had just asked.
const BEFORE_NEXT_TRY: Duration = Duration::from_secs(1);
