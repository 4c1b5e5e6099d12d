//! Handlers of axum: extractors as patterns, and errors that are responses.

use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    http::{Request, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use lock_core::{Error, ErrorKind, LockManager, distributed_lock};
use tower::ServiceExt;

#[derive(Clone)]
struct App {
    locks: LockManager,
}

struct Failure(Error);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self.0.kind() {
            ErrorKind::Busy => StatusCode::CONFLICT.into_response(),
            _ => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        }
    }
}

#[distributed_lock(key = "goods:<id>", wait = "0s", manager = app.locks, lease = lease)]
async fn sell(Path(id): Path<u64>, State(app): State<App>, request: Request<Body>) -> Result<String, Failure> {
    assert!(app.locks.is_locked(format!("goods:{id}")).await?);
    Ok(format!("{} {}", request.method(), lease.key()))
}

#[distributed_lock(
    key = "goods:<id>", wait = "0s", manager = locks, on_error = refused
)]
async fn sell_or_say_why(Path(id): Path<u64>, State(App { locks }): State<App>) -> impl IntoResponse {
    (StatusCode::OK, format!("sold {id}")).into_response()
}

fn refused(error: Error) -> Response {
    Failure::from(error).into_response()
}

#[tokio::test]
async fn handlers_are_locked_by_what_their_extractors_found() {
    let locks = LockManager::in_memory();
    let app = Router::new()
        .route("/sell/{id}", post(sell))
        .route("/other/{id}", post(sell_or_say_why))
        .with_state(App { locks: locks.clone() });
    let status = async |path: &str| {
        let request = Request::post(path).body(Body::empty()).expect("a request");
        app.clone().oneshot(request).await.expect("infallible").status()
    };
    for path in ["/sell/7", "/other/7"] {
        assert_eq!(status(path).await, StatusCode::OK);
        let guard = locks.lock("goods:7").await.expect("the handler gave it back");
        assert_eq!(status(path).await, StatusCode::CONFLICT);
        assert_eq!(status("/sell/8").await, StatusCode::OK);
        guard.release().await.expect("released");
    }
}
