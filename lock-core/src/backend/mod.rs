//! Stores of leases: the trait that every store implements, its requests and its replies.
//!
//! A [`Backend`] answers batches of five operations: acquire, renew and release, each idempotent by its token, and
//! inspect and force, which need no token. It keeps a queue for each key, with one [`Place`] for each process that waits. A key that
//! becomes free is granted to the first place in the same step, for as long as the place says. The process of that place is
//! notified by a [`Grant`]; it holds the lease at once, or when its next acquire succeeds. Holders, waiters and renewal live in the
//! engine.
//!
//! [`MemoryBackend`] is the store in the process, `RedisBackend` (feature `redis`) is Redis, and [`QuorumBackend`] is a majority of
//! several servers. For a store of your own, implement the trait, check it with the suite `lock_test::conformance`, and
//! give it to [`LockManagerBuilder::backend`](crate::LockManagerBuilder::backend).

mod calls;
pub(crate) mod cleanup;
mod error;
mod grant;
mod host;
mod memory;
mod operation;
pub(crate) mod options;
mod quorum;
#[cfg(feature = "redis")]
mod redis;
#[doc(hidden)]
pub mod store;
pub(crate) mod timeouts;
pub(crate) mod token;
pub(crate) mod url;

use std::{
    fmt, iter,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::BoxFuture;
use smallvec::SmallVec;

#[cfg(feature = "redis")]
pub(crate) use self::redis::Provider;
#[cfg(feature = "redis")]
pub use self::redis::RedisBackend;
pub use self::{
    calls::Calls,
    error::BackendError,
    grant::Grant,
    memory::MemoryBackend,
    operation::{Acquire, Operation, Place, Release, Renew},
    quorum::QuorumBackend,
    token::{ForeignToken, TOKEN_MARK, Token},
};
#[doc(hidden)]
pub use self::{calls::Notice, operation::AIMS_WITHIN};
pub use crate::mode::BusyReason;
use crate::{
    clock::{Clock, SystemClock},
    health::NodeHealth,
    key::LockKey,
};

/// The channel to which all managers of a store listen.
pub const EVERYONE: &str = "lock-core:calls:all";

/// The operations of one call. A single one, as most are, needs no memory of its own.
///
/// # Examples
///
/// ```
/// use lock_core::{
///     backend::{Batch, Operation},
///     key::LockKey,
/// };
///
/// # fn main() -> Result<(), lock_core::Error> {
/// let batch = Batch::from([Operation::Inspect { key: LockKey::new("goods:1")? }]);
/// assert_eq!(batch.len(), 1);
/// for operation in batch {
///     println!("{}", operation.key());
/// }
/// # Ok(()) }
/// ```
pub type Batch = SmallVec<[Operation; 1]>;

/// The outcomes of the operations of a batch.
pub type Outcomes = SmallVec<[Result<Outcome, BackendError>; 1]>;

/// The future of a backend's answer.
pub struct Reply<T>(Progress<T>);

enum Progress<T> {
    /// The answer, until it is taken.
    Answered(Option<Replied<T>>),
    /// If the request has left: numbers that rise with the answers that are read, and what they were before.
    Awaited(BoxFuture<'static, Replied<T>>, Option<Counts>),
}

/// For each connection that a request has left over: how many answers were read, and how many before those to the request.
type Counts = SmallVec<[(Arc<AtomicU64>, u64); 1]>;

pub(crate) type Replied<T> = Result<T, BackendError>;

impl<T> Reply<T> {
    /// Makes the reply that `answer` gives. The request leaves when that is polled.
    pub fn new(answer: impl Future<Output = Result<T, BackendError>> + Send + 'static) -> Self {
        Self(Progress::Awaited(Box::pin(answer), None))
    }

    /// Makes a reply that is there already.
    pub fn ready(answer: Result<T, BackendError>) -> Self {
        Self(Progress::Answered(Some(answer)))
    }

    /// Makes the reply to a request that has been put on the wire. If it has `left`, its answer may be there once more answers were read
    /// than before; until then it need not be polled.
    #[cfg(any(test, feature = "redis"))]
    pub(crate) fn put(answer: BoxFuture<'static, Replied<T>>, left: Option<Counts>) -> Self {
        Self(Progress::Awaited(answer, left))
    }

    /// Takes the answer if it is there already.
    pub(crate) fn take(&mut self) -> Option<Replied<T>> {
        match &mut self.0 {
            Progress::Answered(answer) => answer.take(),
            Progress::Awaited(..) => None,
        }
    }

    /// Takes what is left of a reply whose answer has come.
    pub(crate) fn take_rest(&mut self) -> Self {
        Self(std::mem::replace(&mut self.0, Progress::Answered(None)))
    }

    /// Whether the answer may have been read already.
    pub(crate) fn is_overtaken(&self) -> bool {
        let Progress::Awaited(_, Some(counts)) = &self.0 else { return false };
        counts.iter().any(|(read, before)| read.load(Ordering::Acquire) > *before)
    }

    /// Whether the request leaves only when this is polled.
    pub(crate) fn is_unsent(&self) -> bool {
        matches!(self.0, Progress::Awaited(_, None))
    }
}

// The futures are boxed, and no answer is pinned.
impl<T> Unpin for Reply<T> {}

impl<T> Future for Reply<T> {
    type Output = Result<T, BackendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Progress::Answered(answer) => answer.take().map_or(Poll::Pending, Poll::Ready),
            Progress::Awaited(answer, _) => answer.as_mut().poll(cx),
        }
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
/// * Requests are executed in the order in which they leave: with the [`call`](Self::call) if the backend
///   [sends at once](Self::sends_at_once), and with the first poll of the reply otherwise. This holds for as long as
///   [`epoch`](Self::epoch) stays the same, even if an earlier reply was dropped half-way. Requests that were answered
///   [out of order](Answer::out_of_order) are the exception.
/// * Every future completes within a time limit of the backend, even if the network is silent.
/// * The operations of a batch are executed in order, and one bad item never spoils the others. Each is idempotent by its token,
///   so the backend may repeat a batch whose answer was lost.
/// * Dropping a reply may or may not prevent the execution of a request that has left.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Executes a batch in order and answers item by item. An empty batch checks whether the store answers.
    fn call(&self, batch: Batch) -> Reply<Answer>;

    /// Returns the keys that begin with `prefix` and are held by a lease of this library. Must not block the store for
    /// long, however many keys there are.
    fn list(&self, prefix: String) -> Reply<Vec<LockKey>>;

    /// Publishes a message to the managers of the store that listen on a channel: on the [channel](Calls::channel) of one manager,
    /// or on [`EVERYONE`]. The backend of each receiver passes it on by [`Calls::message`]. Returns how many managers have received
    /// it, or `None` if that is not known of all nodes.
    ///
    /// Used only to [inspect](crate::LockManager::inspect) holders and waiters; no lease depends on it. Default: an error of kind
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported), so that a manager knows of its own holders and waiters only.
    fn publish(&self, channel: Arc<str>, message: String) -> Reply<Option<usize>> {
        drop((channel, message));
        Reply::ready(Err(
            BackendError::unsupported("this backend carries no messages between managers").did_not_happen()
        ))
    }

    /// Returns a number that changes whenever the order of requests may have been broken, as when a connection was
    /// replaced. Default: 0, since nothing breaks the order.
    fn epoch(&self) -> u64 {
        0
    }

    /// Returns whether a [`call`](Self::call) is sent, or even answered, by the time that it returns. Then the thread of a request makes
    /// the call, and no task stands between. If it is not sent after all, the engine's task polls the reply. Asked before each step of
    /// the engine, so that it may change. Neither this nor the calls may block, and the answers must be read by the
    /// [driver](Self::driver) of the manager that calls. Default: `false`.
    fn sends_at_once(&self) -> bool {
        false
    }

    /// Returns whether nothing but sockets and timers of the runtime wakes the [driver](Self::driver). Default: `false`, as it may wait for
    /// other tasks.
    #[doc(hidden)]
    fn is_driven(&self) -> bool {
        false
    }

    /// Returns whether a [`Grant`] is a lease, because the key then holds the token in the whole store, and not only on one node.
    /// Default: `false`. Called once, inside the engine's task.
    ///
    /// If it is, a waiter may hold as soon as it is notified, for the rest of [`Grant::lasts`], which may be less than a second
    /// until the first renewal. Otherwise the waiter confirms by an acquire, which is always safe.
    fn grants_leases(&self) -> bool {
        false
    }

    /// Returns whether the store can wait until its replicas have a key ([`Renew::replicas`]). Must not block. Default: an error of
    /// kind [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported). A request with a
    /// [`durability`](crate::LockRequest::durability) fails with the error.
    ///
    /// # Errors
    /// [`BackendError::unsupported`] if the store has no replicas, or does not know of them.
    fn waits_for_replicas(&self) -> Result<(), BackendError> {
        Err(BackendError::unsupported("this backend does not wait for replicas; leave `durability` out")
            .did_not_happen())
    }

    /// Returns whether the store can count the holders of a key, so that it gives [permits](crate::Mode::Permits). Must not block.
    /// Default: `Ok(())`.
    ///
    /// # Errors
    /// [`BackendError::unsupported`] with the reason why it cannot.
    fn counts_permits(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Returns whether a request that is polled now is sent at once. Default: `true`. Without a connection, the request is sent
    /// when the [`epoch`](Self::epoch) changes, and never if it is dropped before.
    fn is_reachable(&self) -> bool {
        true
    }

    /// Returns the time within which every call is answered, if only with an error. A call that waits for replicas may take
    /// their timeout and a second longer. Default: [`Duration::MAX`].
    fn time_limit(&self) -> Duration {
        Duration::MAX
    }

    /// Returns how many calls of acquires and releases may be in flight; later requests share the next call. A larger number is for a
    /// store that is far away, or whose calls wait for independent servers. The engine asks before each of its steps, so the number may
    /// change, for example with a new connection. Must not block. Default: 2.
    fn calls_at_once(&self) -> usize {
        2
    }

    /// Returns a text that identifies this store, or `None` if none is known yet. Two nodes of a quorum with the same
    /// identity are one store under two names, and have one vote. Default: `None`.
    fn identity(&self) -> Option<Arc<str>> {
        None
    }

    /// Returns the state of each node as far as it is known, without a round trip. Must not block. Default: one node that
    /// [is reachable](Self::is_reachable) or not.
    fn health(&self) -> Vec<NodeHealth> {
        vec![NodeHealth::new("backend", self.is_reachable())]
    }

    /// Returns the clock of leases in this backend. It counts suspended time, as a server's clock does, unless
    /// the store lives and dies with the process. Default: a [`SystemClock`].
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    /// Returns `true` when the driver has no outstanding work. The engine does not stop before that. Default: `true`.
    fn is_settled(&self) -> bool {
        true
    }

    /// Returns whether the backend is not [settled](Self::is_settled) only because it has requests for nodes that are known not to
    /// answer. A shutdown does not wait for them; the engine keeps sending the requests for as long as its runtime lives.
    /// Default: `false`.
    fn is_held_up(&self) -> bool {
        false
    }

    /// Returns the driver of the backend (connecting, heartbeats, receiving messages), which the engine polls inside
    /// its own task for as long as that runs. When the driver is dropped, the runtime is ending, and the driver must close its
    /// connections. Default: nothing to do.
    ///
    /// A backend that can notify waiters calls [`Calls::listening`], and passes messages for [`Calls::channel`] on to
    /// [`Calls::granted`]. A backend that cannot leaves `calls` alone, and waiters poll.
    fn driver(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        drop(calls);
        Box::pin(std::future::pending())
    }
}

/// The answer to a batch: one outcome per operation, in order.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Answer {
    /// The outcome of each operation.
    pub outcomes: Outcomes,
    /// Whether the batch was sent more than once, because an answer was lost. A release that found nothing may then
    /// have been executed before.
    pub repeated: bool,
    /// Whether the batch may have been executed after batches that were sent later, for example because it had to be sent again
    /// although nothing was lost. An acquire may then be executed after the release of its token, and [`Outcome::Busy`] proves nothing
    /// against a lease of that token. An error of the whole call does not carry this flag, so a batch that failed after it was sent
    /// again is answered with an error for each operation.
    pub out_of_order: bool,
    /// Whether the store refused to notify a waiter of its grant on behalf of this caller. The waiter then finds out by its next check.
    pub calls_refused: bool,
    /// The store's clock, in µs since 1970; known if fencing tokens were requested with a floor or an aim. Only a quorum
    /// uses it.
    #[doc(hidden)]
    pub time: Option<u64>,
    /// The [identity](Backend::identity) of the store at the time of the answer; known if stores can change.
    /// (One pointer wide, since many futures hold an answer.)
    pub(crate) by: Option<Arc<String>>,
}

impl Answer {
    /// Makes the answer to a batch that was sent once.
    #[must_use]
    pub fn new(outcomes: impl IntoIterator<Item = Result<Outcome, BackendError>>) -> Self {
        let outcomes = outcomes.into_iter().collect();
        Self { outcomes, repeated: false, out_of_order: false, calls_refused: false, time: None, by: None }
    }

    /// Marks the operations that failed as possibly executed.
    #[cfg(feature = "redis")]
    pub(crate) fn in_doubt(mut self) -> Self {
        self.outcomes = self.outcomes.into_iter().map(|item| item.map_err(BackendError::in_doubt)).collect();
        self
    }

    /// Returns an answer, or as many errors as it was asked for.
    pub(crate) fn of(result: Result<Self, BackendError>, count: usize) -> Self {
        result.unwrap_or_else(|error| Self::new((0..count).map(|_| Err(error.clone()))))
    }

    /// Adds the outcomes of the operations that follow.
    pub(crate) fn append(&mut self, rest: Self) {
        self.note(&rest);
        self.outcomes.extend(rest.outcomes);
    }

    /// Records how a part of the batch was executed.
    pub(crate) fn note(&mut self, part: &Self) {
        self.repeated |= part.repeated;
        self.out_of_order |= part.out_of_order;
        self.calls_refused |= part.calls_refused;
    }

    /// Returns the outcomes of a call; without an answer, or beyond it, its error for each operation.
    pub(crate) fn each(result: Result<Self, BackendError>) -> impl Iterator<Item = Result<Outcome, BackendError>> {
        let (outcomes, error) = match result {
            Ok(answer) => (answer.outcomes, BackendError::missing()),
            Err(error) => (Outcomes::new(), error),
        };
        outcomes.into_iter().chain(iter::repeat_with(move || Err(error.clone())))
    }

    /// Returns the outcome of a batch of one.
    pub(crate) fn single(mut self) -> Result<Outcome, BackendError> {
        self.outcomes.pop().unwrap_or_else(|| Err(BackendError::missing()))
    }
}

/// The outcome of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The key is held with the token of the request.
    Held {
        /// The first fencing token of the block: larger than any that was given out for the key before.
        fence: u64,
        /// How many numbers the block has.
        block: u32,
        /// Whether the key was free until then, and held neither with the token of the request nor with the one to take it
        /// from. If the token held the key before, with a smaller number, the lease was lost in between, and another holder may have
        /// had the key. `false` if several nodes answer together.
        was_free: bool,
    },
    /// Another holder has the key.
    Busy {
        /// The time to the expiry of the key, or `None` if the key has no ttl.
        remaining: Option<Duration>,
        /// What is in the way.
        by: BusyReason,
        /// The position in the queue, from 1 on, or `None` without a place.
        position: Option<u32>,
    },
    /// Several may hold the key, and at least one does: the answer to an [inspect](Operation::Inspect) of a key that is shared or has
    /// permits.
    Shared {
        /// How many leases hold the key. A store of several nodes counts those that a majority has, which may be off while nodes differ.
        leases: u32,
        /// How many permits these leases take; zero if they are not permits.
        permits: u32,
        /// The time to the end of the lease that ends first.
        first: Duration,
        /// The time to the end of the lease that ends last.
        last: Duration,
    },
    /// The key is not free, or was taken without a fencing token: the answer to an acquire that
    /// [expected it to be](Acquire::expects_free). The holder is not known; the key may hold the token of the request
    /// itself. The same acquire without that expectation finds out.
    NotFree,
    /// Neither held nor surely not held: some nodes of a store of several may have the token. The token is spent and has to be
    /// released; a waiter asks with another token after a pause.
    Split {
        /// The time after which the key may be free, as far as is known.
        remaining: Option<Duration>,
        /// Whether the holder is another library, which notifies no waiter.
        foreign: bool,
    },
    /// The expiry was moved out.
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

#[cfg(test)]
mod tests;
