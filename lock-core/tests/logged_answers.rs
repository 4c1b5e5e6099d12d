//! What the log says of answers that hide their error. One test, in a binary of its own: which lines it has had is kept for
//! the whole process.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::response::IntoResponse;
use lock_core::{Error, LockManager};
use tokio::time::advance;
use tonic::Status;
use tracing_subscriber::fmt::MakeWriter;

/// Keeps what a subscriber writes.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// The lines about answers, since this was asked last.
    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap();
        text.lines().filter(|line| line.contains("answered with an error")).map(str::to_owned).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().map_err(|_| io::ErrorKind::Other)?.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_writes_one_warning_a_second_of_each_case_and_counts_the_others() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(log.clone()).finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let answer = |error: &Error| drop(error.clone().into_response());

    let ended = LockManager::in_memory();
    ended.shutdown(Duration::ZERO).await;
    let unavailable = ended.lock("k").await.unwrap_err();
    (0..50).for_each(|_| answer(&unavailable));
    (0..50).for_each(|_| drop(Status::from(unavailable.clone())));
    let lines = log.lines();
    assert!(lines.len() == 1 && lines[0].contains(" WARN ") && !lines[0].contains("others"), "{lines:?}");
    advance(Duration::from_secs(1)).await;
    answer(&unavailable);
    let lines = log.lines();
    assert!(lines.len() == 1 && lines[0].contains("others=99"), "{lines:?}");

    let manager = LockManager::in_memory();
    let work = async |_| {
        manager.force_release("k").await?;
        std::future::pending::<Result<(), Error>>().await
    };
    let lost = manager.lock("k").run(work).await.and_then(std::convert::identity).unwrap_err();
    answer(&lost);
    let lines = log.lines();
    assert!(lines.len() == 1 && lines[0].contains(" WARN "), "a case of its own: {lines:?}");
    let wrong = manager.lock("k").ttl(Duration::ZERO).await.unwrap_err();
    (0..2).for_each(|_| answer(&wrong));
    let lines = log.lines();
    assert!(lines.len() == 1 && lines[0].contains(" ERROR "), "{lines:?}");

    let _held = manager.lock("k").await.unwrap();
    answer(&manager.lock("k").wait(Duration::ZERO).await.unwrap_err());
    assert_eq!(log.lines(), [""; 0], "the fate of every busy request");
}
