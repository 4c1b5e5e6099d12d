//! The network: clients, connections, and messages.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Waker},
};

use lock_core::{
    backend::{Answer, Grant, Operation, Token},
    key::LockKey,
};

use super::node::Redirect;

/// A client as network and nemesis see it.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// Its way to each node.
    pub(super) ways: Vec<Way>,
    /// The node that has each slot, as far as it knows, and how often that has changed.
    pub(super) map: Vec<usize>,
    pub(super) map_changes: u64,
    /// Killed: nothing that it does counts any more.
    pub(super) dead: bool,
    /// Closed while its engine does not run.
    pub(super) engine: Gate,
    /// Closed while its tasks do not run.
    pub(super) tasks: Gate,
    /// By how many millionths its clock is faster.
    pub(super) rate: i64,
    /// How far its clock was moved on, in µs.
    pub(super) leapt: u64,
    /// When it last did not run, or its clock was moved.
    pub(super) disturbed: u64,
    /// Where its places are called.
    pub(super) channel: Option<Arc<str>>,
    /// Grants that it was told of, and said nothing to since: keys and tokens.
    pub(super) unanswered: Vec<(String, Token)>,
    /// Until when keys may be held by acquires that nodes have executed after the releases of their tokens, in µs. A client
    /// that lives releases them once more.
    pub(super) late_until: u64,
    /// Tokens that another has taken over: what comes for them is that one's.
    pub(super) given_away: Vec<Token>,
    /// Once it is shut down: before when no lease may be cut short.
    pub(super) ends: Option<u64>,
    /// How many leases were, and their holders told.
    pub(super) cut_short: usize,
}

impl Link {
    /// Those of the engine and of the tasks, as asked for.
    pub(super) fn gates(&mut self, engine: bool, tasks: bool) -> impl Iterator<Item = &mut Gate> {
        let gates = [(engine, &mut self.engine), (tasks, &mut self.tasks)];
        gates.into_iter().filter_map(|(wanted, gate)| wanted.then_some(gate))
    }
}

/// What a client has of one node.
#[derive(Debug, Default)]
pub(super) struct Way {
    /// The number of its newest connection.
    pub(super) epoch: u64,
    /// The connection in use.
    pub(super) up: Option<usize>,
    /// When the first one was made, in µs.
    pub(super) first_up: Option<u64>,
    /// Who waits for a connection.
    pub(super) waiting: Vec<Waker>,
    pub(super) driver: Option<Waker>,
    /// Calls that came.
    pub(super) pushes: VecDeque<Grant>,
}

/// Holds up whoever comes while it is closed.
#[derive(Debug, Default)]
pub(super) struct Gate {
    closed: u32,
    waiting: Vec<Waker>,
}

impl Gate {
    /// Whether one may pass; one who may not is woken when it opens.
    pub(super) fn lets_pass(&mut self, cx: &Context<'_>) -> bool {
        if self.closed > 0 {
            self.waiting.push(cx.waker().clone());
        }
        self.closed == 0
    }

    pub(super) fn close(&mut self) {
        self.closed += 1;
    }

    /// Opens it, if everybody who closed it does so; returns who is to be woken.
    pub(super) fn open(&mut self) -> Vec<Waker> {
        self.closed = self.closed.saturating_sub(1);
        if self.closed == 0 { std::mem::take(&mut self.waiting) } else { Vec::new() }
    }
}

/// A connection, with its two ends.
#[derive(Debug, Default)]
pub(super) struct Conn {
    pub(super) client: usize,
    pub(super) server: usize,
    pub(super) channel: Option<Arc<str>>,
    /// Whether the client's end is open, and the node's.
    pub(super) here: bool,
    pub(super) there: bool,
    /// Whether it leads to the former node, which a copy has replaced.
    pub(super) former: bool,
    /// Whether everything towards the node is lost.
    pub(super) hole: bool,
    /// When the last message arrives, each way: they stay in order.
    pub(super) last_there: u64,
    pub(super) last_here: u64,
    pub(super) outstanding: Vec<usize>,
    /// Whether the node has answered the greeting.
    pub(super) greeted: bool,
}

/// A request that was sent.
#[derive(Debug, Default)]
pub(super) struct Request {
    /// The answer, or none if the connection broke before it.
    pub(super) done: Option<Option<Result<Answer, Redirect>>>,
    pub(super) waker: Option<Waker>,
}

/// What the network has under way.
#[derive(Debug)]
pub(super) enum Arriving {
    /// A message at the node.
    There(usize, Message),
    /// A message at the client.
    Here(usize, Back),
    /// A message of a grant that reaches a client from a node by whatever connection it has by then, if it has one.
    Heard(usize, usize, Grant),
    /// The client notices that a connection is of no use any more.
    Broken(usize),
    /// The node does.
    Closed(usize),
    /// A command of another library at a node; its answer at the sender.
    Foreign(usize, usize, LockKey, Command),
    ForeignDone(usize, bool),
}

#[derive(Debug)]
pub(super) enum Message {
    /// The channel of a client, and its former connection.
    Hello(Arc<str>, Option<usize>),
    /// A request, its number, and when its sender began it by its own clock.
    Batch(usize, Vec<Operation>, u64),
}

#[derive(Debug)]
pub(super) enum Back {
    Hello,
    Answer(usize, Result<Answer, Redirect>),
    Grant(Grant),
}

/// What another library's client says of a key.
#[derive(Debug)]
pub(super) enum Command {
    /// With a value and a ttl in ms.
    SetNx(u64, u64),
    /// If it has this value.
    DeleteIf(u64),
    /// By somebody who should not.
    Delete,
    /// A release by force.
    Force,
}
