//! Messages of a backend that the engine did not ask for.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::Grant;
use crate::key::LockKey;

/// A channel to the engine, for messages that it did not ask for: that a key was granted to a waiter, whether waiters can be
/// notified, and that another client has written to a key.
///
/// Clones reach the same engine. Sending never blocks, and does nothing when the engine has ended.
#[derive(Clone, Debug)]
pub struct Calls {
    channel: Arc<str>,
    sender: mpsc::UnboundedSender<Notice>,
}

/// One message. It is public only for the suite that every backend passes.
#[doc(hidden)]
#[derive(Debug)]
pub enum Notice {
    Granted(Grant),
    Listening(bool),
    Changed(Option<Vec<LockKey>>),
    Connected,
    /// The server may lack the newest writes, because it is another one, or was started again. The engine then releases once more what
    /// it has released just before.
    Moved,
    /// No request that was sent before the connection of this epoch was up will be executed.
    Settled(u64),
    /// A manager of the same store asks who holds and waits, or answers.
    Message(String),
}

impl Calls {
    /// Makes the channel of an engine, or of a test in its place, and what that receives.
    #[doc(hidden)]
    #[must_use]
    pub fn new(channel: Arc<str>) -> (Self, mpsc::UnboundedReceiver<Notice>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self { channel, sender }, receiver)
    }

    /// Makes a channel without a receiver, for tests that poll the driver of a backend themselves.
    #[must_use]
    pub fn to_nobody() -> Self {
        Self::new("lock-core:calls:nobody".into()).0
    }

    /// Returns the channel of the engine's places: a random name, the same for as long as the engine lives.
    #[must_use]
    pub fn channel(&self) -> &Arc<str> {
        &self.channel
    }

    /// Reports that a key was granted to a place of the engine.
    pub fn granted(&self, grant: Grant) {
        let _ = self.sender.send(Notice::Granted(grant));
    }

    /// Reports that another client has written to these keys, which were [watched](super::Renew::watch); `None` means any key. The
    /// engine then renews at once, to find out whether its leases are still there.
    pub fn changed(&self, keys: Option<Vec<LockKey>>) {
        let _ = self.sender.send(Notice::Changed(keys));
    }

    /// Reports a new connection, perhaps to another server than before, or to one that has lost its data. The engine then renews
    /// soon, to find out whether its leases are still there.
    pub fn connected(&self) {
        let _ = self.sender.send(Notice::Connected);
    }

    /// Reports that no request that was sent before the connection of an epoch was up will be executed.
    #[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "only connections to servers are closed"))]
    pub(crate) fn settled(&self, epoch: u64) {
        let _ = self.sender.send(Notice::Settled(epoch));
    }

    /// Passes on a message that was [published](super::Backend::publish) on the channel of the engine, or on
    /// [`EVERYONE`](super::EVERYONE). A message of an unknown form or of more than 1 MiB is ignored.
    pub fn message(&self, message: &str) {
        if message.len() <= LONGEST && message.starts_with("lock-core:") {
            let _ = self.sender.send(Notice::Message(message.to_owned()));
        }
    }

    /// Passes on a message, as of one of several nodes.
    pub(crate) fn pass_on(&self, notice: Notice) {
        let _ = self.sender.send(notice);
    }

    /// Reports whether messages of grants can reach the engine from now on. Call it again after every reconnect, since messages
    /// may have been lost meanwhile.
    pub fn listening(&self, listening: bool) {
        let _ = self.sender.send(Notice::Listening(listening));
    }
}

/// The longest message that is read: room for 500 holders and waiters with the longest keys.
const LONGEST: usize = 1 << 20;
