//! Questions about holders and waiters: answering those of other managers, and collecting the answers to this manager's own.

use std::{iter::once, time::Duration};

use rand::RngExt;

use super::Queues;
use crate::{
    backend::{EVERYONE, Replied},
    clock::Moment,
    engine::question::{
        Asker, FOR_ANSWERS, Heard, Message,
        message::{Draft, MOST_ENTRIES, Question, Report, Subject},
    },
    error::ErrorKind,
    info::Holder,
    key::LockKey,
};

impl Queues {
    /// Begins to ask all managers of the store. What this one has to say itself is there at once.
    pub(crate) fn ask_managers(&mut self, subject: Subject, asker: Asker, now: Moment) {
        let question = Question { id: self.random.random(), channel: self.channel.clone(), subject };
        let until = now + FOR_ANSWERS + 2 * Duration::from_nanos(self.round_trip);
        self.questions.open(question.id, asker, until);
        let answer = self.answer(&question, now);
        // If the holder is in this process, no other one is asked for it.
        let is_enough = answer.is_some() && matches!(question.subject, Subject::Holder(_));
        if let Some(answer) = answer {
            self.questions.add(question.id, &self.channel, answer);
        }
        if !is_enough {
            self.messages.push(Message { channel: EVERYONE.into(), text: question.write(), asks: Some(question.id) });
        }
    }

    /// Asks who holds the keys for which a request has waited for long.
    pub(super) fn explain_waits(&mut self, now: Moment) {
        if now < self.explanations.next {
            return;
        }
        let lines = &self.lines;
        let first = |key: &LockKey, after: Option<Moment>| {
            let mut waits = lines.waiters_of(key).map(|(waiter, _)| waiter.asked);
            if after.is_none() { waits.next() } else { waits.filter(|since| Some(*since) > after).min() }
        };
        if let Some(key) = self.explanations.look(first, now) {
            self.ask_managers(Subject::Holder(key.clone()), Asker::Waits(key), now);
        }
    }

    /// Takes the messages that are to be published: one answer at most.
    pub(crate) fn poll_messages(&mut self, now: Moment) -> Vec<Message> {
        let mut messages = std::mem::take(&mut self.messages);
        while let Some(question) = self.questions.begin_answer() {
            if let Some(text) = self.answer(&question, now) {
                messages.push(Message { channel: question.channel, text, asks: None });
                break;
            }
            // Whether this process holds a key is known at once.
            self.questions.end_answer();
        }
        messages
    }

    /// Whether a question or an answer is to be published.
    pub(super) fn has_messages(&self) -> bool {
        !self.messages.is_empty() || self.questions.has_answers()
    }

    /// Records that a message was published, and to how many managers, or that it could not be.
    pub(crate) fn was_published(&mut self, asks: Option<u64>, sent: Replied<Option<usize>>) {
        let Some(question) = asks else { return self.questions.end_answer() };
        match sent {
            // This manager answers itself, also if no message reaches it: then the store did not count it.
            Ok(Some(reached)) => {
                self.questions.reached(question, if self.listening { reached.max(1) } else { reached + 1 });
            }
            // No manager will answer.
            Err(error) if !error.may_have_happened() || error.kind() != ErrorKind::Backend => {
                self.questions.reached(question, 0);
            }
            // Only the answer of the store is missing, for example because the limit of commands is short. The question may have
            // arrived.
            Ok(None) | Err(_) => {}
        }
    }

    /// Takes a message of another manager. One of an unknown form is ignored.
    pub(super) fn take_message(&mut self, message: String) {
        if let Some((question, manager)) = Report::head(&message) {
            let manager = manager.to_owned();
            // The first that names the holder ends the question: another one must not.
            let key = self.questions.key_of_waits(question);
            if key.is_none_or(|key| holder_in(&message, key).is_some()) {
                self.questions.add(question, &manager, message);
            }
        } else if let Some(question) = Question::read(&message).filter(|question| question.channel != self.channel) {
            self.questions.ask(question);
        }
    }

    /// Ends the questions that are answered, or whose time is over `now`.
    pub(super) fn close_questions(&mut self, now: Moment) {
        for (asker, heard) in self.questions.take_done(now) {
            match asker {
                Asker::Request(responder) => self.deferred.wake(responder.answer(Ok(heard))),
                Asker::Waits(key) => self.explained(key, &heard, now),
            }
        }
    }

    /// Ends the questions with what there is, and drops the questions of others, since the task has ended.
    pub(super) fn end_questions(&mut self, now: Moment) {
        self.messages.clear();
        for (asker, heard) in self.questions.end() {
            match asker {
                Asker::Request(responder) => self.deferred.wake(responder.answer(Ok(heard))),
                Asker::Waits(key) => _ = self.explanations.found(&key, None, now),
            }
        }
    }

    /// Tells the requests that wait for a key, and the log, who holds it.
    fn explained(&mut self, key: LockKey, heard: &Heard, now: Moment) {
        let holders = heard.answers.values().filter_map(|answer| holder_in(answer, &key));
        let holder = holders.map(Box::new).max_by_key(|holder| holder.fencing_token);
        let news = self.explanations.found(&key, holder.clone().map(|holder| (now, holder)), now);
        let was_sent = heard.reached != Some(0);
        if let Some(asked) = news.filter(|_| was_sent)
            && self.lines.waiters_of(&key).any(|(waiter, _)| waiter.asked <= asked)
        {
            self.deferred.explained.push((key, holder));
        }
    }

    /// Describes the holders and waiters of this process that a question is about. Returns `None` if it asks for the holder of a key
    /// and this process does not hold it.
    fn answer(&self, question: &Question, now: Moment) -> Option<String> {
        let mut draft = Draft::default();
        let of_holder = matches!(question.subject, Subject::Holder(_));
        // It ends early if the answer is full.
        let _ = self.describe(&question.subject, !of_holder, &mut draft, now);
        let is_silent = of_holder && draft.is_empty();
        (!is_silent).then(|| draft.finish(question.id, &self.channel, &self.party))
    }

    /// Names the holders of all keys first: they are what is asked for most.
    fn describe(&self, subject: &Subject, and_waiters: bool, draft: &mut Draft, now: Moment) -> Option<()> {
        // Each of them has a holder or waiter, but for a moment.
        let keys: Vec<_> = self.keys_of(subject).take(MOST_ENTRIES + 1).collect();
        draft.is_cut = keys.len() > MOST_ENTRIES;
        let tenures = keys.iter().flat_map(|key| self.tenures_of(key));
        for hold in tenures.filter_map(|tenure| self.tenures.hold(tenure)) {
            if let Some(held) = hold.held(now) {
                draft.holder(hold, held)?;
            }
        }
        for key in keys.into_iter().filter(|_| and_waiters) {
            let mut place = 0;
            for (waiter, candidate) in self.lines.waiters_of(key) {
                // The others of a process stand behind its candidate.
                place = candidate.and_then(|candidate| candidate.position).unwrap_or(place + 1);
                if !waiter.tries {
                    draft.waiter(key, &waiter.terms, now.since(waiter.asked), place)?;
                }
            }
        }
        Some(())
    }

    /// The keys of a question that this process may have or want.
    fn keys_of<'a>(&'a self, subject: &'a Subject) -> Box<dyn Iterator<Item = &'a LockKey> + 'a> {
        match subject {
            Subject::Key(key) | Subject::Holder(key) => Box::new(once(key)),
            Subject::Prefix(prefix) => {
                let without_line = self.beside.keys().filter(move |key| self.lines.of(key).is_none());
                Box::new(self.lines.keys().chain(without_line).filter(move |key| key.wire().starts_with(prefix)))
            }
        }
    }
}

/// Reads the holder of a key from an answer.
fn holder_in(answer: &str, key: &LockKey) -> Option<Holder> {
    let holders = Report::read(answer)?.holders.into_iter();
    holders.filter(|(of, _)| of == key.wire()).map(|(_, holder)| holder).max_by_key(|holder| holder.fencing_token)
}
