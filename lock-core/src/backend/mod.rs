//! Where leases are kept: the trait that every store implements, and its requests and replies.
//!
//! A [`Backend`] answers batches of five operations: acquire, renew and release, each idempotent by its token, and
//! inspect and force, which ask for none. It keeps a queue per key, one [`Place`] for each process that waits, and calls
//! the first of them when the key is free; it never gives a lease to anybody who does not ask for it. Holders, waiters
//! and renewal live in the engine. [`MemoryBackend`] is the store in the process, `RedisBackend` (feature `redis`) a
//! server. Another store implements the trait, passes `lock_core::conformance` (feature `test-util`), and is given to
//! [`LockManagerBuilder::backend`](crate::LockManagerBuilder::backend).

mod memory;
#[cfg(feature = "redis")]
mod redis;

use std::{
    error, fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::{self, BoxFuture, Either, Ready};
use smallvec::SmallVec;
use tokio::sync::mpsc;

pub use self::memory::MemoryBackend;
#[cfg(feature = "redis")]
pub use self::redis::RedisBackend;
use crate::{
    clock::{Clock, SystemClock},
    error::ErrorKind,
    key::LockKey,
    token::Token,
};

/// The operations of one call: one as a rule, which needs no memory of its own.
pub type Batch = SmallVec<[Operation; 1]>;

/// What became of the operations of a batch.
pub type Outcomes = SmallVec<[Result<Outcome, BackendError>; 1]>;

/// The future of a backend's answer.
pub struct Reply<T>(Either<Ready<Replied<T>>, BoxFuture<'static, Replied<T>>>);

type Replied<T> = Result<T, BackendError>;

impl<T> Reply<T> {
    /// Makes the reply that `answer` gives.
    pub fn new(answer: impl Future<Output = Result<T, BackendError>> + Send + 'static) -> Self {
        Self(Either::Right(Box::pin(answer)))
    }

    /// Whether it was made by [`ready`](Self::ready).
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.0, Either::Left(_))
    }

    /// Makes a reply that is there already.
    pub fn ready(answer: Result<T, BackendError>) -> Self {
        Self(Either::Left(future::ready(answer)))
    }
}

impl<T> Future for Reply<T> {
    type Output = Result<T, BackendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").finish_non_exhaustive()
    }
}

/// A store of leases.
///
/// # Contract
///
/// * Requests that are polled one after the other are executed in that order for as long as [`epoch`](Self::epoch)
///   stays the same, also when the future of an earlier one was dropped half-way; but for those that were answered
///   [out of order](Answer::out_of_order).
/// * Every future answers within a time limit of the backend's own, whatever the network does.
/// * The operations of a batch are executed in order, one bad item never spoils the others, and each is idempotent by
///   its token, so that the backend may repeat a batch whose answer was lost.
/// * Dropping a future may or may not prevent the execution of a request that was polled.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Executes a batch in order and answers item by item. An empty batch asks for a sign of life.
    fn call(&self, batch: Batch) -> Reply<Answer>;

    /// Returns the keys that begin with `prefix` and are held by a lease of this library. Must not block the store for
    /// long, however many keys there are.
    fn list(&self, prefix: String) -> Reply<Vec<LockKey>>;

    /// Returns a number that changes whenever the order of requests may have been broken, as when a connection was
    /// replaced.
    fn epoch(&self) -> u64 {
        0
    }

    /// Returns the clock by which leases in this backend are kept: one that counts suspend, as a server's does, unless
    /// the store lives and dies with the process.
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    /// Returns the upkeep of the backend (connecting, heartbeats, listening for calls), which the engine polls inside
    /// its own task for as long as it runs. When it is dropped, the runtime is ending and what it set up must be given
    /// up.
    ///
    /// A backend that can call waiters says so by [`Calls::listening`], and passes on by [`Calls::called`] what comes
    /// for [`Calls::channel`]. One that cannot leaves `calls` alone: then waiters poll.
    fn upkeep(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        drop(calls);
        Box::pin(std::future::pending())
    }
}

/// One item of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Takes the key if it is free and nobody comes first. Answers [`Outcome::Held`], [`Outcome::Busy`] or
    /// [`Outcome::Queued`].
    Acquire(Acquire),
    /// Pushes the expiry of the key out, if it is held with the token. Answers [`Outcome::Renewed`] or
    /// [`Outcome::Gone`].
    Renew(Renew),
    /// Deletes the key, or leaves it to expire, if it is held with the token; gives up the token's place. Answers
    /// [`Outcome::Released`] or [`Outcome::Gone`].
    Release(Release),
    /// Says who has the key. Answers [`Outcome::Busy`] or [`Outcome::Gone`].
    Inspect {
        /// The key.
        key: LockKey,
    },
    /// Deletes the key whoever holds it. Answers [`Outcome::Released`] or [`Outcome::Gone`].
    Force {
        /// The key.
        key: LockKey,
        /// Whether holders of other libraries are removed too; if not, they answer [`Outcome::Gone`].
        foreign: bool,
    },
}

/// Takes `key` for `token` if it is free and nobody with a live place comes before `token`.
///
/// A key that holds `token` already (a repeated request) is held again, for at least the full ttl and with new fencing
/// tokens. A token that takes the key gives up its place. When the key is free and others come first, the first of them
/// is called.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Acquire {
    /// The key.
    pub key: LockKey,
    /// The proof of holding to set.
    pub token: Token,
    /// How long the key is held without a renewal; whole milliseconds, 10 ms to 100 years.
    pub ttl: Duration,
    /// How many fencing tokens to take, at least 1.
    pub block: u32,
    /// Where set, the key is not taken when it is free but only from this token; else the answer is
    /// [`Outcome::Gone`].
    pub from: Option<Token>,
    /// The place to keep in the queue of the key if it cannot be taken; none for a mere try. A token that has a place
    /// keeps it, and counts as not called.
    pub place: Option<Place>,
}

/// How a process that waits for a key is called when its turn has come.
///
/// A place is *live* until `life` has passed since the last acquire that asked for it, or `window` since it was called,
/// and for as long as somebody listens on its channel. Places that are not live are passed over and dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The channel of the process; empty for one that cannot be called and comes by itself.
    pub channel: Arc<str>,
    /// How long the place lasts without another acquire; whole milliseconds.
    pub life: Duration,
    /// How long the others wait for one that was called; whole milliseconds.
    pub window: Duration,
}

/// Pushes the expiry of `key` out to `ttl` from now, never below what is left (but for [`too_far`](Self::too_far)).
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
    /// What a renewal found to be left, where that is more than any request of this token can have asked for: the
    /// backend's clock was set back. If it is what is still left, or at most 2 s less, the expiry is set to `ttl` from
    /// now although that is sooner. Else it has been set by another request meanwhile.
    pub too_far: Option<Duration>,
}

/// Deletes `key` if it is held with `token`, or leaves it to expire.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Release {
    /// The key.
    pub key: LockKey,
    /// The proof of holding.
    pub token: Token,
    /// Where above zero, the key is not deleted but expires after this time, be that sooner or later than it would
    /// have; whole milliseconds.
    pub after: Duration,
    /// Whether the token may have a place, which is then given up.
    pub place: bool,
}

impl Acquire {
    /// Takes one fencing token along with the key.
    #[must_use]
    pub fn new(key: LockKey, token: Token, ttl: Duration) -> Self {
        Self { key, token, ttl, block: 1, from: None, place: None }
    }

    /// Keeps a place in the queue if the key cannot be taken.
    #[must_use]
    pub fn or_wait(mut self, place: Place) -> Self {
        self.place = Some(place);
        self
    }

    /// Takes the key from a holder that gave its token away.
    #[must_use]
    pub fn from(mut self, token: Token) -> Self {
        self.from = Some(token);
        self
    }
}

impl Place {
    /// Makes a place; `channel` is empty for a process that cannot be called.
    #[must_use]
    pub fn new(channel: Arc<str>, life: Duration, window: Duration) -> Self {
        Self { channel, life, window }
    }
}

impl Renew {
    /// Makes the request.
    #[must_use]
    pub fn new(key: LockKey, token: Token, ttl: Duration) -> Self {
        Self { key, token, ttl, block: 0, too_far: None }
    }

    /// Mends an expiry that is too far ahead, if it is the one that was found.
    #[must_use]
    pub fn mending(mut self, too_far: Duration) -> Self {
        self.too_far = Some(too_far);
        self
    }

    /// Takes new fencing tokens along.
    #[must_use]
    pub fn with_block(mut self, block: u32) -> Self {
        self.block = block;
        self
    }
}

impl Release {
    /// Makes the request.
    #[must_use]
    pub fn new(key: LockKey, token: Token) -> Self {
        Self { key, token, after: Duration::ZERO, place: false }
    }

    /// Gives up the place that the token may have.
    #[must_use]
    pub fn with_place(mut self) -> Self {
        self.place = true;
        self
    }

    /// Leaves the key to expire after a time instead of deleting it.
    #[must_use]
    pub fn after(mut self, after: Duration) -> Self {
        self.after = after;
        self
    }
}

/// The answer to a batch: one outcome per operation, in order.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Answer {
    /// What became of each operation.
    pub outcomes: Outcomes,
    /// Whether the batch was sent more than once, because an answer was lost: then a release that found nothing may
    /// have been executed before.
    pub repeated: bool,
    /// Whether the batch may have been executed after others that were sent after it, as when it had to be sent once more
    /// though nothing was lost: then an acquire may come after the release of its token.
    pub out_of_order: bool,
    /// Whether the store would not let this caller call a waiter, who then comes by itself.
    pub calls_refused: bool,
}

impl Answer {
    /// Makes the answer to a batch that was sent once.
    #[must_use]
    pub fn new(outcomes: impl IntoIterator<Item = Result<Outcome, BackendError>>) -> Self {
        Self { outcomes: outcomes.into_iter().collect(), repeated: false, out_of_order: false, calls_refused: false }
    }

    /// Returns the outcome of a batch of one.
    pub(crate) fn single(mut self) -> Result<Outcome, BackendError> {
        self.outcomes.pop().unwrap_or_else(|| {
            Err(BackendError::new(ErrorKind::Backend, "the backend answered a batch of one with nothing"))
        })
    }
}

/// What became of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The key is held with the token of the request.
    Held {
        /// The first fencing token of the block: larger than any that was given out for the key before.
        fence: u64,
        /// How many numbers the block has.
        block: u32,
    },
    /// Another holder has the key.
    Busy {
        /// The time to its expiry; none if it has no ttl.
        remaining: Option<Duration>,
        /// Whether the holder is another library, which calls nobody.
        foreign: bool,
        /// The place in the queue, from 1 on; none without a place.
        position: Option<u32>,
    },
    /// The key is free, but others who wait for it come first.
    Queued {
        /// The place in the queue, from 1 on; none without a place.
        position: Option<u32>,
    },
    /// The expiry was pushed out.
    Renewed {
        /// The time to the expiry by the backend's clock.
        remaining: Duration,
        /// The first of the new fencing tokens, if any were taken.
        fence: Option<u64>,
        /// How many new fencing tokens there are.
        block: u32,
    },
    /// The key was deleted, or left to expire.
    Released,
    /// The key is free, or held with another token.
    Gone,
}

/// What a backend tells the engine of its own accord: that a waiter is called, and whether waiters can be called.
///
/// Clones tell the same engine. Telling never blocks, and does nothing when the engine has ended.
#[derive(Clone, Debug)]
pub struct Calls {
    channel: Arc<str>,
    sender: mpsc::UnboundedSender<Notice>,
}

/// What was told.
#[derive(Debug)]
pub(crate) enum Notice {
    Called { key: LockKey, token: Token },
    Listening(bool),
}

impl Calls {
    pub(crate) fn new(channel: Arc<str>) -> (Self, mpsc::UnboundedReceiver<Notice>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self { channel, sender }, receiver)
    }

    /// Makes one that tells nobody, for tests that poll the upkeep of a backend themselves.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn to_nobody() -> Self {
        Self::new("lock-core:calls:nobody".into()).0
    }

    /// Returns the name of the channel that the engine's places name: random, and the same for as long as the engine
    /// lives.
    #[must_use]
    pub fn channel(&self) -> &Arc<str> {
        &self.channel
    }

    /// Says that the place of `token` in the queue of `key` was called.
    pub fn called(&self, key: LockKey, token: Token) {
        let _ = self.sender.send(Notice::Called { key, token });
    }

    /// Says whether calls can reach the engine from now on. To be said again after every gap, since calls may have been
    /// lost in it.
    pub fn listening(&self, listening: bool) {
        let _ = self.sender.send(Notice::Listening(listening));
    }
}

/// Why a backend could not execute a request.
#[derive(Clone, Debug)]
pub struct BackendError {
    kind: ErrorKind,
    message: String,
    source: Option<Arc<dyn error::Error + Send + Sync>>,
    /// Whether the request may have been, or may still be, executed.
    may_have_happened: bool,
}

impl BackendError {
    /// Makes an error of a request that may have been executed.
    ///
    /// `kind` is one of [`ErrorKind::Backend`], [`ErrorKind::WrongType`], [`ErrorKind::Unsupported`] and
    /// [`ErrorKind::Denied`]. `message` says what happened and what to do, in one lower-case sentence without
    /// passwords or tokens.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None, may_have_happened: true }
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Says that the request was surely not executed and never will be.
    #[must_use]
    pub fn did_not_happen(mut self) -> Self {
        self.may_have_happened = false;
        self
    }

    #[cfg(feature = "redis")]
    pub(crate) fn in_doubt(mut self) -> Self {
        self.may_have_happened = true;
        self
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn may_have_happened(&self) -> bool {
        self.may_have_happened
    }

    pub(crate) fn into_parts(self) -> (ErrorKind, String, Option<Arc<dyn error::Error + Send + Sync>>) {
        (self.kind, self.message, self.source)
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl error::Error for BackendError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
