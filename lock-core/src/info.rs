use std::{fmt, sync::Arc, time::Duration};

use crate::{fencing::FencingToken, mode::Mode};

/// A key as [`LockManager::inspect`](crate::LockManager::inspect) and [`LockManager::list`](crate::LockManager::list) find
/// it: whether it is held, by whom, and who waits.
///
/// It is out of date as soon as it is there: good for a status page, not for a decision. That the key is held comes from the store;
/// [`holder`](Self::holder) and [`waiters`](Self::waiters) come from the processes that answered in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    pub(crate) key: String,
    pub(crate) held: Option<Held>,
    pub(crate) holders: Vec<Holder>,
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) is_truncated: bool,
    pub(crate) processes: Processes,
    pub(crate) answered_by: Arc<[Party]>,
}

/// What the store says of a key that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// The time to the expiry; `None` for a key without a ttl.
    pub(crate) remaining: Option<Duration>,
    /// Whether the token has another form than ours.
    pub(crate) foreign: bool,
    /// How many leases hold the key.
    pub(crate) leases: usize,
    /// How many permits these take; zero if they are not permits.
    pub(crate) permits: u32,
    /// The time to the end of the lease that ends first.
    pub(crate) first: Option<Duration>,
}

getters! { info: KeyInfo =>
    /// Returns the key, without the prefix of the manager that was asked.
    key: &str = &info.key;

    /// Returns whether somebody holds the key.
    is_locked: bool = info.held.is_some();

    /// Returns the time until the key expires if nobody renews it: of several leases that hold it, until the last one ends. Returns `None`
    /// if the key is free, or if another library locked it without a ttl.
    remaining: Option<Duration> = info.held.and_then(|held| held.remaining);

    /// Returns whether the holder is another library (its token does not have the form of ours).
    is_foreign: bool = info.held.is_some_and(|held| held.foreign);

    /// Returns the holders, as their processes describe them: the one that has held the key for the longest first. An exclusive lease
    /// is alone; of those who share the key, each process names at most 500.
    ///
    /// It is empty whenever [`holder`](Self::holder) returns `None`.
    holders: &[Holder] = &info.holders;

    /// Returns how many leases hold the key, as the store counts them: zero if the key is free, and one if it is held exclusively or
    /// by another library.
    ///
    /// A lease counts until its own ttl is over, also if its holder has died: a shared one keeps writers out, and permits stay taken.
    /// A quorum counts the leases that a majority of its nodes has, and may be off while a node lacks some of them.
    leases: usize = info.held.map_or(0, |held| held.leases);

    /// Returns the holder, as its process describes it: of several [`holders`](Self::holders) the one that has held the key for the
    /// longest.
    ///
    /// Returns `None` if the key is free, if the holder is another library ([`is_foreign`](Self::is_foreign)), and if the key is held but
    /// nobody answered ([`nobody_answered`](Self::nobody_answered)).
    holder: Option<&Holder> = info.holders.first();

    /// Returns whether the key is held by a lease of this library and no process says that it holds the key.
    ///
    /// Nobody answered means one of these:
    ///
    /// * the holder has died, is stopped or is cut off, or is too busy to answer within 250 ms;
    /// * the holder is a client of another kind or an older version;
    /// * the holder, or the process that asked, cannot use messages (RESP2, or no rights to pub/sub);
    /// * the key is between two holders: handed over and not taken up yet, or kept by `at_least`;
    /// * the answer [is truncated](Self::is_truncated).
    ///
    /// The key becomes free after [`remaining`](Self::remaining) unless a process renews it. If several leases hold the key and only
    /// some of them have no answer, see [`silent`](Self::silent).
    nobody_answered: bool = info.held.is_some_and(|held| !held.foreign) && info.holders.is_empty();

    /// Returns the requests that wait for the key, as their processes describe them, in the order of their
    /// [places](Waiter::place).
    waiters: &[Waiter] = &info.waiters;

    /// Returns whether a process had more to say, so that waiters are missing, and in a list the holder may be missing.
    ///
    /// A process names at most 500 holders and waiters in an answer, the holders first. What a [list](crate::LockManager::list) lacks
    /// may belong to any of its keys, so every key of it is truncated; [`inspect`](crate::LockManager::inspect) one of them then.
    is_truncated: bool = info.is_truncated;

    /// Returns how many processes were asked for holders and waiters, and how many answered in time. The holders and waiters of the others
    /// are missing here.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let _guard = manager.lock("goods:1").await?;
    /// let processes = manager.inspect("goods:1").await?.processes();
    /// assert_eq!((processes.asked(), processes.answered(), processes.unanswered()), (Some(1), 1, Some(0)));
    /// # Ok(()) }
    /// ```
    processes: Processes = info.processes;

    /// Returns the processes that answered in time, in no order and without labels; see [`processes`](Self::processes). Those that did not
    /// answer are not known by name: compare with an earlier answer.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let _guard = manager.lock("goods:1").await?;
    /// let key = manager.inspect("goods:1").await?;
    /// assert_eq!(key.answered_by()[0].process(), std::process::id());
    /// # Ok(()) }
    /// ```
    answered_by: &[Party] = &info.answered_by;
}

impl KeyInfo {
    /// Returns the leases of the key for which no process answered. Returns `None` if there are none, and if that cannot be known because
    /// the answer [is truncated](Self::is_truncated) or the holder is [another library](Self::is_foreign).
    ///
    /// The reasons are those of [`nobody_answered`](Self::nobody_answered), lease by lease: of several leases that share a key, one may be
    /// that of a holder which has died while the others live. A lease that was granted a moment ago and not confirmed yet has no process
    /// that answers, either.
    ///
    /// The store and the processes are asked one after the other. If a lease begins or ends in between, the number may be wrong for a
    /// moment; look again.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let _reader = manager.lock("goods:1").shared().await?;
    /// let handover = manager.lock("goods:1").shared().await?.hand_over()?;
    ///
    /// let key = manager.inspect("goods:1").await?;
    /// assert_eq!((key.leases(), key.holders().len()), (2, 1));
    /// assert_eq!(key.silent().expect("not taken up yet").leases(), 1);
    /// # drop(handover);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn silent(&self) -> Option<Silent> {
        let held = self.held.filter(|held| !held.foreign && !self.is_truncated)?;
        let leases = held.leases.checked_sub(self.holders.len()).filter(|silent| *silent > 0)?;
        let known = self.holders.iter().map(|holder| holder.mode.permits()).fold(0, u32::saturating_add);
        let permits = held.permits.saturating_sub(known);
        Some(Silent { leases, permits, first_end: held.first, last_end: held.remaining })
    }
}

/// How many processes were asked for the holders and waiters of a key, and how many answered in time; see [`KeyInfo::processes`].
///
/// Each manager counts as a process, the one that asks included. None is asked about a free key. A process that cannot use messages
/// (RESP2, or no rights to pub/sub), or is cut off, is not asked and does not count. If that is the one that asks, no other can answer it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processes {
    pub(crate) asked: Option<usize>,
    pub(crate) answered: usize,
}

getters! { processes: Processes =>
    /// Returns how many processes should have answered. Returns `None` if that is not known: the question could not be sent, the
    /// store did not say how many listen, or not all nodes of a cluster or quorum said the same.
    asked: Option<usize> = processes.asked;

    /// Returns how many processes answered.
    answered: usize = processes.answered;

    /// Returns how many processes should have answered and did not: they are stopped, have died a moment ago, or are too busy to
    /// answer within 250 ms. Returns `None` if that is not known.
    unanswered: Option<usize> = processes.asked.map(|asked| asked - processes.answered);
}

/// The leases of a key for which no process answered; see [`KeyInfo::silent`].
///
/// The store does not say which of the leases these are. So their ends are known only to lie between those of all leases of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silent {
    leases: usize,
    permits: u32,
    first_end: Option<Duration>,
    last_end: Option<Duration>,
}

getters! { silent: Silent =>
    /// Returns how many leases they are, at least one.
    leases: usize = silent.leases;

    /// Returns how many permits they take; zero if they are not permits.
    permits: u32 = silent.permits;

    /// Returns the time after which one of them may end at the earliest: that to the first end of any lease of the key. Returns `None` if
    /// the key has no ttl.
    first_end: Option<Duration> = silent.first_end;

    /// Returns the time after which all of them have ended, unless a process renews them: that to the last end of any lease of the key.
    /// Returns `None` if the key has no ttl.
    last_end: Option<Duration> = silent.last_end;
}

/// A request and the process that made it: who holds a key, or waits for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Party {
    pub(crate) service: Arc<str>,
    pub(crate) host: Arc<str>,
    pub(crate) process: u32,
    pub(crate) label: String,
}

getters! { party: Party =>
    /// Returns the name of the service: the [`client_name`](crate::LockManagerBuilder::client_name) of its manager.
    service: &str = &party.service;

    /// Returns the name of the host.
    host: &str = &party.host;

    /// Returns the number of the process on its host.
    process: u32 = party.process;

    /// Returns the [`label`](crate::LockRequest::label) of the request; empty if it has none.
    label: &str = &party.label;
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, host, process, label } = self;
        write!(f, "{service} on {host} (process {process}")?;
        if label.is_empty() { f.write_str(")") } else { write!(f, ", {label:?})") }
    }
}

/// The holder of a key, as its process describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub(crate) party: Party,
    pub(crate) mode: Mode,
    pub(crate) held: Duration,
    pub(crate) ttl: Duration,
    pub(crate) fencing_token: FencingToken,
    pub(crate) trace: String,
}

getters! { holder: Holder =>
    /// Returns the request and its process.
    party: &Party = &holder.party;

    /// Returns the mode of the lease.
    mode: Mode = holder.mode;

    /// Returns for how long the request has held the key.
    held: Duration = holder.held;

    /// Returns the ttl that the request asked for.
    ttl: Duration = holder.ttl;

    /// Returns the fencing token of the lease.
    fencing_token: FencingToken = holder.fencing_token;

    /// Returns the trace context of the request in the form of the `traceparent` header (W3C Trace Context), if its process has
    /// the feature `opentelemetry` and the lease was acquired in a span of a trace.
    trace_context: Option<&str> = (!holder.trace.is_empty()).then_some(&*holder.trace);
}

/// A request that waits for a key, as its process describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    pub(crate) party: Party,
    pub(crate) mode: Mode,
    pub(crate) waited: Duration,
    pub(crate) place: u32,
}

getters! { waiter: Waiter =>
    /// Returns the request and its process.
    party: &Party = &waiter.party;

    /// Returns the requested mode.
    mode: Mode = waiter.mode;

    /// Returns for how long the request has waited.
    waited: Duration = waiter.waited;

    /// Returns the place in line, from 1 on.
    ///
    /// The first request of each process has the place of its process in the queue, as the store said last, which was half a
    /// second ago at most. The other requests of the process stand behind it. So two processes may name the same place; the
    /// request that has waited for longer is usually served first.
    place: u32 = waiter.place;
}
