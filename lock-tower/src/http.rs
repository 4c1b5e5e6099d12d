use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use lock_core::{__log::Floods, answer::Answer};

use crate::{
    failure::Replace,
    messages::of_messages,
    protocol::{HoldsBodies, Protocol},
    refusal::Refusal,
    until::BodyLease,
};

/// HTTP requests: a refusal is a response, and the service's errors stay what they are.
///
/// The [`Lease`](lock_core::Lease) is in the extensions of the request that the service sees: `request.extensions().get::<Lease>()`,
/// in axum `Extension(lease): Extension<Lease>`. With several layers, it is the lease of the innermost one; there is none if the request passed
/// that layer without a lock.
///
/// | status | code | when |
/// | --- | --- | --- |
/// | 400 | `lock_key` | the key is empty, too long or reserved, or its extractor refused the request |
/// | 404 | `lock_key` | no route was matched before the layer, which needs a path parameter |
/// | 409, `Retry-After` | `lock_busy` | the key is busy, and stayed so if the layer waits; see [`busy_status`](crate::LockLayer::busy_status) |
/// | 429, `Retry-After` | `lock_full` | all [`permits`](crate::LockLayer::permits) are taken, and stayed so if the layer waits |
/// | 429, `Retry-After` | `lock_overloaded` | too many requests wait |
/// | 503, `Retry-After` | `lock_unavailable` | the backend did not answer; too few replicas had the lease; the manager was shut down; one of several leases was lost before the service was called |
/// | 500 | `lock_lost` | the lease was lost while the service worked: part of the work may have been done, and proxies repeat what was answered with 503 |
/// | 500 | `lock_misconfigured` | the request holds the key already, in an outer layer; an option is out of its range; the backend refuses the user, or the key holds something that is not a lock; a path parameter was asked for before routing |
///
/// `Retry-After` is sent only if nothing was done and the request may be retried. For a busy key it is the rest of the
/// holder's ttl if the backend reported it, otherwise a second. The body is JSON as in RFC 9457
/// (`application/problem+json`) with the members `type`, `title`, `status`, `detail` and `code`. It says what happened
/// without the key and without anything about the backend, which are in the log. The text of a 400
/// is that of the extractor's error. The extensions of the response hold the [`lock_core::Error`], for an outer layer that
/// answers in another form. [`lock_core::answer`] makes the same answers for handlers.
///
/// A busy key is a **409 and not a 503**, because it is not a fault: another request of the same key is being served. Proxies
/// eject instances that answer 503, or send the request to another instance that waits for the same key, and error budgets
/// count it as an outage. A service whose clients retry on 503 alone may choose 503.
///
/// GET, HEAD and OPTIONS pass without a lock, unless [`methods`](crate::LockLayer#method.methods),
/// [`shared_for`](crate::LockLayer#method.shared_for) or [`permits`](crate::LockLayer::permits) says otherwise.
/// [`answer`](crate::LockLayer#method.answer) replaces the answers.
///
/// **A client that stalls in the middle of its upload keeps the key**, because a handler reads the body of its request under
/// the lock, and the lease is renewed while the handler waits. After **five minutes** the handler is dropped and the key
/// free; the option [`max_hold`](crate::LockLayer::options) sets another time. Of tower-http, `RequestBodyTimeoutLayer` ends an upload that pauses
/// for too long, and `TimeoutLayer` outside the lock bounds the waiting and the work together.
///
/// The lease is released when the head of the response is there, before the client sees it. A body that the
/// service streams after that is **not** under the lock, unless
/// [`until_body_end`](crate::LockLayer::until_body_end) is set.
#[derive(Clone, Debug, Default)]
pub struct Http {
    methods: Methods,
    /// The methods that share their key.
    shared: Arc<[Method]>,
    busy: Option<StatusCode>,
    answer: Replace<Response<Bytes>>,
    floods: Arc<Floods>,
}

/// Which methods are locked.
#[derive(Clone, Debug, Default)]
enum Methods {
    /// Those that may change something.
    #[default]
    Writing,
    All,
    These(Arc<[Method]>),
}

impl Http {
    pub(crate) fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods = Methods::These(with_head(methods));
        self
    }

    pub(crate) fn all_methods(mut self) -> Self {
        self.methods = Methods::All;
        self
    }

    pub(crate) fn busy_status(mut self, status: StatusCode) -> Self {
        self.busy = Some(status);
        self
    }

    pub(crate) fn shared_for(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.shared = with_head(methods);
        self
    }

    pub(crate) fn shares_some(&self) -> bool {
        !self.shared.is_empty()
    }

    pub(crate) fn answer<F>(mut self, answer: F) -> Self
    where
        F: Fn(&Refusal, Response<Bytes>) -> Response<Bytes> + Send + Sync + 'static,
    {
        self.answer = Replace::with(answer);
        self
    }
}

impl<ReqBody, ResBody: Body, Err> Protocol<Request<ReqBody>, Response<ResBody>, Err> for Http {
    of_messages!();

    fn refuse(&self, refusal: Refusal) -> Result<Self::Response, Err> {
        let mut answer = Answer::from(&refusal);
        if let Some(status) = self.busy.filter(|_| refusal.is_busy()) {
            answer = answer.status(status);
        }
        let response: Response<Bytes> = answer.to_response();
        let (status, body) = (response.status(), response.body().clone());
        let mut response = self.answer.give(&refusal, response);
        if response.status() != status && *response.body() == body {
            *response.body_mut() = answer.status(response.status()).to_response().into_body();
        }
        refusal.log(Some(response.status().as_u16()), None, &self.floods);
        Ok(refusal.respond(response))
    }

    fn applies(&self, request: &Request<ReqBody>) -> bool {
        let method = request.method();
        let is_named = match &self.methods {
            Methods::Writing => ![Method::GET, Method::HEAD, Method::OPTIONS].contains(method),
            Methods::All => true,
            Methods::These(methods) => methods.contains(method),
        };
        is_named || self.shared.contains(method)
    }

    fn shares(&self, request: &Request<ReqBody>) -> bool {
        self.shared.contains(request.method())
    }

    fn counts(&self, request: &Request<ReqBody>) -> bool {
        match &self.methods {
            Methods::Writing | Methods::All => true,
            Methods::These(methods) => methods.contains(request.method()),
        }
    }

    fn hold(&self, response: Self::Response, hold: BodyLease) -> Self::Response {
        response.map(|body| body.hold(hold, |error| Err(error.into())))
    }
}

impl HoldsBodies for Http {}

/// Adds HEAD to methods that have GET: axum, as other routers, answers HEAD by the handler of GET, which must not run without the lock then.
fn with_head(methods: impl IntoIterator<Item = Method>) -> Arc<[Method]> {
    let mut methods: Vec<_> = methods.into_iter().collect();
    if methods.contains(&Method::GET) && !methods.contains(&Method::HEAD) {
        methods.push(Method::HEAD);
    }
    methods.into()
}
