//! Keys of requests: the [`KeyExtractor`] of a layer, and ready-made parts of a key.
//!
//! | the key of a request | is |
//! | --- | --- |
//! | text, as in `"nightly"` | one key for every request |
//! | [`scoped`]`("goods", …)` | a scope and one to eight parts |
//! | a closure that takes `&Req` | its result, unchanged |
//!
//! | a part inside [`scoped`] | is | feature |
//! | --- | --- | --- |
//! | text, as in `"till"` | the text | |
//! | a closure that takes `&Req` | its result, escaped | |
//! | `header` | the value of a header | `http` |
//! | `method_and_path` | method and path | `http` |
//! | `extension` | a value that an outer layer has put into the extensions | `http` |
//! | `path_param` | a parameter of the route, decoded | `axum` |
//!
//! # Several keys
//!
//! A closure that returns a list, and an array of extractors, give several keys. The request is served while all of them are held:
//! they are acquired together, in one round trip if all are free, and two requests cannot deadlock.
//!
//! ```
//! # #[cfg(feature = "axum")]
//! # fn main() {
//! use axum::{Router, routing::post};
//! use lock_core::LockManager;
//! use lock_tower::{HeldAll, LockLayer, key::{path_param, scoped}};
//!
//! async fn transfer(HeldAll(leases): HeldAll) -> String {
//!     format!("moved under {} leases", leases.len())
//! }
//!
//! let account = |name| scoped("account", path_param::<u64>(name));
//! let service: Router = Router::new()
//!     .route("/transfer/{from}/{to}", post(transfer))
//!     .route_layer(LockLayer::http(LockManager::in_memory(), [account("from"), account("to")]));
//! # let _ = service;
//! # }
//! # #[cfg(not(feature = "axum"))] fn main() {}
//! ```
//!
//! # Parts that find nothing
//!
//! The parts `header`, `extension` and `path_param` **refuse** a request in which they find nothing; `.optional()` lets
//! it through without a lock.
//!
//! # Keys that clients write
//!
//! A header and a path are written by the client. The ready-made parts are not keys by themselves, because a key made of
//! a header alone would let a client hold any lock of the manager: `x-account: jobs:nightly` would stop the nightly job.
//!
//! Behind a scope, a part cannot become another key: a `:` or `%` inside it is escaped, by the one rule of
//! [`lock_core::key`]. So for every `id` of type `T` these three make the same key: `scoped("goods", path_param::<T>("id"))`, the
//! attribute's `#[distributed_lock(key = "goods:<id>")]`, and `lock_core::key::join(["goods", &id.to_string()])`.
//!
//! A `:` in a scope begins another part, and only the place of a part counts. If `y` is `goods`, `scoped("shop", (y, x))` and
//! `scoped("shop:goods", x)` are one key; and `scoped("jobs", header::<String>("x-job"))` lets a client hold the key
//! `jobs:nightly`. So no scope should be the beginning of another scope, or of a key that clients must not hold.
//!
//! The closure of a layer is trusted: its key is used unchanged. Let it parse the client's text (into a number, for example) or
//! escape the text by [`lock_core::key::part`]. It must never use a path unchanged: `/goods/1` and `/goods/%31` reach one
//! handler and are two texts.

#[cfg(feature = "axum")]
mod axum;
mod choice;
mod extractor;
#[cfg(feature = "http")]
mod http;
mod parts;
#[cfg(feature = "idempotency")]
mod principal;
#[cfg(feature = "http")]
mod ready;
mod scoped;
mod text;

#[cfg(feature = "axum")]
pub(crate) use self::axum::NoRoute;
#[cfg(feature = "axum")]
pub use self::axum::{PathParam, path_param};
#[cfg(feature = "idempotency")]
pub(crate) use self::http::spelled;
#[cfg(feature = "http")]
pub use self::http::{Extension, Header, MethodAndPath, extension, header, method_and_path};
#[cfg(feature = "idempotency")]
pub use self::principal::Principal;
#[cfg(feature = "http")]
pub use self::ready::Optional;
pub(crate) use self::text::Mistake;
pub use self::{
    choice::{Choice, IntoChoice},
    extractor::KeyExtractor,
    parts::Parts,
    scoped::{Scoped, scoped},
};
