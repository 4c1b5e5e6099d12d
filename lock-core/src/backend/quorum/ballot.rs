//! What the nodes of a quorum make of a batch together; pure.
//!
//! An operation has happened when it has on a majority: then no other majority can say otherwise. (Redlock: *Distributed
//! locks with Redis*, redis.io.) What Redlock lacks is the fencing token: the largest of a majority, which a majority has
//! to count from before the lease begins, so that the next holder, whose majority shares a node with that one, gets a
//! larger one.

mod row;
#[cfg(test)]
mod tests;

use self::row::{Fences, Seat, Tally, Vote, failures, holders};
use crate::{
    backend::{Answer, BackendError, Batch, Operation, Outcome, Outcomes},
    error::ErrorKind,
    mutants::Mutant,
};

/// The votes on each operation of a batch.
#[derive(Debug)]
pub(super) struct Ballot {
    nodes: usize,
    /// Who keeps the queue, and has a say in who comes first.
    queue_node: usize,
    operations: Batch,
    /// One row for each operation.
    seats: Vec<Seat>,
    /// The fencing tokens of each operation, once a majority has agreed to it.
    fences: Vec<Option<Fences>>,
    /// How many nodes have answered, and the errors of those that could not.
    answered: usize,
    failed: Vec<BackendError>,
    flags: Answer,
}

/// How far a vote has come.
#[derive(Clone, Debug)]
enum Verdict {
    /// The nodes that have answered do not decide.
    Open,
    /// Decided, but the others had better be heard.
    Likely(Result<Outcome, BackendError>),
    Sure(Result<Outcome, BackendError>),
}

/// How far the votes on a whole batch have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Open,
    Likely,
    Sure,
}

/// A request to a node to count further: which item it is for, and what to send.
pub(super) struct WriteBack {
    pub(super) node: usize,
    pub(super) item: usize,
    pub(super) operation: Operation,
}

/// How many nodes of so many are a majority.
pub(super) fn majority(nodes: usize) -> usize {
    if Mutant::TooFewAgree.is_on() {
        return nodes / 2;
    }
    nodes / 2 + 1
}

impl Ballot {
    pub(super) fn new(operations: Batch, nodes: usize, queue_node: usize) -> Self {
        Self {
            nodes,
            queue_node,
            seats: vec![Seat::default(); operations.len() * nodes],
            fences: vec![None; operations.len()],
            operations,
            answered: 0,
            failed: Vec::new(),
            flags: Answer::new([]),
        }
    }

    pub(super) fn operations(&self) -> &Batch {
        &self.operations
    }

    /// Takes note of whether the request to a node has left, or waits for a connection.
    pub(super) fn has_left(&mut self, node: usize, left: bool) {
        for row in self.seats.chunks_mut(self.nodes) {
            match &mut row[node].vote {
                vote @ Vote::Waiting if !left => *vote = Vote::Away,
                vote @ Vote::Away if left => *vote = Vote::Waiting,
                _ => {}
            }
        }
    }

    /// Takes a node's answer to the batch.
    pub(super) fn vote(&mut self, node: usize, result: Result<Answer, BackendError>) {
        let items = 0..self.operations.len();
        if let Err(error) = &result {
            self.failed.push(error.clone());
        } else {
            self.answered += 1;
        }
        self.vote_on(node, items, result);
    }

    /// Takes a node's answer to requests for these items.
    pub(super) fn vote_on(
        &mut self,
        node: usize,
        items: impl IntoIterator<Item = usize>,
        result: Result<Answer, BackendError>,
    ) {
        let (mut outcomes, error) = match result {
            Ok(answer) => {
                self.flags.repeated |= answer.repeated;
                self.flags.out_of_order |= answer.out_of_order;
                self.flags.calls_refused |= answer.calls_refused && node == self.queue_node;
                (answer.outcomes.into_iter(), None)
            }
            Err(error) => (Outcomes::new().into_iter(), Some(error)),
        };
        for item in items {
            let missing = || error.clone().unwrap_or_else(no_answer);
            let outcome = outcomes.next().unwrap_or_else(|| Err(missing()));
            let fences = self.fences[item];
            let seat = &mut self.seats[item * self.nodes + node];
            if let Ok(Outcome::Held { fence, block } | Outcome::Renewed { fence: Some(fence), block, .. }) = outcome {
                seat.counted = seat.counted.max(Fences { first: fence, size: block }.last());
            }
            seat.vote = match outcome {
                Ok(outcome) => Vote::Said(as_answer_to(&self.operations[item], outcome)),
                Err(error) => Vote::Failed(error),
            };
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
            if self.is_counted(self.row(item), fences) {
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

    pub(super) fn standing(&self) -> Standing {
        if self.operations.is_empty() {
            return if self.failed.len() > self.nodes - majority(self.nodes)
                || self.answered + self.failed.len() == self.nodes
            {
                Standing::Sure
            } else if self.answered >= majority(self.nodes) {
                Standing::Likely
            } else {
                Standing::Open
            };
        }
        (0..self.operations.len()).map(|item| self.verdict(item)).fold(Standing::Sure, |standing, verdict| {
            match (standing, verdict) {
                (Standing::Open, _) | (_, Verdict::Open) => Standing::Open,
                (Standing::Likely, _) | (_, Verdict::Likely(_)) => Standing::Likely,
                (Standing::Sure, Verdict::Sure(_)) => Standing::Sure,
            }
        })
    }

    /// The answer to the batch, when nothing is open any more.
    pub(super) fn answer(&self) -> Result<Answer, BackendError> {
        if self.answered < majority(self.nodes) && self.operations.is_empty() {
            return Err(too_few(self.nodes, &self.failed, false));
        }
        if self.failed.len() > self.nodes - majority(self.nodes) {
            let elsewhere = self.seats.iter().any(|seat| seat.is_granted() || seat.vote.is_waiting());
            return Err(too_few(self.nodes, &self.failed, elsewhere));
        }
        let outcomes = (0..self.operations.len()).map(|item| match self.verdict(item) {
            Verdict::Likely(result) | Verdict::Sure(result) => result,
            Verdict::Open => Err(no_answer()),
        });
        let mut answer = self.flags.clone();
        answer.outcomes = outcomes.collect();
        Ok(answer)
    }

    fn row(&self, item: usize) -> &[Seat] {
        &self.seats[item * self.nodes..(item + 1) * self.nodes]
    }

    /// The fencing tokens of an operation, from when a majority agrees to it.
    fn agreed(&mut self, item: usize) -> Option<Fences> {
        if self.fences[item].is_none() {
            let granted = self.row(item).iter().filter_map(Seat::fences);
            if granted.clone().count() < majority(self.nodes) {
                return None;
            }
            let firsts = granted.clone().map(|fences| fences.first);
            let mut first = firsts.clone().max()?;
            if Mutant::SmallestFence.is_on() {
                first = firsts.min()?;
            }
            let size = granted.map(|fences| fences.size).min()?;
            self.fences[item] = Some(Fences { first, size });
        }
        self.fences[item]
    }

    /// Whether a majority agrees, and has counted to the last of these.
    fn is_counted(&self, row: &[Seat], fences: Fences) -> bool {
        row.iter().filter(|seat| seat.counts(fences)).count() >= majority(self.nodes)
            || Mutant::FenceNotWrittenBack.is_on()
    }

    fn verdict(&self, item: usize) -> Verdict {
        let row = self.row(item);
        let tally = Tally::of(row);
        match &self.operations[item] {
            Operation::Acquire(_) => self.acquired(item, row, &tally),
            Operation::Renew(renew) => self.renewed(item, row, &tally, renew.block > 0),
            Operation::Release(_) | Operation::Force { .. } => self.released(&self.operations[item], row, &tally),
            Operation::Inspect { .. } => self.inspected(row, &tally),
        }
    }

    fn acquired(&self, item: usize, row: &[Seat], tally: &Tally) -> Verdict {
        let most = majority(self.nodes);
        let queue_vote = &row[self.queue_node].vote;
        let comes_later = matches!(queue_vote, Vote::Said(Outcome::Queued { .. }));
        if tally.granted >= most && !comes_later {
            let Some(fences) = self.fences[item] else { return Verdict::Open };
            if !self.is_counted(row, fences) {
                return Verdict::Open;
            }
            let held = Ok(Outcome::Held { fence: fences.first, block: fences.size });
            // Others may wait at the queue node; and the more are known to have it, the more may fail.
            return if tally.waiting > 0 { Verdict::Likely(held) } else { Verdict::Sure(held) };
        }
        let against = tally.granted + tally.failed + tally.waiting + tally.away < self.nodes;
        if tally.granted + tally.waiting + tally.away >= most && !comes_later {
            // It may yet be granted. But not all who want the key should wait for a node that is slow, each with a part.
            return if against { Verdict::Likely(Ok(self.lost(row, tally))) } else { Verdict::Open };
        }
        if tally.failed > self.nodes - most {
            // Those that were not heard may have it.
            let in_doubt = tally.granted + tally.waiting > 0;
            return Verdict::Sure(Err(too_few(self.nodes, &failures(row), in_doubt)));
        }
        let outcome = Ok(self.lost(row, tally));
        if tally.waiting > 0 { Verdict::Likely(outcome) } else { Verdict::Sure(outcome) }
    }

    /// What an acquire answers that was not granted.
    fn lost(&self, row: &[Seat], tally: &Tally) -> Outcome {
        let nowhere = tally.granted + tally.waiting + tally.in_doubt == 0;
        if nowhere { self.refused(row) } else { split(row) }
    }

    /// What an acquire answers that has happened nowhere.
    fn refused(&self, row: &[Seat]) -> Outcome {
        let position = match row[self.queue_node].vote {
            Vote::Said(Outcome::Busy { position, .. } | Outcome::Queued { position }) => position,
            _ => None,
        };
        let said = |wanted: fn(&Outcome) -> bool| row.iter().any(|seat| seat.said().is_some_and(wanted));
        if said(|outcome| matches!(outcome, Outcome::Busy { .. })) {
            let (remaining, foreign) = holders(row);
            Outcome::Busy { remaining, foreign, position }
        } else if said(|outcome| matches!(outcome, Outcome::Queued { .. })) {
            Outcome::Queued { position }
        } else {
            Outcome::Gone
        }
    }

    fn renewed(&self, item: usize, row: &[Seat], tally: &Tally, takes_fences: bool) -> Verdict {
        let most = majority(self.nodes);
        if tally.granted >= most {
            let remaining = row.iter().filter_map(|seat| match seat.said() {
                Some(Outcome::Renewed { remaining, .. }) => Some(*remaining),
                _ => None,
            });
            // A clock that was set back shows in the largest.
            let remaining = remaining.max().unwrap_or_default();
            let fences = self.fences[item].filter(|_| takes_fences);
            let all_count = fences.is_some_and(|fences| self.is_counted(row, fences));
            if takes_fences && !all_count && row.iter().any(|seat| seat.asked_back && !seat.has_counted(fences)) {
                return Verdict::Open;
            }
            // Renewed it is, though not all may count on.
            let fences = fences.filter(|_| all_count);
            let (fence, block) = (fences.map(|fences| fences.first), fences.map_or(0, |fences| fences.size));
            let outcome = Ok(Outcome::Renewed { remaining, fence, block });
            // The others are heard too, so that what they have counts next time.
            return if tally.waiting > 0 { Verdict::Likely(outcome) } else { Verdict::Sure(outcome) };
        }
        if tally.gone > self.nodes - most {
            return Verdict::Sure(Ok(Outcome::Gone));
        }
        let unknown = || Err(too_few(self.nodes, &failures(row), true));
        if tally.granted + tally.waiting + tally.away < most {
            return Verdict::Sure(unknown());
        }
        // A batch has many: they do not wait for the slowest node of one.
        if tally.gone > 0 { Verdict::Likely(unknown()) } else { Verdict::Open }
    }

    fn released(&self, operation: &Operation, row: &[Seat], tally: &Tally) -> Verdict {
        let most = majority(self.nodes);
        if tally.granted + tally.gone < most {
            if tally.granted + tally.gone + tally.waiting + tally.away >= most {
                return Verdict::Open;
            }
            return Verdict::Sure(Err(too_few(self.nodes, &failures(row), true)));
        }
        let outcome = match operation {
            // Nobody repeats it; it must not strike the next holder when a node goes on that was stopped.
            Operation::Force { .. } if tally.waiting + tally.away > 0 => return Verdict::Open,
            Operation::Force { .. } if tally.in_doubt > 0 => Err(too_few(self.nodes, &failures(row), true)),
            Operation::Force { .. } if tally.granted > 0 => Ok(Outcome::Released),
            // Whether it can have been held by a majority.
            _ if tally.granted > 0 && self.nodes - tally.gone >= most => Ok(Outcome::Released),
            _ => Ok(Outcome::Gone),
        };
        if tally.waiting > 0 { Verdict::Likely(outcome) } else { Verdict::Sure(outcome) }
    }

    fn inspected(&self, row: &[Seat], tally: &Tally) -> Verdict {
        let most = majority(self.nodes);
        let busy = row.iter().filter(|seat| matches!(seat.said(), Some(Outcome::Busy { .. }))).count();
        let heard = tally.waiting + tally.away == 0;
        if heard && busy + tally.gone < most {
            return Verdict::Sure(Err(too_few(self.nodes, &failures(row), false)));
        }
        // Those that failed may have it too.
        if busy >= most || (heard && busy > 0 && busy + tally.failed >= most) {
            let (remaining, foreign) = holders(row);
            return Verdict::Sure(Ok(Outcome::Busy { remaining, foreign, position: None }));
        }
        if heard || tally.gone > self.nodes - most { Verdict::Sure(Ok(Outcome::Gone)) } else { Verdict::Open }
    }
}

/// The error of an operation that too few nodes voted on; `elsewhere` says that it may have happened where nothing failed.
pub(super) fn too_few(nodes: usize, failures: &[BackendError], elsewhere: bool) -> BackendError {
    let mut told: Vec<String> = failures.iter().map(ToString::to_string).collect();
    told.dedup();
    let kind = match failures.split_first() {
        Some((first, others)) if others.iter().all(|error| error.kind() == first.kind()) => first.kind(),
        _ => ErrorKind::Backend,
    };
    let (failed, most) = (failures.len(), majority(nodes));
    let why = if told.is_empty() { "the others do not have the lease".to_owned() } else { told.join("; ") };
    let message = format!("{failed} of {nodes} nodes failed, and a lock needs {most}: {why}");
    let error = BackendError::new(kind, message);
    let in_doubt = elsewhere || failures.iter().any(BackendError::may_have_happened);
    if in_doubt { error } else { error.did_not_happen() }
}

fn split(row: &[Seat]) -> Outcome {
    let (remaining, foreign) = holders(row);
    Outcome::Split { remaining: remaining.filter(|remaining| !remaining.is_zero()), foreign }
}

/// What an outcome says of the operation that it decides. A node that lacks a lease is asked to take it instead of
/// renewing it; whatever it answers, it has lacked it: another may have held the key there, and the lease only goes on
/// if a majority had it all the time.
fn as_answer_to(operation: &Operation, outcome: Outcome) -> Outcome {
    match (operation, outcome) {
        (Operation::Renew(_), Outcome::Renewed { .. }) => outcome,
        (Operation::Renew(renew), Outcome::Held { .. }) if Mutant::PutBackCounts.is_on() => {
            Outcome::Renewed { remaining: renew.ttl, fence: None, block: 0 }
        }
        (Operation::Renew(_), _) => Outcome::Gone,
        _ => outcome,
    }
}

/// The request that has a node count to `last`, where it has the token.
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
    BackendError::new(ErrorKind::Backend, "a node does not count its fencing tokens from the floor that it was given")
}

fn no_answer() -> BackendError {
    BackendError::new(ErrorKind::Backend, "a node answered fewer operations than it was sent")
}
