use std::{
    borrow::Cow,
    collections::BTreeSet,
    error::Error,
    fmt::{self, Display},
    marker::PhantomData,
    pin::pin,
    str::FromStr,
    sync::{Mutex, PoisonError},
    task::{Context, Poll, Waker},
};

use ::axum::extract::{FromRequestParts, MatchedPath, OriginalUri, RawPathParams, rejection::RawPathParamsRejection};
use ::http::Request;

use super::{
    parts::{Parts, Writer, Written},
    ready::{Absent, Find, Optional, read, write},
    text::Mistake,
};
use crate::error::BoxError;

/// Takes a parameter of the axum route, as in `/goods/{id}`, as a part of a [`scoped`](super::scoped) key.
///
/// Name the type that the handler reads, so that one value of the handler is one key: with `u64`, `/goods/7`, `/goods/07`
/// and `/goods/%37` are one key. A `String` is decoded and otherwise taken as it is: `a%2Fb` is `a/b`.
///
/// A request whose parameter is empty, not UTF-8 or not of the type is refused (400). Three mistakes in the service are answered
/// with 500, and the log says what to change:
/// * The route has no such parameter.
/// * The route has two parameters of the name, in a router that is nested as a service.
/// * The layer is around the router, which has not routed the request yet.
///
/// Add the layer with `Router::route_layer`. With `Router::layer` it also sees requests whose path no route has. It answers them with 404
/// itself, and the log says so once: the fallback, which does not run, may be another router, whose handlers need the lock.
///
/// # Examples
///
/// ```
/// use axum::{Router, extract::Path, routing::post};
/// use lock_core::LockManager;
/// use lock_tower::{LockLayer, key::{path_param, scoped}};
///
/// async fn sell(Path(id): Path<u64>) -> String {
///     format!("sold {id}")
/// }
///
/// let per_goods = LockLayer::http(LockManager::in_memory(), scoped("goods", path_param::<u64>("id")));
/// let service: Router = Router::new().route("/goods/{id}", post(sell)).route_layer(per_goods);
/// # let _ = service;
/// ```
#[must_use]
pub fn path_param<T: FromStr + Display>(name: &'static str) -> PathParam<T> {
    PathParam { name, read: PhantomData }
}

/// The part of a key that [`path_param`] makes.
#[derive(Debug)]
pub struct PathParam<T = String> {
    name: &'static str,
    read: PhantomData<fn() -> T>,
}

impl<T> PathParam<T> {
    /// Lets requests of routes without the parameter through, **without a lock**. A request that is not routed yet is
    /// refused all the same.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::{LockLayer, key::{path_param, scoped}};
    ///
    /// let layer = LockLayer::http(LockManager::in_memory(), scoped("goods", path_param::<u64>("id").optional()));
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn optional(self) -> Optional<Self> {
        Optional::new(self)
    }
}

impl<T> Clone for PathParam<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for PathParam<T> {}

impl<B, T: FromStr + Display> Find<Request<B>> for PathParam<T> {
    fn find<'a>(&self, request: &'a Request<B>) -> Result<Cow<'a, str>, Absent> {
        let name = self.name;
        // The parameters are axum's own: its extractor alone reads them, and only from parts of a request.
        let (mut parts, ()) = Request::new(()).into_parts();
        parts.extensions = request.extensions().clone();
        let params = pin!(RawPathParams::from_request_parts(&mut parts, &()));
        let params = match params.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(params)) => params,
            Poll::Ready(Err(RawPathParamsRejection::InvalidUtf8InPathParam(_))) => {
                return Err(Absent::Unusable(format!("the path parameter {name} is not UTF-8").into()));
            }
            _ => return Err(Absent::Unusable(unknown(name).into())),
        };
        let mut found = params.iter().filter(|(found, _)| *found == name);
        let value = found.next();
        if found.next().is_some() {
            // Of a router nested as a service: which of the two the handler means is not known here.
            let remedy = format!("the route has two path parameters {name}; give one of them another name");
            return Err(Absent::Unusable(Mistake(remedy).into()));
        }
        match value {
            Some((_, "")) => Err(Absent::Unusable(format!("the path parameter {name} is empty").into())),
            Some((_, value)) => read::<T>(value, || format!("the path parameter {name} is not valid")),
            None if !is_routed(request) => Err(Absent::Unusable(unrouted(request, name))),
            None => Err(Absent::Missing(
                Mistake(format!("the route has no path parameter {name}; name it as in `/goods/{{{name}}}`")).into(),
            )),
        }
    }
}

/// Whether a route was matched, and not only the prefix of a nested service.
fn is_routed<B>(request: &Request<B>) -> bool {
    request.extensions().get::<MatchedPath>().is_some()
}

/// Why a request is refused of which a router knows no route.
///
/// The router sends it to its fallback, which may be an answer of 404 or another router: the layer sees the same request in front of both.
/// In front of a service that is nested in the router, the path was shortened. There another router is to be expected, and a 404 would
/// hide the mistake.
fn unrouted<B>(request: &Request<B>, parameter: &'static str) -> BoxError {
    let original = request.extensions().get::<OriginalUri>();
    if original.is_some_and(|original| original.path() == request.uri().path()) {
        log_unrouted(parameter);
        return NoRoute.into();
    }
    unknown(parameter).into()
}

/// No route was matched before the layer, whose key needs one. The answer is 404.
#[derive(Debug)]
pub(crate) struct NoRoute;

impl fmt::Display for NoRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no route of the service has this path")
    }
}

impl Error for NoRoute {}

/// The layer is in front of the router that is to match the route.
fn unknown(parameter: &str) -> Mistake {
    Mistake(format!(
        "the path parameter {parameter} is not known before the request is routed; add the layer with `Router::route_layer`"
    ))
}

/// Logs once for each parameter that the layer is in the wrong place: every scanner asks for paths that no route has.
fn log_unrouted(parameter: &'static str) {
    static LOGGED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    if LOGGED.lock().unwrap_or_else(PoisonError::into_inner).insert(parameter) {
        tracing::error!(
            parameter,
            "no route was matched before the lock layer, so the request is answered with 404, and nothing behind the layer runs; add the \
             layer with `Router::route_layer` instead of `Router::layer`, and to the inner router instead of around it"
        );
    }
}

impl<B, T: FromStr + Display> Parts<Request<B>> for PathParam<T> {
    fn write(&self, request: &Request<B>, key: &mut Writer) -> Written {
        write(self.find(request), key)
    }
}
