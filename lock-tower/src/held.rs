use std::{convert::Infallible, error::Error, fmt, ops::Deref};

use axum::{
    extract::{FromRequestParts, OptionalFromRequestParts},
    response::{IntoResponse, Response},
};
use http::request::Parts;
use lock_core::{
    Lease, Leases,
    answer::{Answer, Case},
};

use crate::messages;

/// The lease that a request is served under, as an argument of an axum handler.
///
/// A request without a lease (no layer, or it passed without a lock) is answered with 500 ([`NotLocked`]);
/// `Option<Held>` is then `None`. With several layers, it is the lease of the innermost; a request that passed the innermost without a lock
/// has no lease, whatever the outer layers hold. (A handler that needs the lease of an outer layer has a middleware between the layers that
/// copies it into an extension of its own type.) If the request has [several
/// keys](crate::key#several-keys) there, and not the same one several times, there is no `Held` but a [`HeldAll`].
///
/// A handler that writes to a database claims what it reads with the lease's fencing token before the first read, and writes only if
/// the claim still stands, see [`FencingToken`](lock_core::FencingToken).
///
/// # Examples
///
/// ```
/// use axum::{Router, routing::post};
/// use lock_core::LockManager;
/// use lock_tower::{Held, LockLayer, key::{path_param, scoped}};
///
/// async fn sell(Held(lease): Held) -> String {
///     format!("sold under fencing token {}", lease.fencing_token())
/// }
///
/// let service: Router = Router::new()
///     .route("/goods/{id}", post(sell))
///     .route_layer(LockLayer::http(LockManager::in_memory(), scoped("goods", path_param::<u64>("id"))));
/// # let _ = service;
/// ```
#[derive(Clone, Debug)]
pub struct Held(pub Lease);

impl Deref for Held {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.0
    }
}

impl<S: Sync> FromRequestParts<S> for Held {
    type Rejection = NotLocked;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, NotLocked> {
        parts.extensions.get::<Lease>().cloned().map(Self).ok_or(NotLocked(()))
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Held {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Lease>().cloned().map(Self))
    }
}

/// The leases that a request is served under, as an argument of an axum handler: those of a layer with [several
/// keys](crate::key#several-keys), or the one of a layer with one key. For the rest it is as [`Held`].
///
/// # Examples
///
/// ```
/// use lock_tower::HeldAll;
///
/// async fn transfer(HeldAll(leases): HeldAll) -> String {
///     // Claim the row of each account with its token before it is read, as with the token of one key.
///     let tokens: Vec<_> = leases.iter().map(|lease| lease.fencing_token().to_string()).collect();
///     format!("moved under fencing tokens {}", tokens.join(" and "))
/// }
/// # let _ = transfer;
/// ```
#[derive(Clone, Debug)]
pub struct HeldAll(pub Leases);

impl Deref for HeldAll {
    type Target = Leases;

    fn deref(&self) -> &Leases {
        &self.0
    }
}

impl<S: Sync> FromRequestParts<S> for HeldAll {
    type Rejection = NotLocked;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, NotLocked> {
        messages::leases(&parts.extensions).map(Self).ok_or(NotLocked(()))
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for HeldAll {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Option<Self>, Infallible> {
        Ok(messages::leases(&parts.extensions).map(Self))
    }
}

/// `Held` was extracted on a route without a lock layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotLocked(());

impl fmt::Display for NotLocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the request has no lease: there is no `LockLayer`, or the innermost layer let it pass without a lock; put one around \
             the handler that locks this method, or extract `Option<Held>` if requests may pass without a lock, or `HeldAll` if the \
             layer has several keys",
        )
    }
}

impl Error for NotLocked {}

impl IntoResponse for NotLocked {
    fn into_response(self) -> Response {
        tracing::error!(error = %self, "Held used on a route without a lock layer");
        Answer::new(Case::Misconfigured).to_response()
    }
}
