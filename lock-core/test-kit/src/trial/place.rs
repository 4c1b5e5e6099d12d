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
struct Probe {
    waker: Waker,
    dropped: Arc<Dropped>,
}

impl Wake for Probe {
    fn wake(self: Arc<Self>) {
        self.waker.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.waker.wake_by_ref();
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if self.dropped.looks.load(Ordering::SeqCst) {
            let backtrace = Backtrace::force_capture();
            *self.dropped.backtrace.lock().unwrap_or_else(PoisonError::into_inner) = Some(backtrace);
        }
    }
}

/// Makes a waker that nothing else has, and what tells where it is dropped.
pub(super) fn probe(waker: &Waker) -> (Waker, Arc<Dropped>) {
    let dropped = Arc::<Dropped>::default();
    (Arc::new(Probe { waker: waker.clone(), dropped: Arc::clone(&dropped) }).into(), dropped)
}

/// Polls with another waker, and returns the line of the await at which the first one was kept. `None` if it was not kept, or
/// if the program has no debug information.
#[inline(never)]
pub(super) fn polled_again(probe: Waker, dropped: Arc<Dropped>, poll: impl FnOnce()) -> Option<String> {
    drop(probe);
    dropped.looks.store(true, Ordering::SeqCst);
    poll();
    dropped.looks.store(false, Ordering::SeqCst);
    let backtrace = dropped.backtrace.lock().unwrap_or_else(PoisonError::into_inner).take()?;
    outermost(&backtrace.to_string())
}

/// Returns the line of the user's function that is called first inside [`polled_again`]: the work itself, rather than what
/// it calls.
fn outermost(backtrace: &str) -> Option<String> {
    let (mut found, mut name) = (None, "");
    for line in backtrace.lines().map(str::trim) {
        let Some(place) = line.strip_prefix("at ") else {
            name = line.split_once(": ").map_or(line, |(_, name)| name);
            if name.starts_with(concat!(module_path!(), "::polled_again")) {
                return found;
            }
            continue;
        };
        let place = place.replace('\\', "/");
        let of_others = OTHERS.iter().any(|folder| place.contains(folder));
        // By name: a generic function of ours has its line in the user's program, even if the library has no debug information.
        let of_ours = OURS.iter().any(|library| name.trim_start_matches('<').starts_with(library));
        // A closure that was inlined has no path before its name.
        let polls = name.starts_with("{closure") && POLLS.iter().any(|file| place.contains(file));
        if !of_ours && !of_others && !polls {
            found = Some(without_column(&place));
        }
    }
    None
}

fn without_column(place: &str) -> String {
    let line = place.rsplit_once(':').map_or(place, |(line, _)| line);
    line.trim_start_matches("./").to_owned()
}

/// What stands between a lock or a request and its work is not the user's.
const OURS: [&str; 3] = ["lock_core::", "lock_test::", "lock_tower::"];

/// The files that poll the work.
const POLLS: [&str; 2] = ["/src/future/protected.rs:", "/src/trial/watch.rs:"];

/// Files in these folders are of the standard library or of dependencies.
const OTHERS: [&str; 4] = ["/rustc/", "/registry/src/", "/git/checkouts/", "/rustlib/src/"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_that_of_the_work_and_not_of_what_it_calls() {
        let backtrace = "   0: <lock_test::trial::place::Probe as core::ops::drop::Drop>::drop
             at /home/me/lock-core/test-kit/src/trial/place.rs:43:29
   1: core::task::wake::Waker::drop
             at /rustc/5980/library/core/src/task/wake.rs:20:1
   2: tokio::sync::AtomicWaker::register
   3: bank::charge::{{closure}}
             at ./src/bank.rs:23:41
   4: shop::pay::{{closure}}
             at ./src/shop.rs:41:30
   5: lock_tower::future::poll
             at /home/me/lock-tower/src/future.rs:165:92
   6: lock_core::future::protected::poll::{{closure}}
             at /home/me/lock-core/src/future/protected.rs:165:92
   7: lock_test::trial::place::polled_again
             at /home/me/lock-core/test-kit/src/trial/place.rs:61:5
   8: shop::test::{{closure}}
             at ./src/shop.rs:99:30";
        assert_eq!(outermost(backtrace).as_deref(), Some("src/shop.rs:41"));
        let (_, without_ours) = backtrace.split_once("place.rs:43:29").unwrap();
        let vendored = without_ours.replace("/home/me", "./vendor");
        assert_eq!(outermost(&vendored).as_deref(), Some("src/shop.rs:41"));
        let inlined = backtrace.replace("lock_core::future::protected::poll::{{closure}}", "{closure#0}<shop::Work>");
        assert_eq!(outermost(&inlined).as_deref(), Some("src/shop.rs:41"));
        assert_eq!(outermost(&backtrace.replace("polled_again", "inlined")), None);
        assert_eq!(outermost("   0: lock_test::trial::place::polled_again\n   1: shop::test"), None);
    }
}
