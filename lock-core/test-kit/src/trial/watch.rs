//! What one run of a test does under its locks, and the failure of one of them.

use std::{
    cell::RefCell,
    collections::HashMap,
    future::Future,
    mem,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use lock_core::{
    __watch, FencingToken, LockGuard, LockManager,
    backend::{Acquire, Backend, Batch, MemoryBackend, Operation, Token},
    key::LockKey,
};
use tokio::sync::Notify;

use super::{
    place,
    plan::{Kind, Point, Seen, Target},
    store::Store,
};

/// One run of a test.
#[derive(Debug)]
pub(super) struct Trial {
    memory: MemoryBackend,
    target: Option<Target>,
    /// Whether the run is to find the line of the target, in place of disturbing the test there.
    locates: bool,
    located: Notify,
    /// The manager whose work is watched.
    manager: OnceLock<usize>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    seen: Seen,
    /// What is wrong with the test itself.
    fault: Option<String>,
    /// The line of the target.
    place: Option<String>,
    /// For how long the process has stood still, as the target wants it.
    stood_still: Duration,
    /// At which await the work of a lease was suspended last.
    suspended: HashMap<FencingToken, usize>,
}

thread_local! {
    /// The run that this thread is busy with: all tasks of its runtime are polled here.
    static CURRENT: RefCell<Option<Arc<Trial>>> = const { RefCell::new(None) };
}

/// What polls the work once.
type Work<'a> = dyn FnMut(&mut Context<'_>) -> Poll<()> + 'a;

/// Polls protected work, and lets its lock fail if a test wants it to fail here.
fn poll_work(guards: &[LockGuard], cx: &mut Context<'_>, work: &mut Work<'_>) -> Poll<()> {
    let trial = CURRENT.with_borrow(Clone::clone).filter(|trial| trial.watches(guards));
    match trial {
        None => work(cx),
        Some(trial) if trial.locates => trial.locate(guards, cx, work),
        Some(trial) => {
            trial.goes_on(guards);
            let polled = work(cx);
            if polled.is_pending() {
                trial.suspends(guards);
            }
            polled
        }
    }
}

impl Trial {
    pub(super) fn new(memory: MemoryBackend, target: Option<Target>) -> Self {
        let (located, manager, state) = (Notify::new(), OnceLock::new(), Mutex::default());
        Self { memory, target, locates: false, located, manager, state }
    }

    pub(super) fn locating(memory: MemoryBackend, target: Target) -> Self {
        Self { locates: true, ..Self::new(memory, Some(target)) }
    }

    /// The store for the manager of the test.
    pub(super) fn store(self: &Arc<Self>) -> Store {
        Store(Arc::clone(self))
    }

    pub(super) fn memory(&self) -> &MemoryBackend {
        &self.memory
    }

    /// Watches the work of a manager on this thread until what this returns is dropped.
    pub(super) fn watch(self: &Arc<Self>, manager: &LockManager) -> Watching {
        __watch::install(poll_work);
        let _ = self.manager.set(manager.__id());
        CURRENT.set(Some(Arc::clone(self)));
        Watching
    }

    /// Returns what was seen, and what is wrong with the test itself.
    pub(super) fn into_seen(self: Arc<Self>) -> (Seen, Option<String>) {
        let state = mem::take(&mut *self.state());
        (state.seen, state.fault)
    }

    /// Completes when the target was reached by a run that is to find it.
    pub(super) async fn located(&self) {
        self.located.notified().await;
    }

    pub(super) fn stood_still(&self) -> Duration {
        self.state().stood_still
    }

    pub(super) fn place(&self) -> Option<String> {
        self.state().place.take()
    }

    /// Counts a call to the store, and returns whether its answer is to be lost.
    pub(super) fn calls(&self, kind: Kind, keys: &[&LockKey]) -> bool {
        !keys.is_empty() && self.meets(kind, keys.iter().map(|key| key.as_str()), None)
    }

    fn watches(&self, guards: &[LockGuard]) -> bool {
        guards.first().and_then(__watch::manager).is_some_and(|manager| self.manager.get() == Some(&manager))
    }

    /// Counts a poll of work; stands still before it if that is the target.
    fn goes_on(&self, guards: &[LockGuard]) {
        if self.meets_work(Kind::Pause, guards) {
            let lasts = guards.iter().map(|guard| guard.ttl().max(guard.remaining())).max().unwrap_or_default();
            let lasts = lasts + Duration::from_secs(1);
            self.state().stood_still += lasts;
            advance(lasts);
            self.give_to_another(guards);
        }
    }

    /// Counts a suspension of work; takes the lease away if that is the target.
    fn suspends(&self, guards: &[LockGuard]) {
        if self.meets_work(Kind::Await, guards) {
            // The loss of one of several is the loss of all.
            let lost = &guards[..1];
            self.give_to_another(lost);
            for guard in lost {
                __watch::lose(guard);
            }
        }
    }

    /// Finds the line of a suspension: the work is polled once more, and is dropped after that.
    fn locate(&self, guards: &[LockGuard], cx: &mut Context<'_>, work: &mut Work<'_>) -> Poll<()> {
        let (probe, dropped) = place::probe(cx.waker());
        let polled = work(&mut Context::from_waker(&probe));
        if polled.is_ready() || !self.meets_work(Kind::Await, guards) {
            return polled;
        }
        let place = place::polled_again(probe, dropped, || {
            let _ = work(cx);
        });
        self.state().place = place;
        self.located.notify_one();
        Poll::Pending
    }

    fn meets_work(&self, kind: Kind, guards: &[LockGuard]) -> bool {
        self.meets(kind, guards.iter().map(LockGuard::key), guards.first())
    }

    /// Counts a place at which a lock could fail, and returns whether it is the target.
    fn meets<'k>(&self, kind: Kind, keys: impl Iterator<Item = &'k str>, guard: Option<&LockGuard>) -> bool {
        let keys = keys.map(|key| format!("{key:?}")).collect::<Vec<_>>().join(", ");
        let mut state = self.state();
        let after = guard.and_then(|guard| state.suspended.get(&guard.fencing_token()).copied());
        let since = guard.map(__watch::since);
        let target = state.seen.add(kind, Point { keys, since, after });
        if let (Kind::Await, Some(guard)) = (kind, guard) {
            state.suspended.insert(guard.fencing_token(), target.number);
        }
        if target.number > MOST {
            let fault = state.fault.insert(format!("there are more than {MOST} {TOO_MANY}")).clone();
            drop(state);
            // Ends the task, which might go on for ever.
            panic!("{fault}");
        }
        self.target == Some(target)
    }

    /// Gives the keys to holders that are silent for a second, or to those who wait for them.
    fn give_to_another(&self, guards: &[LockGuard]) {
        for guard in guards {
            // The manager of a test has no prefix.
            let key = LockKey::new(guard.key()).expect("the key of a guard is valid");
            let another = Acquire::new(key.clone(), Token::from_random(ANOTHER), Duration::from_secs(1));
            let force = Operation::Force { key, foreign: true };
            // The store in memory has executed it when the call returns.
            drop(self.memory.call(Batch::from_vec(vec![force, Operation::Acquire(another)])));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the watch.
#[must_use = "dropped at once, nothing is watched"]
pub(super) struct Watching;

impl Drop for Watching {
    fn drop(&mut self) {
        CURRENT.set(None);
    }
}

/// Moves the paused clock, within the poll of a task: nothing else runs meanwhile.
fn advance(time: Duration) {
    // Its first poll moves the clock; the second one would come after a turn of the runtime.
    let advance = pin!(tokio::time::advance(time));
    let _ = advance.poll(&mut Context::from_waker(Waker::noop()));
}

/// How many places of one kind a test may have: it runs once for each, so the time that it takes grows with their square. This many
/// take some seconds.
const MOST: usize = 1_000;

const TOO_MANY: &str = "places in one run of the test at which a lock could fail; have the test do less under its locks, and look \
    for a loop that does not end";

/// The token of the other holder.
const ANOTHER: u128 = 1;
