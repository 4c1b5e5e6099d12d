//! The service on real databases, over real sockets.

mod databases;
mod metrics;
mod server;

use lock_core::LockManager;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;

use crate::app::App;
use crate::shop::Shop;

/// Starts an instance and returns its URL.
async fn serve(manager: LockManager, shop: Shop, metrics: PrometheusHandle) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let service = App { manager, shop, metrics }.service();
    tokio::spawn(async move { axum::serve(listener, service).await });
    url
}
