//! The operations of a backend.

use std::{sync::Arc, time::Duration};

use super::token::Token;
#[cfg(doc)]
use super::{Backend, Outcome};
use crate::{clock::Moment, key::LockKey, replicas::Replicas};

/// One item of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Takes the key if it is free and no waiter comes first. Answers [`Outcome::Held`], [`Outcome::Busy`],
    /// [`Outcome::Split`] or [`Outcome::NotFree`].
    Acquire(Acquire),
    /// Moves the expiry of the key out, if it is held with the token. Answers [`Outcome::Renewed`] or
    /// [`Outcome::Gone`].
    Renew(Renew),
    /// Deletes the key, or leaves it to expire, if it is held with the token; gives up the token's place. Answers
    /// [`Outcome::Released`] or [`Outcome::Gone`].
    Release(Release),
    /// Reads whether the key is held. Answers [`Outcome::Busy`] if it is held exclusively, [`Outcome::Shared`] if it is shared or has
    /// permits, or [`Outcome::Gone`].
    Inspect {
        /// The key.
        key: LockKey,
    },
    /// Deletes the key of any holder, without a token. Answers [`Outcome::Released`] or [`Outcome::Gone`].
    Force {
        /// The key.
        key: LockKey,
        /// Whether holders of other libraries are removed too; if not, they answer [`Outcome::Gone`].
        foreign: bool,
    },
}

/// Takes `key` for `token` if it is free and no live place comes before that of `token`.
///
/// A key that holds `token` already (a repeated request) is held again, for at least the full ttl and with new fencing
/// tokens. A token that takes the key gives up its place. If the key is free and others come first, it is granted to the
/// first of them, and is busy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Acquire {
    /// The key.
    pub key: LockKey,
    /// The proof of holding to set, drawn for this key alone.
    pub token: Token,
    /// How long the key is held without a renewal; whole milliseconds, 10 ms to 100 years.
    pub ttl: Duration,
    /// How many fencing tokens to take, at least 1. A store may give fewer, but not none.
    pub block: u32,
    /// If set, the key is taken only from this token, and not if it is free; otherwise the answer is [`Outcome::Gone`].
    ///
    /// The [`token`](Self::token) itself restores at this node a lease that a majority of the quorum has. It then also takes a free key,
    /// ahead of waiters, and a key that is reserved for a waiter whose exclusive grant is not confirmed.
    pub from: Option<Token>,
    /// The place to keep in the queue of the key if it cannot be taken, or `None` for a single try. A token that has a place
    /// keeps its turn.
    pub place: Option<Place>,
    /// Whether the caller expects that the key is free and has no waiters. A store may then use a quicker way and read
    /// only the key. If the key is not free, or there is no fencing token for it, the store answers
    /// [`Outcome::NotFree`] and keeps no place; it may do so for exclusive tokens only. Default: `false`.
    pub expects_free: bool,
    /// Whether the key is taken only if all acquires of the batch are held. If one is not, the store gives back in the same call
    /// what it has taken for the others, and answers [`Outcome::Gone`] for those. A store of several parts does so in each part by
    /// itself. All operations of such a batch are acquires of this kind, without a place. Default: `false`.
    pub all_or_none: bool,
    /// The least number that the fencing tokens may begin with, in µs since 1970; zero if the store counts
    /// alone.
    pub floor: u64,
    /// A number to begin with, in µs since 1970; zero for none. The store uses it if it is at most [`AIMS_WITHIN`] ahead of the
    /// store's own next number, so that several stores whose clocks differ a little count alike. A store may ignore it.
    #[doc(hidden)]
    pub aim: u64,
}

/// How far ahead of a store's next fencing token an [aim](Acquire::aim) may be. An aim never raises the numbers by more, even if
/// the caller's clock is wrong.
pub const AIMS_WITHIN: Duration = Duration::from_millis(10);

/// A place in the queue of a key: how its process is notified of a grant, and for how long the grant keeps the key.
///
/// A place is *live* until `life` has passed since the last acquire that asked for it. When the key is free, it is granted
/// to the first live place: it then holds the place's token for [`lasts`](Self::lasts), and the place is gone. A place
/// whose channel has no subscriber is passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The channel of the process; empty if the process cannot be notified and polls.
    pub channel: Arc<str>,
    /// How long the place lasts without another acquire; whole milliseconds.
    pub life: Duration,
    /// For how long the key is kept for the token from the grant on; whole milliseconds.
    pub lasts: Duration,
    /// When the acquire was sent, by the clock of the caller. The [`Grant`](super::Grant) repeats it in whole microseconds, and only
    /// the caller reads it.
    pub sent: Moment,
}

/// Moves the expiry of `key` out to `ttl` from now, and never shortens it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renew {
    /// The key.
    pub key: LockKey,
    /// The proof of holding.
    pub token: Token,
    /// The time from the execution of the request to the new expiry; whole milliseconds.
    pub ttl: Duration,
    /// How many new fencing tokens to take along; zero for none.
    pub block: u32,
    /// The least number that the new fencing tokens may begin with; zero if the store counts alone.
    pub floor: u64,
    /// A number to begin with if the store counts near it; see [`Acquire::aim`].
    #[doc(hidden)]
    pub aim: u64,
    /// The time in which an answer is useful. A store that can act on silence, for example by replacing its connection, does
    /// so within this time, so that the renewal can be retried before the lease ends. Default: [`Duration::MAX`].
    pub within: Duration,
    /// Whether the store should notify the engine if another client writes to the key after this, by
    /// [`Calls::changed`](super::Calls::changed). A store may ignore it. Default: `false`.
    pub watch: bool,
    /// How many replicas must have the key with the token before the answer is [`Outcome::Renewed`]. If too few do in time,
    /// the answer is [`BackendError::not_replicated`](super::BackendError::not_replicated). Default: `None`, the store itself is
    /// enough.
    ///
    /// Set only for stores that [wait for replicas](Backend::waits_for_replicas), and in one batch either for all operations or for
    /// none.
    pub replicas: Option<Replicas>,
}

/// Deletes `key` if it is held with `token`, or leaves it to expire. The token's place is given up first. If the key is then
/// free, it is granted to the first waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Release {
    /// The key.
    pub key: LockKey,
    /// The proof of holding.
    pub token: Token,
    /// If above zero, the key is not deleted but expires after this time, whether that is sooner or later than before; whole
    /// milliseconds.
    pub after: Duration,
    /// Whether the token may have a place.
    pub place: bool,
    /// Whether the key is granted to nobody: for a token that was not a lease, so that the key may be as busy as before.
    pub quiet: bool,
    /// Until when the token can block others if this release is lost, by the [clock](Backend::clock) of the backend. A store of
    /// several nodes repeats the release to each node until the node has answered, or until this moment. Default:
    /// [`Moment::NEVER`], not known.
    pub until: Moment,
}

impl Operation {
    /// Whether it is executed only together with the others of its batch.
    pub(crate) fn is_all_or_none(&self) -> bool {
        matches!(self, Self::Acquire(acquire) if acquire.all_or_none)
    }

    /// Returns the least number that the fencing tokens of a batch may begin with, and the number to begin with if that is near; zero
    /// for none.
    pub(crate) fn numbers(batch: &[Self]) -> (u64, u64) {
        batch.iter().fold((0, 0), |(floor, aim), operation| match operation {
            Self::Acquire(acquire) => (acquire.floor.max(floor), acquire.aim.max(aim)),
            Self::Renew(renew) => (renew.floor.max(floor), renew.aim.max(aim)),
            _ => (floor, aim),
        })
    }

    /// Returns how many replicas it waits for, if it does.
    pub(crate) fn replicas(&self) -> Option<Replicas> {
        self.as_renew()?.replicas
    }

    pub(crate) fn as_acquire(&self) -> Option<&Acquire> {
        match self {
            Self::Acquire(acquire) => Some(acquire),
            _ => None,
        }
    }

    pub(crate) fn as_renew(&self) -> Option<&Renew> {
        match self {
            Self::Renew(renew) => Some(renew),
            _ => None,
        }
    }

    /// Returns the key that it is about.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        match self {
            Self::Acquire(acquire) => &acquire.key,
            Self::Renew(renew) => &renew.key,
            Self::Release(release) => &release.key,
            Self::Inspect { key } | Self::Force { key, .. } => key,
        }
    }
}

sets! { Acquire =>
    /// Keeps a place in the queue if the key cannot be taken.
    #[must_use]
    pub or_wait(place: Place) => place = Some(place);

    /// Lets the store answer [`Outcome::NotFree`] if the key is not free.
    #[must_use]
    pub expecting_free() => expects_free = true;

    /// Takes the key only together with the others of the batch.
    #[must_use]
    pub with_all() => all_or_none = true;

    /// Takes the key from a holder that gave its token away.
    #[must_use]
    pub from(token: Token) => from = Some(token);
}

impl Acquire {
    /// Takes one fencing token along with the key.
    #[must_use]
    pub fn new(key: LockKey, token: Token, ttl: Duration) -> Self {
        let (from, place, floor, aim) = (None, None, 0, 0);
        Self { key, token, ttl, block: 1, from, place, expects_free: false, all_or_none: false, floor, aim }
    }

    /// Until when it can block others if it is sent at `sent` and executed in time: by its key, or by a grant to its place.
    pub(crate) fn blocks_until(&self, sent: Moment) -> Moment {
        let by_place = self.place.as_ref().map_or(Duration::ZERO, |place| place.life + place.lasts);
        sent + self.ttl.max(by_place)
    }
}

impl Place {
    /// Makes a place; `channel` is empty for a process that cannot be notified.
    #[must_use]
    pub fn new(channel: Arc<str>, life: Duration, lasts: Duration, sent: Moment) -> Self {
        // With no time at all, the queue would stop at this place.
        Self { channel, life, lasts: lasts.max(Duration::from_millis(1)), sent }
    }
}

sets! { Renew =>
    /// Waits until so many replicas have the key with the token.
    #[must_use]
    pub on_replicas(replicas: Replicas) => replicas = Some(replicas);

    /// Takes new fencing tokens along.
    #[must_use]
    pub with_block(block: u32) => block = block;
}

impl Renew {
    /// Makes the request.
    #[must_use]
    pub fn new(key: LockKey, token: Token, ttl: Duration) -> Self {
        Self { key, token, ttl, block: 0, floor: 0, aim: 0, within: Duration::MAX, watch: false, replicas: None }
    }
}

sets! { Release =>
    /// Gives up the place that the token may have.
    #[must_use]
    pub with_place() => place = true;

    /// Leaves the key to expire after a time instead of deleting it.
    #[must_use]
    pub after(after: Duration) => after = after;
}

impl Release {
    /// Until when the key is to stay busy if it is sent at `sent`; the origin of time if it is free at once.
    pub(crate) fn keeps_until(&self, sent: Moment) -> Moment {
        if self.after.is_zero() { Moment::from_origin(Duration::ZERO) } else { sent + self.after }
    }

    /// Makes the request.
    #[must_use]
    pub fn new(key: LockKey, token: Token) -> Self {
        Self { key, token, after: Duration::ZERO, place: false, quiet: false, until: Moment::NEVER }
    }
}
