//! Which nodes of a quorum vote: a server that has several names has one vote; pure.

use std::sync::Arc;

use crate::backend::BackendError;

/// The servers that answer by the name of each node, as far as they are known.
#[derive(Debug)]
pub(super) struct Voters {
    nodes: Vec<Voter>,
    /// Nodes that have lost their votes, each with the node that votes for its server; to be logged.
    news: Vec<(usize, usize)>,
}

#[derive(Clone, Debug, Default)]
struct Voter {
    server: Option<Arc<str>>,
    /// The node that votes for the same server.
    twin: Option<usize>,
}

impl Voters {
    pub(super) fn new(nodes: usize) -> Self {
        Self { nodes: vec![Voter::default(); nodes], news: Vec::new() }
    }

    /// Records the server that answers as a node, if it is known. Returns the other node that votes for this server:
    /// the first to answer votes until its name leads to another server.
    pub(super) fn sees(&mut self, node: usize, server: Option<&str>) -> Option<usize> {
        let Some(server) = server else { return self.nodes[node].twin };
        let votes = |(other, voter): (usize, &Voter)| {
            other != node && voter.twin.is_none() && voter.server.as_deref() == Some(server)
        };
        let twin = self.nodes.iter().enumerate().position(votes);
        let voter = &mut self.nodes[node];
        if voter.server.as_deref() != Some(server) {
            voter.server = Some(server.into());
        }
        let before = std::mem::replace(&mut voter.twin, twin);
        self.news.extend(twin.filter(|_| before != twin).map(|twin| (node, twin)));
        twin
    }

    /// Takes the nodes that have lost their votes since this was last asked, each with the one that votes for its server.
    pub(super) fn take_news(&mut self) -> Vec<(usize, usize)> {
        std::mem::take(&mut self.news)
    }

    /// A node without a vote of its own, and the one that votes for its server.
    pub(super) fn any_twins(&self) -> Option<(usize, usize)> {
        (0..self.nodes.len()).find_map(|node| Some((node, self.nodes[node].twin?)))
    }
}

/// The error of a node that is the same server as its twin, which votes for both.
pub(super) fn same_server(node: usize, twin: usize) -> BackendError {
    let (node, twin) = (node + 1, twin + 1);
    let message = format!("node {node} is the same server as node {twin} under another name; name independent servers");
    BackendError::unsupported(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Voters {
        fn votes(&mut self, node: usize, server: &str) -> bool {
            self.sees(node, Some(server)).is_none()
        }
    }

    #[test]
    fn the_first_name_by_which_a_server_answers_has_its_vote() {
        let mut voters = Voters::new(3);
        assert!(voters.votes(1, "a") && voters.votes(2, "b"));
        assert_eq!(voters.sees(0, Some("a")), Some(1));
        assert_eq!(voters.take_news(), [(0, 1)]);
        assert_eq!(voters.sees(0, Some("a")), Some(1));
        assert_eq!(voters.take_news(), [], "that was said");
        assert_eq!(voters.any_twins(), Some((0, 1)));
        assert!(voters.votes(1, "a"), "still the first");
    }

    #[test]
    fn a_name_that_leads_elsewhere_gives_its_vote_up() {
        let mut voters = Voters::new(3);
        assert!(voters.votes(0, "a") && voters.votes(1, "b"));
        assert!(!voters.votes(1, "a") && !voters.votes(1, "a"));
        assert!(voters.votes(0, "c") && voters.votes(1, "a"));
        assert!(!voters.votes(0, "a"));
        assert_eq!(voters.any_twins(), Some((0, 1)));
    }

    #[test]
    fn a_restarted_server_has_one_vote_whichever_name_connects_first() {
        let mut voters = Voters::new(2);
        assert!(voters.votes(0, "a") && !voters.votes(1, "a"));
        assert!(voters.votes(1, "a again"));
        assert!(!voters.votes(0, "a again"));
    }

    #[test]
    fn a_server_that_is_not_known_votes_unless_it_was_a_twin() {
        let mut voters = Voters::new(3);
        assert!(voters.sees(0, None).is_none() && voters.sees(1, None).is_none());
        assert!(voters.votes(0, "a") && !voters.votes(1, "a"));
        assert_eq!(voters.sees(1, None), Some(0));
        assert!(voters.sees(0, None).is_none());
        assert!(!voters.votes(1, "a"), "the other one is remembered while it is not connected");
    }
}
