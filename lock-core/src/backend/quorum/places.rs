//! Which nodes of a quorum keep the places of those who wait; pure.

use super::{majority::majority, node::Node};

/// The nodes that keep the places of this process. Processes that reach the same nodes agree on them; if they do not, order
/// suffers and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Places {
    /// The node that decides which waiter is next.
    pub(super) queue_node: usize,
    /// Keeps the same places, so that they are there when the queue node does not answer.
    pub(super) deputy: Option<usize>,
}

impl Places {
    /// The first nodes, in the order of their naming, that answer in time and can call.
    pub(super) fn at(nodes: &[Node]) -> Self {
        let rank = |(_, node): &(usize, &Node)| (node.silent, !node.listening, node.probe.is_some() || node.slow);
        let queue_node = nodes.iter().enumerate().min_by_key(rank).map_or(0, |(first, _)| first);
        let answering = nodes.iter().filter(|node| !node.silent && node.probe.is_none() && !node.slow).count();
        // Where the orders of the two differ, the deputy keeps the key for another one for a moment. The others have to be
        // a majority without it.
        let fits =
            |(other, node): &(usize, &Node)| *other != queue_node && rank(&(*other, node)) == (false, false, false);
        let deputy = nodes.iter().enumerate().find(fits).map(|(second, _)| second);
        Self { queue_node, deputy: deputy.filter(|_| answering > majority(nodes.len())) }
    }

    /// Whether places are kept at this node.
    pub(super) fn are_at(self, node: usize) -> bool {
        node == self.queue_node || Some(node) == self.deputy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Moment;

    const AT_ONCE: Moment = Moment::from_origin(std::time::Duration::ZERO);

    fn listening(count: usize) -> Vec<Node> {
        (0..count).map(|_| Node { listening: true, ..Node::default() }).collect()
    }

    fn at(nodes: &[Node]) -> (usize, Option<usize>) {
        let Places { queue_node, deputy } = Places::at(nodes);
        (queue_node, deputy)
    }

    #[test]
    fn places_are_at_the_first_two_nodes_that_answer_in_time_and_can_call() {
        let mut nodes = listening(5);
        assert_eq!(at(&nodes), (0, Some(1)));
        nodes[0].probe = Some(AT_ONCE);
        assert_eq!(at(&nodes), (1, Some(2)), "one that was too slow to be heard");
        (nodes[0].probe, nodes[0].slow) = (None, true);
        assert_eq!(at(&nodes), (1, Some(2)), "one that takes much longer");
        nodes[0].slow = false;
        nodes[1].silent = true;
        assert_eq!(at(&nodes), (0, Some(2)));
        nodes[0].listening = false;
        assert_eq!(at(&nodes), (2, Some(3)));
    }

    #[test]
    fn without_calls_places_are_at_the_first_node_that_answers() {
        let mut nodes: Vec<_> = (0..3).map(|_| Node::default()).collect();
        assert_eq!(at(&nodes), (0, None));
        nodes[0].silent = true;
        assert_eq!(at(&nodes), (1, None));
        nodes.iter_mut().for_each(|node| node.silent = true);
        assert_eq!(at(&nodes), (0, None), "as good as any");
    }

    #[test]
    fn a_deputy_is_never_needed_for_a_majority() {
        for (count, most_failures) in [(1, 0), (3, 0), (4, 0), (5, 1), (7, 2)] {
            for failures in 0..count {
                let mut nodes = listening(count);
                nodes.iter_mut().rev().take(failures).for_each(|node| node.silent = true);
                let expected = (failures <= most_failures && count > 1).then_some(1);
                assert_eq!(at(&nodes), (0, expected), "{failures} of {count} are silent");
            }
        }
    }
}
