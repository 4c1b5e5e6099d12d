//! What `tracing` gets to see.

#![allow(clippy::unwrap_used, reason = "test code")]

use lock_core::{LockManager, backend::TOKEN_MARK};
use tracing_subscriber::fmt::format::FmtSpan;

use crate::support::log::Log;

#[test]
fn spans_name_the_key_around_acquires_and_work_and_no_token_is_logged() {
    let log = Log::default();
    let subscriber = log.subscriber().with_max_level(tracing::Level::TRACE).with_span_events(FmtSpan::CLOSE);
    tracing::subscriber::with_default(subscriber.finish(), || {
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
    let log = log.text();
    let line = |text: &str| log.lines().find(|line| line.contains(text)).unwrap_or_else(|| panic!("{text}: {log}"));
    assert!(line("selling").contains(r#"lock.hold{key="goods:1" fencing_token="#), "{}", line("selling"));
    assert!(line("both").contains(r#"lock.hold{keys=["a", "b"]}"#), "{}", line("both"));
    assert!(line("lease acquired").contains(r#"lock.acquire{key="goods:1" lock="goods:<id>"}"#));
    assert!(line("lease released").contains("goods:1"));
    assert!(line("WARN").contains("lease lost") && line("WARN").contains("goods:2"));
    assert!(!log.contains(TOKEN_MARK), "a token in the log: {log}");
}
