//! The customers.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use tokio::task::JoinHandle;

use crate::CUSTOMERS;

/// One click of each customer, all at the same time.
#[derive(Debug)]
pub(crate) struct Clicks(Vec<JoinHandle<Result<Receipt>>>);

/// What a click was answered with.
#[derive(Debug)]
pub(crate) struct Receipt {
    pub(crate) text: String,
    pub(crate) is_replayed: bool,
}

impl Clicks {
    /// Sends a click of each customer to the first of the instances.
    pub(crate) fn begin(instances: [SocketAddr; 2]) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self((0..CUSTOMERS).map(|customer| tokio::spawn(click(client.clone(), instances, customer))).collect())
    }

    /// Returns the receipts, in the order of the customers.
    pub(crate) async fn receipts(self) -> Result<Vec<Receipt>> {
        let mut receipts = Vec::new();
        for click in self.0 {
            receipts.push(click.await??);
        }
        Ok(receipts)
    }
}

/// Sends a click, and once more to the other instance if the first one does not answer or has failed. A request that has a key may be
/// sent again after any error.
async fn click(client: Client<HttpConnector, Body>, instances: [SocketAddr; 2], customer: usize) -> Result<Receipt> {
    for instance in instances {
        let request = Request::post(format!("http://{instance}/pay"))
            .header("x-customer", format!("customer {customer}"))
            .header("idempotency-key", format!("order-{customer}"))
            .body(Body::from("42"))?;
        let Ok(response) = client.request(request).await else { continue };
        let (head, body) = response.into_parts();
        let Ok(body) = to_bytes(Body::new(body), usize::MAX).await else { continue };
        let text = String::from_utf8(body.into()).context("a receipt that is not text")?;
        return match head.status {
            StatusCode::CREATED => Ok(Receipt { text, is_replayed: head.headers.contains_key("idempotent-replayed") }),
            // An instance that is being killed may say so in the end.
            status if status.is_server_error() => continue,
            status => bail!("a click was answered with {status}: {text}"),
        };
    }
    bail!("both instances failed")
}
