//! A page for operators: who holds which key, who waits for it and for how long, and how the connection is.
//!
//! [`Status`] is a tower service that mounts in any axum router. It shows all keys of its manager's store, of whichever
//! process, with the longest waits and holds first; which processes did not answer; the rates, losses and renewals of its own process; and
//! the nodes of the backend. The page has no JavaScript, loads nothing from elsewhere, and is readable on a phone.
//!
//! # Example
//!
//! **Authentication is up to the caller**: everyone who can reach the service sees all keys, so put a layer around it. That nobody
//! else can reach the network is not enough: a page elsewhere can have its own host name point at the service (DNS rebinding), and is
//! of the same origin then. Check credentials, or at least that the header `Host` is yours.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::{Router, extract::Request, http::StatusCode, middleware::{self, Next}, response::Response};
//! use lock_core::LockManager;
//! use lock_status::Status;
//!
//! async fn operators_only(request: Request, next: Next) -> Result<Response, StatusCode> {
//!     let user = request.headers().get("x-user"); // as the proxy in front of the service has set it
//!     if user.is_some_and(|user| user == "operator") { Ok(next.run(request).await) } else { Err(StatusCode::FORBIDDEN) }
//! }
//!
//! let manager = LockManager::in_memory(); // or: LockManager::connect("redis://127.0.0.1").await?
//! let page = Router::new().nest_service("/locks", Status::new(manager)).layer(middleware::from_fn(operators_only));
//! let service: Router = Router::new().merge(page);
//! # use {axum::body::Body, tower::ServiceExt};
//! # let request = Request::get("/locks").header("x-user", "operator").body(Body::empty())?;
//! # assert_eq!(service.clone().oneshot(request).await?.status(), 200);
//! # assert_eq!(service.oneshot(Request::get("/locks").body(Body::empty())?).await?.status(), 403);
//! # Ok(()) }
//! ```
//!
//! # Customised
//!
//! With the environment in the title, links from holders to their traces, and forced releases, which are off unless they are allowed:
//!
//! ```
//! use axum::Router;
//! use lock_core::LockManager;
//! use lock_status::Status;
//!
//! let status = Status::new(LockManager::in_memory())
//!     .environment("production")
//!     .trace_url("https://jaeger.example/trace/{trace_id}")
//!     .allow_force_release();
//! let service: Router = Router::new().nest_service("/locks", status);
//! # let _ = service;
//! ```
//!
//! # Processes that did not answer
//!
//! The store says how many processes were asked, and each that answers says its name. So the page names a silent process if that has
//! answered an earlier look of the last hour at the same `Status` or a clone, and says since when it has not. While answers are missing,
//! waits and holds are given as *at least*. A process names 500 holders and waiters at most, holders first; the page says if one has more.
//!
//! # Rates
//!
//! The rates are those of the process that serves the page, which is said there; behind a load balancer the next request may reach
//! another one. The manager counts ([`Health::acquired`](lock_core::Health::acquired), [`Health::busy`](lock_core::Health::busy),
//! [`Health::losses`](lock_core::Health::losses)), and each look samples. So the first look has no rates, and a later one has those since
//! the last look that is a minute old, or since the first one of the last minute; the page says how long ago that was. For all processes over all time, use [metrics](lock_core#metrics).
//!
//! # Forced releases
//!
//! A link at each key leads to a confirmation, which names the key, its holder and what follows. Only the form of that page
//! releases, by `POST`; a `GET` never changes anything. The form names the holder that was shown, by its fencing token, and those who
//! share a key by their processes and labels, too. If the key has another holder by then, it is kept, and the confirmation is shown again. (A
//! silent holder has no name: one cannot be told from the next, nor can two readers of one process with one label. Two clients of another library
//! are told apart by the end of their locks, to a second. And between that check and the release another holder may come, as another round trip lies there.) Each release is logged as a warning.
//!
//! The link is red if others wait for a key with a silent holder, or if another library holds the key without a ttl. Otherwise it is grey, and
//! the confirmation has a box that must be ticked before its button works: the holder is alive, and ends its lease at its `max_hold` itself,
//! or nobody waits for the key, which `at_least` may keep.
//!
//! A form of another site is refused with 403: the header `Sec-Fetch-Site` has to be `same-origin`, or if it is not sent, as
//! over plain HTTP, the host in `Origin` has to be that of the request. A page of another site cannot change these headers.
//! There is no token in the form, because behind a load balancer the form may reach another process. A proxy that changes `Host`
//! and speaks plain HTTP to the browser cannot be used with the form. A program that posts sends one of the headers itself.
//!
//! # Query parameters
//!
//! | parameter | meaning |
//! | --- | --- |
//! | `prefix` | only keys that begin with this text, behind the prefix of the manager |
//! | `only` | `waiting`: only keys that requests wait for; `silent`: only keys with a lease for which no process answered |
//! | `by` | only keys with a holder whose service or label contains this text |
//! | `host` | only keys with a holder whose host has a name that contains this text |
//! | `order=key` | keys in the order of their bytes, 200 on a page; without it the 200 with the longest waits and holds |
//! | `after` | the key behind which the page begins, in the order of keys |
//! | `refresh` | the page reloads itself after this many seconds, from 2 to 3,600 |
//! | `format=json` | JSON, as with the header `Accept: application/json` |
//!
//! # JSON
//!
//! ```json
//! {"at_ms": 1764000000000, "service": "shop", "environment": "production", "key_prefix": "",
//!  "order": "age", "prefix": "", "only": "all", "by": "", "host": "",
//!  "matching": 1, "waiting": 1, "unknown": 0, "next": null,
//!  "manager": {"up": true, "held": 1, "acquired": 700, "busy": 12, "renewal_slack_ms": 1990,
//!              "lost": {"expired": 0, "taken": 0, "max_hold": 0, "forced": 0, "shut_down": 0},
//!              "nodes": [{"address": "127.0.0.1:6379", "database": 0, "up": true, "age_ms": 5000, "last_error": null}]},
//!  "rates": {"span_ms": 60500, "acquired": 130, "busy": 2, "lost": 0},
//!  "missed": [{"service": "shop", "host": "web-3", "process": 4713, "answered_ms": 40000}],
//!  "keys": [{"key": "goods:1", "locked": true, "foreign": false, "remaining_ms": 2900, "leases": 1,
//!            "holders": [{"service": "shop", "host": "web-1", "process": 4711, "label": "sell",
//!                         "mode": "exclusive", "permits": 0, "total": 0,
//!                         "held_ms": 1200, "ttl_ms": 3000, "fencing_token": 1764000000000000}],
//!            "silent": null,
//!            "waiters": [{"service": "shop", "host": "web-2", "process": 4712, "label": "sell",
//!                         "mode": "exclusive", "permits": 0, "total": 0,
//!                         "waited_ms": 800, "place": 1}],
//!            "truncated": false,
//!            "processes": {"asked": 3, "answered": 3}}]}
//! ```
//!
//! `matching` and `waiting` count all keys that match, `keys` has 200 at most, and `next` is what `after` is to be for the
//! next ones. `unknown` is how many silent keys `by` and `host` have left out, since their holders are not known. `key_prefix` is the prefix
//! of the manager, `database` is `null` unless the node is Redis, and `rates` is `null` in the first look. `missed` are the processes that
//! answered before and not now, `answered_ms` ago. `holders` is empty if the key is free, if it is `foreign` (held by another library), and if nobody answered, see
//! [`KeyInfo::nobody_answered`](lock_core::KeyInfo::nobody_answered). `mode` is `exclusive`, `shared` or `permits`, which take `permits`
//! of the `total` of the key; other modes have zero of both. `leases` is how many hold the key, as Redis counts them. `silent` is
//! `null` if a process answered for each of them, and if that cannot be known; else it is `{"leases": 1, "permits": 0,
//! "first_end_ms": 900, "last_end_ms": 2900}`, see [`KeyInfo::silent`](lock_core::KeyInfo::silent). `truncated` says that a process had more to say, see
//! [`KeyInfo::is_truncated`](lock_core::KeyInfo::is_truncated). `processes` says how many processes should have answered (`null` if that is
//! not known) and how many did, see [`KeyInfo::processes`](lock_core::KeyInfo::processes). `lockctl` writes keys with the same fields.
//!
//! If the keys cannot be listed, there is an `error` in place of the keys. The status is that of [`lock_core::answer`]: 503 if Redis does not
//! answer, 500 if it refuses the user or a command. Fields may be added.
//!
//! # What it costs
//!
//! A look finds the keys by `SCAN` and asks every process, see [`LockManager::list`](lock_core::LockManager::list). One look is taken
//! at a time, and shared by all requests of the next second at least, whatever their prefix; after a long look, of four times its
//! duration. So nobody can flood Redis by reloading. Nothing is done while nobody asks. A confirmation and a release look at their
//! key alone, one at a time, and do not wait for a look at all.
//!
//! Tokens of leases and passwords are not shown. Keys and labels are, and keys stand in links: they are in the browser's
//! history. Use the service in a tokio runtime with time enabled.

mod answer;
mod controls;
mod json;
mod look;
mod origin;
mod page;
mod processes;
mod question;
mod rates;
mod release;
mod selection;
mod sentences;
mod site;
mod text;
mod trace;
mod words;

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use lock_core::LockManager;
use tower_service::Service;

use self::{
    answer::Answer,
    look::Looks,
    page::List,
    question::Question,
    release::{ask, message, release},
    site::Site,
    trace::Traces,
};

/// A tower service that answers with a page about the locks of a manager. The [module](self) has examples.
///
/// Clones share what they look at. Paths are not looked at: mount it at one.
#[derive(Clone, Debug)]
pub struct Status {
    looks: Looks,
    site: Arc<Site>,
}

impl Status {
    /// Makes the page of a manager. It changes nothing, unless [`allow_force_release`](Self::allow_force_release) is called.
    #[must_use]
    pub fn new(manager: LockManager) -> Self {
        Self { site: Arc::new(Site::of(manager.clone())), looks: Looks::new(manager) }
    }

    /// Sets the name of the environment, such as `production`, in the title and the header of each page. Default: none.
    ///
    /// Prefix and database stand in the header, too; they come from the manager.
    #[must_use]
    pub fn environment(self, name: impl Into<String>) -> Self {
        self.with(|site| site.environment = name.into())
    }

    /// Links each holder to the trace in which it acquired its lease. Default: no links.
    ///
    /// The template is the address of a trace in your viewer, with `{trace_id}`, and `{span_id}` if it is of use there. A holder has a link
    /// if its process has lock-core's feature `opentelemetry`, the lease was acquired in a span of a trace, and that trace was sampled.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_status::Status;
    ///
    /// let status = Status::new(LockManager::in_memory()).trace_url("https://jaeger.example/trace/{trace_id}?uiFind={span_id}");
    /// # let _ = status;
    /// ```
    #[must_use]
    pub fn trace_url(self, template: impl Into<String>) -> Self {
        self.with(|site| site.traces = Some(Traces::new(template.into())))
    }

    /// Lets the page release keys by force, after a confirmation.
    ///
    /// Everyone who can reach the service can then take locks away from their holders. See
    /// [`LockManager::force_release`](lock_core::LockManager::force_release) for what follows.
    #[must_use]
    pub fn allow_force_release(self) -> Self {
        self.with(|site| site.releases = true)
    }

    fn with(mut self, change: impl FnOnce(&mut Site)) -> Self {
        change(Arc::make_mut(&mut self.site));
        self
    }

    async fn answer(self, method: Method, uri: Uri, headers: HeaderMap) -> Answer {
        let question = Question::read(uri.query().unwrap_or_default(), &headers);
        let refused = |status, why| message(&self.site, &question, status, why);
        match (method, question.release.clone()) {
            (Method::GET | Method::HEAD, _) if question.style => Answer::style(),
            (Method::GET | Method::HEAD, None) => self.list(&question).await,
            _ if !self.site.releases => {
                refused(StatusCode::METHOD_NOT_ALLOWED, "this page only shows").allow("GET, HEAD")
            }
            (Method::GET | Method::HEAD, Some(key)) => ask(&self.site, &self.looks, &question, &key).await,
            (Method::POST, Some(key)) => match origin::same_origin(&headers, &uri) {
                Ok(()) => release(self.site, self.looks, question, key).await,
                Err(why) => refused(StatusCode::FORBIDDEN, why),
            },
            (Method::POST, None) => refused(StatusCode::BAD_REQUEST, "the request does not name a key to release"),
            _ => refused(StatusCode::METHOD_NOT_ALLOWED, "this method is not known").allow("GET, HEAD, POST"),
        }
    }

    async fn list(&self, question: &Question) -> Answer {
        let look = self.looks.look().await;
        let health = self.looks.manager.health();
        if question.json {
            return Answer::json(look.status, &json::list(&self.site, question, &health, &look));
        }
        let list = List { question, health: &health, look: &look, site: &self.site };
        Answer::page(look.status, &self.site.title("locks"), question.refresh, &list.body())
    }
}

impl<B> Service<Request<B>> for Status {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture {
        let (parts, _) = request.into_parts();
        let answer = self.clone().answer(parts.method, parts.uri, parts.headers);
        ResponseFuture { answer: Box::pin(answer) }
    }
}

/// The future of a [`Status`].
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture {
    answer: Pin<Box<dyn Future<Output = Answer> + Send>>,
}

impl Future for ResponseFuture {
    type Output = Result<Response<Full<Bytes>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.answer.as_mut().poll(cx).map(|answer| Ok(answer.into_response()))
    }
}

impl fmt::Debug for ResponseFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
