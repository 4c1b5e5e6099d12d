//! What `#[lock_test::test]` calls: runs a test many times, and takes the lease away at another place each time.
//!
//! The idea is that of SQLite's anomaly tests, in which the n-th allocation fails, for every n until a run succeeds
//! (<https://sqlite.org/testing.html>), applied to suspension points as `hyperactor`'s `assert_cancel_safe` does.

mod limit;
mod place;
mod plan;
mod store;
mod verdict;
mod watch;

use std::{
    any::Any,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
};

use lock_core::{LockManager, backend::MemoryBackend};

pub use self::verdict::Verdict;
use self::{
    limit::Stuck,
    plan::{Kind, Seen, Target},
    watch::Trial,
};

/// Runs a test undisturbed, and then once for each place at which its locks can fail.
///
/// # Panics
/// Panics if a run fails, if no work ran under a lock, or if the test does not do the same in each run.
#[track_caller]
pub fn test<B, F>(name: &str, body: B)
where
    B: Fn(LockManager) -> F,
    F: Future<Output: Verdict>,
{
    let only = match std::env::var(POINT) {
        Ok(text) => Some(text.parse::<Target>().unwrap_or_else(|problem| panic!("{POINT}={text}: {problem}"))),
        Err(_) => None,
    };
    let calm = run(None, &body);
    match calm.end {
        End::Passed => {}
        End::Panicked(payload) => resume_unwind(payload),
        other => panic!("the test failed with all its leases held: {}", other.problem()),
    }
    if calm.seen.count(Kind::Await) == 0 {
        panic!("{NO_POINT}");
    }
    if let Some(target) = only.filter(|target| calm.seen.point(*target).is_none()) {
        panic!("{POINT}={target} names no point of this test, which has {}", calm.seen.counts());
    }
    for target in calm.seen.targets().filter(|target| only.is_none_or(|only| only == *target)) {
        let disturbed = run(Some(target), &body);
        let what = calm.seen.describe(target);
        let met = disturbed.seen.point(target);
        if met.map(|point| &point.keys) != calm.seen.point(target).map(|point| &point.keys) {
            let came = if met.is_some() { "came at another lock" } else { "did not come" };
            panic!("{what}: this point {came} when the test ran again{}; {NOT_THE_SAME}", disturbed.end.aside());
        }
        if !matches!(disturbed.end, End::Passed) {
            let place = place(&calm.seen, target, &body);
            let problem = disturbed.end.problem();
            panic!("{what}{place}: {problem}\nto run this point alone: {POINT}={target} cargo test {name}");
        }
    }
}

/// Says where a lock failed, as far as that is known: behind a space, in parentheses.
fn place<F: Future>(seen: &Seen, target: Target, body: &impl Fn(LockManager) -> F) -> String {
    let line = seen.located_by(target).and_then(|target| locate(target, body));
    let since = seen.point(target).and_then(|point| point.since);
    match (line, since) {
        (Some(line), _) => format!(" ({line})"),
        (None, Some(since)) => format!(" (the lock was asked for at {}:{})", since.file(), since.line()),
        (None, None) => String::new(),
    }
}

/// What became of one run.
struct Run {
    end: End,
    seen: Seen,
}

/// How the test ended.
enum End {
    Passed,
    Failed(String),
    Panicked(Box<dyn Any + Send>),
    Stuck(Stuck),
}

impl End {
    fn problem(&self) -> String {
        match self {
            Self::Passed => "the test passed".to_owned(),
            Self::Failed(problem) => problem.clone(),
            Self::Panicked(payload) => {
                let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
                text.unwrap_or_else(|| "the test panicked with a value that is not text".to_owned())
            }
            Self::Stuck(stuck) => stuck.to_string(),
        }
    }

    /// The problem, if there is one, behind another sentence.
    fn aside(&self) -> String {
        if matches!(self, Self::Passed) { String::new() } else { format!(" (and it failed: {})", self.problem()) }
    }
}

/// Runs the test once, on a runtime and a store of its own.
fn run<F: Future<Output: Verdict>>(target: Option<Target>, body: &impl Fn(LockManager) -> F) -> Run {
    let trial = |store| Trial::new(store, target);
    let (end, trial) = on_runtime(trial, async |trial: &Trial, manager: LockManager| {
        let test = manager.scope(body(manager.clone()));
        tokio::select! {
            biased;
            output = test => output.verdict().map_or_else(End::Failed, |()| End::Passed),
            stuck = limit::reached(trial) => End::Stuck(stuck),
        }
    });
    let (seen, fault) = trial.into_seen();
    let end = fault.map_or_else(|| end.unwrap_or_else(End::Panicked), End::Failed);
    Run { end, seen }
}

/// Finds the line of a suspension point, in a run that is cancelled there.
fn locate<F: Future>(target: Target, body: &impl Fn(LockManager) -> F) -> Option<String> {
    let trial = |store| Trial::locating(store, target);
    let (_, trial) = on_runtime(trial, async |trial: &Trial, manager: LockManager| {
        let test = manager.scope(body(manager.clone()));
        tokio::select! {
            biased;
            _ = test => {}
            () = trial.located() => {}
            _ = limit::reached(trial) => {}
        }
    });
    trial.place()
}

type Caught<T> = Result<T, Box<dyn Any + Send>>;

/// Runs a future in virtual time, with a manager whose store and protected work the trial watches.
fn on_runtime<T>(
    trial: impl FnOnce(MemoryBackend) -> Trial,
    test: impl AsyncFnOnce(&Trial, LockManager) -> T,
) -> (Caught<T>, Arc<Trial>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.expect("a runtime of one thread can be made");
    let entered = runtime.enter();
    // The clock of the store is that of this runtime.
    let trial = Arc::new(trial(MemoryBackend::new()));
    drop(entered);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            let manager = crate::seeded(LockManager::builder().backend(trial.store()), SEED).build();
            let manager = manager.expect("the defaults are valid");
            let _watched = trial.watch(&manager);
            test(&trial, manager).await
        })
    }));
    (caught, trial)
}

/// The environment variable that names the only point to be run.
const POINT: &str = "LOCK_TEST_POINT";

/// Makes the tokens and the jitter of each run the same.
const SEED: u64 = 1;

const NO_POINT: &str = "the test has no await in work under a lock, so there is nowhere to lose a lease: lock with the \
    manager that the test is given, or with `LockManager::current`; run the work by `run`, `protect`, `#[distributed_lock]` or the \
    layer; and have what stands in for a server or database wait, for example with `tokio::time::sleep`, since an await that is \
    ready at once does not suspend the work";

const NOT_THE_SAME: &str = "the test has to do the same in each run: look for `select!` without `biased`, random numbers, \
    iteration over a `HashMap`, statics, and work on other threads";
