//! A question of this manager that is not answered yet; pure.

use std::{collections::HashSet, sync::Arc};

use super::{FOR_ANSWERS, Heard, Question, Statement, Subject};
use crate::{clock::Moment, engine::asked::Asked};

/// A question of this manager.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) id: u64,
    /// The requests that wait for the answer; the first one has asked.
    pub(super) asked: Vec<Asked<Heard>>,
    /// The key, if only its holder is asked for: then the first holder is enough.
    pub(super) holder_of: Option<String>,
    /// The managers that have said all they have to say.
    done: HashSet<Arc<str>>,
    /// The parts that have come, by manager and number.
    known: HashSet<(Arc<str>, u32)>,
    statements: Vec<Statement>,
    /// How many managers the question has reached, if that is known.
    pub(super) reached: Option<usize>,
    pub(super) until: Moment,
    /// Until when `until` may be put off.
    limit: Moment,
}

impl Open {
    pub(super) fn new(question: &Question, asked: Asked<Heard>, until: Moment, limit: Moment) -> Self {
        let holder_of = match &question.subject {
            Subject::Holder(key) => Some(key.clone()),
            Subject::Key(_) | Subject::Prefix(_) => None,
        };
        Self {
            id: question.id,
            asked: vec![asked],
            holder_of,
            done: HashSet::new(),
            known: HashSet::new(),
            statements: Vec::new(),
            reached: None,
            until,
            limit,
        }
    }

    /// Adds a part of an answer, unless it has come before.
    pub(super) fn add(&mut self, statement: Statement, now: Moment) {
        if !self.known.insert((Arc::clone(&statement.manager.id), statement.part)) {
            return;
        }
        if statement.is_last {
            self.done.insert(Arc::clone(&statement.manager.id));
        } else {
            // A long answer takes many round trips. A manager that has begun to answer is worth the wait for its next part.
            self.until = self.until.max((now + FOR_ANSWERS).min(self.limit));
        }
        self.statements.push(statement);
    }

    pub(super) fn is_done(&self, now: Moment) -> bool {
        now >= self.until
            || self.reached.is_some_and(|reached| self.done.len() >= reached)
            || self.holder_of.is_some() && self.statements.iter().any(|statement| !statement.entries.is_empty())
            || self.asked.iter().all(Asked::is_cancelled)
    }

    /// Returns the requests that wait for the answer, and the answer as far as it has come.
    pub(super) fn end(self, now: Moment) -> (Vec<Asked<Heard>>, Heard) {
        let has_more = |part: &Statement| part.is_cut || !self.done.contains(&part.manager.id);
        let is_truncated = self.holder_of.is_none() && self.statements.iter().any(has_more);
        let (reached, answered) = (self.reached, self.done.len());
        (self.asked, Heard { statements: self.statements, at: now, is_truncated, is_shared: false, reached, answered })
    }
}
