use std::time::Duration;

#[cfg(doc)]
use super::Backend;
use super::Token;
use crate::{clock::Moment, key::LockKey};

/// The unasked message of a store to a waiter: the key now holds the token of the waiter's [`Place`](super::Place).
///
/// The key is kept for the waiter for [`lasts`](Self::lasts) from the grant on. The lease is held when an acquire with the
/// token answers [`Outcome::Held`](super::Outcome::Held), or at once if [`Backend::grants_leases`] is `true`. A token that
/// no waiter has must be released.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The key.
    pub key: LockKey,
    /// The token that it holds.
    pub token: Token,
    /// When the acquire was sent that made the place or refreshed it last, as the place says.
    pub sent: Moment,
    /// For how long the key is kept from the grant on, as the place says.
    pub lasts: Duration,
    /// The first fencing token of the block that was drawn for the grant.
    pub fence: u64,
    /// How many numbers the block has.
    pub block: u32,
    /// Whether one node of several granted it: then its fencing token says nothing of the lease that a majority has.
    pub(crate) of_one_node: bool,
    /// Whether another comes first by the node that decides: then a waiter does not come, and any other token is to be
    /// released all the same.
    #[doc(hidden)]
    pub out_of_turn: bool,
}

impl Grant {
    /// Makes the message of a grant.
    #[must_use]
    pub fn new(key: LockKey, token: Token, sent: Moment, lasts: Duration, (fence, block): (u64, u32)) -> Self {
        Self { key, token, sent, lasts, fence, block, of_one_node: false, out_of_turn: false }
    }
}
