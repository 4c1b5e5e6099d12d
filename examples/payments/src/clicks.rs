//! The customers.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::{CUSTOMERS, Form};

/// One click of each customer, all at the same time.
#[derive(Debug)]
pub(crate) struct Clicks {
    clicks: Vec<JoinHandle<Result<Receipt>>>,
    answered: watch::Receiver<usize>,
}

/// What a click was answered with.
#[derive(Debug)]
pub(crate) struct Receipt {
    pub(crate) text: String,
    pub(crate) is_replayed: bool,
}

impl Clicks {
    /// Sends a click of each customer to the first of the instances.
    pub(crate) fn begin(form: Form, instances: [SocketAddr; 2]) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let (sender, answered) = watch::channel(0);
        let click = |customer| {
            let (client, sender) = (client.clone(), sender.clone());
            tokio::spawn(async move {
                let receipt = click(form, client, instances, customer).await;
                sender.send_modify(|answered| *answered += usize::from(receipt.is_ok()));
                receipt
            })
        };
        Self { clicks: (0..CUSTOMERS).map(click).collect(), answered }
    }

    /// Waits until so many customers have a receipt.
    pub(crate) async fn until_answered(&self, count: usize) {
        // An error would say that no click is left; `receipts` then says which failed.
        let _ = self.answered.clone().wait_for(|answered| *answered >= count).await;
    }

    /// Returns the receipts, in the order of the customers.
    pub(crate) async fn receipts(self) -> Result<Vec<Receipt>> {
        let mut receipts = Vec::new();
        for click in self.clicks {
            receipts.push(click.await??);
        }
        Ok(receipts)
    }
}

/// Sends a click to one instance after the other, until one of them answers. A connection that breaks is that of the instance that is killed,
/// before it charges or with `--transaction`.
async fn click(
    form: Form,
    client: Client<HttpConnector, Body>,
    instances: [SocketAddr; 2],
    customer: usize,
) -> Result<Receipt> {
    for instance in instances.into_iter().cycle().take(ATTEMPTS) {
        let request = Request::post(format!("http://{instance}/pay"))
            .header("x-customer", format!("customer {customer}"))
            .header("idempotency-key", format!("order-{customer}"))
            .body(Body::from("42"))?;
        if let Ok(response) = client.request(request).await {
            let (head, body) = response.into_parts();
            // A body that ends too early is that of an instance that was killed.
            if let (Ok(body), false) = (to_bytes(Body::new(body), usize::MAX).await, may_repeat(form, head.status)) {
                let text = String::from_utf8(body.into()).context("a receipt that is not text")?;
                ensure!(head.status == StatusCode::CREATED, "a click was answered with {}: {text}", head.status);
                return Ok(Receipt { text, is_replayed: head.headers.contains_key("idempotent-replayed") });
            }
        }
        sleep(PAUSE).await;
    }
    bail!("no instance answers; can they reach Redis?")
}

/// Whether a click may be sent again after an answer of the server. After 503 nothing was done. After 500 (`lock_lost`,
/// `idempotency_answer_not_stored`) the customer may be charged and no receipt be stored, so a duplicate may charge again: somebody has to
/// look for the charge first. A handler that stores its receipt with the charge is asked again after any error.
fn may_repeat(form: Form, status: StatusCode) -> bool {
    status == StatusCode::SERVICE_UNAVAILABLE || form == Form::Transaction && status.is_server_error()
}

/// More than it takes: an instance that works keeps a duplicate waiting, and does not refuse it.
const ATTEMPTS: usize = 200;

/// So that customers do not keep an instance from recovering.
const PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_click_that_may_have_charged_is_sent_again_only_if_the_receipt_is_stored_with_the_charge() {
        let repeated = |form| {
            [
                StatusCode::CREATED,
                StatusCode::CONFLICT,
                StatusCode::SERVICE_UNAVAILABLE,
                StatusCode::INTERNAL_SERVER_ERROR,
            ]
            .map(|status| may_repeat(form, status))
        };
        assert_eq!(repeated(Form::Layer), [false, false, true, false]);
        assert_eq!(repeated(Form::Transaction), [false, false, true, true]);
    }
}
