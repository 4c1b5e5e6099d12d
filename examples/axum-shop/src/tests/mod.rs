//! The service on real databases, over real sockets.

#[cfg(all(feature = "mariadb", feature = "postgres"))]
mod databases;
#[cfg(all(feature = "mariadb", feature = "postgres"))]
mod fencing;
mod metrics;
#[cfg(all(feature = "mariadb", feature = "postgres"))]
mod once;
mod payments;
mod readers;
mod sale;
#[cfg(all(feature = "mariadb", feature = "postgres"))]
mod server;

use lock_core::LockManager;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
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

/// Starts one instance; its locks are in the store of this name, which others of the same name share.
async fn instance(database: &str, store: &str) -> (String, Shop) {
    let manager = LockManager::connect(&format!("memory://{store}")).await.unwrap();
    let shop = Shop::open(database).await.unwrap();
    shop.lay_out().await.unwrap();
    // Not installed: the tests of this process would count together.
    let metrics = PrometheusBuilder::new().build_recorder().handle();
    (serve(manager, shop.clone(), metrics).await, shop)
}
