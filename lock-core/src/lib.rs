//! A distributed lock for tokio, backed by Redis.
//!
//! A *lease* of a key is held by one task of one process among many machines. It is renewed while its work runs, and the work is
//! *cancelled* if the lease is lost. Every holder gets a *fencing token*, a number larger than every earlier one of the key.
//!
//! # Quick start
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use lock_core::LockManager;
//! use std::time::Duration;
//!
//! // In production: LockManager::connect("redis://127.0.0.1").await?
//! let manager = LockManager::in_memory();
//!
//! // Held until the guard is released or dropped, and renewed until then.
//! let guard = manager.lock("goods:1").ttl(Duration::from_secs(3)).await?;
//! println!("fencing token {}", guard.fencing_token());
//! guard.release().await?;
//!
//! // Work that is dropped when the lease is lost.
//! let left = manager.lock("goods:1").run(async |lease| lease.remaining()).await?;
//! # let _ = left; Ok(()) }
//! ```
//!
//! A dropped guard is released in the background, for which `main` does not wait. At the end of `main` use
//! [`release`](LockGuard::release), [`run`](LockRequest::run) or [`shutdown`](LockManager::shutdown), or the key may stay
//! busy until its ttl has expired.
//!
//! There are three ways to use one [`LockManager`]: this crate for custom flows, the attribute `#[distributed_lock]` (feature
//! `macros`) for functions and handlers, and the crate `lock-tower` for axum, tonic and any other tower stack.
//!
//! # Readers, permits and several keys
//!
//! A lease is exclusive unless the request says otherwise. Requests of all modes wait in one queue, first come first served:
//!
//! | request | holders at the same time |
//! | --- | --- |
//! | `manager.lock("goods:1")` | one |
//! | [`.shared()`](LockRequest::shared) | any number, none of them exclusive |
//! | [`.permits(3)`](LockRequest::permits) | three, or fewer that [`take`](LockRequest::take) more than one permit |
//! | [`manager.lock_all([shared("price:1"), exclusive("goods:1")])`](LockManager::lock_all) | all keys or none, each in its mode |
//!
//! # What a lease promises
//!
//! At most one holder at a time relies on a key, as long as Redis keeps its data and its clock runs forward. A holder
//! that was paused or cut off knows by its own clock that its lease has ended, before the next holder gets the key. If
//! even a rare overlap would cost money, claim what the lock protects with the [fencing token](FencingToken) before the first
//! read.
//!
//! # Cancel safety
//!
//! Every future of this crate may be dropped at any moment. Whatever it may have set is then released in the background, and
//! an operation that is *cancel safe* can be repeated without losing anything. Each async function says what a drop costs.
//!
//! # Inspecting and monitoring
//!
//! [`LockManager::inspect`] tells who holds a key and who waits for it, [`LockManager::list`] does so for all keys with a prefix, and
//! [`LockManager::health`] is for readiness probes.
//!
//! `tracing` gets a span `lock.acquire` around every acquire and a span `lock.hold` around scoped work, both with the key. Every lease
//! that was acquired or released is an event at `DEBUG`; every lost lease, failed renewal and broken connection is one at `WARN`. A
//! handler whose error becomes an [`answer`] logs it at `WARN` or `ERROR`, at most once a second for each case, unless the key was
//! merely busy. Tokens and passwords never appear.
//!
//! ## Metrics
//!
//! The feature `metrics` records these through the [`metrics`](https://docs.rs/metrics) facade. The label `lock` is the request's
//! [`label`](LockRequest::label) (the attribute sets its template, the layer its name), never a rendered key.
//!
//! | name | kind | meaning |
//! | --- | --- | --- |
//! | `lock_acquires_total` | counter, also label `outcome` | requests that ended: `acquired`, `busy`, `dropped`, or another kind of error |
//! | `lock_wait_seconds` | histogram | from the first poll of an acquire to its answer |
//! | `lock_waiting` | gauge | acquires in flight |
//! | `lock_held` | gauge | leases held |
//! | `lock_hold_seconds` | histogram | from acquired to released or lost |
//! | `lock_lost_total` | counter, also label `reason` | leases that ended other than by their holder |
//! | `lock_renewal_slack_seconds` | histogram | the time that the old deadline had left when a renewal was answered; near zero, leases are about to be lost |
//! | `lock_renewal_failures_total` | counter, without `lock` | calls for renewals that were not answered |
//! | `lock_connection_up` | gauge, label `node` instead of `lock` | 1 if a manager of this process has a connection to the node, else 0, and NaN once no manager needs the node; it is a host and port, the path of a socket, or `the primary of "SERVICE" at the sentinels …`. Each sentinel is a node, too |
//!
//! A new manager describes the metrics to the recorder; `describe_metrics` does so for a recorder that is installed later.
//!
//! # When not to use it
//!
//! Inside one process a [`tokio::sync::Mutex`](https://docs.rs/tokio/latest/tokio/sync/struct.Mutex.html) is simpler
//! and cannot be lost. When everything the lock would protect lives in one database, a unique index, a version column or
//! `SELECT … FOR UPDATE` is simpler and safer. If work must never happen twice, a lock is not enough, and a fencing token
//! stops a late holder, not a second one: use a unique key for the operation, in the same transaction.
//!
//! # What this crate will not do
//!
//! * **Re-entry**: a key that is taken twice hides which code holds it. A scoped form says [`WouldDeadlock`](ErrorKind::WouldDeadlock).
//! * **Rate limits**: permits bound how many work at once, not how many come in a second.
//! * **Detection of deadlocks** over several requests: [`lock_all`](LockManager::lock_all) takes keys in one order, which has none.
//! * **Other stores**: those with consensus bring locks of their own. [`Backend`](backend::Backend) is there for yours.
//! * **A blocking API**: without a runtime nobody renews.
//! * **Patterns and trees of keys**, priorities of waiters, values kept with a lock.
//!
//! # Features
//!
//! | feature | what it brings |
//! | --- | --- |
//! | `redis` (on by default) | `redis://`, `unix://`, and clients of the crate `redis` |
//! | `tls` | `rediss://`, through rustls with the platform's certificates, or as `LockManagerBuilder::tls` says |
//! | `tls-no-provider` | the same without `ring`: the application brings the provider of rustls |
//! | `credentials` | passwords that change: `LockManagerBuilder::credentials` takes a provider |
//! | `macros` | the attribute `#[distributed_lock]` |
//! | `http` | [answers](answer) to requests that the lock refused, as HTTP responses |
//! | `axum` | errors that are responses of axum: a handler returns `Result<T, lock_core::Error>` |
//! | `tonic` | errors that become a `tonic::Status` by `?` |
//! | `metrics` | counters, gauges and histograms through the `metrics` facade, see [above](#metrics) |
//! | `serde` | [`KeyInfo`], [`Processes`], [`Silent`], [`Holder`], [`Waiter`], [`Health`], [`NodeHealth`] and [`Fault`] can be serialized, with the names that `lockctl --json` uses; times in whole milliseconds |
//! | `opentelemetry` | spans of requests that wait are linked to the traces of holders; see [`explain_waits_after`](LockManagerBuilder::explain_waits_after) |
//!
//! The crate `lock-test`, a dev-dependency, has the attribute `#[lock_test::test]`, which loses the lease at every await of a test, and the
//! suite for backends.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[macro_use]
mod alike;
#[macro_use]
mod caught;

pub mod answer;
pub mod backend;
mod builder;
pub mod clock;
mod end;
mod engine;
mod error;
mod fencing;
mod flood;
pub mod future;
mod guard;
mod handover;
mod health;
mod info;
pub mod key;
mod lease;
mod leases;
mod lost;
#[cfg(feature = "macros")]
mod macro_support;
mod manager;
mod metrics;
mod mode;
mod options;
mod replicas;
mod request;
#[cfg(feature = "serde")]
mod serialize;
mod trace;
mod ttl;

#[cfg(feature = "metrics")]
pub use crate::metrics::describe as describe_metrics;
#[cfg(feature = "macros")]
pub use lock_macros::distributed_lock;
/// The `redis` crate, in the version whose clients [`LockManagerBuilder::client`] takes.
#[cfg(feature = "redis")]
pub use redis;
/// The `rustls` crate, in the version whose configurations [`LockManagerBuilder::tls`] takes.
#[cfg(feature = "tls-no-provider")]
pub use rustls;

pub use crate::{
    builder::LockManagerBuilder,
    end::{End, OnLost},
    error::{AlreadyInstalled, Argument, BuildError, Error, ErrorKind, LossReason},
    fencing::FencingToken,
    guard::{LockAllGuard, LockGuard},
    handover::Handover,
    health::{Fault, Health, NodeHealth},
    info::{Holder, KeyInfo, Party, Processes, Silent, Waiter},
    lease::Lease,
    leases::Leases,
    lost::LostLease,
    manager::LockManager,
    mode::Mode,
    options::LeaseOptions,
    replicas::Replicas,
    request::{KeyInMode, LockAllRequest, LockRequest, exclusive, permits, shared},
    ttl::{MAX_TTL, MIN_TTL},
};

/// The functions that the expansion of `#[distributed_lock]` calls.
#[cfg(feature = "macros")]
#[doc(hidden)]
pub mod __private {
    pub use crate::macro_support::*;
}

/// The hook of the test kit.
#[doc(hidden)]
pub use crate::future::protected::watch as __watch;

/// The limits of lock-tower's log lines.
#[doc(hidden)]
pub mod __log {
    pub use crate::flood::{Flood, Floods};
}

#[cfg(all(doctest, feature = "macros"))]
#[doc = include_str!("../README.md")]
mod readme {}
