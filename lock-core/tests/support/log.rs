//! What is logged, for tests that look at it. Which events are of interest is kept for the whole process: so in a binary
//! that has such a test, each test begins with a log.

#![allow(dead_code, reason = "test code, of which each binary uses its part")]

use std::{
    fmt, io,
    sync::{Arc, Mutex},
};

use tracing::subscriber::DefaultGuard;
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
        let log = self.clone();
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || log.clone())
    }

    /// Returns what was logged since the log was cleared.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }

    /// How often a text was logged since the log was cleared.
    pub(crate) fn count(&self, text: &str) -> usize {
        self.text().matches(text).count()
    }

    /// Forgets what was logged.
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap().clear();
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
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
