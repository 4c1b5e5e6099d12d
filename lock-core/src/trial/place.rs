//! The line of an await, without any help of the code that awaits.
//!
//! A future that waits keeps the waker of its last poll, and drops it when it is polled with another one. So the work is polled
//! with a waker that nothing else keeps, and then with another one: the first is dropped deep inside the work, and takes a
//! backtrace there, in which each async function shows the line at which it waits.

use std::{
    backtrace::Backtrace,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Wake, Waker},
};

/// Where a waker was dropped.
#[derive(Debug, Default)]
pub(super) struct Dropped {
    /// Whether it matters now.
    looks: AtomicBool,
    backtrace: Mutex<Option<Backtrace>>,
}

/// A waker that tells where its last clone was dropped.
struct Watched {
    waker: Waker,
    dropped: Arc<Dropped>,
}

impl Wake for Watched {
    fn wake(self: Arc<Self>) {
        self.waker.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.waker.wake_by_ref();
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if self.dropped.looks.load(Ordering::SeqCst) {
            let backtrace = Backtrace::force_capture();
            *self.dropped.backtrace.lock().unwrap_or_else(PoisonError::into_inner) = Some(backtrace);
        }
    }
}

/// Makes a waker that nothing else has, and what tells where it is dropped.
pub(super) fn watched(waker: &Waker) -> (Waker, Arc<Dropped>) {
    let dropped = Arc::<Dropped>::default();
    (Arc::new(Watched { waker: waker.clone(), dropped: Arc::clone(&dropped) }).into(), dropped)
}

/// Polls with another waker, and returns the line of the await at which the first one was kept. `None` if it was not kept, or
/// if the program has no debug information.
#[inline(never)]
pub(super) fn polled_again(watched: Waker, dropped: Arc<Dropped>, poll: impl FnOnce()) -> Option<String> {
    drop(watched);
    dropped.looks.store(true, Ordering::SeqCst);
    poll();
    dropped.looks.store(false, Ordering::SeqCst);
    let backtrace = dropped.backtrace.lock().unwrap_or_else(PoisonError::into_inner).take()?;
    outermost(&backtrace.to_string())
}

/// Returns the line of the user's function that is called first inside [`polled_again`]: the work itself, rather than what
/// it calls.
fn outermost(backtrace: &str) -> Option<String> {
    let mut found = None;
    let mut theirs = false;
    for line in backtrace.lines().map(str::trim) {
        if let Some(place) = line.strip_prefix("at ") {
            if theirs && !OTHERS.iter().any(|folder| place.replace('\\', "/").contains(folder)) {
                found = Some(without_column(place));
            }
        } else if line.contains(concat!(module_path!(), "::polled_again")) {
            return found;
        } else {
            let name = line.split_once(": ").map_or(line, |(_, name)| name).trim_start_matches('<');
            theirs = !OURS.iter().any(|ours| name.starts_with(ours));
        }
    }
    None
}

fn without_column(place: &str) -> String {
    let line = place.rsplit_once(':').map_or(place, |(line, _)| line);
    line.trim_start_matches("./").to_owned()
}

/// The functions of these crates are not the user's.
const OURS: [&str; 2] = ["lock_core::", "lock_tower::"];

/// Files in these folders are of the standard library or of dependencies.
const OTHERS: [&str; 4] = ["/rustc/", "/registry/src/", "/git/checkouts/", "/rustlib/src/"];
