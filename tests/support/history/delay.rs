//! For how long the threads of a recorder were ready to run, and were not let.
//!
//! A thread that sleeps most of the time, as that of the pulse does, is served before those that compute, so that it does not notice
//! what they wait for. Linux counts that for each thread (`schedstat`); elsewhere nothing is known of it.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
};

use super::clock::now;

/// The threads of a recorder: those of its process if the main thread has made it; else, among those of other tests, the one that
/// has made it.
#[derive(Debug)]
pub(super) struct Delays {
    threads: PathBuf,
    /// Whether `threads` is a folder of threads, and not one of them.
    all: bool,
    /// What each had waited for in all, in ns, when that was told last.
    told: HashMap<PathBuf, u64>,
    /// When it was looked at last, on the clock of histories.
    looked: f64,
}

impl Delays {
    /// Begins to count, in the thread that makes a recorder.
    pub(super) fn begin() -> Self {
        let own = own_thread();
        let process = own.parent().and_then(Path::parent).and_then(Path::file_name);
        let all = process.is_some() && process == own.file_name();
        let threads = if all { own.parent().unwrap_or(&own).to_owned() } else { own };
        let mut delays = Self { threads, all, told: HashMap::new(), looked: f64::NEG_INFINITY };
        delays.look();
        delays
    }

    /// Returns for how many ms the thread that was held up most was held up since that was told last: nothing before it is a ms at
    /// least, and nothing if that was just before.
    pub(super) fn look(&mut self) -> Option<f64> {
        let at = now();
        if at < self.looked + AGAIN {
            return None;
        }
        self.looked = at;
        let mut most = 0;
        for thread in self.threads() {
            let Some(waited) = waited(&thread) else { continue };
            // A thread that has just begun has had to wait since.
            let told = self.told.entry(thread).or_insert(waited);
            let more = waited.saturating_sub(*told);
            if more >= LEAST {
                *told = waited;
                most = most.max(more);
            }
        }
        (most > 0).then_some(most as f64 / 1e6)
    }

    fn threads(&self) -> Vec<PathBuf> {
        if !self.all {
            let servers = servers().get(&self.threads).cloned().unwrap_or_default();
            return servers.into_iter().chain([self.threads.clone()]).collect();
        }
        let threads = fs::read_dir(&self.threads).into_iter().flatten();
        threads.filter_map(|thread| Some(thread.ok()?.path())).collect()
    }
}

/// Records that the test of this thread has started a server: what holds that up holds up everything that the test waits for. A server
/// that has ended is held up by nothing.
pub(crate) fn serves(pid: u32) {
    let thread = PathBuf::from(format!("/proc/{pid}/task/{pid}"));
    servers().entry(own_thread()).or_default().push(thread);
}

/// The servers that each thread has started: the threads in which they do their work.
fn servers() -> MutexGuard<'static, HashMap<PathBuf, Vec<PathBuf>>> {
    static SERVERS: LazyLock<Mutex<HashMap<PathBuf, Vec<PathBuf>>>> = LazyLock::new(Mutex::default);
    SERVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `/proc/PID/task/TID` of this thread; nothing where there is no such thing.
fn own_thread() -> PathBuf {
    fs::read_link("/proc/thread-self").map(|own| Path::new("/proc").join(own)).unwrap_or_default()
}

/// For how long a thread has been ready and not run in all, in ns.
fn waited(thread: &Path) -> Option<u64> {
    let text = fs::read_to_string(thread.join("schedstat")).ok()?;
    text.split_whitespace().nth(1)?.parse().ok()
}

/// What is told at once, in ns.
const LEAST: u64 = 1_000_000;
/// How often it is looked at most, in ms: a look takes some system calls.
const AGAIN: f64 = 5.0;
