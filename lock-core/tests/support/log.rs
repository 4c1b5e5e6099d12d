//! What is logged, for tests that look at it.

#![allow(dead_code, reason = "test code, of which each binary uses its part")]

use std::{
    fmt, io,
    sync::{Arc, Mutex, OnceLock},
};

use tracing::{Dispatch, subscriber::DefaultGuard};
use tracing_subscriber::{
    filter::LevelFilter,
    fmt::{
        SubscriberBuilder,
        format::{DefaultFields, FmtSpan, Format},
    },
};

/// Keeps what a subscriber writes.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Begins to keep what this thread logs, until the guard is dropped.
    pub(crate) fn begin() -> (Self, DefaultGuard) {
        let log = Self::default();
        let guard = tracing::subscriber::set_default(log.subscriber().finish());
        (log, guard)
    }

    /// Begins to keep what this thread logs at any level, and each span with its fields, until the guard is dropped.
    pub(crate) fn of_all_levels() -> (Self, DefaultGuard) {
        let log = Self::default();
        let subscriber = log.subscriber().with_max_level(LevelFilter::TRACE).with_span_events(FmtSpan::NEW);
        let guard = tracing::subscriber::set_default(subscriber.finish());
        (log, guard)
    }

    /// Makes a subscriber that writes here.
    pub(crate) fn subscriber(
        &self,
    ) -> SubscriberBuilder<DefaultFields, Format, LevelFilter, impl Fn() -> Self + Send + Sync + 'static> {
        not_alone();
        let log = self.clone();
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || log.clone())
    }

    /// Returns what was logged since the log was cleared.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("no panic while a line is written")).into_owned()
    }

    /// How often a text was logged since the log was cleared.
    pub(crate) fn count(&self, text: &str) -> usize {
        self.text().matches(text).count()
    }

    /// Forgets what was logged.
    pub(crate) fn clear(&self) {
        self.0.lock().expect("no panic while a line is written").clear();
    }
}

/// Has a second subscriber in the process, as each test needs that has one of its own.
///
/// With one subscriber alone, the first thread that logs an event decides for all of them whether it is of interest, and that may be a
/// thread of another test, which has no subscriber.
pub(crate) fn not_alone() {
    static OTHER: OnceLock<Dispatch> = OnceLock::new();
    OTHER.get_or_init(|| Dispatch::new(tracing_subscriber::fmt().with_writer(io::sink).finish()));
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic while a line is written").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}
