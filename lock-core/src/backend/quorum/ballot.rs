//! The votes of a quorum's nodes on a batch; pure.
//!
//! An operation has happened when it has on a majority: then no other majority can say otherwise. (Redlock: *Distributed
//! locks with Redis*, redis.io.) Redlock lacks the fencing token. It is the largest of a majority, which a majority has
//! to count from before the lease begins, so that the next holder, whose majority shares a node with that one, gets a
//! larger one.

#[cfg(test)]
mod tests;

use super::{
    majority::{majority, too_few},
    places::Places,
    seat::{FenceBlock, Seat, Vote},
    verdict::{Certainty, Row},
};
use crate::backend::{Answer, BackendError, Batch, BusyReason, Operation, Outcome, Replied, Token};

/// The votes on each operation of a batch.
#[derive(Debug)]
pub(super) struct Ballot {
    nodes: usize,
    /// The node that keeps the queue: it decides who comes first.
    queue_node: usize,
    operations: Batch,
    /// One row for each operation.
    seats: Vec<Seat>,
    /// The fencing tokens of each operation, once a majority has agreed to it.
    fences: Vec<Option<FenceBlock>>,
    /// Whether the token of each operation had a place at some node before.
    placed: Vec<bool>,
    /// How many nodes have answered, and the errors of those that could not.
    answered: usize,
    failed: Vec<BackendError>,
    flags: Answer,
}

/// A request to a node to count further: which item it is for, and what to send.
pub(super) struct WriteBack {
    pub(super) node: usize,
    pub(super) item: usize,
    pub(super) operation: Operation,
}

impl Ballot {
    pub(super) fn new(operations: Batch, nodes: usize, queue_node: usize) -> Self {
        let items = operations.len();
        let (seats, fences, placed) = (vec![Seat::default(); items * nodes], vec![None; items], vec![false; items]);
        let (answered, failed, flags) = (0, Vec::new(), Answer::new([]));
        Self { nodes, queue_node, operations, seats, fences, placed, answered, failed, flags }
    }

    /// Notes which of the tokens had places before.
    pub(super) fn with_placed(self, placed: Vec<bool>) -> Self {
        Self { placed, ..self }
    }

    pub(super) fn operations(&self) -> &Batch {
        &self.operations
    }

    /// Has those acquires that wait for their turn asked for at the nodes that keep places first; see [`waits_for_turn`]. A node that
    /// `may_take` the token by an earlier request is asked too: if it did, the others have to wait until that is known.
    ///
    /// A node that `is_slow` is not asked for a waiter whose turn has not come. Its answer is not waited for, so it would keep a key
    /// that it has given to the waiter between two holders, and the next lease would have to do without it.
    pub(super) fn in_turn(
        mut self,
        places: Places,
        is_slow: impl Fn(usize) -> bool,
        may_take: impl Fn(usize, Token) -> bool,
    ) -> Self {
        for (operation, row) in self.operations.iter().zip(self.seats.chunks_mut(self.nodes)) {
            let Operation::Acquire(acquire) = operation else { continue };
            for (node, seat) in row.iter_mut().enumerate() {
                let waits = waits_for_turn(operation) && !may_take(node, acquire.token);
                let spares = acquire.place.is_some() && acquire.from.is_none() && is_slow(node);
                if (waits || spares) && !places.are_at(node) {
                    seat.vote = Vote::Later;
                }
            }
        }
        self
    }

    /// The items for which a node is asked first; `None` for all of them.
    pub(super) fn first_items(&self, node: usize) -> Option<Vec<usize>> {
        let later = self.later_items(node);
        let first = || (0..self.operations.len()).filter(|item| !later.contains(item)).collect();
        (!later.is_empty()).then(first)
    }

    /// The items that a node is asked for later, if at all.
    pub(super) fn later_items(&self, node: usize) -> Vec<usize> {
        (0..self.operations.len()).filter(|item| self.seats[item * self.nodes + node].is_later()).collect()
    }

    /// Whether some nodes are still to be asked.
    pub(super) fn has_later(&self) -> bool {
        self.seats.iter().any(Seat::is_later)
    }

    /// Takes the items whose turn it is, by the queue node, or may be, if that cannot tell or `is_late`: the nodes that were not asked
    /// are to be asked for them now. Those of an item whose turn it is not are spared.
    pub(super) fn turns(&mut self, is_late: bool) -> Vec<usize> {
        let mut turns = Vec::new();
        for (item, row) in self.seats.chunks_mut(self.nodes).enumerate() {
            if !row.iter().any(Seat::is_later) {
                continue;
            }
            // Of those that were asked besides the queue node: whether all have answered, and whether it is to be believed that
            // the key is held. A holder that a minority has, or a foreign one, must not keep it from everybody.
            let mut asked = row.iter().enumerate().filter(|(node, seat)| *node != self.queue_node && !seat.is_later());
            let is_heard = !row.iter().any(|seat| matches!(seat.vote, Vote::Waiting | Vote::Away));
            let is_believed = asked.clone().next().is_some() && !asked.any(|(_, seat)| seat.is_granted());
            let vote = match &row[self.queue_node].vote {
                Vote::Waiting | Vote::Away if !is_late => continue,
                Vote::Said(Outcome::Busy { by: BusyReason::Waiters, .. }) => Vote::Spared,
                Vote::Said(Outcome::Busy { position, .. })
                    if !is_believed
                        || waits_for_turn(&self.operations[item]) && position.is_none_or(|position| position <= 1) =>
                {
                    Vote::Waiting
                }
                Vote::Said(Outcome::Busy { .. }) if !is_heard && !is_late => continue,
                Vote::Said(Outcome::Busy { .. }) => Vote::Spared,
                _ => Vote::Waiting,
            };
            turns.extend(matches!(vote, Vote::Waiting).then_some(item));
            for seat in row.iter_mut().filter(|seat| seat.is_later()) {
                seat.vote = vote.clone();
            }
        }
        turns
    }

    /// Records whether a request to a node for these items, or for all, has left, or waits for a connection.
    pub(super) fn has_left(&mut self, node: usize, items: Option<&[usize]>, left: bool) {
        for index in 0..items.map_or(self.operations.len(), <[_]>::len) {
            let item = items.map_or(index, |items| items[index]);
            match &mut self.seats[item * self.nodes + node].vote {
                vote @ Vote::Waiting if !left => *vote = Vote::Away,
                vote @ Vote::Away if left => *vote = Vote::Waiting,
                _ => {}
            }
        }
    }

    /// Takes a node's answer to the batch.
    pub(super) fn vote(&mut self, node: usize, result: Replied<Answer>) {
        let items = 0..self.operations.len();
        if let Err(error) = &result {
            self.failed.push(error.clone());
        } else {
            self.answered += 1;
        }
        self.vote_on(node, items, result);
    }

    /// Takes a node's answer to requests for these items.
    pub(super) fn vote_on(&mut self, node: usize, items: impl IntoIterator<Item = usize>, result: Replied<Answer>) {
        if let Ok(answer) = &result {
            self.flags.repeated |= answer.repeated;
            self.flags.out_of_order |= answer.out_of_order;
            self.flags.calls_refused |= answer.calls_refused && node == self.queue_node;
        }
        for (item, outcome) in items.into_iter().zip(Answer::each(result)) {
            let fences = self.fences[item];
            let seat = &mut self.seats[item * self.nodes + node];
            if let Ok(Outcome::Held { fence, block, .. } | Outcome::Renewed { fence: Some(fence), block, .. }) = outcome
            {
                seat.counted = seat.counted.max(FenceBlock { first: fence, size: block }.last());
            }
            seat.vote = match outcome {
                Ok(outcome) => Vote::Said(as_answer_to(&self.operations[item], outcome)),
                Err(error) => Vote::Failed(error),
            };
            // The node was asked to raise its counter to the tokens of the majority, and has not. Its vote must not count: the next holder
            // could form a majority with its old counter, and get a smaller token than this one.
            if seat.asked_back && !seat.has_counted(fences) {
                seat.vote = Vote::Failed(does_not_count());
            }
        }
    }

    /// The requests that it takes for a majority to count as far as the fencing tokens that were given out.
    pub(super) fn write_backs(&mut self) -> Vec<WriteBack> {
        let mut requests = Vec::new();
        for item in 0..self.operations.len() {
            let Some(fences) = self.agreed(item) else { continue };
            if self.row(item).is_counted(fences) {
                continue;
            }
            let Some(operation) = write_back(&self.operations[item], fences.last()) else { continue };
            for node in 0..self.nodes {
                let seat = &mut self.seats[item * self.nodes + node];
                if seat.is_granted() && !seat.counts(fences) && !std::mem::replace(&mut seat.asked_back, true) {
                    requests.push(WriteBack { node, item, operation: operation.clone() });
                }
            }
        }
        requests
    }

    pub(super) fn certainty(&self) -> Certainty {
        if self.operations.is_empty() {
            return self.certainty_of_ping();
        }
        let items = 0..self.operations.len();
        items.map(|item| self.row(item).verdict().0).min().unwrap_or(Certainty::Sure)
    }

    /// How far a batch without operations has come, which asks for a sign of life.
    fn certainty_of_ping(&self) -> Certainty {
        let most = majority(self.nodes);
        if self.failed.len() > self.nodes - most || self.answered + self.failed.len() == self.nodes {
            Certainty::Sure
        } else if self.answered >= most {
            Certainty::Likely
        } else {
            Certainty::Open
        }
    }

    /// The answer to the batch, when no operation is open.
    pub(super) fn answer(&self) -> Replied<Answer> {
        if self.answered < majority(self.nodes) && self.operations.is_empty() {
            return Err(too_few(self.nodes, &self.failed, false));
        }
        if self.failed.len() > self.nodes - majority(self.nodes) {
            let elsewhere = self.seats.iter().any(Seat::may_have_something);
            return Err(too_few(self.nodes, &self.failed, elsewhere));
        }
        let items = 0..self.operations.len();
        let outcomes = items.map(|item| self.row(item).verdict().1.unwrap_or_else(|| Err(BackendError::missing())));
        let mut answer = self.flags.clone();
        answer.outcomes = outcomes.collect();
        let mut outcomes = answer.outcomes.iter().enumerate();
        answer.out_of_order |= outcomes.any(|(item, outcome)| self.row(item).is_in_doubt(outcome));
        Ok(answer)
    }

    fn row(&self, item: usize) -> Row<'_> {
        Row {
            operation: &self.operations[item],
            seats: &self.seats[item * self.nodes..(item + 1) * self.nodes],
            queue_node: self.queue_node,
            placed: self.placed[item],
            fences: self.fences[item],
        }
    }

    /// The fencing tokens of an operation, from when a majority agrees to it.
    fn agreed(&mut self, item: usize) -> Option<FenceBlock> {
        // Fixed by the first majority. Votes that come later may bring larger numbers, and following them would make nodes write back
        // again and again; the first choice is above every token of an earlier majority, which is enough.
        if self.fences[item].is_none() {
            self.fences[item] = self.row(item).common_fences();
        }
        self.fences[item]
    }
}

/// Whether an acquire waits for the answer of the queue node before the other nodes are asked: a share, unless the key is expected to
/// be free.
///
/// The other nodes do not know who waits, and those who share a key would let in a reader that comes behind a writer. It would
/// have to give its token back, and its place with it, at each of its checks. A writer finds the key busy at all of them.
pub(super) fn waits_for_turn(operation: &Operation) -> bool {
    matches!(operation, Operation::Acquire(acquire) if is_share(operation)
        && acquire.place.is_some() && acquire.from.is_none() && !acquire.expects_free)
}

/// Whether an operation is the acquire of a share.
pub(super) fn is_share(operation: &Operation) -> bool {
    matches!(operation, Operation::Acquire(acquire) if !acquire.token.mode().is_exclusive())
}

/// The meaning of an outcome for the operation that it decides. A node that lacks a lease is asked to take it instead of
/// renewing it. Its answer does not count for the lease: another holder may have had the key there, and the lease goes on only if
/// a majority had it all the time.
fn as_answer_to(operation: &Operation, outcome: Outcome) -> Outcome {
    match (operation, outcome) {
        (Operation::Renew(_), Outcome::Renewed { .. }) => outcome,
        (Operation::Renew(_), _) => Outcome::Gone,
        _ => outcome,
    }
}

/// The request that makes a node count to `last`, if the node has the token.
fn write_back(operation: &Operation, last: u64) -> Option<Operation> {
    match operation {
        Operation::Acquire(acquire) => {
            let mut acquire = acquire.clone();
            // It holds the token already.
            (acquire.block, acquire.floor, acquire.from, acquire.place) = (1, last, None, None);
            Some(Operation::Acquire(acquire))
        }
        Operation::Renew(renew) => {
            let mut renew = renew.clone();
            (renew.block, renew.floor) = (1, last);
            Some(Operation::Renew(renew))
        }
        _ => None,
    }
}

fn does_not_count() -> BackendError {
    BackendError::unavailable("a node does not count its fencing tokens from the floor that it was given")
}
