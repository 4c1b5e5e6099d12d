//! A client of lock-core that writes down what it does. It judges nothing.

use std::{
    future::Future,
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lock_core::{Error, ErrorKind, FencingToken, LockGuard, LockManager, LockRequest};
use serde_json::json;
use tokio::time::sleep;

use super::{
    clock::now,
    event::{Event, Op, Outcome},
    mode::Mode,
    record::{Call, Recorder},
    store::Register,
};

/// One task of a process: it does one thing at a time.
#[derive(Debug)]
pub struct Recorded {
    manager: LockManager,
    recorder: Arc<Recorder>,
    process: String,
}

impl Recorded {
    /// The task `task` of the recorder's process; the process itself where that is empty.
    pub fn new(manager: &LockManager, recorder: &Arc<Recorder>, task: &str) -> Self {
        let process = match task {
            "" => recorder.name().to_owned(),
            task => format!("{}/{task}", recorder.name()),
        };
        Self { manager: manager.clone(), recorder: Arc::clone(recorder), process }
    }

    /// Acquires `key` for `ttl`, with whatever else `options` ask for.
    ///
    /// Dropping the future is written down as an acquire of unknown outcome.
    ///
    /// # Errors
    /// Those of the request.
    pub async fn acquire(
        &self,
        key: &str,
        ttl: Duration,
        options: impl FnOnce(LockRequest) -> LockRequest,
    ) -> Result<Held, Error> {
        self.acquire_in(Mode::Exclusive, key, ttl, options).await
    }

    /// The same in another mode.
    ///
    /// # Errors
    /// Those of the request.
    pub async fn acquire_in(
        &self,
        mode: Mode,
        key: &str,
        ttl: Duration,
        options: impl FnOnce(LockRequest) -> LockRequest,
    ) -> Result<Held, Error> {
        let request = options(mode.ask(self.manager.lock(key).ttl(ttl)));
        let mut event = Event::new(self.process.as_str(), Op::Acquire, now()).on(key);
        event.ttl = Some(milliseconds(ttl));
        event.mode = mode;
        event.only_tries = request.tries_once();
        let call = self.recorder.begin(event);
        match request.await {
            Ok(guard) => Ok(got(&self.recorder, &self.process, call, guard)),
            Err(error) => {
                call.end(outcome(&error));
                Err(error)
            }
        }
    }

    /// Tries to acquire `key`; none when somebody else has it.
    ///
    /// # Errors
    /// Those of the request.
    pub async fn try_acquire(&self, key: &str, ttl: Duration) -> Result<Option<Held>, Error> {
        self.try_acquire_in(Mode::Exclusive, key, ttl).await
    }

    /// The same in another mode.
    ///
    /// # Errors
    /// Those of the request.
    pub async fn try_acquire_in(&self, mode: Mode, key: &str, ttl: Duration) -> Result<Option<Held>, Error> {
        match self.acquire_in(mode, key, ttl, |request| request.wait(Duration::ZERO)).await {
            Err(error) if error.kind() == ErrorKind::Busy => Ok(None),
            tried => tried.map(Some),
        }
    }
}

/// Writes down that a lease was acquired.
fn got(recorder: &Arc<Recorder>, process: &str, mut call: Call, guard: LockGuard) -> Held {
    let key = guard.key().to_owned();
    let mode = call.event.mode;
    let token = token(recorder.name(), mode, &guard);
    let (at, deadline) = deadline(&guard);
    call.event.token = Some(token.clone());
    call.event.fence = Some(guard.fencing_token().get());
    call.event.deadline = Some(deadline);
    call.end_at(at, Outcome::Ok);
    let held = Held {
        recorder: Arc::clone(recorder),
        process: process.to_owned(),
        key,
        token,
        mode,
        deadline,
        got: at,
        last: at,
        denied: f64::NEG_INFINITY,
        renewals: 0,
        guard: Some(guard),
    };
    held.watch();
    held
}

/// A lease whose holder writes down what it does with it. Dropping it is a release of unknown outcome.
#[derive(Debug)]
pub struct Held {
    recorder: Arc<Recorder>,
    process: String,
    key: String,
    token: String,
    mode: Mode,
    /// The deadline that was written down last.
    deadline: f64,
    /// When it was acquired.
    got: f64,
    /// When the last operation was over.
    last: f64,
    /// When the guard said last that the lease is over.
    denied: f64,
    /// How many renewals were written down.
    renewals: u32,
    guard: Option<LockGuard>,
}

impl Held {
    /// The fencing token.
    pub fn fence(&self) -> FencingToken {
        self.guard().fencing_token()
    }

    /// The guard itself, to look at without a record.
    ///
    /// # Panics
    /// Never: it is there until it is released.
    pub fn guard(&self) -> &LockGuard {
        self.guard.as_ref().expect("there until it is released")
    }

    /// Asks the guard whether it is valid.
    pub fn check(&mut self) -> bool {
        let mut event = self.event(Op::Check);
        event.t_invoke = now();
        let valid = self.guard().is_held();
        let answered = now();
        event.valid = Some(valid);
        event.t_return = Some(answered);
        if valid {
            // The process may have been stopped since the check, and the lease renewed: the deadline counts from when it was read.
            let (at, deadline) = deadline(self.guard());
            self.noticed(at, deadline);
        } else {
            self.denied = answered;
        }
        self.recorder.note(&event);
        self.last = answered;
        valid
    }

    /// Makes the lease last `ttl` from now.
    ///
    /// # Errors
    /// Those of the request.
    ///
    /// # Panics
    /// Never: the guard is there until it is released.
    pub async fn extend(&mut self, ttl: Duration) -> Result<(), Error> {
        self.look();
        let mut event = self.event(Op::Extend);
        event.ttl = Some(milliseconds(ttl));
        let mut call = self.recorder.begin(event);
        let extended = self.guard.as_mut().expect("there until it is released").extend(ttl).await;
        let (at, deadline) = deadline(self.guard());
        call.event.deadline = Some(deadline);
        let result = extended.as_ref().map_or_else(outcome, |_| Outcome::Ok);
        if result != Outcome::Ok && !self.guard().is_held() {
            call.event.deadline = None; // there is none any more
        }
        call.end_at(at, result);
        (self.last, self.deadline) = (at, deadline);
        extended.map(drop)
    }

    /// Reads the register; none if it was not let, or where nobody knows, an error.
    ///
    /// # Errors
    /// Those of the connection and of the server.
    pub async fn read(&mut self, register: &mut Register) -> io::Result<Option<u64>> {
        self.look();
        let mut event = self.event(Op::Read);
        event.mode = self.mode;
        let mut call = self.recorder.begin(event);
        let (key, fence) = (self.key.clone(), self.fence().get());
        let read = self.meanwhile(register.read(&key, fence)).await;
        self.last = now();
        let Ok(Some((fence, value))) = read else {
            call.end_at(self.last, Outcome::Fail);
            return read.map(|_| None);
        };
        call.event.fence = Some(fence);
        call.event.value = Some(json!(value));
        call.end_at(self.last, Outcome::Ok);
        Ok(Some(value))
    }

    /// Reads the register and writes one more; whether it was let, or none where nobody knows.
    pub async fn count(&mut self, register: &mut Register) -> Option<bool> {
        let value = match self.read(register).await {
            Ok(Some(value)) => value,
            unread => return unread.is_ok().then_some(false),
        };
        self.look();
        let fence = self.fence().get();
        let mut event = self.event(Op::Write);
        event.fence = Some(fence);
        event.prev = Some(json!(value));
        event.value = Some(json!(value + 1));
        let call = self.recorder.begin(event);
        let key = self.key.clone();
        let written = self.meanwhile(register.write(&key, fence, value + 1)).await;
        self.last = now();
        let written = written.ok();
        call.end_at(self.last, Outcome::of(written));
        written
    }

    /// Releases the lease and waits for the answer.
    ///
    /// # Errors
    /// Those of the request.
    ///
    /// # Panics
    /// Never: the guard is there until it is released.
    pub async fn release(mut self) -> Result<(), Error> {
        self.look();
        let call = self.recorder.begin(self.event(Op::Release));
        let released = self.guard.take().expect("there until it is released").release().await;
        call.end(released.as_ref().map_or_else(outcome, |()| Outcome::Ok));
        released
    }

    /// Lets others share the exclusive lease from now on.
    ///
    /// # Errors
    /// Those of the guard.
    ///
    /// # Panics
    /// Never: the guard is there until it is released.
    pub async fn downgrade(mut self) -> Result<Self, Error> {
        self.look();
        // From the first poll on, the lease is no longer exclusive. Nobody is told what became of it by itself.
        self.recorder.begin(self.event(Op::Release)).end(Outcome::Info);
        let guard = self.guard.take().expect("there until it is released");
        let mut event = Event::new(self.process.as_str(), Op::Acquire, now()).on(&self.key);
        event.ttl = Some(milliseconds(guard.lease().ttl()));
        (event.mode, event.only_tries, event.from) = (Mode::Shared, true, Some(self.token.clone()));
        let call = self.recorder.begin(event);
        match guard.downgrade().await {
            Ok(guard) => Ok(got(&self.recorder, &self.process, call, guard)),
            Err(error) => {
                call.end(outcome(&error));
                Err(error)
            }
        }
    }

    /// Works under the lease, and releases it; the work is cancelled if the lease is lost.
    ///
    /// Renewals meanwhile are not written down.
    ///
    /// # Errors
    /// Those of the guard.
    ///
    /// # Panics
    /// Never: the guard is there until it is released.
    pub async fn work<F: Future>(mut self, work: F) -> Result<F::Output, Error> {
        self.look();
        let worked = self.guard.take().expect("there until it is released").protect(work).await;
        let call = self.recorder.begin(self.event(Op::Release));
        call.end(worked.as_ref().map_or_else(outcome, |_| Outcome::Info));
        worked
    }

    /// Waits for a call of the holder, and writes down the renewals that come meanwhile: a call may take longer than a lease.
    async fn meanwhile<F: Future>(&mut self, call: F) -> F::Output {
        let mut call = pin!(call);
        let pace = self.guard().ttl() / 8;
        loop {
            tokio::select! {
                biased;
                output = &mut call => return output,
                () = sleep(pace) => self.look(),
            }
        }
    }

    /// Writes down a renewal that has come since the last operation, or that the lease is over.
    fn look(&mut self) {
        if self.guard().is_held() {
            let (at, deadline) = deadline(self.guard());
            self.noticed(at, deadline);
        } else {
            self.denied = now();
        }
    }

    /// Writes down a deadline that was read, if it is news. One that was read when the lease was over, since the process was
    /// stopped before, is none.
    fn noticed(&mut self, at: f64, deadline: f64) {
        if deadline > self.deadline + NEWS && self.guard().is_held() {
            let mut event = self.event(Op::Extend);
            // Its answer may have been long under way; but none revives a lease that was said to be over. If the former deadline has passed
            // since nobody looked, this was not the first renewal since then, and the first one was sent before that deadline.
            let sent = (deadline - validity(self.guard().ttl()) - NEWS).min(self.deadline - NEWS);
            event.t_invoke = self.last.min(sent).max(self.got).max(self.denied);
            self.renewals += 1;
            event.process = format!("{}/renewal {}", self.process, self.renewals);
            event.t_return = Some(at);
            event.deadline = Some(deadline);
            self.recorder.note(&event);
            (self.last, self.deadline) = (at, deadline);
        }
    }

    fn event(&self, op: Op) -> Event {
        Event::new(self.process.as_str(), op, now()).on(&self.key).of(&self.token)
    }

    /// Has it written down when the holder is told of a loss.
    fn watch(&self) {
        let (recorder, mut event) = (Arc::clone(&self.recorder), self.event(Op::Lost));
        let ended = self.guard().ended();
        tokio::spawn(async move {
            if ended.await.loss().is_some() {
                event.t_invoke = now();
                event.t_return = Some(event.t_invoke);
                recorder.note(&event);
            }
        });
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.guard.is_some() {
            self.look();
            let call = self.recorder.begin(self.event(Op::Release));
            self.guard = None;
            call.end(Outcome::Info);
        }
    }
}

/// How a lease is called in histories: `<tenure>/<hold>`.
///
/// The real token is a secret of the engine; fencing tokens tell holds apart just as well, but say nothing about which
/// of them were of one tenure. Those who share a key may have the same, so that their holds are numbered.
fn token(process: &str, mode: Mode, guard: &LockGuard) -> String {
    static HOLDS: AtomicU64 = AtomicU64::new(2);
    let hold = if mode == Mode::Shared { HOLDS.fetch_add(1, Ordering::Relaxed) } else { 1 };
    format!("{process}:{}:{}/{hold}", guard.key(), guard.fencing_token())
}

/// The time and the deadline that the guard reports, by the clock of histories.
fn deadline(guard: &LockGuard) -> (f64, f64) {
    let mut best = (f64::INFINITY, 0.0, 0.0);
    // Two clocks are read one after the other, and in between the machine may do something else for a while. Another reading
    // takes some microseconds, so that nothing comes between the clocks of one of a few, however busy the machine is.
    for _ in 0..1_000 {
        let before = now();
        let remaining = milliseconds(guard.remaining());
        let after = now();
        if after - before < best.0 {
            best = (after - before, after, before + remaining);
        }
        if best.0 < 0.1 {
            break;
        }
    }
    (best.1, (best.2 * 1_000.0).round() / 1_000.0)
}

/// What is known after an error.
pub(crate) fn outcome(error: &Error) -> Outcome {
    match error.kind() {
        ErrorKind::Busy
        | ErrorKind::Lost(_)
        | ErrorKind::NotHeld
        | ErrorKind::Overloaded
        | ErrorKind::Invalid(_)
        | ErrorKind::NoManager
        | ErrorKind::NoRuntime
        | ErrorKind::WouldDeadlock => Outcome::Fail,
        _ => Outcome::Info,
    }
}

/// For how long a holder relies on a lease from the sending of its request on, in ms.
pub fn validity(ttl: Duration) -> f64 {
    milliseconds(ttl) * 0.99 - 2.0
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

/// A deadline that moved by less was only read at another moment.
const NEWS: f64 = 1.5;
