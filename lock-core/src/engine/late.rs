//! A thread of the process that wakes the runtime of an engine that is late.
//!
//! One thread of a runtime waits for its timers and sockets, and itself runs the task that one of them wakes. If that task blocks it while
//! all other threads sleep, nobody waits for timers and sockets, and no lease is renewed. A task from outside wakes a thread that
//! sleeps, which then waits for them. While no engine has anything to do, the thread of the process sleeps without an end.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, Thread},
    time::Duration,
};

use tokio::runtime::Handle;

use super::{pulse::Pulse, turn::has_several_threads};
use crate::caught::caught;

/// An engine whose task runs on a runtime of several threads, until this is dropped.
#[derive(Debug)]
pub(super) struct Watched(Arc<Pulse>);

/// Watches the task of an engine; one on a runtime of one thread nobody could wake.
pub(super) fn watch(pulse: &Arc<Pulse>, runtime: &Handle) -> Option<Watched> {
    if !has_several_threads(runtime) {
        return None;
    }
    // Without a thread leases are renewed as ever, but in that one case.
    let thread = || thread::Builder::new().name("lock-core late".to_owned()).spawn(look_for_ever).ok();
    THREAD.get_or_init(|| thread().map(|thread| thread.thread().clone())).as_ref()?;
    engines().push((Arc::clone(pulse), runtime.clone()));
    Some(Watched(Arc::clone(pulse)))
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut engines = engines();
        let mine = engines.iter().position(|(pulse, _)| Arc::ptr_eq(pulse, &self.0));
        let removed = mine.map(|mine| engines.swap_remove(mine));
        drop(engines);
        drop(removed);
    }
}

/// Some engine has something to do again.
pub(super) fn look_again() {
    if IS_IDLE.load(Ordering::SeqCst)
        && IS_IDLE.swap(false, Ordering::SeqCst)
        && let Some(Some(thread)) = THREAD.get()
    {
        thread.unpark();
    }
}

fn look_for_ever() {
    loop {
        // Set before the look: an engine first says until when it sleeps, and then reads this, all sequentially consistent. So either this
        // look sees it, or it wakes this thread.
        IS_IDLE.store(true, Ordering::SeqCst);
        match look() {
            Some(pause) => {
                IS_IDLE.store(false, Ordering::SeqCst);
                thread::park_timeout(pause);
            }
            None => thread::park(),
        }
    }
}

/// Wakes the runtimes of those that are late. Returns when to look again; `None` if no engine has anything to do.
fn look() -> Option<Duration> {
    // Neither the application's clock nor a runtime's hooks are called under the lock.
    let watched = engines().clone();
    let pauses = watched.into_iter().filter_map(|(pulse, runtime)| {
        let left = caught("clock", || pulse.until_late())??;
        if left.is_zero() {
            caught("runtime", || drop(runtime.spawn(async {})));
        }
        let pause = if left.is_zero() { AGAIN } else { left.clamp(LEAST, AGAIN) };
        caught("clock", || drop(pulse));
        Some(pause)
    });
    pauses.min()
}

fn engines() -> MutexGuard<'static, Vec<(Arc<Pulse>, Handle)>> {
    ENGINES.lock().unwrap_or_else(PoisonError::into_inner)
}

static ENGINES: Mutex<Vec<(Arc<Pulse>, Handle)>> = Mutex::new(Vec::new());

/// Whether the thread sleeps until an engine wakes it.
static IS_IDLE: AtomicBool = AtomicBool::new(false);

/// The thread, if the system had one.
static THREAD: OnceLock<Option<Thread>> = OnceLock::new();

/// The shortest pause.
const LEAST: Duration = Duration::from_millis(10);

/// The longest pause, while an engine has something to do.
const AGAIN: Duration = Duration::from_millis(250);
