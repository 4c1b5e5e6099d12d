//! An axum service: one handler with a lock of its own, one behind a layer, one manager for both.
//!
//! ```text
//! cargo run -p example-axum-handlers
//! cargo run -p example-axum-handlers -- redis://127.0.0.1:6379
//! ```
//!
//! It listens on port 3000, or on another one: `PORT=3001 cargo run …`; with `PORT=0` on one that is free, and it says
//! which.
//!
//! Two buyers of one good: the second is served when the first is done. Then two goods, at the same time:
//!
//! ```text
//! time (curl -X POST localhost:3000/goods/1/sell & curl -X POST localhost:3000/goods/1/sell; wait)
//! time (curl -X POST localhost:3000/goods/1/sell & curl -X POST localhost:3000/goods/2/sell; wait)
//! ```
//!
//! Four buyers at once: a sale takes a second and a buyer waits two and a half, so the last one is told to retry later:
//!
//! ```text
//! for buyer in 1 2 3 4; do curl -s -X POST localhost:3000/goods/1/sell & done; wait
//! ```
//!
//! One order paid twice at once, as by two clicks on one button; the layer rejects the second click:
//!
//! ```text
//! curl -i -X POST localhost:3000/orders/7/pay & curl -i -X POST localhost:3000/orders/7/pay; wait
//! ```
//!
//! Ctrl-C or SIGTERM lets the requests in flight end, and releases the leases that are still held.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use lock_core::{LeaseOptions, LockManager, distributed_lock};
use lock_tower::LockLayer;
use lock_tower::key::{path_param, scoped};
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

/// The units that are left of each good that was sold before; there are ten of every other good. A service of several
/// instances would keep them in a database, as `example-axum-shop` does.
type Stock = Arc<Mutex<HashMap<u64, u32>>>;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // In memory unless the argument names a server.
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://".into());
    let manager = LockManager::connect(&url).await?;
    // The attribute finds the installed manager; the layer is given it. Both share its one connection.
    manager.install()?;

    // As a number, so that `/orders/07/pay` is the same order. Under a layer a client that stalls in its upload keeps the
    // key: `max_hold` is the bound.
    let per_order = scoped("orders", path_param::<u64>("order"));
    let clicks = LockLayer::http(manager.clone(), per_order)
        .try_only()
        .options(LeaseOptions::new().max_hold(Duration::from_secs(30)));
    let service = Router::new()
        .route("/orders/{order}/pay", post(pay))
        .route_layer(clicks)
        .route("/goods/{id}/sell", post(sell))
        .with_state(Stock::default());

    let port = std::env::var("PORT").map_or(Ok(3000), |port| port.parse()).context("PORT is not a port")?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await;
    let listener = listener.with_context(|| format!("port {port} is taken, try `PORT=3001 cargo run …`"))?;
    println!("listening on http://{}, Ctrl-C ends it", listener.local_addr()?);
    let stopped = manager.clone();
    let stop = async move {
        asked_to_end().await;
        // Requests that wait for a key fail now, so that the server waits only for those that hold one.
        stopped.stop_waiting();
    };
    axum::serve(listener, service).with_graceful_shutdown(stop).await?;

    let held = manager.shutdown(Duration::from_secs(5)).await;
    println!("ended, {held} leases were still held");
    Ok(())
}

/// Sells one unit, to one buyer of the good at a time; buyers of other goods do not wait.
///
/// The key is made of an argument, and the lock encloses the body: reading, thinking, writing.
#[distributed_lock(key = "goods:<id>", ttl = "3s", wait = "2500ms")]
async fn sell(State(stock): State<Stock>, Path(id): Path<u64>) -> Result<String, Refusal> {
    let left = read(&stock, id);
    sleep(Duration::from_secs(1)).await;
    let left = left.checked_sub(1).ok_or(Refusal::SoldOut)?;
    write(&stock, id, left);
    Ok(format!("sold one of good {id}, {left} left\n"))
}

/// Takes the payment of an order. Because of the layer in front, no order is paid twice at once.
async fn pay(Path(order): Path<u64>) -> String {
    sleep(Duration::from_secs(1)).await;
    format!("order {order} is paid\n")
}

/// Why a sale did not come about.
enum Refusal {
    SoldOut,
    Lock(lock_core::Error),
}

/// Makes a refusal of the error with which `#[distributed_lock]` says that it could not acquire the lock.
impl From<lock_core::Error> for Refusal {
    fn from(error: lock_core::Error) -> Self {
        Self::Lock(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::SoldOut => (StatusCode::CONFLICT, "sold out\n").into_response(),
            // As the layer answers: without the key and without the address of Redis.
            Self::Lock(error) => error.into_response(),
        }
    }
}

fn read(stock: &Stock, id: u64) -> u32 {
    stock.lock().unwrap_or_else(PoisonError::into_inner).get(&id).copied().unwrap_or(10)
}

fn write(stock: &Stock, id: u64, left: u32) {
    stock.lock().unwrap_or_else(PoisonError::into_inner).insert(id, left);
}

/// Returns when the process is asked to end: by Ctrl-C, or by SIGTERM, which an orchestrator sends. SIGTERM would otherwise end it at
/// once, and the keys of its requests would stay blocked for a ttl.
async fn asked_to_end() {
    #[cfg(unix)]
    let terminated = async {
        signal(SignalKind::terminate())?.recv().await;
        io::Result::Ok(())
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending::<io::Result<()>>();
    // Without a handler for a signal the service ends at once.
    let _ = tokio::select! {
        result = tokio::signal::ctrl_c() => result,
        result = terminated => result,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs once for each place at which the lock of the sale can fail, such as the `await` in it. Without the attribute it
    /// would pass even if the unit was taken before that `await`.
    #[lock_test::test]
    async fn a_unit_leaves_the_stock_only_if_its_buyer_is_told_so() {
        let stock = Stock::default();
        let answer = sell(State(stock.clone()), Path(1)).await;
        assert_eq!(read(&stock, 1), if answer.is_ok() { 9 } else { 10 });
    }
}
