//! The application's code inside the engine: writers of the log, recorders of metrics, wakers, providers of credentials.
//!
//! One task serves all leases of a manager. A panic of such code in that task would end it, and every lease with it; a second panic, in
//! a drop while the first unwinds, would abort the process. So each call of such code is caught on its own, and the engine continues
//! with the next step.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::atomic::{AtomicU32, Ordering},
};

/// Writes an event to the log, as the macro of `tracing` with the name of the level does. A panic of the subscriber is caught.
macro_rules! log {
    ($level:ident, $($event:tt)*) => {
        $crate::caught::unlogged(|| ::tracing::$level!($($event)*)).unwrap_or_default()
    };
}

/// Runs code of the application. Returns `None` if it panicked, which is logged with the name of the code.
pub(crate) fn caught<R>(code: &'static str, run: impl FnOnce() -> R) -> Option<R> {
    let result = unlogged(run);
    if result.is_none() {
        panicked(code);
    }
    result
}

/// Logs that code of the application panicked.
pub(crate) fn panicked(code: &'static str) {
    static PANICS: AtomicU32 = AtomicU32::new(0);
    let panics = PANICS.fetch_add(1, Ordering::Relaxed).saturating_add(1);
    // Code that panics each time would fill the log, which has the message of each panic already.
    if panics.is_power_of_two() {
        log!(error, code, panics, "code of the application panicked; the panic was caught, and no lease ends");
    }
}

/// Runs code whose panic cannot be logged: the subscriber itself.
pub(crate) fn unlogged<R>(run: impl FnOnce() -> R) -> Option<R> {
    // Whatever the code has left half-done is its own: it is called without a lock of the engine's, and with references only.
    panic::catch_unwind(AssertUnwindSafe(run)).ok()
}

/// Does something when it is dropped.
pub(crate) struct OnDrop<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
