//! What the log says once a second of each cause, with the number of the lines that were left out. In a program of its own: which lines
//! were written is kept for the whole process. So only one test may cause each of them.

#![allow(clippy::unwrap_used, reason = "test code")]

#[path = "support/log.rs"]
mod log;

use std::time::Duration;

use axum::response::IntoResponse;
use lock_core::{Error, LockManager, OnLost};
use tokio::time::advance;
use tonic::Status;

use log::Log;

/// The lines with a text, since this was asked last.
fn said(log: &Log, what: &str) -> Vec<String> {
    let text = log.text();
    log.clear();
    text.lines().filter(|line| line.contains(what)).map(str::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn work_whose_lease_cannot_be_released_is_warned_of_once_a_second() {
    let (log, _logging) = Log::begin();
    let said = || said(&log, "could not be released");
    let manager = LockManager::in_memory();
    let lose = async || {
        let guard = manager.lock("k").await.unwrap();
        let work = async { manager.force_release("k").await.unwrap() };
        guard.protect(work).on_lost(OnLost::Ignore).await.unwrap();
    };
    for _ in 0..100 {
        lose().await;
    }
    let lines = said();
    assert!(lines.len() == 1 && lines[0].contains(" WARN ") && !lines[0].contains("others"), "{lines:?}");
    advance(Duration::from_secs(1)).await;
    lose().await;
    let lines = said();
    assert!(lines.len() == 1 && lines[0].contains("others=99"), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn an_outage_writes_one_warning_a_second_of_each_case_and_counts_the_others() {
    let (log, _logging) = Log::begin();
    let said = || said(&log, "answered with an error");
    let answer = |error: &Error| drop(error.clone().into_response());

    let ended = LockManager::in_memory();
    ended.shutdown(Duration::ZERO).await;
    let unavailable = ended.lock("k").await.unwrap_err();
    (0..50).for_each(|_| answer(&unavailable));
    (0..50).for_each(|_| drop(Status::from(unavailable.clone())));
    let lines = said();
    assert!(lines.len() == 1 && lines[0].contains(" WARN ") && !lines[0].contains("others"), "{lines:?}");
    advance(Duration::from_secs(1)).await;
    answer(&unavailable);
    let lines = said();
    assert!(lines.len() == 1 && lines[0].contains("others=99"), "{lines:?}");

    let manager = LockManager::in_memory();
    let work = async |_| {
        manager.force_release("k").await?;
        std::future::pending::<Result<(), Error>>().await
    };
    let lost = manager.lock("k").run(work).await.and_then(std::convert::identity).unwrap_err();
    answer(&lost);
    let lines = said();
    assert!(lines.len() == 1 && lines[0].contains(" WARN "), "a case of its own: {lines:?}");
    let wrong = manager.lock("k").ttl(Duration::ZERO).await.unwrap_err();
    (0..2).for_each(|_| answer(&wrong));
    let lines = said();
    assert!(lines.len() == 1 && lines[0].contains(" ERROR "), "{lines:?}");

    let _held = manager.lock("k").await.unwrap();
    answer(&manager.lock("k").wait(Duration::ZERO).await.unwrap_err());
    assert_eq!(said(), [""; 0], "the fate of every busy request");
}
