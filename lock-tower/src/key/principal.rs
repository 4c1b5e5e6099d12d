use super::{choice::IntoChoice, http, parts::Parts};

/// The part of a [`scoped`](super::scoped) key that says *whose* idempotency key it is: a header, an extension, a path parameter, a
/// closure, or a tuple of two or three parts that begins with one of them.
///
/// Clients choose their idempotency keys. Without a principal, a client that sends another client's key is given the other client's
/// answer. So text is not a principal, and neither is a part that is `.optional()`. Take what the service has authenticated, such as an
/// extension that an outer layer sets; a header only if a gateway sets it. A request
/// whose principal has an empty part is refused with 500 `lock_misconfigured`. A service with one client says so with a closure.
///
/// This trait is sealed.
///
/// # Examples
///
/// ```
/// use axum::{Router, routing::post};
/// use lock_core::LockManager;
/// use lock_tower::{idempotency::{IdempotencyLayer, MemoryAnswers}, key::{header, scoped}};
///
/// let whose = scoped("payments", header::<String>("x-account"));
/// let once = IdempotencyLayer::http(LockManager::in_memory(), whose, MemoryAnswers::new());
/// let service: Router = Router::new().route("/payments", post(async || "charged")).route_layer(once);
/// # let _ = service;
/// ```
///
/// Text, and a part that may be missing, do not compile:
///
/// ```compile_fail
/// use axum::{Router, routing::post};
/// use lock_core::LockManager;
/// use lock_tower::{idempotency::{IdempotencyLayer, MemoryAnswers}, key::{header, scoped}};
///
/// let whose = scoped("payments", "everybody");
/// let once = IdempotencyLayer::http(LockManager::in_memory(), whose, MemoryAnswers::new());
/// let service: Router = Router::new().route("/payments", post(async || "charged")).route_layer(once);
/// # let _ = service;
/// ```
///
/// ```compile_fail
/// use axum::{Router, routing::post};
/// use lock_core::LockManager;
/// use lock_tower::{idempotency::{IdempotencyLayer, MemoryAnswers}, key::{header, scoped}};
///
/// let whose = scoped("payments", header::<String>("x-account").optional());
/// let once = IdempotencyLayer::http(LockManager::in_memory(), whose, MemoryAnswers::new());
/// let service: Router = Router::new().route("/payments", post(async || "charged")).route_layer(once);
/// # let _ = service;
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say whose idempotency key a `{Req}` has",
    label = "not a principal",
    note = "name the authenticated client first, as in `scoped(\"payments\", extension::<Account>())`, whose type has `Display`; text and \
            `.optional()` parts would give one client the answer of another"
)]
pub trait Principal<Req>: Parts<Req> {}

#[diagnostic::do_not_recommend]
impl<F: Fn(&Req) -> T, Req, T: IntoChoice> Principal<Req> for F {}

impl<Req, T> Principal<Req> for http::Header<T> where Self: Parts<Req> {}

impl<Req, T> Principal<Req> for http::Extension<T> where Self: Parts<Req> {}

#[cfg(feature = "axum")]
impl<Req, T> Principal<Req> for super::axum::PathParam<T> where Self: Parts<Req> {}

impl<Req, W: Principal<Req>, A: Parts<Req>> Principal<Req> for (W, A) {}

impl<Req, W: Principal<Req>, A: Parts<Req>, B: Parts<Req>> Principal<Req> for (W, A, B) {}
