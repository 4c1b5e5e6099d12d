//! A web service behind the layer: `serve URL ADDRESS`.
//!
//! `POST /count/KEY` takes the lock of KEY, reads `KEY:number` from the Redis at ADDRESS and writes one more, as two
//! requests that have nothing to do with each other: an update is lost whenever two were inside at once. It answers with
//! the number that it wrote and its fencing token. Says `serving PORT`, and ends with its input.

use std::{error::Error, sync::Arc};

use axum::{
    Extension, Router,
    extract::{Path, Request, State},
    http::StatusCode,
    routing::post,
};
use lock_core::{Lease, LeaseOptions, LockManager};
use lock_tests::{LONG, RawClient};
use lock_tower::LockLayer;
use tokio::{net::TcpListener, sync::Mutex, task::yield_now};

type Numbers = Arc<Mutex<RawClient>>;

pub(crate) async fn serve(url: &str, address: &str) -> Result<(), Box<dyn Error>> {
    let manager = crate::connected(LockManager::builder().url(url)).await?;
    let numbers: Numbers = Arc::new(Mutex::new(RawClient::tcp(address).await?));
    let layer = LockLayer::http(manager, |request: &Request| request.uri().path().to_owned())
        .options(LeaseOptions::new().ttl(LONG).wait(LONG));
    let app = Router::new().route("/count/{key}", post(count)).route_layer(layer).with_state(numbers);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("serving {}", listener.local_addr()?.port());
    let mut input = crate::input();
    axum::serve(listener, app).with_graceful_shutdown(async move { while input.recv().await.is_some() {} }).await?;
    Ok(())
}

async fn count(
    State(numbers): State<Numbers>,
    Path(key): Path<String>,
    Extension(lease): Extension<Lease>,
) -> Result<String, StatusCode> {
    let key = format!("{key}:number");
    let number = call(&numbers, &["GET", &key]).await?.unwrap_or_else(|| "0".to_owned());
    let number: u64 = number.parse().map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    yield_now().await;
    call(&numbers, &["SET", &key, &(number + 1).to_string()]).await?;
    Ok(format!("{} {}", number + 1, lease.fencing_token()))
}

async fn call(numbers: &Numbers, command: &[&str]) -> Result<Option<String>, StatusCode> {
    let reply = numbers.lock().await.call(command).await;
    reply.map(|reply| reply.text()).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}
