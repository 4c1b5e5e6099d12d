//! Messages of a backend that the engine did not ask for.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::Grant;
use crate::{
    engine::inquiry::{Question, Statement},
    key::LockKey,
};

/// Messages to the engine that it did not ask for: that a key was granted to a waiter, whether waiters can be notified, and
/// that somebody else has written at a key.
///
/// Clones tell the same engine. Telling never blocks, and does nothing when the engine has ended.
#[derive(Clone, Debug)]
pub struct Calls {
    channel: Arc<str>,
    sender: mpsc::UnboundedSender<Notice>,
}

/// One message.
#[derive(Debug)]
pub(crate) enum Notice {
    Granted(Grant),
    Listening(bool),
    Changed(Option<Vec<LockKey>>),
    Connected,
    /// A manager of the same store asks who holds and waits.
    Asked(Question),
    /// A manager of the same store has answered.
    Told(Statement),
}

impl Calls {
    pub(crate) fn new(channel: Arc<str>) -> (Self, mpsc::UnboundedReceiver<Notice>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self { channel, sender }, receiver)
    }

    /// Makes one that tells nobody, for tests that poll the upkeep of a backend themselves.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn to_nobody() -> Self {
        Self::new("lock-core:calls:nobody".into()).0
    }

    /// Returns the name of the channel that the engine's places name: random, and the same for as long as the engine
    /// lives.
    #[must_use]
    pub fn channel(&self) -> &Arc<str> {
        &self.channel
    }

    /// Says that a key was granted to a place of the engine.
    pub fn granted(&self, grant: Grant) {
        let _ = self.sender.send(Notice::Granted(grant));
    }

    /// Says that somebody else has written at these keys, which were [watched](super::Renew::watch), or at any if it is `None`. The
    /// engine then asks at once whether its leases are still there.
    pub fn changed(&self, keys: Option<Vec<LockKey>>) {
        let _ = self.sender.send(Notice::Changed(keys));
    }

    /// Says that a connection was made, perhaps to another server than before, or to one that has lost its data. The engine then
    /// asks soon whether its leases are still there.
    pub fn connected(&self) {
        let _ = self.sender.send(Notice::Connected);
    }

    /// Passes on a message that was [published](super::Backend::publish) on the channel of the engine, or on
    /// [`EVERYONE`](super::EVERYONE). A message of a form that is not known is ignored.
    pub fn message(&self, message: &str) {
        let asked = Question::read(message).map(Notice::Asked);
        if let Some(notice) = asked.or_else(|| Statement::read(message).map(Notice::Told)) {
            let _ = self.sender.send(notice);
        }
    }

    /// Passes on what one of several nodes has told.
    pub(crate) fn pass_on(&self, notice: Notice) {
        let _ = self.sender.send(notice);
    }

    /// Says whether calls can reach the engine from now on. Call it again after every reconnect, since calls may have been
    /// lost in it.
    pub fn listening(&self, listening: bool) {
        let _ = self.sender.send(Notice::Listening(listening));
    }
}
