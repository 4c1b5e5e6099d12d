//! A node that fails over to a copy which lags behind, and the former one, which may go on answering for a while.

use std::time::Duration;

use lock_core::backend::Operation;

use super::{
    link::Conn,
    nemesis::{Strike, excuse, excuse_loss},
    node::{Node, Refuses},
    plan::Plan,
    world::{PASSED_ON, State},
};

impl Strike<'_> {
    pub(super) async fn fail_over(self) {
        let Self { world, dice, server, pause, from, .. } = self;
        let (copied, since) = {
            let mut state = world.state();
            (state.servers[server].node.copy(), state.moment())
        };
        // By so much the copy lags behind.
        world.sleep(dice.between(Duration::from_millis(1), LONGEST_LAG)).await;
        let is_split = dice.below(2) == 0;
        world.state().take_over(&world.plan, server, (copied, since), is_split);
        world.sleep(pause / 4).await;
        world.state().servers[server].down = false;
        if is_split {
            world.sleep(dice.between(Duration::ZERO, pause)).await;
            if dice.below(2) == 0 {
                // It learns that it is a replica now before it closes its connections.
                if let Some(former) = &mut world.state().servers[server].former {
                    former.refuses = Refuses::Writes;
                }
                world.sleep(dice.between(Duration::ZERO, pause)).await;
            }
        }
        world.state().end_former(&world.plan, server);
        excuse(world, from);
        excuse_loss(world);
    }
}

impl State {
    /// Puts a copy in the place of a node. If that is `split` from some of its clients, it goes on answering them.
    fn take_over(&mut self, plan: &Plan, server: usize, (copied, since): (Node, f64), split: bool) {
        for conn in 0..self.conns.len() {
            if self.conns[conn].there && self.conns[conn].server == server {
                match split && self.dice.below(2) == 0 {
                    true => self.conns[conn].former = true,
                    false => self.hang_up(plan, conn),
                }
            }
        }
        let at = self.moment();
        self.take_notes(server, false);
        self.log(|| format!("node {server} is replaced by a copy, split: {split}"));
        self.servers[server].down = true;
        self.servers[server].former = Some(self.servers[server].node.fail_over(copied));
        if plan.has_slots() {
            self.servers[server].node.drop_strangers();
        }
        self.journal.fails_over(server, since, at);
    }

    /// The former node closes what connections it has left.
    fn end_former(&mut self, plan: &Plan, server: usize) {
        for conn in 0..self.conns.len() {
            if self.conns[conn].former && self.conns[conn].there && self.conns[conn].server == server {
                self.hang_up(plan, conn);
            }
        }
        let over = self.moment();
        self.journal.ends(server, over, over + self.limit + PASSED_ON);
        if let Some(former) = self.servers[server].former.take() {
            self.servers[server].node.outlive(&former);
        }
    }

    /// The node that a connection leads to.
    pub(super) fn node_of(&mut self, conn: usize) -> &mut Node {
        let Conn { server, former, .. } = self.conns[conn];
        let server = &mut self.servers[server];
        match &mut server.former {
            Some(node) if former => node,
            _ => &mut server.node,
        }
    }

    /// What was released at the former node is over, though its copy does not know.
    pub(super) fn disown(&mut self, plan: &Plan, server: usize, batch: &[Operation]) {
        for operation in batch {
            if let Operation::Release(release) = operation {
                // Its slot may have moved on since.
                let server = if plan.has_slots() { self.owner(&release.key) } else { server };
                self.servers[server].node.disown(&release.key, release.token);
            }
        }
    }

    /// Writes down what a node has done, and tells what was wrong with it.
    pub(super) fn take_notes(&mut self, server: usize, former: bool) {
        let at = self.moment();
        let Some(node) = (match former {
            true => self.servers[server].former.as_mut(),
            false => Some(&mut self.servers[server].node),
        }) else {
            return;
        };
        let (done, breaches) = (std::mem::take(&mut node.audit.done), std::mem::take(&mut node.audit.breaches));
        self.journal.note(server, former, at, done);
        for (rule, message) in breaches {
            self.breach(rule, || message);
        }
    }
}

/// By how much a copy lags behind at most.
const LONGEST_LAG: Duration = Duration::from_millis(300);
