//! What the tests of the page share.

use std::{future::Future, net::SocketAddr, panic::Location, time::Duration};

use axum::Router;
use lock_core::LockManager;
use tokio::net::TcpListener;

/// Waits for what should come soon, and fails instead of hanging.
#[track_caller]
pub(crate) fn soon<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let here = Location::caller();
    async move {
        match tokio::time::timeout(Duration::from_secs(60), future).await {
            Ok(output) => output,
            Err(_) => panic!("waited in vain at {here}"),
        }
    }
}

/// Waits for a condition, and fails when it does not come about.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    for _ in 0..PATIENCE {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("waited in vain until {what}");
}

/// How often a condition is looked at, every 5 ms: for a minute at least, on a machine of any speed.
pub(crate) const PATIENCE: u32 = 12_000;

/// Waits until somebody waits for a key.
pub(crate) async fn until_waited_for(manager: &LockManager, key: &str) {
    until("somebody waits", async || !manager.inspect(key).await.unwrap().waiters().is_empty()).await;
}

/// Serves on a free port, to the end of the runtime.
pub(crate) async fn serve(service: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}
