//! The state that the calls to a quorum and its driver share.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Notify, mpsc::UnboundedSender};

use super::{
    asked::Way,
    ledger::Ledger,
    voters::{Voters, same_server},
};
use crate::{
    backend::{Backend, BackendError},
    clock::Clock,
};

/// The rest of a request, which the driver polls.
pub(super) type Ending = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The nodes, and what is known of them.
pub(super) struct Quorum {
    pub(super) nodes: Vec<Arc<dyn Backend>>,
    pub(super) clock: Arc<dyn Clock>,
    ledger: Mutex<Ledger>,
    /// Which of the nodes are servers of their own.
    voters: Mutex<Voters>,
    /// Held while nodes are asked: what is entered first leaves first.
    pub(super) order: Mutex<()>,
    /// Wakes the driver when a release to a node is pending.
    pub(super) release_pending: Notify,
    /// Takes requests to slow nodes to the driver, once that runs.
    pub(super) left: Mutex<Option<UnboundedSender<Ending>>>,
}

impl Quorum {
    pub(super) fn new(nodes: Vec<Arc<dyn Backend>>, clock: Arc<dyn Clock>) -> Self {
        let ledger = Mutex::new(Ledger::new(nodes.len()));
        let voters = Mutex::new(Voters::new(nodes.len()));
        let (order, release_pending, left) = (Mutex::default(), Notify::new(), Mutex::default());
        Self { nodes, clock, ledger, voters, order, release_pending, left }
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn way_to(&self, node: usize) -> Way {
        let backend = &self.nodes[node];
        Way { epoch: backend.epoch(), open: backend.is_reachable() }
    }

    pub(super) fn voters(&self) -> MutexGuard<'_, Voters> {
        self.voters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says in the log which nodes have lost their votes. No lock is held meanwhile: a log writer may use this store.
    pub(super) fn tell_of_twins(&self) {
        let news = self.voters().take_news();
        for (node, twin) in news {
            log!(warn, error = %same_server(node, twin), "a node of the quorum has no vote");
        }
    }

    /// The error of a node that is another one's server, which has one vote.
    pub(super) fn same_server(&self, node: usize, server: Option<&str>) -> Option<BackendError> {
        let twin = self.voters().sees(node, server)?;
        Some(same_server(node, twin))
    }
}
