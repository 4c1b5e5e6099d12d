//! One answer for all requests of one idempotency key. The attacks are those of the table in the module's documentation.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

mod answers;
#[cfg(feature = "grpc")]
mod grpc;
mod hang_up;
mod model;
mod rules;
mod stores;
mod storm;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::State,
    response::{IntoResponse, Response},
    routing::post,
};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use lock_core::{LeaseOptions, LockManager};
use lock_tower::{
    BoxError,
    idempotency::{Answers, IdempotencyLayer, MemoryAnswers},
    key::{Header, header, scoped},
};
use tokio::sync::watch;
use tower::ServiceExt;

type Layer<A = MemoryAnswers> = IdempotencyLayer<Header<String>, A>;

/// The account is the header `x-account`, as a gateway would set it.
fn layer<A: Answers>(manager: &LockManager, answers: &A) -> Layer<A> {
    let options = LeaseOptions::new().ttl(Duration::from_secs(30));
    IdempotencyLayer::http(manager.clone(), scoped("payments", header::<String>("x-account")), answers.clone())
        .wait(Duration::from_secs(60))
        .lock(|lock| lock.options(options))
}

/// Counts effects, and keeps their handlers inside while its doors are closed.
#[derive(Clone, Debug)]
struct Bank(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    charges: AtomicUsize,
    done: AtomicUsize,
    are_open: watch::Sender<bool>,
}

impl Bank {
    fn open() -> Self {
        Self(Arc::new(Inner {
            charges: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            are_open: watch::Sender::new(true),
        }))
    }

    fn closed() -> Self {
        let bank = Self::open();
        bank.0.are_open.send_replace(false);
        bank
    }

    fn open_doors(&self) {
        self.0.are_open.send_replace(true);
    }

    /// Effects that have happened.
    fn charges(&self) -> usize {
        self.0.charges.load(SeqCst)
    }

    /// Handlers that have ended.
    fn done(&self) -> usize {
        self.0.done.load(SeqCst)
    }

    async fn charge(&self) -> usize {
        let number = self.0.charges.fetch_add(1, SeqCst) + 1;
        self.0.are_open.subscribe().wait_for(|open| *open).await.unwrap();
        self.0.done.fetch_add(1, SeqCst);
        number
    }

    /// The service without a layer.
    fn routes(&self) -> Router {
        Router::new().route("/pay", post(pay)).route("/refund", post(pay)).with_state(self.clone())
    }
}

/// Charges. The header `x-status` asks for another status than 201, and `x-body` for a body of so many bytes.
async fn pay(State(bank): State<Bank>, headers: HeaderMap) -> Response {
    let number = bank.charge().await;
    let asked = |name| headers.get(name).map(|value| value.to_str().unwrap().parse::<usize>().unwrap());
    let status = asked("x-status").map_or(StatusCode::CREATED, |status| StatusCode::from_u16(status as u16).unwrap());
    let body = asked("x-body").map_or_else(|| format!("charge {number}"), |bytes| "x".repeat(bytes));
    let headers = [
        ("location", format!("/charges/{number}")),
        ("set-cookie", "session=secret".to_owned()),
        ("x-trace", "of the first request".to_owned()),
        ("connection", "close".to_owned()),
    ];
    (status, headers, body).into_response()
}

fn request(account: &str, key: &str, body: &'static str) -> Request<Body> {
    let request = Request::post("/pay").header("x-account", account).header("idempotency-key", key);
    request.body(Body::from(body)).unwrap()
}

/// An answer as its client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    status: u16,
    body: String,
    headers: HeaderMap,
}

impl Told {
    fn is_replayed(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }

    /// The member `code` of problem details.
    fn code(&self) -> &str {
        let (_, code) = self.body.rsplit_once(r#""code":""#).unwrap_or_else(|| panic!("no problem details: {self:?}"));
        code.trim_end_matches("\"}")
    }

    #[track_caller]
    fn is(&self, status: u16, body: &str) {
        assert_eq!((self.status, &*self.body), (status, body), "{self:?}");
    }

    #[track_caller]
    fn is_refused(&self, status: u16, code: &str) {
        assert_eq!((self.status, self.code()), (status, code), "{self:?}");
        assert_eq!(self.headers["content-type"], "application/problem+json");
    }
}

async fn ask(service: &Router, request: Request<Body>) -> Told {
    let response = service.clone().oneshot(request).await.unwrap();
    told(response).await
}

async fn told(response: Response) -> Told {
    let (head, body) = response.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    Told { status: head.status.as_u16(), body: String::from_utf8(body.into()).unwrap(), headers: head.headers }
}

/// A store that cannot be read.
#[derive(Clone, Debug)]
struct Down;

impl Answers for Down {
    async fn get(&self, _key: &str) -> Result<Option<Bytes>, BoxError> {
        Err("the store is down".into())
    }

    async fn put_if_absent(&self, _key: &str, answer: Bytes, _keep: Duration) -> Result<Bytes, BoxError> {
        Ok(answer)
    }
}
