//! How histories come about: a folder for each run, a file for each process.

use std::{
    collections::HashSet,
    env,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::{
    check::Mark,
    clock::now,
    delay::Delays,
    event::{Event, Op, Outcome},
    pulse,
    read::History,
    store::Register,
};
use crate::{launch::folder, server::RedisServer, wait::SOON};

/// Writes down what one process does, into `NAME.jsonl`.
///
/// A call is noted in a second file when it begins, so that one of a process that was killed is not forgotten:
/// [`Run::history`] puts it in as one that never came back.
#[derive(Debug)]
pub struct Recorder {
    name: String,
    done: File,
    begun: File,
    delays: Mutex<Delays>,
}

impl Recorder {
    /// Makes the files of the process `name` in `folder`, or goes on with them.
    ///
    /// # Panics
    /// When they cannot be written.
    pub fn open(folder: &Path, name: &str) -> Arc<Self> {
        let open = |extension| {
            let path = folder.join(name).with_extension(extension);
            OpenOptions::new().create(true).append(true).open(&path).expect("the files of a history can be written")
        };
        let recorder = Arc::new(Self {
            name: name.to_owned(),
            done: open(DONE),
            begun: open(BEGUN),
            delays: Mutex::new(Delays::begin()),
        });
        pulse::tell_to(&recorder);
        recorder
    }

    /// The name of the process.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Notes that a call begins now. One that is dropped before it [ends](Call::end) is one of unknown outcome.
    pub fn begin(self: &Arc<Self>, mut event: Event) -> Call {
        event.t_return = None;
        event.t_invoke = now();
        let call = Call { event, recorder: Arc::clone(self), ended: false };
        self.look();
        write(&call.recorder.begun, &call.event);
        call
    }

    /// Writes down what has happened.
    pub fn note(&self, event: &Event) {
        self.look();
        write(&self.done, event);
    }

    /// Writes down for how long the process, or a thread of the recorder, has stood still, as far as that is not written yet.
    fn look(&self) {
        pulse::look();
        self.look_at_delays();
    }

    pub(super) fn look_at_delays(&self) {
        let delay = self.delays.lock().unwrap_or_else(PoisonError::into_inner).look();
        if let Some(delay) = delay {
            let to = now();
            self.stood_still(to - delay, to);
        }
    }

    pub(super) fn stood_still(&self, from: f64, to: f64) {
        write(&self.done, &Event::new(self.name(), Op::Standstill, from).until(to));
    }
}

fn write(mut file: &File, event: &Event) {
    // In one piece and unbuffered: it outlives the process, and lines of several tasks do not mix.
    let line = format!("{}\n", event.to_json());
    file.write_all(line.as_bytes()).expect("the file of a history can be written");
}

/// A call under way.
#[derive(Debug)]
#[must_use = "a call that is dropped has no known outcome"]
pub struct Call {
    /// What is known of it so far.
    pub event: Event,
    recorder: Arc<Recorder>,
    ended: bool,
}

impl Call {
    /// Writes down how it ended, just now.
    pub fn end(self, result: Outcome) {
        self.end_at(now(), result);
    }

    /// Writes down how it ended, and when.
    pub fn end_at(mut self, t_return: f64, result: Outcome) {
        self.event.t_return = Some(t_return);
        self.event.result = result;
        self.recorder.note(&self.event);
        self.ended = true;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.ended {
            self.event.t_return = Some(now());
            self.event.result = Outcome::Info;
            self.recorder.note(&self.event);
        }
    }
}

/// The folder of one run, and what the test itself has to say about it.
///
/// It is kept as `$HISTORY_DIR/NAME` when that is set; else it is removed with the run, unless a test fails.
#[derive(Debug)]
pub struct Run {
    path: PathBuf,
    folder: Option<TempDir>,
    nemesis: Arc<Recorder>,
}

impl Run {
    /// Begins the run `name`, which has to be the only one of that name.
    ///
    /// # Panics
    /// When its folder cannot be made.
    pub fn new(name: &str) -> Self {
        let kept = env::var_os("HISTORY_DIR").map(|kept| PathBuf::from(kept).join(name));
        let folder = kept.is_none().then(folder);
        let path = kept.or_else(|| Some(folder.as_ref()?.path().to_owned())).expect("there is one of them");
        if folder.is_none() {
            let _ = fs::remove_dir_all(&path); // that of an earlier run
            fs::create_dir_all(&path).expect("HISTORY_DIR can be written");
        }
        let nemesis = Recorder::open(&path, JUDGE);
        Self { path, folder, nemesis }
    }

    /// Where the files are.
    pub fn folder(&self) -> &Path {
        &self.path
    }

    /// The same as text, to be given to another process.
    pub fn folder_text(&self) -> String {
        self.path.display().to_string()
    }

    /// A recorder for a client in the process of the test itself.
    pub fn recorder(&self, name: &str) -> Arc<Recorder> {
        Recorder::open(&self.path, name)
    }

    /// Notes that `process` was killed, and is gone now.
    pub fn crashed(&self, process: &str) {
        self.nemesis.note(&Event::new(process, Op::Crash, now()));
    }

    /// Notes that something was broken since `from`, and is whole again now. Slow wake-ups in between are excused.
    pub fn broken_since(&self, from: f64) {
        self.nemesis.note(&Event::new(self.nemesis.name(), Op::Fault, from).until(now()));
    }

    /// Notes that leases may have vanished from the servers, as the documentation says that they may then.
    pub(super) fn vanished(&self, mark: &Mark) {
        let mut event = Event::new(self.nemesis.name(), Op::Vanished, mark.from).until(mark.to);
        event.key.clone_from(&mark.key);
        self.nemesis.note(&event);
    }

    /// Notes a key that was found after the run, with what is left of its ttl, and how much that may be.
    pub fn left_over(&self, key: &str, pttl: i64, max_pttl: Option<f64>, allowed: bool) {
        let at = now();
        let mut event = Event::new(self.nemesis.name(), Op::Leftover, at).until(at).on(key);
        event.pttl = Some(pttl as f64);
        event.max_pttl = max_pttl;
        event.allowed = allowed;
        self.nemesis.note(&event);
    }

    /// Waits until nothing is left in `server` but what may stay: the counter of fencing tokens, for some seconds until
    /// when somebody may be waiting, and the registers of the test. Writes down what is there then, or still after
    /// [`SOON`]; returns how long it took. Leases whose release is awaited so have the ttl [`LONG`](crate::LONG).
    pub async fn settle(&self, server: &RedisServer) -> Duration {
        let start = Instant::now();
        while !server.left().await.iter().all(|key| key.starts_with(Register::PREFIX)) && start.elapsed() < SOON {
            sleep(Duration::from_millis(5)).await;
        }
        let took = start.elapsed();
        for key in server.keys("*").await {
            // It may have gone meanwhile.
            let Some(pttl @ -1..) = server.call(&["PTTL", &key]).await.integer() else {
                continue;
            };
            let longest = (key == RedisServer::WAITING).then_some(WAITING_LIVES);
            let stays = key == RedisServer::COUNTER || key.starts_with(Register::PREFIX);
            self.left_over(&key, pttl, longest, stays);
        }
        took
    }

    /// Reads what everybody has written. Calls that never came back are put into the files as such.
    ///
    /// # Errors
    /// What the file system says, or the first line that is no event.
    pub fn history(&self) -> io::Result<History> {
        self.nemesis.look();
        let begun = History::read_all(&self.path, BEGUN)?;
        let done = History::read_all(&self.path, DONE)?;
        let identity = |event: &Event| (event.process.clone(), event.t_invoke.to_bits());
        let ended: HashSet<_> = done.events().iter().map(identity).collect();
        for event in begun.events().iter().filter(|event| !ended.contains(&identity(event))) {
            let process = event.process.split('/').next().unwrap_or_default();
            Recorder::open(&self.path, process).note(event);
        }
        History::read_all(&self.path, DONE)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.take()
            && thread::panicking()
        {
            println!("the history is in {}", folder.keep().display());
        }
    }
}

/// The process of the test itself.
pub(super) const JUDGE: &str = "nemesis";
const DONE: &str = "jsonl";
const BEGUN: &str = "begun";
/// The longest life of a place, and what is added to it so that not every place writes the time again.
const WAITING_LIVES: f64 = 10_000.0;
