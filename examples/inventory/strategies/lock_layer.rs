//! `lock-layer`: a layer in front of an HTTP handler that knows nothing of locks.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use http::{Request, StatusCode};
use lock_core::LockManager;
use lock_tower::LockLayer;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::order::Order;
use crate::shop::{Sale, Shop};

/// Sells over HTTP, to one buyer at a time, at whichever instance.
#[derive(Debug)]
pub(crate) struct LockLayered {
    client: reqwest::Client,
    orders: String,
    server: JoinHandle<()>,
}

impl LockLayered {
    /// Starts the service on a free port of this machine.
    ///
    /// A layer sees the head of a request and not its body, so the key has to come from the path or a header: here
    /// the path, and with it the shop, since the goods are in the body. Each shop has a route of its own; with
    /// `/shops/{name}/orders` a client could spell one name in two ways, as in `c%6Frner`, and get two locks.
    pub(crate) async fn serve(shop: Shop, manager: LockManager) -> Result<Self> {
        let lock = LockLayer::http(manager, |request: &Request<_>| request.uri().path().to_owned())
            .ttl(Duration::from_secs(3))
            .wait(Duration::from_secs(30))
            .max_hold(Duration::from_secs(30)); // or a client that stalls in its upload keeps the key
        let path = format!("/shops/{}/orders", shop.name);
        let service = Router::new().route(&path, post(place)).route_layer(lock).with_state(shop);

        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("no port for the service")?;
        let orders = format!("http://{}{path}", listener.local_addr()?);
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, service).await {
                eprintln!("the service ended: {error}");
            }
        });
        Ok(Self { client: reqwest::Client::new(), orders, server })
    }

    /// Sends an order as a buyer would; `None` when the service was too busy to take it.
    pub(crate) async fn order(&self, order: &Order) -> Result<Option<Sale>> {
        let response = self.client.post(&self.orders).json(order).send().await?;
        match response.status() {
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::CONFLICT => Ok(None),
            _ => Ok(Some(response.error_for_status()?.json().await?)),
        }
    }
}

impl Drop for LockLayered {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// The handler: sells, and has no idea that it is alone with the shop.
async fn place(State(shop): State<Shop>, Json(order): Json<Order>) -> Result<Json<Sale>, (StatusCode, String)> {
    shop.sell(&order).await.map(Json).map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")))
}
