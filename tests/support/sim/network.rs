//! What becomes of messages on their way: ordered connections, which break.

use std::{sync::Arc, task::Waker};

use lock_core::backend::{Acquire, Grant, Operation, Release, TOKEN_MARK, Token};

use super::{
    link::{Arriving, Back, Conn, Message, Request, Way},
    plan::Plan,
    world::{State, World, micros},
};

impl State {
    pub(super) fn latency(&mut self, plan: &Plan) -> u64 {
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
        self.conns.push(Conn { client, server, here: true, ..Conn::default() });
        self.links[client].channel = Some(Arc::clone(channel));
        let former = former.filter(|_| plan.kills);
        self.send(plan, conn, Message::Hello(Arc::clone(channel), former));
        conn
    }

    /// Sends a request, and returns its number.
    pub(super) fn request(&mut self, plan: &Plan, conn: usize, batch: Vec<Operation>, begun: u64) -> usize {
        let id = self.requests.len();
        self.requests.push(Request::default());
        let client = self.conns[conn].client;
        self.log(|| format!("c{client} sends #{id} on connection {conn}: {}", told(&batch)));
        for operation in &batch {
            if let Operation::Acquire(Acquire { token, .. }) | Operation::Release(Release { token, .. }) = operation {
                self.links[client].unanswered.retain(|(_, told)| told != token);
            }
            if let Operation::Acquire(Acquire { from: Some(from), .. }) = operation {
                self.links[client].given_away.push(*from);
            }
        }
        if self.conns[conn].here {
            self.conns[conn].outstanding.push(id);
            self.send(plan, conn, Message::Batch(id, batch, begun));
        } else {
            self.requests[id].done = Some(None);
        }
        id
    }

    fn send(&mut self, plan: &Plan, conn: usize, message: Message) {
        let mut at = (self.now + self.latency(plan)).max(self.conns[conn].last_there + 1);
        if matches!(message, Message::Hello(..)) && self.faults {
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

    pub(super) fn answer(&mut self, plan: &Plan, conn: usize, back: Back) {
        if !self.conns[conn].there {
            return;
        }
        let at = (self.now + self.latency(plan)).max(self.conns[conn].last_here + 1);
        if let Back::Grant(grant) = &back {
            self.tell_again(plan, conn, grant.clone(), at);
        }
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

    /// Has a message of a grant come once more, or long after, whatever has become of its connection: it may have been
    /// read before that broke.
    fn tell_again(&mut self, plan: &Plan, conn: usize, grant: Grant, at: u64) {
        let Conn { client, server, .. } = self.conns[conn];
        if self.is_unlucky(plan.doubled) {
            let again = at + self.dice.below(20 * plan.latency.1);
            self.later(again, Arriving::Heard(client, server, grant.clone()));
        }
        if self.is_unlucky(plan.belated) {
            let again = at + self.dice.below(plan.lateness);
            self.later(again, Arriving::Heard(client, server, grant));
        }
    }

    /// Closes the node's end: what is still on its way there is lost.
    fn close(&mut self, conn: usize) {
        if !std::mem::replace(&mut self.conns[conn].there, false) {
            return;
        }
        if let Some(channel) = self.conns[conn].channel.take()
            && let channels = &mut self.node_of(conn).channels
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
        // The answer to a grant may be lost with the connection; then the key is free when its time is over.
        self.links[self.conns[conn].client].unanswered.clear();
        let way = self.way(conn);
        if way.up == Some(conn) {
            way.up = None;
            wakers.extend(way.driver.take());
        }
        let at = self.now + 1 + self.dice.below(plan.half_open);
        self.later(at, Arriving::Closed(conn));
    }

    /// What the client of a connection has of its node.
    pub(super) fn way(&mut self, conn: usize) -> &mut Way {
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

/// A token by its last digits, and its mode.
pub(super) fn name(token: Token) -> String {
    token.reveal()[TOKEN_MARK.len() + 26..].to_owned()
}
