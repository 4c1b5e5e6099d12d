//! What `tracing` gets to see. One test, in a binary of its own: which events are of interest is kept for the whole
//! process, and a test beside it that has no subscriber would decide it too.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::{
    io,
    sync::{Arc, Mutex},
};

use lock_core::{LockManager, backend::TOKEN_MARK};
use tracing_subscriber::fmt::{MakeWriter, format::FmtSpan};

/// Keeps what a subscriber writes.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

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

#[test]
fn spans_name_the_key_around_acquires_and_work_and_no_token_is_logged() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .with_writer(log.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let manager = LockManager::in_memory();
            manager.lock("goods:1").label("goods:<id>").run(async |_| tracing::info!("selling")).await.unwrap();
            let lost = manager.lock("goods:2").await.unwrap();
            manager.force_release("goods:2").await.unwrap();
            drop(lost);
            let _all = manager.lock_all(["a", "b"]).await.unwrap().protect(async { tracing::info!("both") }).await;
        });
    });
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let line = |text: &str| log.lines().find(|line| line.contains(text)).unwrap_or_else(|| panic!("{text}: {log}"));
    assert!(line("selling").contains(r#"lock.hold{key="goods:1" fencing_token="#), "{}", line("selling"));
    assert!(line("both").contains(r#"lock.hold{keys=["a", "b"]}"#), "{}", line("both"));
    assert!(line("lease acquired").contains(r#"lock.acquire{key="goods:1" lock="goods:<id>"}"#));
    assert!(line("lease released").contains("goods:1"));
    assert!(line("WARN").contains("lease lost") && line("WARN").contains("goods:2"));
    assert!(!log.contains(TOKEN_MARK), "a token in the log: {log}");
}
