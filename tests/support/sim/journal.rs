//! What nodes have done for whom, and when: from it is read what a failover has undone.

use std::collections::BTreeMap;

use lock_core::{backend::Token, key::LockKey};

use super::{
    audit::{Done, What},
    node::Holder,
};
use crate::history::{Event, Op, TakenAgain, Undone};

/// Everything that nodes have done, and their failovers. Times are those of the history.
#[derive(Debug, Default)]
pub(super) struct Journal {
    lines: Vec<Line>,
    /// Whether keys move from one node to another.
    moves: bool,
    failovers: Vec<Failover>,
    /// Free keys that were taken, by the request that took them, for as long as its sender has no answer.
    taken: BTreeMap<usize, Vec<Taken>>,
}

/// A free key that was taken.
#[derive(Debug)]
struct Taken {
    key: LockKey,
    token: Token,
    at: f64,
}

#[derive(Debug)]
struct Line {
    at: f64,
    server: usize,
    /// Whether a former node did it, which had been replaced by its copy.
    former: bool,
    done: Done,
}

#[derive(Debug)]
struct Failover {
    server: usize,
    /// When the copy was made that took over, and when it did.
    since: f64,
    at: f64,
    /// When everybody is cut off from the former node, and when the last answer from before can have come; for ever while
    /// the former node answers.
    over: f64,
    last: f64,
}

/// From when to when a node knew less of a holder than it was told.
struct Gap<'a> {
    from: f64,
    to: f64,
    failover: &'a Failover,
}

impl Journal {
    /// An empty one; whether keys move from one node to another.
    pub(super) fn new(moves: bool) -> Self {
        Self { moves, ..Self::default() }
    }

    pub(super) fn note(&mut self, server: usize, former: bool, at: f64, done: Vec<Done>) {
        self.lines.extend(done.into_iter().map(|done| Line { at, server, former, done }));
    }

    /// A copy that was made at `since` has taken over.
    pub(super) fn fails_over(&mut self, server: usize, since: f64, at: f64) {
        self.failovers.push(Failover { server, since, at, over: f64::INFINITY, last: f64::INFINITY });
    }

    /// The former node answers nobody any more; what it has said is known by `last`.
    pub(super) fn ends(&mut self, server: usize, over: f64, last: f64) {
        let last_one = self.failovers.iter_mut().rev().find(|failover| failover.server == server);
        if let Some(failover) = last_one {
            (failover.over, failover.last) = (over, last);
        }
    }

    /// A request has taken a key that was free.
    pub(super) fn takes(&mut self, request: usize, key: LockKey, token: Token, at: f64) {
        self.taken.entry(request).or_default().push(Taken { key, token, at });
    }

    /// The sender of a request has its answer, which says what was free.
    pub(super) fn answered(&mut self, request: usize) {
        self.taken.remove(&request);
    }

    /// Whether a lease rests on what was undone.
    pub(super) fn is_undone(&self, key: &str, fence: u64) -> bool {
        self.holders(key, fence).any(|holder| self.gaps(key, holder).any(|gap| gap.to.is_infinite()))
    }

    pub(super) fn has_failovers(&self) -> bool {
        !self.failovers.is_empty()
    }

    /// Since when the holder of a lease that was undone can ask the new node.
    pub(super) fn askable_since(&self, key: &str, fence: u64) -> Option<f64> {
        let gaps = self.holders(key, fence).flat_map(|holder| self.gaps(key, holder));
        gaps.map(|gap| gap.failover.over).reduce(f64::max)
    }

    /// When a holder can ask who could since a time, if that `takes` so long: the next failover may come before it does.
    pub(super) fn put_off(&self, since: f64, takes: f64) -> f64 {
        let next = self.failovers.iter().filter(|failover| failover.at > since);
        next.fold(since, |since, next| if next.at <= since + takes { next.over } else { since })
    }

    /// All leases of a history that were undone.
    pub(super) fn undone(&self, events: &[Event]) -> Vec<Undone> {
        let mut undone = Vec::new();
        for event in events.iter().filter(|event| event.op == Op::Acquire && event.succeeded()) {
            let (Some(key), Some(token)) = (&event.key, &event.token) else { continue };
            let foreign = token.strip_prefix("foreign-").and_then(|value| value.parse().ok()).map(Holder::Foreign);
            let ours = event.fence.into_iter().flat_map(|fence| self.holders(key, fence));
            for Gap { from, to, failover } in foreign.into_iter().chain(ours).flat_map(|holder| self.gaps(key, holder))
            {
                undone.push(Undone { token: token.clone(), from, to, last: failover.last });
            }
        }
        undone
    }

    /// All leases of a history whose key was taken again by a request that nobody has the answer to.
    pub(super) fn taken_again(&self, events: &[Event]) -> Vec<TakenAgain> {
        let mut again = Vec::new();
        for event in events.iter().filter(|event| event.op == Op::Acquire && event.succeeded()) {
            let (Some(key), Some(token), Some(fence)) = (&event.key, &event.token, event.fence) else { continue };
            for taken in self.taken.values().flatten() {
                let is_holder = |holder| holder == Holder::Ours(taken.token);
                if taken.key.as_str() == key && self.holders(key, fence).any(is_holder) {
                    again.push(TakenAgain { token: token.clone(), at: taken.at });
                }
            }
        }
        again
    }

    /// Who was given a number of a key.
    fn holders(&self, key: &str, fence: u64) -> impl Iterator<Item = Holder> {
        let has = move |what| matches!(what, What::Numbers(first, size) if (first..first + size).contains(&fence));
        let lines = self.lines.iter().map(|line| &line.done);
        lines.filter(move |done| has(done.what) && done.key.as_str() == key).map(|done| done.holder)
    }

    fn gaps(&self, key: &str, holder: Holder) -> impl Iterator<Item = Gap<'_>> {
        self.failovers.iter().filter_map(move |failover| {
            // Until when it has the key, by what was said when and by whom.
            let is_here = |line: &Line| line.server == failover.server;
            let sets = self.lines.iter().filter_map(|line| match line.done.what {
                What::Set(until) => {
                    let is_it = line.done.holder == holder && line.done.key.as_str() == key;
                    (is_it && (is_here(line) || self.moves)).then_some((line, until))
                }
                What::Numbers(..) => None,
            });
            // What had moved away before is not lost with the node.
            let left = sets.clone().filter(|(line, _)| !is_here(line) && !line.former && line.at < failover.at);
            let left = left.map(|(line, _)| line.at).next_back().unwrap_or(f64::NEG_INFINITY);
            let lost = sets.clone().filter(|(line, _)| match line.former {
                true => is_here(line) && (failover.at..=failover.last).contains(&line.at),
                false => is_here(line) && (failover.since.max(left)..failover.at).contains(&line.at),
            });
            let from = lost.clone().next()?.0.at;
            let most = lost.map(|(_, until)| until).max()?;
            let mut again = sets.filter(|(line, until)| !line.former && line.at >= failover.at && *until >= most);
            Some(Gap { from, to: again.next().map_or(f64::INFINITY, |(line, _)| line.at), failover })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_request_without_an_answer_takes_a_key_unseen() {
        let (key, token) = (LockKey::new("k").expect("a sound key"), Token::from_random(1));
        let mut journal = Journal::new(false);
        let numbers = Done { key: key.clone(), holder: Holder::Ours(token), what: What::Numbers(7, 2) };
        journal.note(0, false, 5.0, vec![numbers]);
        for (request, at) in [(1, 5.0), (2, 40.0)] {
            journal.takes(request, key.clone(), token, at);
        }
        journal.takes(3, key, Token::from_random(2), 41.0);
        let lease = |key: &str, fence| {
            let mut event = Event::new("c0", Op::Acquire, 1.0);
            (event.key, event.fence) = (Some(key.to_owned()), Some(fence));
            (event.t_return, event.token) = (Some(6.0), Some("c0:k:7/1".to_owned()));
            event
        };
        let times = |journal: &Journal, event| -> Vec<_> {
            journal.taken_again(&[event]).into_iter().map(|again| again.at).collect()
        };
        assert_eq!(times(&journal, lease("k", 8)), [5.0, 40.0]);
        assert!(times(&journal, lease("k", 9)).is_empty(), "the number of another");
        assert!(times(&journal, lease("other", 8)).is_empty());
        journal.answered(1);
        assert_eq!(times(&journal, lease("k", 8)), [40.0]);
        journal.answered(2);
        assert!(times(&journal, lease("k", 8)).is_empty());
    }
}
