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

use tokio::{runtime::Handle, task::JoinHandle};

use super::pulse::Pulse;
use crate::caught::caught;

/// The watch over the task of an engine, until this is dropped.
#[derive(Debug)]
pub(super) struct Watched(Arc<Engine>);

#[derive(Debug)]
struct Engine {
    pulse: Arc<Pulse>,
    runtime: Handle,
    /// The last empty task. Until it has run, all threads of the runtime are busy, and another one would not help.
    sent: Mutex<Option<JoinHandle<()>>>,
}

/// Watches the task of an engine, unless its runtime has no other thread to wake, or the system has none for this.
pub(super) fn watch(pulse: &Arc<Pulse>, runtime: &Handle) -> Option<Watched> {
    if runtime.metrics().num_workers() < 2 {
        return None;
    }
    let mut engines = locked(&ENGINES);
    if THREAD.get().is_none() {
        let thread = thread::Builder::new().name("lock-core late".to_owned()).spawn(look_for_ever).ok()?;
        let _ = THREAD.set(thread.thread().clone());
    }
    let engine = Arc::new(Engine { pulse: Arc::clone(pulse), runtime: runtime.clone(), sent: Mutex::default() });
    engines.push(Arc::clone(&engine));
    pulse.is_watched.store(true, Ordering::SeqCst);
    Some(Watched(engine))
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.pulse.is_watched.store(false, Ordering::SeqCst);
        locked(&ENGINES).retain(|engine| !Arc::ptr_eq(engine, &self.0));
    }
}

/// A watched engine has something to do again.
pub(super) fn look_again() {
    if IS_IDLE.load(Ordering::SeqCst)
        && IS_IDLE.swap(false, Ordering::SeqCst)
        && let Some(thread) = THREAD.get()
    {
        thread.unpark();
    }
}

fn look_for_ever() {
    loop {
        if let Some(pause) = look() {
            thread::park_timeout(pause);
            continue;
        }
        // Set before another look: an engine first says until when it sleeps, and then reads this, all sequentially consistent. So either
        // that look sees it, or it wakes this thread.
        IS_IDLE.store(true, Ordering::SeqCst);
        match look() {
            Some(pause) => {
                IS_IDLE.store(false, Ordering::SeqCst);
                thread::park_timeout(pause);
            }
            // A clock or a subscriber that parks this thread may have taken the wake-up.
            None => {
                while IS_IDLE.load(Ordering::SeqCst) {
                    thread::park();
                }
            }
        }
    }
}

/// Wakes the runtimes of those that are late. Returns when to look again; `None` if no engine has anything to do.
fn look() -> Option<Duration> {
    // Neither the application's clock nor a runtime's hooks are called under the lock, nor is the last of anything dropped there.
    let engines = locked(&ENGINES).clone();
    let pauses = engines.into_iter().filter_map(|engine| {
        let pause = caught("clock", || engine.pause()).unwrap_or(Some(AGAIN));
        caught("clock", || drop(engine));
        pause
    });
    pauses.min()
}

impl Engine {
    /// Wakes the runtime if the task is late. Returns when to look again, if the task has anything to do.
    fn pause(&self) -> Option<Duration> {
        let left = self.pulse.until_late()?;
        if !left.is_zero() {
            return Some(left.clamp(LEAST, AGAIN));
        }
        let has_run = locked(&self.sent).as_ref().is_none_or(JoinHandle::is_finished);
        if has_run {
            let sent = self.runtime.spawn(async {});
            *locked(&self.sent) = Some(sent);
        }
        Some(AGAIN)
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

static ENGINES: Mutex<Vec<Arc<Engine>>> = Mutex::new(Vec::new());

/// Whether the thread sleeps until an engine wakes it.
static IS_IDLE: AtomicBool = AtomicBool::new(false);

/// Set before any engine is watched.
static THREAD: OnceLock<Thread> = OnceLock::new();

/// The shortest pause.
const LEAST: Duration = Duration::from_millis(10);

/// The longest pause, while an engine has something to do.
const AGAIN: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::{runtime::Builder, time::sleep};

    use super::*;
    use crate::clock::{Clock, Moment, SystemClock};

    /// What nobody's timer would end.
    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn a_runtime_whose_timers_nobody_waits_for_is_woken_once_its_engine_is_late() {
        for _ in 0..10 {
            let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            let pulse = Pulse::new(Arc::new(SystemClock), None);
            let watched = watch(&pulse, runtime.handle());
            let (begin, has_begun) = mpsc::channel();
            let (end, is_over) = mpsc::channel::<()>();
            let (fire, has_fired) = mpsc::channel();
            // The thread that waits for timers runs it.
            drop(runtime.spawn(async move {
                sleep(Duration::from_millis(20)).await;
                begin.send(()).unwrap();
                let _ = is_over.recv();
            }));
            drop(runtime.spawn(async move {
                sleep(Duration::from_millis(40)).await;
                fire.send(()).unwrap();
            }));
            has_begun.recv_timeout(SOON).unwrap();
            pulse.rest(SystemClock.now());
            has_fired.recv_timeout(SOON).unwrap();
            pulse.rest(Moment::NEVER);
            drop((end, watched));
        }
    }

    #[test]
    fn an_engine_that_has_ended_or_whose_runtime_has_one_thread_is_not_watched() {
        let one = Builder::new_current_thread().build().unwrap();
        let pulse = Pulse::new(Arc::new(SystemClock), None);
        assert!(watch(&pulse, one.handle()).is_none());
        let two = Builder::new_multi_thread().worker_threads(2).build().unwrap();
        drop(watch(&pulse, two.handle()).unwrap());
        assert!(!locked(&ENGINES).iter().any(|engine| Arc::ptr_eq(&engine.pulse, &pulse)));
        assert!(!pulse.is_watched.load(Ordering::Relaxed));
    }
}
