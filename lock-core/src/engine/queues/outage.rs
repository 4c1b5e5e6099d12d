//! Outages: waiters while the backend does not answer.
//!
//! A waiter that does not know yet whether its key is busy fails with its request, at the latest when the backend's time limit is
//! over. A waiter that knows its key to be busy would gain nothing from an error. It stays in line, keeps its place in the backend,
//! and continues when the backend answers again, until its own wait is over.

use std::time::Duration;

use super::{
    Queues,
    line::{Standing, Waiter, WaiterId},
};
use rand::RngExt;

use crate::{
    backend::BackendError,
    clock::Moment,
    error::{ACQUIRE, Error},
    key::LockKey,
};

impl Waiter {
    /// When it has waited for its first answer for too long, if requests are answered within `limit`.
    pub(super) fn loses_patience(&self, limit: Duration) -> Moment {
        // A call that was sent at once fails just before this, with an error that names the cause.
        if self.knows { Moment::NEVER } else { self.asked + limit.saturating_add(LATE) }
    }
}

impl Queues {
    /// Notes that the key of this candidate is busy: all waiters in its line know now, and those that do not wait leave. The
    /// candidate itself is left to the caller.
    pub(super) fn note_busy(&mut self, candidate: WaiterId, now: Moment) {
        self.lines.note_busy(candidate);
        let key = self.lines.waiter(candidate).key.clone();
        self.note_busy_for_all(&key, now);
    }

    /// Notes that a key is busy, for all waiters in its line.
    pub(super) fn note_busy_for_all(&mut self, key: &LockKey, now: Moment) {
        for id in self.lines.unknowing(key) {
            // Others at the front have asked for themselves.
            if self.lines.is_candidate(id) {
                continue;
            }
            self.lines.note_busy(id);
            let waiter = self.lines.waiter(id);
            if waiter.tries || waiter.overdue {
                let error = self.busy(id, now);
                self.send_away(id, error);
            }
        }
    }

    /// Takes a failure of the candidate's request, after which a later request may succeed.
    pub(super) fn failed(&mut self, candidate: WaiterId, error: BackendError, now: Moment) {
        let key = self.lines.waiter(candidate).key.clone();
        let last_error = Error::backend(ACQUIRE, Some(&key), error.clone());
        self.last_error = Some((now, error));
        // A waiter that does not know yet whether its key is busy fails with the request: its caller asked a question, and the answer is
        // that the backend is down. A waiter that knows its key to be busy keeps its place, since a restart of the server is shorter
        // than most waits, and failing would cost it its turn.
        for id in self.lines.unknowing(&key) {
            if !self.lines.is_candidate(id) {
                self.send_away(id, last_error.clone());
            }
        }
        let waiter = self.lines.waiter(candidate);
        let knows = waiter.knows;
        match &mut waiter.state {
            Standing::InLine(Some(first)) if knows => {
                let pause = first.pause_after_error(last_error, self.random.random());
                self.wheel.set(candidate, now + pause);
                self.contend_next(&key);
            }
            _ => self.dismiss(candidate, last_error, now),
        }
    }

    /// Fails a waiter that has waited for its first answer for too long.
    pub(super) fn was_not_answered(&mut self, id: WaiterId, now: Moment) {
        let (limit, key) = (self.limits.answer, self.lines.waiter(id).key.clone());
        let recent = self.last_error.as_ref().filter(|(at, _)| now < *at + limit);
        let error = recent.map_or_else(|| BackendError::unanswered(limit), |(_, error)| error.clone());
        let error = Error::backend(ACQUIRE, Some(&key), error);
        match self.lines.waiter(id).state {
            Standing::InLine(Some(_)) => self.dismiss(id, error, now),
            _ => {
                self.send_away(id, error);
                self.contend_next(&key);
            }
        }
    }

    /// Sends a waiter that is not the candidate away with an error.
    fn send_away(&mut self, id: WaiterId, error: Error) {
        self.lines.take_out(id, Standing::Failed(error));
        self.wheel.unset(id);
        self.wake(id);
    }
}

/// How much later than the time limit of a call a waiter loses its patience: so much that also on a busy machine the error of the call,
/// which names the server, comes first.
const LATE: Duration = Duration::from_millis(250);
