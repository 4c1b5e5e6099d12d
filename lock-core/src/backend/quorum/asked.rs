//! A request to a node, and how the node was reached; pure.

use std::{collections::HashSet, time::Duration};

use crate::{
    backend::{Batch, Token},
    clock::Moment,
};

/// A request to a node.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) node: usize,
    pub(super) batch: Batch,
    pub(super) sent: Moment,
    pub(super) way: Way,
    /// Tokens to be released of which it surely has nothing.
    pub(super) needless: HashSet<Token>,
    /// Tokens that are put back instead of being renewed.
    pub(super) put_back: HashSet<Token>,
    /// Within which time the answer is of use: that of the renewals which became acquires.
    pub(super) within: Duration,
}

/// How a node was reached when it was asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub(super) epoch: u64,
    /// Whether the request left at once.
    pub(super) open: bool,
}

impl Asked {
    pub(super) fn new(node: usize, batch: Batch, sent: Moment, way: Way) -> Self {
        let (needless, put_back) = (HashSet::new(), HashSet::new());
        Self { node, batch, sent, way, needless, put_back, within: Duration::MAX }
    }

    /// Whether it has left by an epoch of the node, as far as is known: one that found no connection waits for the next.
    pub(super) fn has_left(&self, epoch: u64) -> bool {
        self.way.open || epoch != self.way.epoch
    }
}
