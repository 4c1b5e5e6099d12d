//! The network: ordered connections between clients and nodes, and what becomes of messages on them.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Waker},
};

use lock_core::{
    backend::{Grant, Operation, Outcome, Token},
    key::LockKey,
};

use super::{
    node::Push,
    plan::Plan,
    world::{State, World, micros},
};

/// A client as network and nemesis see it.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// Its way to each node.
    pub(super) ways: Vec<Way>,
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
    /// Once it is shut down: before when no lease may be cut short.
    pub(super) ends: Option<u64>,
    /// How many leases were, and their holders told.
    pub(super) cut_short: usize,
}

/// What a client has of one node.
#[derive(Debug, Default)]
pub(super) struct Way {
    /// The number of its newest connection.
    pub(super) epoch: u64,
    /// The connection in use.
    pub(super) up: Option<usize>,
    /// Who waits for a connection.
    pub(super) waiting: Vec<Waker>,
    pub(super) upkeep: Option<Waker>,
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
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) client: usize,
    server: usize,
    channel: Option<Arc<str>>,
    /// Whether the client's end is open, and the node's.
    here: bool,
    there: bool,
    /// Whether everything towards the node is lost.
    hole: bool,
    /// When the last message arrives, each way: they stay in order.
    last_there: u64,
    last_here: u64,
    outstanding: Vec<usize>,
    /// Whether the node has answered the greeting.
    pub(super) greeted: bool,
}

impl Conn {
    pub(super) fn is_open(&self) -> bool {
        self.here
    }
}

/// A request that was sent.
#[derive(Debug, Default)]
pub(super) struct Request {
    /// The answer, or none if the connection broke before it.
    pub(super) done: Option<Option<Vec<Outcome>>>,
    pub(super) waker: Option<Waker>,
}

/// What the network has under way.
#[derive(Debug)]
pub(super) enum Arriving {
    /// A message at the node.
    There(usize, Message),
    /// A message at the client.
    Here(usize, Back),
    /// The client notices that a connection is of no use any more.
    Broken(usize),
    /// The node does.
    Closed(usize),
    /// A command of another library at a node; its answer at the sender.
    Foreign(usize, usize, Command),
    ForeignDone(usize, bool),
}

#[derive(Debug)]
pub(super) enum Message {
    Hello {
        channel: Arc<str>,
        former: Option<usize>,
    },
    /// A request, and when its sender began it by its own clock.
    Batch {
        id: usize,
        batch: Vec<Operation>,
        begun: u64,
    },
}

#[derive(Debug)]
pub(super) enum Back {
    Hello,
    Answer(usize, Vec<Outcome>),
    Grant(Grant),
}

/// What another library's client says.
#[derive(Debug)]
pub(super) enum Command {
    SetNx {
        key: LockKey,
        value: u64,
        ttl: u64,
    },
    DeleteIf {
        key: LockKey,
        value: u64,
    },
    /// By somebody who should not.
    Delete {
        key: LockKey,
    },
}

impl State {
    fn latency(&mut self, plan: &Plan) -> u64 {
        let (least, most) = plan.latency;
        let late = if self.is_unlucky(plan.late) { self.dice.below(plan.lateness) } else { 0 };
        least + self.dice.below(most - least) + late
    }

    /// Begins a connection; it is of use when it has been greeted.
    pub(super) fn open(
        &mut self,
        plan: &Plan,
        (client, server): (usize, usize),
        channel: &Arc<str>,
        former: Option<usize>,
    ) -> usize {
        let conn = self.conns.len();
        self.conns.push(Conn {
            client,
            server,
            channel: None,
            here: true,
            there: false,
            hole: false,
            last_there: 0,
            last_here: 0,
            outstanding: Vec::new(),
            greeted: false,
        });
        self.links[client].channel = Some(Arc::clone(channel));
        let former = former.filter(|_| plan.kills);
        self.send(plan, conn, Message::Hello { channel: Arc::clone(channel), former });
        conn
    }

    /// Sends a request, and returns its number.
    pub(super) fn request(&mut self, plan: &Plan, conn: usize, batch: Vec<Operation>, begun: u64) -> usize {
        let id = self.requests.len();
        self.requests.push(Request::default());
        let client = self.conns[conn].client;
        self.log(|| format!("c{client} sends #{id} on connection {conn}: {}", told(&batch)));
        if self.conns[conn].here {
            self.conns[conn].outstanding.push(id);
            self.send(plan, conn, Message::Batch { id, batch, begun });
        } else {
            self.requests[id].done = Some(None);
        }
        id
    }

    fn send(&mut self, plan: &Plan, conn: usize, message: Message) {
        let mut at = (self.now + self.latency(plan)).max(self.conns[conn].last_there + 1);
        if matches!(message, Message::Hello { .. }) && self.faults {
            at += self.dice.below(plan.greeting * 1_000);
        }
        if self.conns[conn].hole {
            return;
        }
        if self.is_unlucky(plan.hole) {
            self.log(|| format!("connection {conn} loses all that is sent from now on"));
            self.conns[conn].hole = true;
        } else if self.is_unlucky(plan.reset) {
            self.conns[conn].hole = true;
            self.later(at, Arriving::Broken(conn));
            if self.dice.below(2) == 0 {
                self.log(|| format!("connection {conn} is reset, and the request lost"));
            } else {
                // What broke it was not the node, which may get what was sent long after the same has come again.
                let at = at + self.dice.below(plan.half_open + plan.lateness);
                self.log(|| format!("connection {conn} is reset, and the request comes later"));
                self.conns[conn].last_there = at;
                self.later(at, Arriving::There(conn, message));
            }
        } else {
            self.conns[conn].last_there = at;
            self.later(at, Arriving::There(conn, message));
        }
    }

    fn answer(&mut self, plan: &Plan, conn: usize, back: Back) {
        if !self.conns[conn].there {
            return;
        }
        let at = (self.now + self.latency(plan)).max(self.conns[conn].last_here + 1);
        let (cut, lost) = match back {
            Back::Answer(..) => (self.is_unlucky(plan.cut), false),
            Back::Grant(..) => (false, self.is_unlucky(plan.deaf)),
            Back::Hello => (false, false),
        };
        if cut {
            self.log(|| format!("connection {conn} breaks before the answer"));
            self.close(conn);
            self.later(at, Arriving::Broken(conn));
        } else if lost {
            self.log(|| format!("a call is lost on connection {conn}"));
        } else {
            self.conns[conn].last_here = at;
            self.later(at, Arriving::Here(conn, back));
        }
    }

    /// Closes the node's end: what is still on its way there is lost.
    fn close(&mut self, conn: usize) {
        if !std::mem::replace(&mut self.conns[conn].there, false) {
            return;
        }
        if let Some(channel) = self.conns[conn].channel.take()
            && let channels = &mut self.servers[self.conns[conn].server].node.channels
            && let Some(listening) = channels.get_mut(&channel)
        {
            *listening -= 1;
            if *listening == 0 {
                channels.remove(&channel);
            }
        }
    }

    /// Closes the node's end, of which the client hears.
    pub(super) fn hang_up(&mut self, plan: &Plan, conn: usize) {
        self.close(conn);
        let at = self.now + self.latency(plan);
        self.later(at, Arriving::Broken(conn));
    }

    /// Closes every connection that a node has.
    pub(super) fn hang_up_on_all(&mut self, plan: &Plan, server: usize) {
        for conn in 0..self.conns.len() {
            if self.conns[conn].there && self.conns[conn].server == server {
                self.hang_up(plan, conn);
            }
        }
    }

    /// The client gives a connection up; the node may keep it for a while, and executes what is on its way.
    pub(super) fn give_up(&mut self, plan: &Plan, conn: usize, wakers: &mut Vec<Waker>) {
        let way = self.way(conn);
        if way.up == Some(conn) {
            way.up = None;
            wakers.extend(way.upkeep.take());
        }
        let at = self.now + 1 + self.dice.below(plan.half_open);
        self.later(at, Arriving::Closed(conn));
    }

    /// What the client of a connection has of its node.
    fn way(&mut self, conn: usize) -> &mut Way {
        let Conn { client, server, .. } = self.conns[conn];
        &mut self.links[client].ways[server]
    }

    /// The client has no use for its connection any more: it is closed when the last answer is there, or too late.
    pub(super) fn close_down(&mut self, plan: &Plan, client: usize, server: usize) {
        let Some(conn) = self.links[client].ways[server].up.take() else { return };
        let patience = if self.conns[conn].outstanding.is_empty() { self.latency(plan) } else { micros(plan.limit) };
        let at = self.conns[conn].last_there.max(self.now) + 1 + patience;
        self.later(at, Arriving::Closed(conn));
    }

    /// A client is killed, and its connections with it.
    pub(super) fn kill(&mut self, plan: &Plan, client: usize) {
        self.links[client].dead = true;
        for conn in 0..self.conns.len() {
            if self.conns[conn].client == client && self.conns[conn].here {
                self.conns[conn].here = false;
                let at = self.now + 1 + self.dice.below(plan.half_open);
                self.later(at, Arriving::Closed(conn));
            }
        }
    }

    pub(super) fn arrive(&mut self, plan: &Plan, arriving: Arriving, wakers: &mut Vec<Waker>) {
        let at = match arriving {
            Arriving::There(conn, _) => Some(self.conns[conn].server),
            Arriving::Foreign(_, server, _) => Some(server),
            _ => None,
        };
        if let Some(server) = at
            && let Some(stopped) = &mut self.servers[server].stopped
        {
            stopped.push(arriving);
            return;
        }
        match arriving {
            Arriving::There(conn, _) if self.servers[self.conns[conn].server].down => self.hang_up(plan, conn),
            Arriving::There(conn, Message::Hello { channel, former }) => {
                if let Some(former) = former {
                    self.hang_up(plan, former);
                }
                self.conns[conn].there = true;
                let node = &mut self.servers[self.conns[conn].server].node;
                *node.channels.entry(Arc::clone(&channel)).or_default() += 1;
                self.conns[conn].channel = Some(channel);
                self.answer(plan, conn, Back::Hello);
            }
            Arriving::There(conn, Message::Batch { id, batch, begun }) if self.conns[conn].there => {
                let Conn { client, server, .. } = self.conns[conn];
                let sender = (client, (self.own_time(client) - begun).div_ceil(1_000));
                for operation in &batch {
                    if let Operation::Force { key, .. } = operation {
                        self.mark(Some(key.as_str().to_owned()));
                    }
                }
                let wall = self.wall(server);
                let node = &mut self.servers[server].node;
                let (outcomes, pushes) = node.execute(&batch, wall, Some(sender));
                let found = std::mem::take(&mut node.audit.breaches);
                self.log(|| format!("node {server} executes #{id}: {outcomes:?}"));
                for (rule, message) in found {
                    self.breach(rule, || message);
                }
                for Push { channel, grant } in pushes {
                    self.log(|| format!("node {server} grants {} at its {} ms", name(grant.token), wall / 1_000));
                    for conn in 0..self.conns.len() {
                        let to = &self.conns[conn];
                        if to.server == server && to.channel.as_ref() == Some(&channel) {
                            self.answer(plan, conn, Back::Grant(grant.clone()));
                        }
                    }
                }
                self.answer(plan, conn, Back::Answer(id, outcomes));
            }
            Arriving::There(..) => {}
            Arriving::Here(conn, back) => {
                if !self.conns[conn].here {
                    return;
                }
                match back {
                    Back::Hello => {
                        self.conns[conn].greeted = true;
                        wakers.extend(self.way(conn).upkeep.take());
                    }
                    Back::Answer(id, outcomes) => {
                        self.conns[conn].outstanding.retain(|request| *request != id);
                        let request = &mut self.requests[id];
                        request.done = Some(Some(outcomes));
                        wakers.extend(request.waker.take());
                    }
                    Back::Grant(grant) => {
                        self.way(conn).pushes.push_back(grant);
                        wakers.extend(self.way(conn).upkeep.take());
                    }
                }
            }
            Arriving::Broken(conn) => {
                if !std::mem::replace(&mut self.conns[conn].here, false) {
                    return;
                }
                let client = self.conns[conn].client;
                self.log(|| format!("c{client} sees connection {conn} broken"));
                for id in std::mem::take(&mut self.conns[conn].outstanding) {
                    self.requests[id].done = Some(None);
                    wakers.extend(self.requests[id].waker.take());
                }
                let way = self.way(conn);
                way.up = way.up.filter(|up| *up != conn);
                wakers.extend(way.upkeep.take());
            }
            Arriving::Closed(conn) => self.hang_up(plan, conn),
            Arriving::Foreign(id, server, command) => {
                if self.servers[server].down {
                    return;
                }
                let wall = self.wall(server);
                let done = match command {
                    Command::SetNx { key, value, ttl } => self.servers[server].node.set_foreign(&key, value, ttl, wall),
                    Command::DeleteIf { key, value } => self.servers[server].node.delete_foreign(&key, value, wall),
                    Command::Delete { key } => {
                        self.mark(Some(key.as_str().to_owned()));
                        self.servers[server].node.delete(&key)
                    }
                };
                let at = self.now + self.latency(plan);
                self.later(at, Arriving::ForeignDone(id, done));
            }
            Arriving::ForeignDone(id, done) => {
                let request = &mut self.requests[id];
                request.done = Some(done.then(Vec::new));
                wakers.extend(request.waker.take());
            }
        }
    }

    /// Sends a command of another library to a node, and returns its number.
    pub(super) fn command(&mut self, plan: &Plan, server: usize, command: Command) -> usize {
        let id = self.requests.len();
        self.requests.push(Request::default());
        self.log(|| format!("foreign #{id}: {command:?}"));
        let at = self.now + self.latency(plan);
        self.later(at, Arriving::Foreign(id, server, command));
        id
    }
}

impl World {
    /// Gives up a connection that has fallen silent.
    pub(super) fn replace(&self, conn: usize) {
        let mut wakers = Vec::new();
        self.state().give_up(&self.plan, conn, &mut wakers);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A batch in a few words.
fn told(batch: &[Operation]) -> String {
    let one = |operation: &Operation| match operation {
        Operation::Acquire(it) => {
            let wants = if it.place.is_some() { "" } else { " at once" };
            format!("acquire {} {}{wants} {:?} x{}", it.key, name(it.token), it.ttl, it.block)
        }
        Operation::Renew(it) => format!("renew {} {} {:?} +{}", it.key, name(it.token), it.ttl, it.block),
        Operation::Release(it) => format!("release {} {}", it.key, name(it.token)),
        other => format!("{other:?}"),
    };
    batch.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// A token by its last digits.
fn name(token: Token) -> String {
    let text = token.reveal();
    text[text.len() - 6..].to_owned()
}
