//! The customers.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use tokio::task::JoinHandle;

use crate::CUSTOMERS;

/// All customers, each of whom clicks twice.
#[derive(Debug)]
pub(crate) struct Clicks(Vec<[JoinHandle<Result<Receipt>>; 2]>);

/// What a click was answered with.
#[derive(Debug)]
pub(crate) struct Receipt {
    pub(crate) text: String,
    pub(crate) is_replayed: bool,
}

impl Clicks {
    /// Sends the two clicks of each customer to the two instances, all at the same time.
    pub(crate) fn begin(instances: [SocketAddr; 2]) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let click = |customer, first| {
            let instances = [instances[first], instances[1 - first]];
            tokio::spawn(click(client.clone(), instances, customer))
        };
        Self((0..CUSTOMERS).map(|customer| [click(customer, 0), click(customer, 1)]).collect())
    }

    pub(crate) async fn receipts(self) -> Result<Vec<[Receipt; 2]>> {
        let mut receipts = Vec::new();
        for [first, second] in self.0 {
            receipts.push([first.await??, second.await??]);
        }
        Ok(receipts)
    }
}

/// Sends a click, and once more to the other instance if the first one does not answer.
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
            status => bail!("a click was answered with {status}: {text}"),
        };
    }
    bail!("both instances are gone")
}
