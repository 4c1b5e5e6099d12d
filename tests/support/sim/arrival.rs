//! What happens when something arrives: at a node, at a client, or between.

use std::task::Waker;

use lock_core::{
    backend::{Answer, BackendError, Operation, Outcome},
    key::LockKey,
};

use super::{
    link::{Arriving, Back, Command, Conn, Message, Request},
    nemesis,
    network::name,
    node::{Executed, Push},
    plan::{Plan, Store},
    world::{State, micros},
};

impl State {
    pub(super) fn arrive(&mut self, plan: &Plan, arriving: Arriving, wakers: &mut Vec<Waker>) {
        let at = match arriving {
            Arriving::There(conn, _) => Some(self.conns[conn].server),
            Arriving::Foreign(_, server, ..) => Some(server),
            _ => None,
        };
        if let Some(server) = at
            && let Some(stopped) = &mut self.servers[server].stopped
        {
            stopped.push(arriving);
            return;
        }
        match arriving {
            Arriving::There(conn, message) => self.arrive_there(plan, conn, message),
            Arriving::Here(conn, back) if self.conns[conn].here => self.arrive_here(conn, back, wakers),
            Arriving::Here(..) => {}
            Arriving::Heard(client, server, grant) => {
                let way = &mut self.links[client].ways[server];
                way.pushes.push_back(grant);
                wakers.extend(way.driver.take());
            }
            Arriving::Broken(conn) => self.arrive_broken(conn, wakers),
            Arriving::Closed(conn) => self.hang_up(plan, conn),
            Arriving::Foreign(_, server, ..) if self.servers[server].down => {}
            Arriving::Foreign(id, server, key, command) => {
                let server = if plan.store == Store::Slots { self.owner(&key) } else { server };
                let done = self.obey(plan, server, key, command);
                let at = self.now + self.latency(plan);
                self.later(at, Arriving::ForeignDone(id, done));
            }
            Arriving::ForeignDone(id, done) => {
                let request = &mut self.requests[id];
                request.done = Some(done.then(|| Ok(Answer::new([]))));
                wakers.extend(request.waker.take());
            }
        }
    }

    fn arrive_there(&mut self, plan: &Plan, conn: usize, message: Message) {
        let Conn { server, .. } = self.conns[conn];
        match message {
            _ if self.servers[server].down && !self.conns[conn].former => self.hang_up(plan, conn),
            Message::Hello(channel, former) => {
                // One of another node has a number of its own there.
                if let Some(former) = former.filter(|former| !self.conns[*former].former) {
                    self.hang_up(plan, former);
                }
                self.conns[conn].there = true;
                self.servers[server].node.listen(&channel);
                self.conns[conn].channel = Some(channel);
                self.answer(plan, conn, Back::Hello);
            }
            Message::Batch(id, batch, begun) if self.conns[conn].there => {
                let redirect = (plan.store == Store::Slots).then(|| self.redirect(conn, &batch)).flatten();
                match redirect {
                    Some(redirect) => self.answer(plan, conn, Back::Answer(id, Err(redirect))),
                    None => self.execute(plan, conn, id, &batch, begun),
                }
            }
            Message::Batch(..) => {}
        }
    }

    fn execute(&mut self, plan: &Plan, conn: usize, id: usize, batch: &[Operation], begun: u64) {
        let Conn { client, server, former, .. } = self.conns[conn];
        let sender = (client, (self.own_time(client) - begun).div_ceil(1_000));
        for operation in batch {
            if let Operation::Force { key, .. } = operation {
                self.mark(Some(key.as_str().to_owned()));
            }
        }
        let wall = self.wall(server);
        let executed = self.node_of(conn).execute(batch, wall, Some(sender));
        let which = if former { "former node" } else { "node" };
        self.log(|| format!("{which} {server} executes #{id}: {:?}", executed.outcomes));
        if former {
            self.disown(plan, server, batch);
        } else if self.servers[server].sniped {
            self.snipe(plan, server, batch, &executed);
        }
        let Executed { outcomes, pushes, mute } = executed;
        self.publish(plan, server, former, pushes);
        if !former {
            self.note_taken(id, client, batch, &outcomes);
        }
        let mut answer = Answer::new(outcomes);
        answer.calls_refused = mute;
        answer.time = Some(wall);
        self.answer(plan, conn, Back::Answer(id, Ok(answer)));
    }

    /// Writes down which free keys a request has taken, and which after the releases of their tokens. If its client is dead, nobody
    /// releases those once more, so they are busy until they expire.
    fn note_taken(
        &mut self,
        id: usize,
        client: usize,
        batch: &[Operation],
        outcomes: &[Result<Outcome, BackendError>],
    ) {
        for (operation, outcome) in batch.iter().zip(outcomes) {
            if let (Operation::Acquire(acquire), Ok(Outcome::Held { was_free: true, .. })) = (operation, outcome) {
                let at = self.moment();
                self.journal.takes(id, acquire.key.clone(), acquire.token, at);
            }
            match (operation, outcome) {
                (Operation::Release(release), Ok(_)) => {
                    self.released.insert(release.token.reveal());
                }
                (Operation::Acquire(acquire), Ok(Outcome::Held { .. }))
                    if self.released.contains(&acquire.token.reveal()) =>
                {
                    let until = self.now + micros(acquire.ttl);
                    self.links[client].late_until = self.links[client].late_until.max(until);
                    if self.links[client].dead {
                        self.excuse_late(client);
                    }
                }
                _ => {}
            }
        }
    }

    /// What a dead client was late to take keeps waiters waiting.
    pub(super) fn excuse_late(&mut self, client: usize) {
        let until = self.links[client].late_until;
        if until > self.now {
            self.excuse(self.now, until + 3_000_000);
        }
    }

    /// Has a key that was just taken released by force, or deleted, before its next answer.
    fn snipe(&mut self, plan: &Plan, server: usize, batch: &[Operation], executed: &Executed) {
        for (operation, outcome) in batch.iter().zip(&executed.outcomes) {
            let (Operation::Acquire(acquire), Ok(Outcome::Held { .. })) = (operation, outcome) else { continue };
            if self.dice.below(3) > 0 {
                continue;
            }
            let key = acquire.key.clone();
            let command = if self.dice.below(2) == 0 { Command::Delete } else { Command::Force };
            let id = self.requests.len();
            self.requests.push(Request::default());
            self.log(|| format!("#{id} comes between: {command:?} of {key}"));
            let at = self.now + self.dice.below(2 * plan.latency.1);
            self.later(at, Arriving::Foreign(id, server, key, command));
            nemesis::excuse_loss_of(self, plan);
        }
    }

    /// Sends the messages of grants on their ways, and tells what was wrong with what the node has done.
    fn publish(&mut self, plan: &Plan, server: usize, former: bool, pushes: Vec<Push>) {
        let wall = self.wall(server);
        self.take_notes(server, former);
        for (channel, grant) in pushes {
            self.log(|| format!("node {server} grants {} at its {} ms", name(grant.token), wall / 1_000));
            for conn in 0..self.conns.len() {
                let to = &self.conns[conn];
                if to.server == server && to.former == former && to.channel.as_ref() == Some(&channel) {
                    self.answer(plan, conn, Back::Grant(grant.clone()));
                }
            }
        }
    }

    fn arrive_here(&mut self, conn: usize, back: Back, wakers: &mut Vec<Waker>) {
        match back {
            Back::Hello => {
                self.conns[conn].greeted = true;
                wakers.extend(self.way(conn).driver.take());
            }
            Back::Answer(id, answer) => {
                self.conns[conn].outstanding.retain(|request| *request != id);
                let request = &mut self.requests[id];
                request.done = Some(Some(answer));
                wakers.extend(request.waker.take());
            }
            Back::Grant(grant) => {
                self.way(conn).pushes.push_back(grant);
                wakers.extend(self.way(conn).driver.take());
            }
        }
    }

    fn arrive_broken(&mut self, conn: usize, wakers: &mut Vec<Waker>) {
        if !std::mem::replace(&mut self.conns[conn].here, false) {
            return;
        }
        let client = self.conns[conn].client;
        self.log(|| format!("c{client} sees connection {conn} broken"));
        // The answer to a grant may be lost with the connection; then the key is free when its time is over.
        self.links[client].unanswered.clear();
        for id in std::mem::take(&mut self.conns[conn].outstanding) {
            self.requests[id].done = Some(None);
            wakers.extend(self.requests[id].waker.take());
        }
        let way = self.way(conn);
        way.up = way.up.filter(|up| *up != conn);
        wakers.extend(way.driver.take());
    }

    /// Does what a client of another library says, or somebody who should not.
    fn obey(&mut self, plan: &Plan, server: usize, key: LockKey, command: Command) -> bool {
        let wall = self.wall(server);
        if matches!(command, Command::Delete | Command::Force) {
            self.mark(Some(key.as_str().to_owned()));
        }
        let node = &mut self.servers[server].node;
        match command {
            Command::SetNx(value, ttl) => {
                let set = node.set_foreign(&key, value, ttl, wall);
                self.take_notes(server, false);
                set
            }
            Command::DeleteIf(value) => node.delete_foreign(&key, value, wall),
            Command::Delete => node.delete(&key),
            Command::Force => {
                let Executed { outcomes, pushes, .. } =
                    node.execute(&[Operation::Force { key, foreign: false }], wall, None);
                self.publish(plan, server, false, pushes);
                outcomes.iter().all(|outcome| matches!(outcome, Ok(Outcome::Released)))
            }
        }
    }

    /// Sends a command of another library to a node, and returns its number.
    pub(super) fn command(&mut self, plan: &Plan, server: usize, key: LockKey, command: Command) -> usize {
        let id = self.requests.len();
        self.requests.push(Request::default());
        self.log(|| format!("foreign #{id}: {command:?} of {key}"));
        let at = self.now + self.latency(plan);
        self.later(at, Arriving::Foreign(id, server, key, command));
        id
    }
}
