//! The connections that were replaced, as far as their server may still execute what was sent over them; pure.

use std::sync::Arc;

/// What is known of the connections before the present one.
#[derive(Clone, Debug, Default)]
pub(super) struct Former {
    /// The run of the server that the last connection led to.
    run: Option<Arc<String>>,
    /// The epoch of the last connection, and its number within the run; zero before the first.
    epoch: u64,
    id: Option<i64>,
    /// The numbers of those that are not known to be closed at the server.
    open: Vec<i64>,
    /// Whether there may be others, which cannot be killed by number.
    has_others: bool,
    /// The runs that were left for another one. Such a server may go on, and execute what is still on its way to it.
    left: Vec<Arc<String>>,
}

impl Former {
    /// Returns the connections that a new one has to kill, so that no request over them is executed later. In another run of the
    /// server their numbers may belong to other clients.
    pub(super) fn to_kill(&self, run: Option<&Arc<String>>, id: Option<i64>) -> Vec<i64> {
        if run.is_none() || run != self.run.as_ref() {
            return Vec::new();
        }
        self.open.iter().copied().filter(|open| Some(*open) != id).collect()
    }

    /// Records a connection that is up; `is_alone` says that requests went over none that is not known here. Returns whether
    /// it leads to another run of the server than the last one did, or may do so.
    pub(super) fn follow(&mut self, run: Option<Arc<String>>, id: Option<i64>, epoch: u64, is_alone: bool) -> bool {
        let is_known = run.is_some() && (self.run.is_some() || self.epoch == 0);
        let is_other = run.is_none() || self.run != run;
        if is_known && is_other {
            // What has ended executes nothing. A server that was left for another one writes nothing that the other one reads, unless
            // it takes its place again.
            self.open.clear();
            if self.left.len() == MOST {
                self.left.remove(0);
            }
            self.left.extend(self.run.take());
            self.has_others = run.as_ref().is_some_and(|run| self.left.contains(run));
        }
        self.has_others |= !is_known || !is_alone || self.epoch + 1 != epoch;
        (self.run, self.id, self.epoch) = (run, id, epoch);
        is_other
    }

    /// Records that the present connection has ended.
    pub(super) fn ended(&mut self) {
        match self.id.take() {
            Some(id) if self.open.len() < MOST => self.open.push(id),
            _ => self.has_others = true,
        }
    }

    /// Records that the server has closed those that were [to be killed](Self::to_kill).
    pub(super) fn killed(&mut self) {
        self.open.clear();
    }

    /// Returns whether nothing that was sent before the present connection was up will be executed.
    pub(super) fn are_gone(&self) -> bool {
        self.open.is_empty() && !self.has_others
    }
}

/// How many connections are remembered that may still be open at the server.
const MOST: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str) -> Option<Arc<String>> {
        Some(Arc::new(name.to_owned()))
    }

    /// A first connection that has ended.
    fn after_one() -> Former {
        let mut former = Former::default();
        assert!(former.follow(run("a"), Some(7), 1, true));
        assert!(former.are_gone() && former.to_kill(run("a").as_ref(), Some(7)).is_empty(), "there was none before");
        former.ended();
        former
    }

    #[test]
    fn the_former_connections_are_gone_when_all_of_them_were_killed() {
        let mut former = after_one();
        assert_eq!(former.to_kill(run("a").as_ref(), Some(8)), [7]);
        assert!(!former.follow(run("a"), Some(8), 2, true));
        assert!(!former.are_gone());
        // The second one has ended before the answer to the kill came.
        former.ended();
        assert_eq!(former.to_kill(run("a").as_ref(), Some(9)), [7, 8]);
        assert!(!former.follow(run("a"), Some(9), 3, true));
        assert!(!former.are_gone());
        former.killed();
        assert!(former.are_gone());
    }

    #[test]
    fn a_server_that_was_started_again_executes_nothing_of_before() {
        let mut former = after_one();
        assert!(former.to_kill(run("b").as_ref(), Some(8)).is_empty(), "the number may be another client's");
        assert!(former.follow(run("b"), Some(8), 2, true));
        assert!(former.are_gone());
    }

    #[test]
    fn a_server_that_takes_its_place_again_may_still_execute_what_was_sent_before_it_was_left() {
        let mut former = after_one();
        assert!(former.follow(run("b"), Some(8), 2, true));
        former.ended();
        assert!(former.follow(run("a"), Some(9), 3, true));
        assert!(!former.are_gone(), "what was sent over its connection 7");
        former.ended();
        assert!(former.follow(run("c"), Some(10), 4, true));
        assert!(former.are_gone());
    }

    #[test]
    fn connections_that_are_not_known_here_leave_the_former_ones_in_doubt() {
        for (new, epoch, is_alone) in [(run("a"), 2, false), (run("a"), 3, true), (None, 2, true)] {
            let mut former = after_one();
            former.follow(new, Some(8), epoch, is_alone);
            former.killed();
            assert!(!former.are_gone());
            former.ended();
            former.follow(run("a"), Some(9), epoch + 1, true);
            former.killed();
            assert!(!former.are_gone(), "for good");
        }
        let mut former = after_one();
        former.follow(run("a"), None, 2, true);
        former.killed();
        former.ended();
        assert!(!former.are_gone(), "it cannot be killed without its number");
    }

    #[test]
    fn a_bounded_number_of_connections_is_remembered() {
        let mut former = after_one();
        for epoch in 2..40 {
            former.follow(run("a"), Some(100), epoch, true);
            former.ended();
        }
        assert_eq!(former.to_kill(run("a").as_ref(), Some(1)).len(), MOST);
        former.killed();
        assert!(!former.are_gone());
    }
}
