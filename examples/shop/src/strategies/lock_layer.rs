//! `lock-layer`: a layer in front of an HTTP handler that knows nothing of locks.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{Request, StatusCode, header::CONTENT_TYPE};
use axum::routing::post;
use axum::{Json, Router};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use lock_core::LockManager;
use lock_tower::LockLayer;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::order::Order;
use crate::shop::{Sale, Shop};

/// Sells over HTTP, to one buyer at a time, at whichever instance.
#[derive(Debug)]
pub(crate) struct LockLayered {
    client: Client<HttpConnector, Full<Bytes>>,
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
        Ok(Self { client: Client::builder(TokioExecutor::new()).build_http(), orders, server })
    }

    /// Sends an order as a buyer would; `None` when the service was too busy to take it.
    pub(crate) async fn order(&self, order: &Order) -> Result<Option<Sale>> {
        let body = Full::from(serde_json::to_vec(order)?);
        let request = Request::post(&self.orders).header(CONTENT_TYPE, "application/json").body(body)?;
        let response = self.client.request(request).await?;
        let status = response.status();
        if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::CONFLICT) {
            return Ok(None);
        }
        let body = response.into_body().collect().await?.to_bytes();
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
