use std::{
    borrow::Cow,
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
};

use ::axum::extract::{FromRequestParts, RawPathParams, rejection::RawPathParamsRejection};
use ::http::Request;

use super::{
    Mistake, Parts,
    ready::{Absent, Find, Optional, write},
    scoped::{Writer, Written},
};

/// Takes a parameter of the axum route, as in `/goods/{id}`, as a part of a [`scoped`](super::scoped) key. It is decoded:
/// `a%2Fb` is the parameter `a/b`, and `%31` is the parameter `1`.
///
/// A request whose parameter is empty or no UTF-8 is refused (400). Where the route has no such parameter, or the layer
/// is around the router, which has not routed the request by then, it is refused with 500, and the log says what to
/// change.
///
/// # Examples
///
/// ```
/// use axum::{Router, routing::post};
/// use lock_core::LockManager;
/// use lock_tower::{LockLayer, key::{path_param, scoped}};
///
/// let per_goods = LockLayer::http(LockManager::in_memory(), scoped("goods", path_param("id")));
/// let service: Router = Router::new().route("/goods/{id}", post(async || "sold")).route_layer(per_goods);
/// # let _ = service;
/// ```
#[must_use]
pub fn path_param(name: &'static str) -> PathParam {
    PathParam { name }
}

/// The part of a key that [`path_param`] makes.
#[derive(Clone, Copy, Debug)]
pub struct PathParam {
    name: &'static str,
}

impl PathParam {
    /// Lets requests of routes without the parameter through, **without a lock**. A request that is not routed yet is
    /// refused all the same.
    #[must_use]
    pub fn optional(self) -> Optional<Self> {
        Optional::new(self)
    }
}

impl<B> Find<Request<B>> for PathParam {
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
            _ => {
                let remedy = format!(
                    "the path parameter {name} is not known before the request is routed; add the layer with \
                     `Router::route_layer`"
                );
                return Err(Absent::Unusable(Mistake(remedy).into()));
            }
        };
        match params.iter().find(|(found, _)| *found == name) {
            Some((_, "")) => Err(Absent::Unusable(format!("the path parameter {name} is empty").into())),
            Some((_, value)) => Ok(Cow::Owned(value.to_owned())),
            None => Err(Absent::Missing(
                Mistake(format!("the route has no path parameter {name}; name it as in `/goods/{{{name}}}`")).into(),
            )),
        }
    }
}

impl<B> Parts<Request<B>> for PathParam {
    fn write(&self, request: &Request<B>, key: &mut Writer) -> Written {
        write(self.find(request), key)
    }
}
