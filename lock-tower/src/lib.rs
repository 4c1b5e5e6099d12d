//! A [tower] layer that takes a distributed lock per request: in front of an axum handler, a client, or any other
//! service.
//!
//! Requests of one key are served one at a time, among all processes that share a backend; requests of different keys
//! do not wait for each other. While the service works its lease is renewed, and when the lease is lost the work is
//! *dropped*. It is released when the service has answered, failed or panicked, and when the client has gone. The
//! locks are those of [`lock_core`]; one [`LockManager`](lock_core::LockManager) serves any number of layers.
//!
//! # Example
//!
//! An axum service in which no account is charged twice at once (feature `http`):
//!
//! ```
//! # #[cfg(feature = "http")]
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::{Extension, Router, extract::Request, routing::post};
//! use lock_core::{Lease, LockManager};
//! use lock_tower::LockLayer;
//!
//! /// Requests of one account exclude each other; one that names no account is answered with 400.
//! fn account(request: &Request) -> Result<String, &'static str> {
//!     let account = request.headers().get("x-account").and_then(|account| account.to_str().ok());
//!     account.map(|account| format!("account:{account}")).ok_or("the header x-account is missing")
//! }
//!
//! async fn charge(Extension(lease): Extension<Lease>) -> String {
//!     format!("charged under fencing token {}", lease.fencing_token())
//! }
//!
//! let manager = LockManager::in_memory(); // or: LockManager::connect("redis://127.0.0.1").await?
//! let service: Router = Router::new()
//!     .route("/charge", post(charge))
//!     .route_layer(LockLayer::http(manager, account));
//! # use tower::ServiceExt;
//! # let request = Request::post("/charge").header("x-account", "7").body(axum::body::Body::empty())?;
//! # assert_eq!(service.clone().oneshot(request).await?.status(), 200);
//! # let request = Request::post("/charge").body(axum::body::Body::empty())?;
//! # assert_eq!(service.oneshot(request).await?.status(), 400);
//! # Ok(()) }
//! # #[cfg(not(feature = "http"))] fn main() {}
//! ```
//!
//! # Customised
//!
//! Any service, and any type of request; what the lock refuses is an error:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_tower::BoxError> {
//! use lock_core::{ErrorKind, LockManager};
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
//!     .ttl(Duration::from_secs(3))
//!     .wait(Duration::ZERO)
//!     .max_hold(Duration::from_secs(60));
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
//! # What happens to a request
//!
//! 1. The [`KeyExtractor`], mostly a closure, looks at the request and gives its key, refuses the request, or lets it
//!    through without a lock. Only a `None` lets it through.
//! 2. The layer acquires the key, waiting for at most [`wait`](LockLayer::wait). If it cannot, the service is
//!    not called.
//! 3. The service is called, with the lease in the request where the protocol has a place for it ([`Http`]).
//! 4. The lease is released, and then the response goes out. Should the lease have been lost, the work is dropped
//!    where it stands, and the answer says so.
//!
//! [`LockLayer::new`] answers with errors ([`Plain`]), [`LockLayer::http`] with responses ([`Http`] has the table of
//! status codes), and a [`Protocol`] of your own with whatever it likes.
//!
//! # Where in the stack
//!
//! * **A time-out outside** the lock covers the waiting and the work, and frees the key when it strikes; inside, it
//!   covers the work alone.
//! * **`ConcurrencyLimit`, `Buffer` and `LoadShed` outside** bound the waiters as well. Inside, a request that waits
//!   for its key keeps the permit that readiness gave it, because tower wants the instance that was made ready to be
//!   the one that is called.
//! * **In axum** `Router::route_layer` locks what was routed; `Router::layer` locks the answer 404 as well.
//! * **Two layers of one key** in one stack are refused at once (`WouldDeadlock`, in HTTP 500), unless a task lies
//!   between them: what a service hands to a task of its own (`tokio::spawn`, a handler behind a channel) is not
//!   recognised, and is not stopped when the lease is lost.
//!
//! # When not to use it
//!
//! Where the key is in the body of the request, lock in the handler, with [`lock_core`] or the attribute
//! `#[distributed_lock]`: a layer sees the head. Where the response is streamed after the handler has returned, the
//! stream is outside the lock. And where two requests must never *both* take effect, one after the other included,
//! they need to be idempotent; a lock only keeps them apart.
//!
//! # Features
//!
//! | feature | what it brings |
//! | --- | --- |
//! | `http` | [`LockLayer::http`]: the lease in the request's extensions, answers in status codes |
//!
//! [tower]: https://docs.rs/tower

#[cfg(feature = "http")]
mod body;
#[cfg(feature = "http")]
mod failure;
mod future;
#[cfg(feature = "http")]
mod http;
mod key;
mod layer;
mod protocol;
mod service;

#[cfg(feature = "http")]
pub use crate::{body::ResponseBody, http::Http};
pub use crate::{
    future::ResponseFuture,
    key::{Choice, IntoChoice, KeyExtractor},
    layer::LockLayer,
    protocol::{Plain, Protocol, Refusal},
    service::LockService,
};

/// Any error, as tower boxes it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
