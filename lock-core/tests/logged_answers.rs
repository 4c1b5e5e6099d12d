//! What the log says of answers that hide their error. One test, in a binary of its own: which lines it has had is kept for
//! the whole process.

#![allow(clippy::unwrap_used, reason = "test code")]

#[path = "support/log.rs"]
mod log;

use std::time::Duration;

use axum::response::IntoResponse;
use lock_core::{Error, LockManager};
use tokio::time::advance;
use tonic::Status;

use log::Log;

/// The lines about answers, since this was asked last.
fn said(log: &Log) -> Vec<String> {
    let text = log.text();
    log.clear();
    text.lines().filter(|line| line.contains("answered with an error")).map(str::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn an_outage_writes_one_warning_a_second_of_each_case_and_counts_the_others() {
    let (log, _logging) = Log::begin();
    let answer = |error: &Error| drop(error.clone().into_response());

    let ended = LockManager::in_memory();
    ended.shutdown(Duration::ZERO).await;
    let unavailable = ended.lock("k").await.unwrap_err();
    (0..50).for_each(|_| answer(&unavailable));
    (0..50).for_each(|_| drop(Status::from(unavailable.clone())));
    let lines = said(&log);
    assert!(lines.len() == 1 && lines[0].contains(" WARN ") && !lines[0].contains("others"), "{lines:?}");
    advance(Duration::from_secs(1)).await;
    answer(&unavailable);
    let lines = said(&log);
    assert!(lines.len() == 1 && lines[0].contains("others=99"), "{lines:?}");

    let manager = LockManager::in_memory();
    let work = async |_| {
        manager.force_release("k").await?;
        std::future::pending::<Result<(), Error>>().await
    };
    let lost = manager.lock("k").run(work).await.and_then(std::convert::identity).unwrap_err();
    answer(&lost);
    let lines = said(&log);
    assert!(lines.len() == 1 && lines[0].contains(" WARN "), "a case of its own: {lines:?}");
    let wrong = manager.lock("k").ttl(Duration::ZERO).await.unwrap_err();
    (0..2).for_each(|_| answer(&wrong));
    let lines = said(&log);
    assert!(lines.len() == 1 && lines[0].contains(" ERROR "), "{lines:?}");

    let _held = manager.lock("k").await.unwrap();
    answer(&manager.lock("k").wait(Duration::ZERO).await.unwrap_err());
    assert_eq!(said(&log), [""; 0], "the fate of every busy request");
}
