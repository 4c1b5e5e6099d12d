//! The attribute [`#[distributed_lock]`](macro@distributed_lock) of `lock-core`, which re-exports it with its feature
//! `macros`; nothing else is here to use.
//!
//! What the attribute writes calls `lock_core`, so a crate that uses it depends on `lock-core`.

mod args;
mod boxed;
mod duration;
mod expand;
mod fallback;
mod function;
mod keys;
mod policy;
mod suggest;
mod template;

use proc_macro::TokenStream;

use crate::{
    args::{Args, Errors},
    boxed::Boxed,
    function::{Function, Names},
};

/// Runs the body of an async function or method while it holds a lease.
///
/// The function waits for its turn, runs its body, and releases the lease before it returns: on every way out, which
/// are the end of the body, `return`, `?`, a panic, and the caller dropping the future. The lease is renewed while the
/// body runs. When it is lost all the same, the body is dropped where it stands and the function returns an error, so
/// that nobody works on without the lock.
///
/// # Quick start
///
/// ```
/// use lock_core::{Error, LockManager, distributed_lock};
///
/// #[distributed_lock(key = "goods:<id>", ttl = "3s")]
/// async fn sell(id: u64) -> Result<String, Error> {
///     // Nobody else sells these goods now, in no process of any machine.
///     Ok(format!("sold {id}"))
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     // In production: LockManager::connect("redis://127.0.0.1").await?
///     LockManager::in_memory().install()?;
///     assert_eq!(sell(7).await?, "sold 7");
///     Ok(())
/// }
/// ```
///
/// The attribute writes what could be written by hand:
///
/// ```
/// # use lock_core::{Error, LockManager};
/// # use std::time::Duration;
/// async fn sell(id: u64) -> Result<String, Error> {
///     LockManager::current()?
///         .lock(format!("goods:{id}"))
///         .label("goods:<id>")
///         .ttl(Duration::from_secs(3))
///         .run(async move |_lease| Ok(format!("sold {id}")))
///         .await?
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # LockManager::in_memory().scope(sell(7)).await.map(drop) }
/// ```
///
/// To the letter it writes this, with paths that mean the same whatever names are in scope, and a statement that tells the
/// compiler the type of the body beforehand, so that a type error points at your line:
///
/// ```
/// # use lock_core::{Error, LockManager};
/// async fn sell(id: u64) -> Result<String, Error> {
///     let __lock_refuse = ::lock_core::__private::refused::<Result<String, Error>>;
///     let __lock_acquired = {
///         let __lock_acquire = ::lock_core::__private::acquire(
///             ::lock_core::LockManager::current(),
///             ::lock_core::__private::format!("goods:{}", id),
///             |request| request.label("goods:<id>").ttl(::core::time::Duration::from_millis(3000u64))
///         );
///         __lock_acquire
///     }.await;
///     match __lock_acquired {
///         ::core::result::Result::Ok(__lock_guard) => {
///             match ::lock_core::LockGuard::protect(__lock_guard, async move {
///                 if false { return ::lock_core::__private::never::<Result<String, Error>>(); }
///                 // Nobody else sells these goods now, in no process of any machine.
///                 Ok(format!("sold {id}"))
///             }).await {
///                 ::core::result::Result::Ok(__lock_value) => __lock_value,
///                 ::core::result::Result::Err(__lock_error) => __lock_refuse(__lock_error),
///             }
///         }
///         ::core::result::Result::Err(__lock_error) => __lock_refuse(__lock_error),
///     }
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # LockManager::in_memory().scope(sell(7)).await.map(drop) }
/// ```
///
/// # Arguments
///
/// | argument | value | without it |
/// | --- | --- | --- |
/// | [`key`](#key) | a template, or an expression | one of `key` and `keys` is needed |
/// | [`keys`](#keys) | a list of such, or a collection of keys | |
/// | [`ttl`](#ttl) | a duration from `"10ms"` to 100 years | that of the manager (10 s) |
/// | [`wait`](#wait) | a duration, also `"0s"` | that of the manager (10 s); `"0s"` with `on_busy = skip` |
/// | [`renew`](#renew) | `true` or `false` | `true` |
/// | [`max_hold`](#max_hold) | a duration above `"0s"` | no bound |
/// | [`at_least`](#at_least) | a duration above `"0s"`, at most 100 years | the key is free when the body is done |
/// | [`on_busy`](#on_busy) | `error`, `skip`, or `call(path)` | `error` |
/// | [`on_lost`](#on_lost) | `cancel`, `finish`, or `ignore` | `cancel` |
/// | [`manager`](#manager) | an expression | the scoped manager, else the installed one |
/// | [`lease`](#lease) | a name | the body does not see its lease |
/// | [`crate`](#crate) | a path | `::lock_core` |
///
/// A duration is a string: a whole number and one of the units `ms`, `s`, `m`, `h`. It is checked when compiling.
///
/// ## `key`
///
/// What is locked, at run time 1 to 1,024 bytes. In a string, `<` and `>` stand around an expression, which is replaced
/// by its `Display`: an argument, a field, a call, whatever the function could compute in its first line. Of several
/// ways to read it, the shortest text that parses as one expression counts, so `<self.map.get::<u8>(&1)>` is one value
/// and a comparison wants brackets, `<(a > b)>`. For the characters themselves write `<<` and `>>`.
///
/// The key is made before the body begins, so the body may move or change the arguments. Values go in as they are, so
/// that clients in other languages can make the same key. Take care that two different things cannot make one key:
/// `"<a>:<b>"` is the same for `"1:2"`, `"3"` and for `"1"`, `"2:3"`.
///
/// ```
/// # use lock_core::{Error, LockManager, distributed_lock};
/// struct Order { id: u64, tenant: String }
///
/// #[distributed_lock(key = "<order.tenant>:order:<order.id>:line:<line + 1>")]
/// async fn change(order: Order, line: usize) -> Result<Order, Error> {
///     Ok(order)
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # LockManager::in_memory().scope(change(Order { id: 1, tenant: "t".into() }, 2)).await.map(drop) }
/// ```
///
/// Braces are text: in Redis they are hash tags, as in `"{cart:<user>}:total"`. As other macros mean a value by them,
/// the name of an argument between braces does not compile. A single word between `<` and `>` has to be an argument,
/// a const parameter or `self`; a constant is written with its path, `<self::REGION>`.
///
/// A `key` that is not a string literal is any expression of a type that is `AsRef<str>`; it is borrowed, not moved:
///
/// ```
/// # use lock_core::{Error, LockManager, distributed_lock};
/// const NIGHTLY: &str = "jobs:nightly";
///
/// #[distributed_lock(key = NIGHTLY)]
/// async fn nightly() -> Result<(), Error> {
///     Ok(())
/// }
///
/// #[distributed_lock(key = name)]
/// async fn by_name(name: String) -> Result<String, Error> {
///     Ok(name)
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # LockManager::in_memory().scope(async { nightly().await?; by_name("n".into()).await }).await.map(drop) }
/// ```
///
/// ## `keys`
///
/// Several keys in place of one: all or none of them. They are acquired in one order everywhere, that of their bytes, so
/// that two functions which name the same keys in different orders never wait for each other. `wait` bounds the whole. A
/// key that is named twice counts once.
///
/// In a list every element is what a `key` may be, a template or an expression:
///
/// ```
/// # use lock_core::{Error, LockManager, distributed_lock};
/// #[distributed_lock(keys = ["account:<from>", "account:<to>"])]
/// async fn transfer(from: u64, to: u64, amount: u64) -> Result<(), Error> {
///     Ok(())
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # LockManager::in_memory().scope(transfer(1, 2, 3)).await }
/// ```
///
/// Anything else is an expression that can be iterated over and gives strings, such as the lines of an order. Unlike a
/// `key` it is taken as it stands, like the expression of a `for` loop: to use an argument in the body as well, borrow it,
/// `keys = &ids`. A collection that turns out to be empty is the error `ErrorKind::Invalid(Argument::Keys)`.
///
/// ```
/// # use lock_core::{Error, LockManager, distributed_lock};
/// # use std::collections::BTreeMap;
/// #[distributed_lock(keys = order.iter().map(|(id, _)| format!("goods:{id}")), lease = leases)]
/// async fn buy(order: BTreeMap<u64, u32>) -> Result<(), Error> {
///     for (id, count) in order {
///         let fence = leases.fencing_token(&format!("goods:{id}"));
///         // take `count` from the stock of `id`
///         # let _ = (fence, count);
///     }
///     Ok(())
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # LockManager::in_memory().scope(buy([(1, 1), (2, 1)].into())).await }
/// ```
///
/// ## `ttl`
///
/// How long a holder that fell silent (its process died, its network is cut) still blocks the others: 10 ms to 100
/// years. It does not bound the body, for the lease is renewed every third of it.
///
/// ```
/// # use lock_core::{Error, LockManager, distributed_lock};
/// #[distributed_lock(key = "report", ttl = "500ms")]
/// async fn report() -> Result<(), Error> {
///     Ok(())
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # LockManager::in_memory().scope(report()).await }
/// ```
///
/// ## `wait`
///
/// How long to wait in line while another holder has the key. When it is over the function returns the error
/// `ErrorKind::Busy` without having run, or does what [`on_busy`](#on_busy) says. `"0s"` tries once.
///
/// ```
/// # use lock_core::{Error, ErrorKind, LockManager, distributed_lock};
/// #[distributed_lock(key = "report", wait = "0s")]
/// async fn report() -> Result<(), Error> {
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// let manager = LockManager::in_memory();
/// let guard = manager.lock("report").await?;
/// let error = manager.scope(report()).await.expect_err("the guard holds the key");
/// assert_eq!(error.kind(), ErrorKind::Busy);
/// # drop(guard); Ok(()) }
/// ```
///
/// ## `renew`
///
/// With `renew = false` the lease ends with its ttl, and the body with it.
///
/// ```
/// # use lock_core::{Error, LockManager, distributed_lock};
/// #[distributed_lock(key = "report", ttl = "30s", renew = false)]
/// async fn at_most_thirty_seconds() -> Result<(), Error> {
///     Ok(())
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # LockManager::in_memory().scope(at_most_thirty_seconds()).await }
/// ```
///
/// ## `max_hold`
///
/// The longest that the body may hold the key, renewals included: it ends a body that is stuck, with
/// `ErrorKind::Lost(LossReason::MaxHold)`.
///
/// ```
/// # use lock_core::{Error, ErrorKind, LockManager, LossReason, distributed_lock};
/// #[distributed_lock(key = "report", max_hold = "20ms")]
/// async fn stuck() -> Result<(), Error> {
///     std::future::pending().await
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let error = LockManager::in_memory().scope(stuck()).await.expect_err("the body was dropped");
/// assert_eq!(error.kind(), ErrorKind::Lost(LossReason::MaxHold));
/// # }
/// ```
///
/// ## `at_least`
///
/// A run that is shorter keeps the key busy for this long, from the moment it was acquired: for a job that several
/// machines start at about the same time, and that is to run once. It needs to cover how far their clocks, and their
/// starts, lie apart. A lease that was lost keeps nothing.
///
/// ```
/// # use lock_core::{Error, LockManager, distributed_lock};
/// #[distributed_lock(key = "jobs:nightly", at_least = "60s", on_busy = skip)]
/// async fn nightly() -> Result<Option<u64>, Error> {
///     Ok(Some(1))
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// let manager = LockManager::in_memory();
/// assert_eq!(manager.scope(nightly()).await?, Some(1));
/// assert_eq!(manager.scope(nightly()).await?, None); // another machine, a second later
/// # Ok(()) }
/// ```
///
/// ## `on_busy`
///
/// What the function returns when it could not acquire the lease, and has not run.
///
/// * `error`: the error, whatever it is.
/// * `skip`: nothing, if the key is busy: `()`, `None`, `Ok(())` or `Ok(None)`, and no other type compiles. It does not
///   wait either, unless `wait` is given: another holder does the work, and when that is done there is none left.
///
///   A busy key alone is skipped. When the backend is down, or there is no manager, nobody does the work: a `Result`
///   returns that error. `()` and `Option` have no place for it, so it is logged with `tracing` at the level `ERROR`, and
///   the function returns as if it had skipped. Prefer a `Result` where somebody can act on the difference.
/// * `call(path)`: what the function at `path` makes of the `lock_core::Error`. It is called with *every* failure to
///   acquire, of which a busy key is one (`Error::kind` tells), and returns the type of the locked function.
///
/// ```
/// # use lock_core::{Error, ErrorKind, LockManager, distributed_lock};
/// #[derive(Debug, PartialEq)]
/// enum Answer { Sold, TryLater, Broken }
///
/// fn refused(error: Error) -> Answer {
///     if error.is_retryable() { Answer::TryLater } else { Answer::Broken }
/// }
///
/// #[distributed_lock(key = "goods:<id>", wait = "0s", on_busy = call(refused), on_lost = ignore)]
/// async fn sell(id: u64) -> Answer {
///     Answer::Sold
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// let manager = LockManager::in_memory();
/// let guard = manager.lock("goods:7").await?;
/// assert_eq!(manager.scope(sell(7)).await, Answer::TryLater);
/// guard.release().await?;
/// assert_eq!(manager.scope(sell(7)).await, Answer::Sold);
/// # Ok(()) }
/// ```
///
/// ## `on_lost`
///
/// What becomes of the body when its lease is lost while it runs: the backend could not be reached for a whole ttl,
/// somebody forced the release, `max_hold` is over.
///
/// * `cancel`: the body is dropped at its `.await`, and the function returns the error `ErrorKind::Lost`.
/// * `finish`: the body runs to its end, and then the function returns the error in place of the body's result: for work
///   that must not be broken off. Another holder may do the same work meanwhile.
/// * `ignore`: nobody looks; the function returns the body's result.
///
/// ```
/// # use lock_core::{Error, ErrorKind, LockManager, LossReason, distributed_lock};
/// # use std::time::Duration;
/// #[distributed_lock(key = "report", max_hold = "20ms", on_lost = finish)]
/// async fn report(written: &mut bool) -> Result<(), Error> {
///     tokio::time::sleep(Duration::from_millis(40)).await;
///     *written = true;
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let mut written = false;
/// let error = LockManager::in_memory().scope(report(&mut written)).await.expect_err("held for too long");
/// assert_eq!(error.kind(), ErrorKind::Lost(LossReason::MaxHold));
/// assert!(written);
/// # }
/// ```
///
/// ## `manager`
///
/// An expression for the `LockManager`, or for anything that points to one, such as `Arc<LockManager>`; it is borrowed,
/// not moved. Without it the function uses the manager of the `LockManager::scope` that it runs in, which is for tests,
/// else the one that `LockManager::install` put in place; where there is neither it returns `ErrorKind::NoManager`.
///
/// ```
/// # use lock_core::{Error, LockManager, distributed_lock};
/// struct Shop { tenant: String, locks: LockManager }
///
/// impl Shop {
///     #[distributed_lock(key = "<self.tenant>:goods:<id>", manager = self.locks)]
///     async fn sell(&mut self, id: u64) -> Result<(), Error> {
///         Ok(())
///     }
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # Shop { tenant: "t".into(), locks: LockManager::in_memory() }.sell(1).await }
/// ```
///
/// ## `lease`
///
/// A name for the `Lease` in the body, for its fencing token, or to see how much of it remains; with [`keys`](#keys) for
/// the `Leases`.
///
/// ```
/// # use lock_core::{Error, LockManager, distributed_lock};
/// #[distributed_lock(key = "goods:<id>", lease = lease)]
/// async fn sell(id: u64) -> Result<u64, Error> {
///     // The database refuses a write that carries a smaller token than it has seen.
///     Ok(lease.fencing_token().get())
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # LockManager::in_memory().scope(sell(1)).await.map(drop) }
/// ```
///
/// ## `crate`
///
/// Where to find `lock-core`, for a crate that depends on it by another name, or that re-exports it.
///
/// ```
/// # use lock_core::{LockManager, distributed_lock};
/// mod platform {
///     pub use lock_core as locks;
/// }
///
/// #[distributed_lock(key = "report", crate = crate::platform::locks)]
/// async fn report() -> Result<(), platform::locks::Error> {
///     Ok(())
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
/// # LockManager::in_memory().scope(report()).await }
/// ```
///
/// # The function
///
/// It is an `async fn` that returns a `Result` whose error is `From<lock_core::Error>`: `lock_core::Error` itself, an
/// error of your own, `Box<dyn Error + Send + Sync>`. An alias of such a `Result` will do. Free functions and methods
/// work, with every form of `self`, in traits and their implementations, with generics, lifetimes, `impl Trait` and
/// patterns as arguments, and `unsafe`. Visibility, documentation and other attributes stay. The future is `Send` when
/// the body is.
///
/// A function that returns anything else names both policies, so that no error is left without a way out:
///
/// | returns | `on_busy` | `on_lost` |
/// | --- | --- | --- |
/// | `Result<T, E>` with `E: From<Error>` | any (`skip` when `T` is `()` or `Option`) | any |
/// | `()`, `Option<T>` | `skip`, `call(path)` | any: a loss is logged, and returns `()` or `None` |
/// | any other type, `impl Trait` | `call(path)` | `ignore` |
///
/// Handlers of axum are such functions, with extractors for arguments and a `Result` whose error is a response:
///
/// ```
/// use axum::{extract::{Path, State}, http::StatusCode, response::{IntoResponse, Response}};
/// use lock_core::{Error, ErrorKind, LockManager, distributed_lock};
///
/// #[derive(Clone)]
/// struct App { locks: LockManager }
///
/// #[distributed_lock(key = "goods:<id>", wait = "2s", manager = app.locks)]
/// async fn sell(Path(id): Path<u64>, State(app): State<App>) -> Result<String, Refusal> {
///     Ok(format!("sold {id}"))
/// }
///
/// struct Refusal(Error);
///
/// impl From<Error> for Refusal {
///     fn from(error: Error) -> Self {
///         Self(error)
///     }
/// }
///
/// impl IntoResponse for Refusal {
///     fn into_response(self) -> Response {
///         match self.0.kind() {
///             ErrorKind::Busy => StatusCode::CONFLICT.into_response(),
///             _ => StatusCode::SERVICE_UNAVAILABLE.into_response(),
///         }
///     }
/// }
/// # fn main() {
/// # let _: axum::Router = axum::Router::new()
/// #     .route("/sell/{id}", axum::routing::post(sell)).with_state(App { locks: LockManager::in_memory() });
/// # }
/// ```
///
/// The arguments are dropped with the body, before the lease is released: a transaction that is passed in ends under
/// the lock.
///
/// The same task asking again for the key that it holds, as in a recursion, is refused at once with
/// `ErrorKind::WouldDeadlock`. A task that the body spawns is not covered: it waits.
///
/// # Errors
/// Everything that `LockRequest::acquire` can return, before the body has run; and `ErrorKind::Lost` when the lease was
/// lost and the body dropped. A body that ends as the lease is lost has its result returned. A release that fails does
/// not hide the result either. [`on_busy`](#on_busy) and [`on_lost`](#on_lost) change what becomes of these.
///
/// # Cancel safety
/// Dropping the future while it waits gives up the place in line. Dropping it later drops the body at its `.await`
/// and releases the lease in the background.
///
/// # Beside other attributes
///
/// `#[tracing::instrument]` may stand above or below. An attribute that takes the `async` away, such as `#[tokio::test]`,
/// has to stand below. Two `#[distributed_lock]` take two locks, that of the lower one first; take care that all
/// functions agree on the order, or name the [`keys`](#keys) in one.
///
/// With `#[async_trait]` it goes on the methods, in the trait or in the implementation:
///
/// ```
/// use async_trait::async_trait;
/// use lock_core::{Error, LockManager, distributed_lock};
///
/// #[async_trait]
/// trait Shop {
///     async fn sell(&self, id: u64) -> Result<u64, Error>;
/// }
///
/// struct Warehouse { locks: LockManager }
///
/// #[async_trait]
/// impl Shop for Warehouse {
///     #[distributed_lock(key = "goods:<id>", manager = self.locks)]
///     async fn sell(&self, id: u64) -> Result<u64, Error> {
///         Ok(id)
///     }
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # Warehouse { locks: LockManager::in_memory() }.sell(1).await.map(drop) }
/// ```
///
/// A function that returns `Pin<Box<dyn Future<Output = T>>>` and is nothing but `Box::pin(async move { … })` is locked in
/// the same way.
///
/// # In metrics and logs
///
/// The lock goes by its template as it is written, never by the key that comes of it, for those would be too many:
/// `goods:<id>`, or `account:<from>, account:<to>` for a list. Where a key is another expression, it goes by the path of
/// the function: `shop::orders::buy`.
///
/// # What does not compile
///
/// A call without `key`, or with an argument that does not exist or is given twice:
///
/// ```compile_fail
/// # use lock_core::{Error, distributed_lock};
/// #[distributed_lock(key = "goods:<id>", tll = "3s")] // did you mean `ttl`?
/// async fn sell(id: u64) -> Result<(), Error> { Ok(()) }
/// ```
///
/// A duration that is not a string, has no unit, or is out of range:
///
/// ```compile_fail
/// # use lock_core::{Error, distributed_lock};
/// #[distributed_lock(key = "goods:<id>", ttl = 3)] // `"3s"`
/// async fn sell(id: u64) -> Result<(), Error> { Ok(()) }
/// ```
///
/// ```compile_fail
/// # use lock_core::{Error, distributed_lock};
/// #[distributed_lock(key = "goods:<id>", ttl = "5ms")] // the least ttl is 10 ms
/// async fn sell(id: u64) -> Result<(), Error> { Ok(()) }
/// ```
///
/// A key that is empty, or names what the function does not have:
///
/// ```compile_fail
/// # use lock_core::{Error, distributed_lock};
/// #[distributed_lock(key = "goods:<idd>")] // the function has `id`
/// async fn sell(id: u64) -> Result<(), Error> { Ok(()) }
/// ```
///
/// ```compile_fail
/// # use lock_core::{Error, distributed_lock};
/// #[distributed_lock(key = "goods:{id}")] // `<id>`
/// async fn sell(id: u64) -> Result<(), Error> { Ok(()) }
/// ```
///
/// Both `key` and `keys`, a list that is empty, and a list in other clothes, whose strings would be no templates:
///
/// ```compile_fail
/// # use lock_core::{Error, distributed_lock};
/// #[distributed_lock(key = "goods:<id>", keys = ["stock", "till"])] // one of the two
/// async fn sell(id: u64) -> Result<(), Error> { Ok(()) }
/// ```
///
/// ```compile_fail
/// # use lock_core::{Error, distributed_lock};
/// #[distributed_lock(keys = vec!["goods:<id>", "stock"])] // `["goods:<id>", "stock"]`
/// async fn sell(id: u64) -> Result<(), Error> { Ok(()) }
/// ```
///
/// A collection that does not give strings:
///
/// ```compile_fail,E0277
/// # use lock_core::{Error, distributed_lock};
/// #[distributed_lock(keys = &ids)] // `ids.iter().map(u64::to_string)`
/// async fn sell(ids: Vec<u64>) -> Result<(), Error> { Ok(()) }
/// ```
///
/// A policy that does not exist, or is written otherwise:
///
/// ```compile_fail
/// # use lock_core::{Error, distributed_lock};
/// #[distributed_lock(key = "goods:<id>", on_busy = skp)] // did you mean `skip`?
/// async fn sell(id: u64) -> Result<(), Error> { Ok(()) }
/// ```
///
/// ```compile_fail
/// # use lock_core::{Error, distributed_lock};
/// #[distributed_lock(key = "goods:<id>", on_busy = call)] // `call(refused)`
/// async fn sell(id: u64) -> Result<(), Error> { Ok(()) }
/// ```
///
/// A value without `Display`:
///
/// ```compile_fail,E0277
/// # use lock_core::{Error, distributed_lock};
/// #[distributed_lock(key = "goods:<ids>")]
/// async fn sell(ids: Vec<u64>) -> Result<(), Error> { Ok(()) }
/// ```
///
/// A return type that could not say that the lock was not acquired:
///
/// ```compile_fail
/// # use lock_core::distributed_lock;
/// #[distributed_lock(key = "goods:<id>")]
/// async fn sell(id: u64) {}
/// ```
///
/// ```compile_fail,E0277
/// # use lock_core::distributed_lock;
/// #[distributed_lock(key = "goods:<id>")]
/// async fn sell(id: u64) -> Result<(), String> { Ok(()) } // `String` is not `From<lock_core::Error>`
/// ```
///
/// ```compile_fail,E0277
/// # use lock_core::distributed_lock;
/// #[distributed_lock(key = "goods:<id>", on_busy = skip)] // and when the lease is lost? name `on_lost`
/// async fn sell(id: u64) -> Option<u64> { Some(id) }
/// ```
///
/// A policy that the return type has no value for:
///
/// ```compile_fail,E0277
/// # use lock_core::{Error, distributed_lock};
/// #[distributed_lock(key = "goods:<id>", on_busy = skip)] // `Result<Option<u64>, Error>`
/// async fn sell(id: u64) -> Result<u64, Error> { Ok(id) }
/// ```
///
/// ```compile_fail,E0277
/// # use lock_core::{Error, distributed_lock};
/// # fn none_left(_: Error) -> u64 { 0 }
/// #[distributed_lock(key = "goods:<id>", on_busy = call(none_left), on_lost = cancel)] // `on_lost = ignore`
/// async fn sell(id: u64) -> u64 { id }
/// ```
///
/// A function that is not `async`, or is `const` or `extern`; a method without a body; anything that is no function:
///
/// ```compile_fail
/// # use lock_core::{Error, distributed_lock};
/// #[distributed_lock(key = "goods:<id>")]
/// fn sell(id: u64) -> Result<(), Error> { Ok(()) }
/// ```
///
/// ```compile_fail
/// # use lock_core::{Error, distributed_lock};
/// trait Shop {
///     #[distributed_lock(key = "goods:<id>")]
///     async fn sell(&self, id: u64) -> Result<(), Error>;
/// }
/// ```
///
/// ```compile_fail
/// # use lock_core::distributed_lock;
/// #[distributed_lock(key = "goods")]
/// struct Goods;
/// ```
#[proc_macro_attribute]
pub fn distributed_lock(arguments: TokenStream, item: TokenStream) -> TokenStream {
    lock(arguments.into(), item.into()).into()
}

fn lock(arguments: proc_macro2::TokenStream, item: proc_macro2::TokenStream) -> proc_macro2::TokenStream {
    let mut errors = Errors::default();
    let args = Args::parse(arguments, &mut errors);
    let Some(function) = errors.keep(syn::parse2::<Function>(item.clone())) else {
        return fallback::item(item, errors);
    };
    let boxed = match (&function.signature.asyncness, &function.body) {
        (None, Some(body)) => Boxed::of(&function.signature.output, body),
        _ => None,
    };
    let mut names = match &boxed {
        Some(boxed) => Names::inside(&function.signature, boxed),
        None => Names::of(&function.signature),
    };
    errors.keep(function.check(&args, boxed.as_ref()));
    errors.keep(names.add_lease(args.lease.as_ref()));
    let keys = args.keys.as_ref().and_then(|keys| keys.expand(&names, &args.krate, &mut errors));
    match keys {
        Some(keys) if errors.is_empty() => expand::expand(&args, &keys, &names, &function, boxed.as_ref()),
        _ => fallback::function(function, &args, &names, errors),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(code: &str) -> proc_macro2::TokenStream {
        code.parse().expect(code)
    }

    /// The expansion without its spaces, which depend on how a token came to be.
    fn locked(arguments: &str, item: &str) -> String {
        packed(&lock(tokens(arguments), tokens(item)).to_string())
    }

    fn packed(code: &str) -> String {
        code.split_whitespace().collect()
    }

    #[test]
    fn every_path_goes_through_the_given_crate() {
        let all = "key = \"<id>\", ttl = \"3s\", renew = false, lease = l, manager = m, crate = a::b";
        let code = locked(all, "async fn sell(id: u64, m: M) -> Result<(), E> {}");
        assert!(!code.contains("compile_error"), "{code}");
        assert!(code.contains("a::b::__private") && !code.contains("lock_core"), "{code}");
    }

    #[test]
    fn documentation_shows_the_expansion_of_the_quick_start_to_the_letter() {
        let source = include_str!("lib.rs");
        let examples = source.split("/// ```\n").map(|example| example.replace("/// ", ""));
        let [quick_start, expansion] = ["#[distributed_lock(key", "    let __lock_refuse"].map(|start| {
            let example = examples.clone().find(|example| example.contains(start)).expect(start);
            let from = example.find("#[distributed").or_else(|| example.find("async fn sell")).expect("the function");
            let to = example[from..].find("\n}\n").expect("its end");
            example[from..][..to + 2].to_owned()
        });
        let (arguments, function) = quick_start.split_once('\n').expect("two lines");
        let arguments = arguments.trim_start_matches("#[distributed_lock(").trim_end_matches(")]");
        assert_eq!(locked(arguments, function), packed(&tokens(&expansion).to_string()));
    }

    #[test]
    fn label_is_the_template_and_never_the_key() {
        let label = |arguments: &str| {
            let code = locked(arguments, "async fn sell(id: u64, m: M) -> Result<(), E> {}");
            let (_, label) = code.split_once("request.label(").expect("a label");
            label.split_once(")").expect("its end").0.to_owned()
        };
        assert_eq!(label("key = \"goods:<id>:<<7>>\""), "\"goods:<id>:<<7>>\"");
        assert_eq!(label("keys = [\"a:<id>\", \"b\"]"), "\"a:<id>,b\"");
        for expression in ["key = id.name()", "keys = [\"a:<id>\", id.name()]", "keys = id.names()"] {
            assert_eq!(label(expression), "::core::concat!(::core::module_path!(", "{expression}");
        }
    }

    #[test]
    fn attributes_and_signature_stay_as_they_were() {
        let signature = "#[doc = \"Sells.\"] #[cfg(feature = \"shop\")] pub(crate) async unsafe fn \
            sell<'a, T: Clone, const N: usize>(&'a self, mut id: [T; N]) -> Result<(), E> where T: Display";
        let code = locked("key = \"k\"", &format!("{signature} {{ #![allow(unused)] done(id) }}"));
        assert!(code.starts_with(&format!("{}{{#![allow(unused)]let", packed(signature))), "{code}");
        assert!(code.contains("done(id)}"), "{code}");
    }

    #[test]
    fn function_stays_in_place_beside_the_errors() {
        let function = "pub async fn sell(id: u64) -> Result<(), E> { done(id) }";
        let code = locked("key = \"<idd>\", ttl = 3", function);
        assert_eq!(code.matches("compile_error").count(), 2, "{code}");
        assert!(code.ends_with(&packed(function)), "{code}");
    }

    #[test]
    fn what_is_no_function_stays_in_place_beside_the_error() {
        for item in ["struct Goods { id: u64 }", "impl Shop {}", "mod shop {}", "unsafe extern \"C\" {}"] {
            let code = locked("key = \"k\"", item);
            assert_eq!(code.matches("compile_error").count(), 1, "{code}");
            assert!(code.ends_with(&packed(item)), "{code}");
        }
    }
}
