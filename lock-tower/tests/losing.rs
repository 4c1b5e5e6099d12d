//! A handler behind the layer loses its lease at each await.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, extract::State, routing::post};
use http::{Request, StatusCode};
use lock_core::LockManager;
use lock_tower::LockLayer;
use tokio::time::sleep;
use tower::ServiceExt;

/// What the database of the shop holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rows {
    charged: u32,
    shipped: u32,
}

type Shop = State<Arc<Mutex<Rows>>>;

async fn round_trip() {
    sleep(Duration::from_millis(5)).await;
}

async fn in_two_steps(State(rows): Shop) -> &'static str {
    round_trip().await;
    rows.lock().unwrap().charged += 1;
    round_trip().await;
    rows.lock().unwrap().shipped += 1;
    "paid"
}

async fn at_once(State(rows): Shop) -> &'static str {
    round_trip().await;
    round_trip().await;
    let mut rows = rows.lock().unwrap();
    *rows = Rows { charged: rows.charged + 1, shipped: rows.shipped + 1 };
    "paid"
}

/// Pays through the layer: what was answered, and what the database holds then.
async fn pay(locks: LockManager, path: &str) -> (StatusCode, Rows) {
    let rows = Arc::<Mutex<Rows>>::default();
    let router = Router::new().route("/two", post(in_two_steps)).route("/one", post(at_once));
    let service = router.layer(LockLayer::http(locks, "order")).with_state(Arc::clone(&rows));
    let request = Request::post(path).body(axum::body::Body::empty()).unwrap();
    let answer = service.oneshot(request).await.unwrap();
    let rows = rows.lock().unwrap().clone();
    (answer.status(), rows)
}

#[lock_test::test]
#[should_panic(expected = "lease lost at await 2 of 2 of the work that holds \"order\"")]
async fn handler_in_two_steps_is_half_done(locks: LockManager) {
    let (status, rows) = pay(locks, "/two").await;
    assert_eq!(rows.charged, rows.shipped, "after {status}");
}

#[lock_test::test]
async fn handler_in_one_step_is_done_or_not_and_says_which(locks: LockManager) {
    let (status, rows) = pay(locks, "/one").await;
    match status {
        StatusCode::OK => assert_eq!(rows, Rows { charged: 1, shipped: 1 }),
        StatusCode::INTERNAL_SERVER_ERROR | StatusCode::SERVICE_UNAVAILABLE => assert_eq!(rows, Rows::default()),
        other => panic!("{other} is not an answer of the layer or of the handler"),
    }
}
