//! `lock-layer`: a layer in front of an HTTP handler that knows nothing of locks.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{Request, StatusCode, header::CONTENT_TYPE};
use axum::routing::post;
use axum::{Json, Router};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use lock_core::{LeaseOptions, LockManager};
use lock_tower::LockLayer;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::order::Order;
use crate::shop::{Sale, Shop};

/// Sells over HTTP, to one buyer at a time, at whichever instance.
#[derive(Debug)]
pub(crate) struct LockLayered {
    client: Client<HttpConnector, Body>,
    orders: String,
    server: JoinHandle<()>,
}

impl LockLayered {
    /// Starts the service on a free port of this machine.
    ///
    /// A layer sees the head of a request, and the goods are in its body. So all orders have one key.
    pub(crate) async fn serve(shop: Shop, manager: LockManager) -> Result<Self> {
        let options = LeaseOptions::new()
            .ttl(Duration::from_secs(3))
            .wait(Duration::from_secs(30))
            .max_hold(Duration::from_secs(30)); // or a client that stalls in its upload keeps the key
        let lock = LockLayer::http(manager, "shop").options(options);
        let service = Router::new().route("/orders", post(place)).route_layer(lock).with_state(shop);

        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("no port for the service")?;
        let orders = format!("http://{}/orders", listener.local_addr()?);
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, service).await {
                eprintln!("the service ended: {error}");
            }
        });
        Ok(Self { client: Client::builder(TokioExecutor::new()).build_http(), orders, server })
    }

    /// Sends an order as a buyer would; `None` when the service was too busy to take it.
    pub(crate) async fn order(&self, order: &Order) -> Result<Option<Sale>> {
        let body = Body::from(serde_json::to_vec(order)?);
        let request = Request::post(&self.orders).header(CONTENT_TYPE, "application/json").body(body)?;
        let response = self.client.request(request).await?;
        let status = response.status();
        if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::CONFLICT) {
            return Ok(None);
        }
        let body = to_bytes(Body::new(response.into_body()), usize::MAX).await?;
        ensure!(status.is_success(), "the service answered {status}: {}", String::from_utf8_lossy(&body));
        Ok(Some(serde_json::from_slice(&body)?))
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
