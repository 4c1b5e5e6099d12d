//! One instance of the service.

use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::routing::post;
use axum::{Extension, Router};
use bytes::Bytes;
use lock_core::{LeaseOptions, LockManager};
use lock_tower::idempotency::{Answers, Attempt, IdempotencyLayer, MemoryAnswers};
use lock_tower::key::{header, scoped};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};

use crate::Form;
use crate::ledger::{KEEP, Ledger};

/// An instance with a runtime of its own.
#[derive(Debug)]
pub(crate) struct Instance {
    address: SocketAddr,
    /// `None` once it was killed.
    runtime: Option<Runtime>,
    stuck: watch::Receiver<usize>,
    is_killed: Arc<AtomicBool>,
}

/// What handlers share.
#[derive(Clone, Debug)]
struct App {
    form: Form,
    ledger: Ledger,
    /// One for each charge that the instance completes. Requests beyond them are stuck when it is killed.
    charges: Arc<Semaphore>,
    stuck: Arc<watch::Sender<usize>>,
}

impl Instance {
    /// Starts an instance that completes so many charges.
    pub(crate) fn start(
        form: Form,
        locks: &str,
        ledger: &Ledger,
        answers: &MemoryAnswers,
        charges: usize,
    ) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("there is no free port")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let (sender, stuck) = watch::channel(0);
        let app =
            App { form, ledger: ledger.clone(), charges: Arc::new(Semaphore::new(charges)), stuck: Arc::new(sender) };
        let (locks, answers) = (locks.to_owned(), answers.clone());
        let is_killed = Arc::new(AtomicBool::new(false));
        let silent = Arc::clone(&is_killed);
        runtime.spawn(async move {
            let manager = LockManager::connect(locks).await?;
            let service = match form {
                Form::Nothing => Router::new().route("/pay", post(pay)),
                Form::Layer => Router::new().route("/pay", post(pay)).route_layer(once(manager, answers)),
                Form::Transaction => {
                    Router::new().route("/pay", post(pay)).route_layer(once(manager, app.ledger.clone()))
                }
            };
            // The end of a runtime takes a moment, in which a request can still be told that its lease is lost. A process that is killed
            // tells nothing.
            let silence = from_fn(move |request: Request, next: Next| {
                let silent = Arc::clone(&silent);
                async move {
                    let response = next.run(request).await;
                    if silent.load(Ordering::SeqCst) { pending().await } else { response }
                }
            });
            let listener = tokio::net::TcpListener::from_std(listener)?;
            axum::serve(listener, service.with_state(app).layer(silence)).await?;
            anyhow::Ok(())
        });
        Ok(Self { address, runtime: Some(runtime), stuck, is_killed })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until some requests are stuck; returns how many.
    pub(crate) async fn until_stuck(&self) -> usize {
        let mut stuck = self.stuck.clone();
        // An error would say that the service has ended; then nothing is stuck.
        stuck.wait_for(|stuck| *stuck >= STUCK).await.map_or(0, |stuck| *stuck)
    }
}

/// Kills it: ends it where it is, as far as a part of a process can end.
impl Drop for Instance {
    fn drop(&mut self) {
        self.is_killed.store(true, Ordering::SeqCst);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// One charge for all requests of a customer with one `Idempotency-Key`.
fn once<A: Answers>(manager: LockManager, answers: A) -> IdempotencyLayer<lock_tower::key::Header<String>, A> {
    // A gateway has authenticated the customer, and removes this header from what clients send.
    let whose = scoped("payments", header::<String>("x-customer"));
    // It outlasts any pause of a busy machine. With Redis, the killed instance keeps the duplicates waiting for as long.
    let options = LeaseOptions::new().ttl(Duration::from_secs(10)).max_hold(Duration::from_secs(60));
    IdempotencyLayer::http(manager, whose, answers)
        .keep(KEEP)
        .wait(Duration::from_secs(30))
        .lock(|lock| lock.options(options))
}

/// Charges a customer.
async fn pay(
    State(app): State<App>,
    attempt: Option<Extension<Attempt>>,
    headers: HeaderMap,
    cents: String,
) -> Result<Response<Body>, StatusCode> {
    let customer = headers.get("x-customer").and_then(|name| name.to_str().ok()).ok_or(StatusCode::BAD_REQUEST)?;
    let cents = cents.parse().map_err(|_| StatusCode::BAD_REQUEST)?;
    let failed = |_| StatusCode::INTERNAL_SERVER_ERROR;
    if app.form != Form::Transaction {
        app.ask_the_bank().await;
        let number = app.ledger.charge(customer, cents).map_err(failed)?;
        return Ok(receipt(number).map(Body::from));
    }
    let Extension(attempt) = attempt.ok_or(StatusCode::INTERNAL_SERVER_ERROR)?;
    let answer = |number| attempt.answer(&receipt(number));
    let charged = app.ledger.charge_once(customer, cents, attempt.key(), answer).map_err(failed)?;
    app.ask_the_bank().await; // Killed here, it has charged, and the layer has not stored the answer.
    // Without a charge there is an answer that was stored before, and the layer sends that one.
    Ok(charged.map_or_else(Response::default, receipt).map(Body::from))
}

fn receipt(number: i64) -> Response<Bytes> {
    let mut response = Response::new(format!("receipt {number}").into());
    *response.status_mut() = StatusCode::CREATED;
    response
}

impl App {
    /// Waits for a while, or until the instance is killed.
    async fn ask_the_bank(&self) {
        tokio::time::sleep(Duration::from_millis(5)).await;
        match self.charges.try_acquire() {
            Ok(permit) => permit.forget(),
            Err(_) => {
                self.stuck.send_modify(|stuck| *stuck += 1);
                pending().await
            }
        }
    }
}

/// With how many requests inside an instance is killed at least.
const STUCK: usize = 5;
