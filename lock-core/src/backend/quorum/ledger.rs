//! The ledger of a quorum: what each node is known to have, and which releases to it are pending; pure.
//!
//! Requests and answers of all nodes are recorded here under one lock, in the order in which they are sent and read. So a token is
//! released at every node that may take it, also by an acquire whose answer comes after the release. A lease that a renewal restored
//! at a node counts there only once a majority is known to have had it then: otherwise two minorities could add up.

#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use super::{
    aim::Aim,
    asked::{Asked, Way},
    majority::majority,
    node::{Node, Possession},
    places::Places,
};
use crate::{
    backend::{
        Acquire, Answer, Batch, Operation, Outcome, Release, Renew, Replied, Token,
        cleanup::{AT_ONCE, PendingRelease, Try},
    },
    clock::Moment,
    key::LockKey,
    ttl::Ttl,
};
use smallvec::SmallVec;

/// The books of a quorum.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) nodes: Vec<Node>,
    pub(super) aim: Aim,
    /// Tokens of acquires whose votes are being counted, with how many; but not those that were released meanwhile.
    asking: HashMap<Token, u32>,
    /// The longest ttl that was asked for: how long a node that does not answer can have a token.
    longest: Duration,
    /// How many requests to slow nodes are left to the driver.
    pub(super) left: usize,
}

impl Ledger {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            nodes: (0..nodes).map(|_| Node::default()).collect(),
            aim: Aim::default(),
            asking: HashMap::new(),
            longest: Duration::ZERO,
            left: 0,
        }
    }

    /// The nodes that keep the places of this process.
    pub(super) fn places(&self) -> Places {
        Places::at(&self.nodes)
    }

    /// Compares the nodes' round trips.
    fn compare(&mut self) {
        let heard = self.nodes.iter().filter(|node| !node.silent);
        let mut known: SmallVec<[_; 8]> = heard.filter_map(|node| node.shortest.known).collect();
        known.sort_unstable();
        let most = known.get(majority(self.nodes.len()) - 1).map(|most| *most * SLOW + LEAST_SLOW);
        for node in &mut self.nodes {
            node.slow = most.zip(node.shortest.known).is_some_and(|(most, known)| known > most);
        }
    }

    /// How long it is worth waiting for these nodes where others have decided.
    pub(super) fn patience(&self, nodes: impl Iterator<Item = usize>) -> Duration {
        // A node whose round trip is not known yet counts like the slowest one.
        let slowest = self.nodes.iter().filter_map(|node| node.round_trip).max();
        let round_trips = nodes.filter_map(|node| self.nodes[node].round_trip.or(slowest));
        round_trips.max().map_or(LEAST_PATIENCE, |longest| (longest * PATIENCE).clamp(LEAST_PATIENCE, MOST_PATIENCE))
    }

    /// The part of the ledger for a node.
    pub(super) fn node(&mut self, node: usize) -> &mut Node {
        &mut self.nodes[node]
    }

    /// Records that votes are counted for these tokens.
    pub(super) fn begin(&mut self, tokens: &[Token]) {
        for token in tokens {
            *self.asking.entry(*token).or_default() += 1;
        }
    }

    /// Records that votes have been counted for these tokens.
    pub(super) fn end(&mut self, tokens: &[Token]) {
        for token in tokens {
            if let Some(counts) = self.asking.get_mut(token) {
                *counts -= 1;
                if *counts == 0 {
                    self.asking.remove(token);
                }
            }
        }
    }

    /// Whether the token of an acquire was released. The acquire must not be sent after that, since no release would follow.
    pub(super) fn is_over(&self, operation: &Operation) -> bool {
        matches!(operation, Operation::Acquire(acquire) if !self.asking.contains_key(&acquire.token))
    }

    /// Which operations of a batch are acquires by tokens that have places, as far as is known.
    pub(super) fn placed(&self, batch: &Batch, now: Moment) -> Vec<bool> {
        let is_placed = |token| self.nodes.iter().any(|node| node.has_place(token, now));
        let placed = batch.iter().map(|operation| operation.as_acquire().filter(|acquire| acquire.place.is_some()));
        placed.map(|acquire| acquire.is_some_and(|acquire| is_placed(acquire.token))).collect()
    }

    /// Enters that a node is asked for a batch, and returns what to send to it.
    pub(super) fn ask(&mut self, node: usize, places: Places, batch: &Batch, sent: Moment, way: Way) -> Asked {
        let keeps_places = places.are_at(node);
        let put_back = self.to_be_put_back(node, batch, sent);
        let state = &mut self.nodes[node];
        state.sweep(sent, self.longest);
        let mut asked = Asked { put_back, ..Asked::new(node, batch.clone(), sent, way) };
        for operation in &mut asked.batch {
            match operation {
                Operation::Acquire(acquire) => {
                    // Without the script, a node does not report the holder of a busy key, and a vote has to name it.
                    acquire.expects_free = false;
                    acquire.place = acquire.place.take().filter(|_| keeps_places).map(|place| state.place(place));
                }
                Operation::Renew(renew) if asked.put_back.contains(&renew.token) => {
                    asked.within = asked.within.min(renew.within);
                    let mut puts_back = Acquire::new(renew.key.clone(), renew.token, renew.ttl);
                    puts_back.from = Some(renew.token);
                    puts_back.aim = self.aim.at(sent);
                    *operation = Operation::Acquire(puts_back);
                }
                Operation::Release(release) => {
                    // From here on the node does not count as having the token, although it has not answered yet: the release may be
                    // executed at any moment, and a majority that was counted with this node could hold a lease that is gone.
                    self.asking.remove(&release.token);
                    state.looks.remove(&(release.key.clone(), release.token));
                    let had = state.surely.remove(&release.token);
                    release.until = had.map_or(release.until, |had| release.until.max(had.until));
                    if let Some(until) = state.placed.remove(&release.token) {
                        release.place = true;
                        release.until = release.until.max(until);
                    }
                    let unanswered = state.unanswered.get_mut(&release.token);
                    if had.is_none() && unanswered.is_none() && !release.place {
                        asked.needless.insert(release.token);
                    }
                    if let Some(unanswered) = unanswered {
                        unanswered.over = unanswered.over.max(Some(release.keeps_until(sent)));
                    }
                }
                Operation::Renew(_) | Operation::Inspect { .. } | Operation::Force { .. } => {}
            }
            match operation {
                Operation::Acquire(acquire) => {
                    self.longest = self.longest.max(acquire.blocks_until(sent).since(sent));
                    state.asks(acquire, sent, way.epoch);
                }
                Operation::Renew(renew) => self.longest = self.longest.max(renew.ttl),
                _ => {}
            }
        }
        asked
    }

    fn majority_has(&self, token: Token, now: Moment) -> bool {
        self.nodes.iter().filter(|node| node.surely_has(token, now)).count() >= majority(self.nodes.len())
    }

    /// The tokens to be renewed that a majority surely has and this node may lack.
    fn to_be_put_back(&self, node: usize, batch: &Batch, now: Moment) -> HashSet<Token> {
        let nodes = &self.nodes;
        let renewed = batch.iter().filter_map(Operation::as_renew).map(|renew| renew.token);
        renewed.filter(|token| !nodes[node].surely_has(*token, now) && self.majority_has(*token, now)).collect()
    }

    /// Takes a node's answer to what it was asked; what does not count as a renewal becomes [`Outcome::Gone`]. Returns
    /// whether a release to the node is pending.
    pub(super) fn answered(&mut self, asked: &Asked, result: &mut Replied<Answer>, now: Moment, epoch: u64) -> bool {
        let state = &mut self.nodes[asked.node];
        state.silent = result.is_err();
        let (mut repeated, mut late) = (false, false);
        if let Ok(answer) = result {
            (repeated, late) = (answer.repeated, answer.out_of_order);
            if let Some(time) = answer.time {
                self.aim.showed(time, asked.sent, now);
            }
            if state.took(now.since(asked.sent), asked.way.open, now) {
                self.compare();
            }
        }
        let none_happened = result.as_ref().is_err_and(|error| !error.may_have_happened());
        let mut outcomes = result.iter_mut().flat_map(|answer| &mut answer.outcomes);
        for operation in &asked.batch {
            let outcome = outcomes.next();
            match operation {
                Operation::Acquire(acquire) => {
                    let known = match &outcome {
                        Some(Ok(_)) => !repeated,
                        Some(Err(error)) => !error.may_have_happened(),
                        None => none_happened,
                    };
                    let over = self.nodes[asked.node].settle(acquire.token, known);
                    match (outcome, over) {
                        (Some(Ok(Outcome::Held { .. })), Some(keep_until)) => {
                            // The token was released after this acquire was sent. In order, the release came second and has removed it;
                            // only an acquire that was executed out of order has to be released once more.
                            if late {
                                self.nodes[asked.node].release_once_more(acquire, keep_until, now);
                            }
                        }
                        (Some(Ok(outcome)), _) => self.acquire_answered(asked, acquire, outcome, now),
                        (Some(Err(_)) | None, _) => {}
                    }
                }
                Operation::Renew(renew) => {
                    if let Some(Ok(outcome)) = outcome {
                        self.renewal_answered(asked, renew, outcome, now);
                    }
                }
                Operation::Release(release) => {
                    let is_answer = outcome.is_some_and(|outcome| Try::answered(outcome));
                    self.release_answered(asked, release, is_answer, now, epoch);
                }
                Operation::Inspect { .. } | Operation::Force { .. } => {}
            }
        }
        !self.nodes[asked.node].pending.is_empty() || self.nodes.iter().any(|node| !node.looks.is_empty())
    }

    /// Takes a node's answer to the acquire of a token that is not over.
    fn acquire_answered(&mut self, asked: &Asked, acquire: &Acquire, outcome: &Outcome, now: Moment) {
        let state = &mut self.nodes[asked.node];
        if let Outcome::Held { .. } = outcome {
            state.placed.remove(&acquire.token);
            let put_back = asked.put_back.contains(&acquire.token).then_some(now);
            state.has(acquire.token, asked.sent, acquire.ttl, put_back);
            self.confirm(&acquire.key, acquire.token, now);
            return;
        }
        state.lacks(acquire.token, asked.sent);
        let placed = matches!(outcome, Outcome::Busy { position: Some(_), .. });
        if let (true, Some(place)) = (placed, &acquire.place) {
            // The key may be granted to it until then.
            state.placed.insert(acquire.token, now + place.life + place.lasts);
        }
    }

    /// Takes a node's answer to a renewal. One that does not count becomes [`Outcome::Gone`].
    fn renewal_answered(&mut self, asked: &Asked, renew: &Renew, outcome: &mut Outcome, now: Moment) {
        let state = &mut self.nodes[asked.node];
        if !matches!(outcome, Outcome::Renewed { .. }) {
            state.lacks(renew.token, asked.sent);
            return;
        }
        let had = state.has(renew.token, asked.sent, renew.ttl, Some(now));
        let had = had.filter(|had| had.until > now);
        let counts = had.is_some_and(|had| self.counts(renew.token, had));
        if !counts {
            *outcome = Outcome::Gone;
        }
        if let Some(has) = self.nodes[asked.node].surely.get_mut(&renew.token) {
            let since = had.map_or(Some(now), |had| had.put_back);
            has.put_back = since.filter(|_| !counts);
        }
        self.confirm(&renew.key, renew.token, now);
    }

    /// Records whether a node has answered a release.
    fn release_answered(&mut self, asked: &Asked, release: &Release, is_answer: bool, now: Moment, epoch: u64) {
        let state = &mut self.nodes[asked.node];
        let doubt = state.released(release.token, is_answer, asked, epoch);
        if !asked.needless.contains(&release.token) && (!is_answer || doubt.is_some()) {
            state.add_pending_release(release, doubt, asked.sent, self.longest, now);
        }
    }

    /// Whether what a node has of a token counts: if it was put back there, a majority must have had it then.
    fn counts(&self, token: Token, had: Possession) -> bool {
        let Some(since) = had.put_back else { return true };
        let has = |node: &&Node| {
            node.surely.get(&token).is_some_and(|known| known.put_back.is_none() && known.found >= since)
        };
        self.nodes.iter().filter(has).count() >= majority(self.nodes.len())
    }

    /// Counts a lease at the nodes that got it back, if a majority is known to have had it at that time. Otherwise the other nodes
    /// are asked whether they still have it. (At once and not by the next renewal: a node may fail before that.)
    fn confirm(&mut self, key: &LockKey, token: Token, now: Moment) {
        for node in 0..self.nodes.len() {
            let Some(Possession { put_back: Some(since), .. }) = self.nodes[node].surely.get(&token).copied() else {
                continue;
            };
            let had = self.nodes[node].surely.get(&token).copied();
            if had.is_some_and(|had| self.counts(token, had)) {
                if let Some(had) = self.nodes[node].surely.get_mut(&token) {
                    had.put_back = None;
                }
                continue;
            }
            for witness in &mut self.nodes {
                let known = witness.surely.get(&token).copied();
                let asks = |known: &Possession| known.put_back.is_none() && known.found < since && known.until > now;
                if let Some(known) = known.filter(asks) {
                    witness.look_for(key, token, known.until);
                }
            }
        }
    }

    /// Records that no request waits for a node's answer, in an epoch of the node. Returns whether a release to the node is pending.
    pub(super) fn unheard(&mut self, asked: &Asked, now: Moment, epoch: u64) -> bool {
        let left = asked.has_left(epoch);
        let longest = self.longest;
        for operation in &asked.batch {
            if let Operation::Acquire(acquire) = operation
                && left
                && self.majority_has(acquire.token, now)
                && let Ok(ttl) = Ttl::new(acquire.ttl)
            {
                self.nodes[asked.node].look_for(&acquire.key, acquire.token, ttl.deadline(asked.sent));
            }
        }
        let state = &mut self.nodes[asked.node];
        state.silent |= !left;
        if left {
            state.was_late(now);
        }
        for operation in &asked.batch {
            match operation {
                Operation::Acquire(acquire) => {
                    if !asked.way.open && epoch == asked.way.epoch.wrapping_add(1) {
                        state.left_in(acquire.token, epoch);
                    }
                    let doubt = state.unanswered.get(&acquire.token).map(|unanswered| unanswered.doubt);
                    if let (Some(keep_until), true, Some(doubt)) = (state.settle(acquire.token, !left), left, doubt) {
                        // It was released meanwhile, and may have been sent twice (by its hash, then by its source).
                        let mut pending = PendingRelease::at_once(acquire.key.clone(), acquire.token).quietly();
                        pending.keep_until = keep_until;
                        state.add_pending(pending, doubt, now);
                    }
                }
                Operation::Release(release) if !asked.needless.contains(&release.token) => {
                    let doubt = state.unanswered.get(&release.token).map(|unanswered| unanswered.doubt);
                    state.add_pending_release(release, doubt, asked.sent, longest, now);
                }
                _ => {}
            }
        }
        !state.pending.is_empty() || state.probe.is_some() || !state.looks.is_empty()
    }

    /// Whether no release to a node is pending, and no node may still answer one.
    pub(super) fn is_settled(&self) -> bool {
        self.left == 0 && self.nodes.iter().all(|node| node.pending.is_empty())
    }

    /// The questions for a node that is to be checked: about leases that it may have, or none.
    pub(super) fn look(&mut self, node: usize, sent: Moment, way: Way, most: usize) -> Asked {
        let batch = self.nodes[node].take_looks(sent, way, most);
        Asked::new(node, batch, sent, way)
    }

    /// Whether releases are pending only to nodes that do not answer.
    pub(super) fn is_held_up(&self) -> bool {
        !self.is_settled() && self.left == 0 && self.nodes.iter().all(|node| node.pending.is_empty() || node.silent)
    }

    /// When a release is sent to a node again.
    pub(super) fn next(&self) -> Option<Moment> {
        let next = |node: &Node| {
            let pending = node.pending.next().filter(|_| !node.releasing);
            let look = if node.looks.is_empty() { node.probe } else { Some(AT_ONCE) };
            [pending, look.filter(|_| !node.looking)]
        };
        self.nodes.iter().flat_map(next).flatten().min()
    }

    /// Records whether a node can notify this process. If that changes something for waiters, returns whether any node can.
    pub(super) fn listens(&mut self, node: usize, listening: bool) -> Option<bool> {
        let before = (self.any_listens(), self.places().queue_node);
        self.nodes[node].listening = listening;
        let now = (self.any_listens(), self.places().queue_node);
        (before != now || now.1 == node).then_some(now.0)
    }

    /// Whether any node can call this process.
    pub(super) fn any_listens(&self) -> bool {
        self.nodes.iter().any(|node| node.listening)
    }

    /// Starts again after the driver has ended, and with it all its calls in flight.
    pub(super) fn restart(&mut self, now: Moment) {
        for node in &mut self.nodes {
            (node.listening, node.releasing, node.looking, node.probe) = (false, false, false, None);
            node.pending.restart(now);
        }
    }
}

/// How many times longer than a majority a slow node takes, and by how much at least.
const SLOW: u32 = 4;
const LEAST_SLOW: Duration = Duration::from_millis(15);

/// How much longer than it usually takes a node is waited for that is not needed.
const PATIENCE: u32 = 4;

/// At least this long.
const LEAST_PATIENCE: Duration = Duration::from_millis(5);

/// And at most: a round trip that was long because a node came back says little of the next one.
const MOST_PATIENCE: Duration = Duration::from_secs(1);
