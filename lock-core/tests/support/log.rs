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
        format::{DefaultFields, Format},
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

    /// Makes a subscriber that writes here.
    pub(crate) fn subscriber(
        &self,
    ) -> SubscriberBuilder<DefaultFields, Format, LevelFilter, impl Fn() -> Self + Send + Sync + 'static> {
        // With one subscriber alone in the process, the first thread that logs an event decides for all of them whether it is of
        // interest, and that may be a thread of another test, which has no subscriber.
        static OTHER: OnceLock<Dispatch> = OnceLock::new();
        OTHER.get_or_init(|| Dispatch::new(tracing_subscriber::fmt().with_writer(io::sink).finish()));
        let log = self.clone();
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || log.clone())
    }

    /// Returns what was logged since the log was cleared.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("not poisoned")).into_owned()
    }

    /// How often a text was logged since the log was cleared.
    pub(crate) fn count(&self, text: &str) -> usize {
        self.text().matches(text).count()
    }

    /// Forgets what was logged.
    pub(crate) fn clear(&self) {
        self.0.lock().expect("not poisoned").clear();
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("not poisoned").extend_from_slice(bytes);
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
