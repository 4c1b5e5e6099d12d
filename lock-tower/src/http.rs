use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Body;

use crate::{
    failure::Answer,
    messages::of_messages,
    mode::Hold,
    protocol::{HoldsBodies, Protocol, Refusal},
};

/// HTTP requests: a refusal is a response, and the service's errors stay what they are.
///
/// The [`Lease`](lock_core::Lease) is in the extensions of the request that the service sees: `request.extensions().get::<Lease>()`,
/// in axum `Extension(lease): Extension<Lease>`. Of several layers, it is that of the innermost.
///
/// | status | when |
/// | --- | --- |
/// | 400 | the key is empty or too long, or its extractor refused the request |
/// | 409 | the key is busy, and the layer does not wait (its `wait` is zero) |
/// | 503, `Retry-After: 1` | the key stayed busy for the whole wait; too many requests wait; the backend did not answer; the manager was shut down |
/// | 503 | the lease was lost while the service worked: part of the work may have been done |
/// | 500 | the request holds the key already, in an outer layer; an option is out of its range; the backend refuses the user, or the key holds something that is no lock; a path parameter was asked for before routing |
///
/// `Retry-After` is there only where nothing was done and the same request may be sent again. The body is JSON as
/// in RFC 9457 (`application/problem+json`) and says what happened, without the key and without anything about the
/// backend: those are in the log, which `tracing` gets. The text of a 400 is that of the error. The response's
/// extensions hold the [`lock_core::Error`], for a layer further out that wants to answer in another form.
///
/// GET, HEAD and OPTIONS pass without a lock, unless [`methods`](Self::methods) says otherwise. [`answer`](Self::answer)
/// replaces the answers.
///
/// **A client that stalls in the middle of its upload keeps the key**, because a handler reads the body of its request under
/// the lock, and the lease is renewed while the handler waits. Set [`max_hold`](crate::LockLayer::max_hold): it drops the
/// handler and frees the key on time. It has no default, as only the service knows how long its work may take. Of
/// tower-http, `RequestBodyTimeoutLayer` ends an upload that pauses for too long, and `TimeoutLayer` outside the lock
/// bounds the waiting and the work together.
///
/// The lease is released when the head of the response is there, before the client sees it. A body that the
/// service streams after that is **not** under the lock, unless
/// [`until_body_end`](crate::LockLayer::until_body_end) is set.
#[derive(Clone, Debug, Default)]
pub struct Http {
    methods: Methods,
    answer: Answer<Response<Bytes>>,
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
    /// Locks requests of these methods only. Default: all but GET, HEAD and OPTIONS. See
    /// [`LockLayer::methods`](crate::LockLayer::methods), which refuses a list without a method; here it locks nothing.
    #[must_use]
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods = Methods::These(methods.into_iter().collect());
        self
    }

    /// Locks requests of every method.
    #[must_use]
    pub fn all_methods(mut self) -> Self {
        self.methods = Methods::All;
        self
    }

    /// Replaces the answers to requests that the lock refuses: the function gets the reason and the answer that would
    /// go out, and returns the one that does.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::{HeaderValue, StatusCode, header};
    /// use lock_core::LockManager;
    /// use lock_tower::{LockLayer, key::{header, scoped}};
    ///
    /// let per_account = scoped("account", header("x-account"));
    /// let layer = LockLayer::http(LockManager::in_memory(), per_account).answer(|_refusal, mut answer| {
    ///     if answer.status() == StatusCode::SERVICE_UNAVAILABLE {
    ///         answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("30"));
    ///     }
    ///     answer
    /// });
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn answer<F>(mut self, answer: F) -> Self
    where
        F: Fn(&Refusal, Response<Bytes>) -> Response<Bytes> + Send + Sync + 'static,
    {
        self.answer = Answer::with(answer);
        self
    }
}

impl<ReqBody, ResBody: Body, Err> Protocol<Request<ReqBody>, Response<ResBody>, Err> for Http {
    of_messages!();

    fn refuse(&self, refusal: Refusal) -> Result<Self::Response, Err> {
        let problem = refusal.to_problem();
        refusal.log(problem.status().as_u16());
        let answer = self.answer.give(&refusal, problem);
        Ok(refusal.respond(answer))
    }

    fn applies(&self, request: &Request<ReqBody>) -> bool {
        let method = request.method();
        match &self.methods {
            Methods::Writing => ![Method::GET, Method::HEAD, Method::OPTIONS].contains(method),
            Methods::All => true,
            Methods::These(methods) => methods.contains(method),
        }
    }

    fn hold(&self, response: Self::Response, hold: Hold) -> Self::Response {
        response.map(|body| body.hold(hold, |error| Err(error.into())))
    }
}

impl HoldsBodies for Http {}
