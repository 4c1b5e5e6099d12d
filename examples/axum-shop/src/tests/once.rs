//! A charge and its answer in one transaction of PostgreSQL: one charge, though the process is killed before or after the commit.
//!
//! Each instance has its locks in its own memory, as if every lease were lost. Only the transaction prevents a second charge.

use std::env;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Response, StatusCode};
use axum::routing::post;
use axum::{Extension, Router};
use lock_core::LockManager;
use lock_tower::BoxError;
use lock_tower::idempotency::{Answers, Attempt, IdempotencyLayer};
use lock_tower::key::{header, scoped};
use sqlx::any::install_default_drivers;
use sqlx::{AnyPool, query, query_scalar};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::server::Server;

const READ: &str = "SELECT answer FROM answers WHERE key = $1 AND until > now()";
const STORE: &str = "INSERT INTO answers (key, answer, until) VALUES ($1, $2, now() + $3 * interval '1 second')
    ON CONFLICT (key) DO UPDATE SET answer = excluded.answer, until = excluded.until WHERE answers.until <= now()";
const KEEP: Duration = Duration::from_secs(24 * 3600);

/// The charges and the answers, in one database.
#[derive(Clone, Debug)]
struct Ledger {
    pool: AnyPool,
    stops: Stops,
}

/// Where a handler stops, so that its process can be killed there.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stops {
    Never,
    BeforeCommit,
    AfterCommit,
    /// After the commit of a charge without its answer, which the layer would store later.
    WithoutAnswer,
}

impl Ledger {
    async fn charge(&self, attempt: &Attempt) -> Result<Response<Bytes>, sqlx::Error> {
        let mut transaction = self.pool.begin().await?;
        let charge = "INSERT INTO charges (key) VALUES ($1) RETURNING number";
        let number: i64 = query_scalar(charge).bind(attempt.key()).fetch_one(&mut *transaction).await?;
        let mut receipt = Response::new(format!("receipt {number}").into());
        *receipt.status_mut() = StatusCode::CREATED;
        if self.stops != Stops::WithoutAnswer {
            let store = query(STORE).bind(attempt.key()).bind(attempt.answer(&receipt).to_vec()).bind(seconds(KEEP));
            if store.execute(&mut *transaction).await?.rows_affected() == 0 {
                // Another request has stored its answer, which the layer sends in place of this one.
                transaction.rollback().await?;
                return Ok(Response::default());
            }
        }
        self.stop_if(self.stops == Stops::BeforeCommit).await;
        transaction.commit().await?;
        self.stop_if(self.stops != Stops::Never).await;
        Ok(receipt)
    }

    async fn stop_if(&self, is_here: bool) {
        if is_here {
            println!("{CHARGED}");
            std::future::pending().await
        }
    }

    /// Serves, and returns the URL.
    async fn serve(self) -> String {
        let whose = scoped("payments", header::<String>("x-account"));
        let once = IdempotencyLayer::http(LockManager::in_memory(), whose, self.clone()).keep(KEEP);
        let service = Router::new().route("/pay", post(pay)).route_layer(once).with_state(self);
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}/pay", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, service).await });
        url
    }
}

async fn pay(
    State(ledger): State<Ledger>,
    Extension(attempt): Extension<Attempt>,
) -> Result<Response<Body>, StatusCode> {
    let receipt = ledger.charge(&attempt).await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(receipt.map(Body::from))
}

impl Answers for Ledger {
    async fn get(&self, key: &str) -> Result<Option<Bytes>, BoxError> {
        let answer: Option<Vec<u8>> = query_scalar(READ).bind(key).fetch_optional(&self.pool).await?;
        Ok(answer.map(Bytes::from))
    }

    async fn put_if_absent(&self, key: &str, answer: Bytes, keep: Duration) -> Result<Bytes, BoxError> {
        query(STORE).bind(key).bind(answer.to_vec()).bind(seconds(keep)).execute(&self.pool).await?;
        self.get(key).await?.ok_or_else(|| "an answer was there, and is over".into())
    }
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

/// Returns the status, the text, and true if the answer is replayed.
async fn click(url: &str, key: &str) -> (u16, String, bool) {
    let request = reqwest::Client::new().post(url).header("x-account", "a").header("idempotency-key", key);
    let response = request.body("42").send().await.unwrap();
    let is_replayed = response.headers().contains_key("idempotent-replayed");
    (response.status().as_u16(), response.text().await.unwrap(), is_replayed)
}

/// An instance in a process of its own; killed on drop.
struct Instance(Child);

impl Instance {
    /// Starts one that charges for a click with this key, and returns when its handler has stopped.
    fn start(database: &str, key: &str) -> Self {
        let mut instance = Command::new(env::current_exe().unwrap());
        instance.args(["--ignored", "--exact", "tests::once::an_instance", "--nocapture"]);
        instance.env("ONCE_DATABASE", database).env("ONCE_KEY", key);
        let mut instance = Self(instance.stdout(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(instance.0.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains(CHARGED)), "it ended before it had charged");
        instance
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.0.kill().unwrap(); // SIGKILL
        self.0.wait().unwrap();
    }
}

/// Run by the test below, and killed by it.
#[tokio::test]
#[ignore = "stops in the middle, as it should"]
async fn an_instance() {
    install_default_drivers();
    let (database, key) = (env::var("ONCE_DATABASE").unwrap(), env::var("ONCE_KEY").unwrap());
    let (_, stops) = ROUNDS.into_iter().find(|(name, _)| *name == key).unwrap();
    let url = Ledger { pool: AnyPool::connect(&database).await.unwrap(), stops }.serve().await;
    timeout(Duration::from_secs(60), click(&url, &key)).await.expect("it should have been killed");
}

#[tokio::test]
async fn a_charge_and_its_answer_on_postgres_are_stored_once_though_the_process_is_killed() {
    let Some(server) = Server::postgres().await else { return };
    let pool = AnyPool::connect(server.url()).await.unwrap();
    for table in [
        "CREATE TABLE charges (number BIGSERIAL PRIMARY KEY, key TEXT NOT NULL)",
        "CREATE TABLE answers (key TEXT PRIMARY KEY, answer BYTEA NOT NULL, until TIMESTAMPTZ NOT NULL)",
    ] {
        query(table).execute(&pool).await.unwrap();
    }
    let charges = async |key: &str| -> Vec<i64> {
        let numbers = query_scalar("SELECT number FROM charges WHERE key = 'payments:a:' || $1").bind(key.to_owned());
        numbers.fetch_all(&pool).await.unwrap()
    };
    let instance = Ledger { pool: pool.clone(), stops: Stops::Never };
    let (url, other) = (instance.clone().serve().await, instance.serve().await);

    for (key, stops) in ROUNDS {
        drop(Instance::start(server.url(), key));
        let was_committed = charges(key).await.len() == 1;
        assert_eq!(was_committed, stops != Stops::BeforeCommit, "{key}");
        let (status, receipt, is_replayed) = click(&url, key).await;
        assert_eq!((status, is_replayed), (201, stops == Stops::AfterCommit), "{key}: {receipt}");
        let charges = charges(key).await;
        assert_eq!(receipt, format!("receipt {}", charges[charges.len() - 1]), "{key}");
        // The last round shows what the transaction is for.
        assert_eq!(charges.len(), if stops == Stops::WithoutAnswer { 2 } else { 1 }, "{key}");
    }

    // Two clicks at once, at instances whose locks do not exclude each other.
    let (one, two) = tokio::join!(click(&url, "twice"), click(&other, "twice"));
    let charges = charges("twice").await;
    assert_eq!((one.1, two.1), (format!("receipt {}", charges[0]), format!("receipt {}", charges[0])));
    assert_eq!(charges.len(), 1);
}

const CHARGED: &str = "charged, and not answered";
const ROUNDS: [(&str, Stops); 3] =
    [("before", Stops::BeforeCommit), ("after", Stops::AfterCommit), ("without", Stops::WithoutAnswer)];
