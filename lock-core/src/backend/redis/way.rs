//! The way of a batch: to the one server, or to the node of a cluster that has its slot.

use std::{sync::Arc, time::Duration};

use redis::RedisError;
use tokio::time::Instant;

use super::{
    cluster::{Redirection, SlotWay},
    commands::Commands,
    connection::Connection,
    connector::Connector,
    slot::Tag,
};
use crate::backend::{Answer, Operation, Replied};

/// Where a batch goes, and what came of it so far.
#[derive(Clone)]
pub(super) struct Way {
    to: To,
    /// The epoch of the last connection that broke there.
    after: u64,
}

#[derive(Clone)]
enum To {
    Server(Arc<Connector>),
    Slot(SlotWay),
}

impl Way {
    /// To the one server.
    pub(super) fn to_server(connector: Arc<Connector>) -> Self {
        Self { to: To::Server(connector), after: 0 }
    }

    /// To whichever node has the slot.
    pub(super) fn to_slot(slot: SlotWay) -> Self {
        Self { to: To::Slot(slot), after: 0 }
    }

    /// The tag of the side keys.
    pub(super) fn tag(&self) -> Tag {
        match &self.to {
            To::Server(_) => Tag::ONE,
            To::Slot(slot) => slot.tag(),
        }
    }

    /// The server that the last connection leads to.
    pub(super) fn connector(&self) -> &Connector {
        match &self.to {
            To::Server(connector) => connector,
            To::Slot(slot) => slot.node(),
        }
    }

    /// Returns the connection if there is one that a request can be put on by any thread.
    pub(super) fn up(&self) -> Option<Connection> {
        let connector = match &self.to {
            To::Server(connector) => connector,
            To::Slot(slot) => slot.owner()?,
        };
        if connector.sends_at_once() { connector.link.up() } else { None }
    }

    /// Returns a connection, waiting for one until `limit`.
    pub(super) async fn connection(&mut self, limit: Instant) -> Replied<Connection> {
        match &mut self.to {
            To::Server(connector) => connector.connection(self.after, limit).await,
            To::Slot(slot) => slot.connection(&mut self.after, limit).await,
        }
    }

    /// Has the next attempt go to the same node, though the slot may not be its own yet.
    pub(super) fn ask_again(&mut self) {
        if let To::Slot(slot) = &mut self.to {
            slot.ask_again();
        }
    }

    /// Records that a connection has broken, so that the next one is newer.
    pub(super) fn lost(&mut self, connection: &Connection) {
        self.after = connection.epoch;
    }

    /// Sets the channels on which the waiters of a batch are notified, and returns the commands that have to be sent before it,
    /// with room for the call.
    pub(super) fn prepare(&mut self, connection: &Connection, batch: &mut [Operation]) -> Commands {
        let mut before = Commands::with_capacity(256 + 192 * batch.len());
        let To::Slot(slot) = &mut self.to else { return before };
        let asks = slot.takes_up_asking();
        let listen = slot.listen(connection, batch);
        // It holds for one command.
        if let Some(channel) = listen {
            if asks {
                before.add(["ASKING"]);
            }
            before.add(["SSUBSCRIBE", &channel]);
        }
        if asks {
            before.add(["ASKING"]);
        }
        before
    }

    /// Records that a batch has failed. The commands before it may have failed too, so the channel is subscribed to again.
    pub(super) fn not_executed(&self, connection: &Connection) {
        if let To::Slot(slot) = &self.to {
            slot.not_executed(connection);
        }
    }

    /// Returns what a refusal says of where or when to send the batch; `None` if it is about the batch itself.
    pub(super) async fn redirected(&mut self, error: &RedisError, limit: Instant) -> Option<Redirection> {
        match &mut self.to {
            To::Server(_) => None,
            To::Slot(slot) => slot.redirected(error, limit).await,
        }
    }

    /// Takes from the answer to a batch what it says of the node. If its slot has moved meanwhile, the node that has it now has answered.
    pub(super) fn note(&self, answer: &Replied<Answer>) {
        match &self.to {
            To::Server(connector) => connector.status.note_all(answer),
            To::Slot(slot) => slot.note(answer),
        }
    }

    /// The least time without an answer that counts as silence.
    pub(super) fn least_silence(&self) -> Duration {
        match &self.to {
            To::Server(connector) => connector.link.least_silence(),
            To::Slot(slot) => slot.least_silence(),
        }
    }
}
