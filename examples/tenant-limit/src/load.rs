//! The requests of a tenant, over real sockets.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use axum::body::Body;
use axum::http::{Request, StatusCode, header::RETRY_AFTER};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::LIMIT;
use crate::floor::Floor;

/// How long a request waits for its permit, and the load for a limit that is never reached. Far more than both take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Requests that wait for a permit.
const PATIENT: usize = 14;

/// Requests that come while all permits are taken, and do not wait.
const HASTY: usize = 6;

/// The load of one tenant.
#[derive(Debug)]
pub(crate) struct Load {
    client: Client<HttpConnector, Body>,
    instances: Vec<String>,
    floor: Arc<Floor>,
}

impl Load {
    pub(crate) fn new(instances: &[String], floor: Arc<Floor>) -> Self {
        Self { client: Client::builder(TokioExecutor::new()).build_http(), instances: instances.to_vec(), floor }
    }

    /// Sends all requests of the tenant; returns a line that says how they fared.
    ///
    /// # Errors
    /// If the limit was exceeded or never reached, or a request got another answer than it should.
    pub(crate) async fn run(self) -> Result<String> {
        let patient = self.send("/wait", PATIENT)?;
        if timeout(PATIENCE, self.floor.until_full()).await.is_err() {
            self.floor.open_doors(); // to an end that says so
        }
        let hasty = self.send("/try", HASTY)?;
        let hasty = tally(hasty).await?;
        self.floor.open_doors();
        let patient = tally(patient).await?;

        let most = self.floor.most();
        ensure!(most <= LIMIT, "{most} inside at once, and the limit is {LIMIT}");
        ensure!(most == LIMIT, "never more than {most} inside, and {LIMIT} may be");
        let (served, refused) = (patient.served + hasty.served, patient.refused + hasty.refused);
        ensure!(
            (served, refused) == (PATIENT, HASTY),
            "served {served} and refused {refused}, instead of {PATIENT} and {HASTY}"
        );
        let (instances, retry_after) = (self.instances.len(), hasty.retry_after);
        Ok(format!(
            "never more than {most} inside at once, over {instances} instances; \
             served {served}, refused {refused} (429, retry after {retry_after} s)"
        ))
    }

    /// Sends requests to the instances in turn, all at the same time.
    fn send(&self, path: &str, requests: usize) -> Result<JoinSet<Result<Answer>>> {
        let mut answers = JoinSet::new();
        for instance in self.instances.iter().cycle().take(requests) {
            let request = Request::get(format!("{instance}{path}")).header("x-tenant", self.floor.tenant);
            answers.spawn(answer(self.client.clone(), request.body(Body::empty())?));
        }
        Ok(answers)
    }
}

/// What a client is told.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Served,
    /// All permits are taken; come back after so many seconds.
    Refused(u64),
}

async fn answer(client: Client<HttpConnector, Body>, request: Request<Body>) -> Result<Answer> {
    let response = client.request(request).await?;
    match response.status() {
        StatusCode::OK => Ok(Answer::Served),
        StatusCode::TOO_MANY_REQUESTS => {
            let seconds = response.headers().get(RETRY_AFTER).context("a 429 without Retry-After")?;
            Ok(Answer::Refused(seconds.to_str()?.parse()?))
        }
        status => bail!("a request was answered with {status}"),
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    served: usize,
    refused: usize,
    /// The longest time after which a client shall retry, in seconds.
    retry_after: u64,
}

async fn tally(mut answers: JoinSet<Result<Answer>>) -> Result<Tally> {
    let mut tally = Tally::default();
    while let Some(answer) = answers.join_next().await {
        match answer?? {
            Answer::Served => tally.served += 1,
            Answer::Refused(seconds) => {
                tally.refused += 1;
                tally.retry_after = tally.retry_after.max(seconds);
            }
        }
    }
    Ok(tally)
}
