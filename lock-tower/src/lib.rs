//! A [tower] layer that takes a distributed lock per request: in front of an axum handler, a client, or any other
//! service.
//!
//! Requests of one key are served one at a time, among all processes that share a backend; requests of different keys
//! do not wait for each other. While the service works, its lease is renewed; if the lease is lost, the work is
//! *cancelled*. The lease is released when the service has answered, failed or panicked, or the
//! [client hangs up](#what-happens-to-a-request). The
//! locks are those of [`lock_core`]; one [`LockManager`](lock_core::LockManager) serves any number of layers.
//!
//! # Example
//!
//! An axum service in which no account is charged twice at once (feature `http`):
//!
//! ```
//! # #[cfg(feature = "http")]
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::{Extension, Router, routing::post};
//! use lock_core::{Lease, LockManager};
//! use lock_tower::{LockLayer, key::{header, scoped}};
//!
//! async fn charge(Extension(lease): Extension<Lease>) -> String {
//!     // Claim with the token, then read, then write if the claim still stands: see `FencingToken`.
//!     format!("charged under fencing token {}", lease.fencing_token())
//! }
//!
//! // Requests of one account exclude each other; one that names no account is answered with 400.
//! let manager = LockManager::in_memory(); // or: LockManager::connect("redis://127.0.0.1").await?
//! let service: Router = Router::new()
//!     .route("/charge", post(charge))
//!     .route_layer(LockLayer::http(manager, scoped("account", header::<String>("x-account"))));
//! # use {axum::extract::Request, tower::ServiceExt};
//! # let request = Request::post("/charge").header("x-account", "7").body(axum::body::Body::empty())?;
//! # assert_eq!(service.clone().oneshot(request).await?.status(), 200);
//! # let request = Request::post("/charge").body(axum::body::Body::empty())?;
//! # assert_eq!(service.oneshot(request).await?.status(), 400);
//! # Ok(()) }
//! # #[cfg(not(feature = "http"))] fn main() {}
//! ```
//!
//! # Any other service
//!
//! [`LockLayer::new`] works with any service and any type of request, and refuses requests with an error:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_tower::BoxError> {
//! use lock_core::{ErrorKind, LeaseOptions, LockManager};
//! use lock_tower::{BoxError, LockLayer};
//! use std::time::Duration;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! struct Order {
//!     goods: Option<u64>,
//! }
//!
//! let manager = LockManager::in_memory();
//! let one_per_goods = LockLayer::new(manager.clone(), |order: &Order| order.goods.map(|id| format!("goods:{id}")))
//!     .options(LeaseOptions::new().ttl(Duration::from_secs(3)).max_hold(Duration::from_secs(60)))
//!     .try_only();
//! let shop = ServiceBuilder::new()
//!     .timeout(Duration::from_secs(30))
//!     .layer(one_per_goods)
//!     .service(service_fn(async |_: Order| Ok::<_, BoxError>("sold")));
//!
//! assert_eq!(shop.clone().oneshot(Order { goods: Some(1) }).await?, "sold");
//!
//! // Somebody else has the goods, and this layer does not wait.
//! let guard = manager.lock("goods:1").await?;
//! let refused = shop.clone().oneshot(Order { goods: Some(1) }).await.err().ok_or("sold twice")?;
//! let error: &lock_core::Error = refused.downcast_ref().ok_or("another error")?;
//! assert_eq!(error.kind(), ErrorKind::Busy);
//!
//! // A key of `None` passes without a lock.
//! assert_eq!(shop.oneshot(Order { goods: None }).await?, "sold");
//! # guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! # Keys of requests
//!
//! [`key::scoped`] joins a scope and parts so that they cannot run into each other, and the module [`key`] has parts for
//! HTTP: a header, a path parameter, method and path, an extension. They **refuse** a request in which they find nothing,
//! unless `.optional()` is set (features `http` and `axum`):
//!
//! ```
//! # #[cfg(feature = "axum")]
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::{Router, routing::post};
//! use lock_core::{LeaseOptions, LockManager};
//! use lock_tower::{Held, LockLayer, key::{header, path_param, scoped}};
//! use std::time::Duration;
//!
//! async fn sell(Held(lease): Held) -> String {
//!     format!("sold under {}", lease.key())
//! }
//!
//! let goods_of_shop = scoped("goods", (header::<String>("x-shop"), path_param::<u64>("id")));
//! let per_goods = LockLayer::http(LockManager::in_memory(), goods_of_shop)
//!     .name("sell")
//!     .options(LeaseOptions::new().wait(Duration::from_secs(2)).max_hold(Duration::from_secs(60)))
//!     .max_waiters_per_key(100)
//!     .max_waiters(10_000);
//! let service: Router = Router::new().route("/goods/{id}", post(sell)).route_layer(per_goods);
//! # use tower::ServiceExt;
//! # let request = axum::extract::Request::post("/goods/07").header("x-shop", "north").body(axum::body::Body::empty())?;
//! # let answer = axum::body::to_bytes(service.oneshot(request).await?.into_body(), 99).await?;
//! # assert_eq!(answer, "sold under goods:north:7");
//! # Ok(()) }
//! # #[cfg(not(feature = "axum"))] fn main() {}
//! ```
//!
//! Text is one key for all requests, as in `LockLayer::http(manager, "nightly")`, and a closure's key is used unchanged.
//!
//! **Keys that clients write**: clients choose headers and paths, so the parts stand behind a scope, and a `:` or `%` in them is
//! escaped. No client can name the key of another scope, unless one scope is the beginning of the other, as `"shop"` is of
//! `"shop:goods"`. The key of this example is `goods:north:7` for goods 7 of the shop `north`, as
//! [`lock_core::key::join`] and the attribute's `key = "goods:<shop>:<id>"` make it. The module [says more](key#keys-that-clients-write); read it before you write a closure.
//!
//! A closure that returns a list, and an array of extractors, give [several keys](key#several-keys): a transfer locks both of its
//! accounts.
//!
//! If only some requests need a lock:
//!
//! ```
//! # #[cfg(feature = "http")]
//! # fn main() {
//! use http::Method;
//! use lock_core::LockManager;
//! use lock_tower::{LockLayer, key::{header, scoped}};
//!
//! // Requests without the header pass without a lock; a header that is sent must be usable.
//! let layer = LockLayer::http(LockManager::in_memory(), scoped("once", header::<String>("idempotency-key").optional()))
//!     .methods([Method::POST, Method::PATCH]);
//! # let _ = layer;
//! # }
//! # #[cfg(not(feature = "http"))] fn main() {}
//! ```
//!
//! # Readers, and limits
//!
//! By default a request has its key alone. `shared_for` lets requests that only read share it, by their HTTP method or the name of
//! their gRPC method; [`permits`](LockLayer::permits) lets at most so many requests of a key in, over all instances of the
//! service:
//!
//! ```
//! # #[cfg(feature = "axum")]
//! # fn main() {
//! use axum::{Router, routing::get};
//! use http::Method;
//! use lock_core::LockManager;
//! use lock_tower::{LockLayer, key::{header, path_param, scoped}};
//!
//! let manager = LockManager::in_memory();
//! let per_goods = scoped("goods", path_param::<u64>("id"));
//! let per_tenant = scoped("tenant", header::<String>("x-tenant"));
//! let service: Router = Router::new()
//!     .route("/goods/{id}", get(async || "12 left").post(async || "sold"))
//!     .route_layer(LockLayer::http(manager.clone(), per_goods).shared_for([Method::GET]))
//!     .route_layer(LockLayer::http(manager, per_tenant).permits(8).try_only());
//! # let _ = service;
//! # }
//! # #[cfg(not(feature = "axum"))] fn main() {}
//! ```
//!
//! Requests of a key are served in the order in which they came, whatever their mode: readers that keep coming do not keep a
//! writer waiting.
//!
//! # gRPC
//!
//! A layer in front of tonic's services, or around a channel (feature `grpc`):
//!
//! ```
//! # #[cfg(feature = "grpc")]
//! # fn main() {
//! use lock_core::{LeaseOptions, LockManager};
//! use lock_tower::{LockLayer, key::{header, scoped}};
//! use std::time::Duration;
//! use tonic::transport::Server;
//!
//! let per_account = LockLayer::grpc(LockManager::in_memory(), scoped("account", header::<String>("x-account")))
//!     .options(LeaseOptions::new().max_hold(Duration::from_secs(60)));
//! let server = Server::builder().layer(per_account);
//! # let _ = server;
//! # }
//! # #[cfg(not(feature = "grpc"))] fn main() {}
//! ```
//!
//! # How long a lease is held
//!
//! A lease is held until the service has answered. [`until_body_end`](LockLayer::until_body_end) holds it until the body of the
//! response has ended, too; [`detached`](LockLayer::detached) lets the work go on if the client hangs up:
//!
//! ```
//! # #[cfg(feature = "http")]
//! # fn main() {
//! use lock_core::{LeaseOptions, LockManager};
//! use lock_tower::LockLayer;
//! use std::time::Duration;
//!
//! let (manager, bounded) = (LockManager::in_memory(), LeaseOptions::new().max_hold(Duration::from_secs(600)));
//! let export = LockLayer::http(manager.clone(), "export").until_body_end().options(bounded);
//! let import = LockLayer::http(manager, "import").try_only().detached().options(bounded);
//! # let _ = (export, import);
//! # }
//! # #[cfg(not(feature = "http"))] fn main() {}
//! ```
//!
//! **A client that stalls in the middle of its upload keeps the key**, and so does one that stops reading a response that is held to
//! its end: the lease is renewed while the service waits for the client. The option [`max_hold`](LockLayer::options) is the bound: five
//! minutes in HTTP and gRPC unless it is set, and none with [`LockLayer::new`]. Of tower-http, `RequestBodyTimeoutLayer` ends an
//! upload that pauses for too long, and `TimeoutLayer` outside the lock bounds the waiting and the work together (not
//! with `detached`, whose work goes on).
//!
//! # What happens to a request
//!
//! 1. The [`KeyExtractor`] returns the key of the request, refuses the request, or lets it through without a lock (`None`).
//! 2. The layer acquires the key, waiting for at most its [`wait`](LockLayer::options). If it cannot, the service is
//!    not called.
//! 3. The service is called, with the lease in the request if the protocol has a place for it (`Http`, `Grpc`).
//! 4. The lease is released, and then the response is sent. If the lease is lost before that, the work is cancelled,
//!    and the answer says so; the option [`on_lost`](LockLayer::options) changes that.
//!
//! A client that hangs up cancels its request at any of these steps, if the server notices. **A server of HTTP/1 does not notice while the body of
//! the request is unread**, and a request that waits for its key has not been read: hyper looks for the end of a connection only
//! behind the body. A body that came whole with the head is read, unless it is chunked. After a larger or chunked one, or
//! `Expect: 100-continue`, the request waits on for a client that is gone, and may then run. The option [`wait`](LockLayer::options) and a
//! `TimeoutLayer` outside the lock bound that. HTTP/2 has no such gap.
//!
//! If the backend does not answer, the request is refused, unless
//! [`on_backend_error`](LockLayer::on_backend_error) lets it through without a lock, counted and logged.
//!
//! [`LockLayer::new`] answers with errors ([`Plain`]), `LockLayer::http` with responses (table of status codes: `Http`),
//! `LockLayer::grpc` with status codes of gRPC (table: `Grpc`), and a [`Protocol`] of your own with any answer.
//!
//! # Where in the stack
//!
//! * **A timeout outside** the lock covers the waiting and the work, and frees the key when it expires. Inside, it
//!   covers the work alone.
//! * **`ConcurrencyLimit`, `Buffer` and `LoadShed` outside** bound the waiters as well. Inside, a request that waits
//!   for its key keeps the permit that readiness gave it, because tower requires that the instance that was made ready
//!   is the one that is called.
//! * **In axum** `Router::layer` locks every request, and with it the answer 404; if the key is from the path, it gives that answer itself, and
//!   the router's fallback does not run. `Router::route_layer` locks requests whose
//!   path has a route, and with them the answer 405 to a method that the route does not have: behind a busy key, that is
//!   409. `MethodRouter::route_layer`, as in `post(sell).route_layer(lock)`, locks neither.
//! * **Two layers of one key** in one stack are refused at once (`WouldDeadlock`, in HTTP 500; if the inner one does not wait, as busy), unless a task
//!   lies between them. Work that a service moves to another task (`tokio::spawn`, a handler behind a channel) is not
//!   recognised, and is not stopped when the lease is lost.
//! * **Uploads over one connection of HTTP/2 or gRPC** share its window, in hyper and tonic 1 MiB unless set. The unread bodies of requests that wait
//!   fill the window, and then every other upload on the connection stalls, whatever its key, also that of the holder, until they give up. One
//!   body may suffice. [`max_waiters`](LockLayer::max_waiters) bounds how many wait; an `initial_connection_window_size` of the server that
//!   is as large as that of so many streams and one more has room for them. Or lock in the handler, after the body was read.
//!
//! # Logs and metrics
//!
//! The span `lock.acquire` and the layer's own log lines have the [`name`](LockLayer::name) of the layer in their field
//! `lock`. A refused request is logged at `ERROR` if the service is misconfigured, at `WARN` if the backend does not answer or a limit
//! is reached, and at `DEBUG` if the key was merely busy or unusable. Errors and warnings of
//! one cause are limited to one line a second, with the number of `others` since the last; the others are logged at `DEBUG`.
//! [`let_through`](LockLayer::let_through) counts requests without a lock.
//!
//! The feature `metrics` adds counters to those of lock-core, which say how long requests waited and leases were held. Their label `lock`
//! is the name of the layer, too, and never a key:
//!
//! | name | kind | meaning |
//! | --- | --- | --- |
//! | `lock_layer_refusals_total` | counter, also label `reason` | requests that the lock refused or cancelled: `key`, `not_acquired` (`lock_acquires_total` tells why), `overloaded`, `out_of_time`, `lost`, `misconfigured` |
//! | `lock_layer_let_through_total` | counter | requests that passed without a lock because the backend did not answer |
//!
//! A layer describes the counters to the recorder when it is put around a service; `describe_metrics` does so for a recorder that is
//! installed later.
//!
//! # Tests of a service
//!
//! A layer has the manager that it was made with: give each test a `LockManager::in_memory()` of its own, and the service
//! of one test is not held up by another's. [`LockManager::scope`](lock_core::LockManager::scope) does not reach the tasks
//! that a server spawns for its connections; an attribute in a handler names the manager instead, as in
//! `#[distributed_lock(key = "goods:<id>", manager = app.locks)]`.
//!
//! # When not to use it
//!
//! * The key is in the body of the request. A layer sees the head: lock in the handler, with [`lock_core`] or the attribute
//!   `#[distributed_lock]`.
//! * The body is long, or its client slow. Lock in the handler after the body was read: **under the layer, a client that
//!   stalls in its upload keeps the key** until [`max_hold`](LockLayer::options) ends it.
//! * The response is streamed after the handler has returned. The stream is outside the lock, unless
//!   [`until_body_end`](LockLayer::until_body_end) is set.
//! * Two requests must never *both* take effect, not even one after the other. A lock only keeps them apart: put the layer of
//!   the module `idempotency` in their way, and for what must never happen use a unique key for the operation, such as the client's
//!   `idempotency-key`, in the transaction that it writes in.
//!
//! # Features
//!
//! | feature | what it brings |
//! | --- | --- |
//! | `http` | `LockLayer::http`: the lease in the request's extensions, answers in status codes; the parts of keys `header`, `method_and_path` and `extension` |
//! | `axum` | the part of a key `path_param`, and the extractors `Held` and `HeldAll` for handlers; brings `http`, and the `axum` of lock-core: handlers return `Result<T, lock_core::Error>` |
//! | `grpc` | `LockLayer::grpc`: answers in status codes of gRPC, for tonic's servers and channels; brings `http`, and the `tonic` of lock-core |
//! | `idempotency` | `idempotency::IdempotencyLayer`: all requests of one `Idempotency-Key` are given the first answer; brings `http` |
//! | `idempotency-redis` | `idempotency::RedisAnswers`, a store of answers over a connection of your own to Redis; brings `idempotency` |
//! | `metrics` | counters through the `metrics` facade, see [above](#logs-and-metrics); brings that of lock-core |
//!
//! [tower]: https://docs.rs/tower

#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquiring;
mod admission;
#[cfg(feature = "http")]
mod body;
mod error;
#[cfg(feature = "http")]
mod failure;
mod future;
#[cfg(feature = "grpc")]
mod grpc;
#[cfg(feature = "axum")]
mod held;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "idempotency")]
pub mod idempotency;
pub mod key;
mod layer;
#[cfg(feature = "http")]
mod messages;
mod metrics;
mod misconfigured;
mod protocol;
mod refusal;
mod service;
mod shared;
mod until;

#[cfg(feature = "grpc")]
pub use crate::grpc::Grpc;
#[cfg(feature = "axum")]
pub use crate::held::{Held, HeldAll, NotLocked};
#[cfg(feature = "metrics")]
pub use crate::metrics::describe as describe_metrics;
pub use crate::{
    admission::Overloaded,
    error::BoxError,
    future::ResponseFuture,
    key::{Choice, IntoChoice, KeyExtractor},
    layer::{LockLayer, options::OnBackendError},
    misconfigured::Misconfigured,
    protocol::{HoldsBodies, Plain, Protocol},
    refusal::{OutOfTime, Refusal},
    service::LockService,
    until::{BodyLease, Detached, Until, UntilBodyEnd, UntilResponse},
};
#[cfg(feature = "http")]
pub use crate::{body::ResponseBody, http::Http};

#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
mod readme {}
