//! The one task of a manager: polls the backend's driver, hands the answers to the state, and sends renewals, retries and requests that
//! have gathered.

use std::{
    collections::VecDeque,
    future::{pending, poll_fn},
    iter, mem,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{
    FutureExt,
    stream::{FuturesUnordered, StreamExt},
};
use tokio::sync::mpsc;

use super::{
    core::{Core, Step},
    deferred,
    late::{self, Watched},
    question::Message,
    queues::in_flight::{CallId, List},
    responder::Responder,
    turn::{Turn, pause, start},
};
use crate::{
    backend::{self, Answer, BackendError, Notice, Replied, Reply},
    caught,
    clock::{Moment, Sleep},
    error::ErrorKind,
    key::LockKey,
};

impl Core {
    /// Starts the task if it does not run; refuses to after a shutdown.
    pub(super) fn admit(self: &Arc<Self>) -> Result<(), ErrorKind> {
        if self.is_open() {
            return Ok(());
        }
        let Some(runtime) = self.begin_task()? else { return Ok(()) };
        // A runtime that has ended drops the task inside `spawn`, and its drop (`Running`) clears the flag. So the flag has to be
        // read after the spawn: read before, it would promise a task that nobody runs, and requests would wait forever.
        let turn = Turn::default();
        let watched = late::watch(&self.pulse, &runtime);
        start(&runtime, turn.clone(), run(Running { core: Arc::clone(self), begun: false, watched }, turn));
        if self.state().is_running() { Ok(()) } else { Err(ErrorKind::NoRuntime) }
    }
}

/// The task's hold on the core: says that the task has ended, however it ends.
struct Running {
    core: Arc<Core>,
    /// Whether the task was polled.
    begun: bool,
    watched: Option<Watched>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // First, since the next task may start elsewhere as soon as this one has stopped.
        drop(self.watched.take());
        self.core.stopped(self.begun);
    }
}

/// A call in flight.
struct InFlight {
    call: CallId,
    reply: Reply<Answer>,
}

impl Future for InFlight {
    type Output = (CallId, Replied<Answer>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { call, reply } = &mut *self;
        let polled = caught(|| Pin::new(&mut *reply).poll(cx)).unwrap_or_else(|error| Poll::Ready(Err(error)));
        if polled.is_ready() {
            // Its drop is the backend's code, too.
            let over = reply.take_rest();
            let _ = caught(|| drop(over));
        }
        polled.map(|answer| (*call, answer))
    }
}

/// Makes an error of a panic of the backend, which would end the task, and with it every lease.
fn caught<R>(ask: impl FnOnce() -> R) -> Replied<R> {
    caught::caught("backend", ask).ok_or_else(BackendError::panicked)
}

/// Works until the last handle of the manager is gone and everything is cleaned up.
async fn run(mut running: Running, turn: Turn) {
    running.begun = true;
    let mut work = Work::new(Arc::clone(&running.core), turn);
    // Code of the application that may panic is caught where it is called. The loop catches the rest (a clock, and what a backend says
    // of itself), so that no such panic ends all leases. Nothing is lost: calls in flight are kept here, and steps of the state come
    // after such code.
    let mut panics = 0;
    while panics < PANICS {
        let steps = work.steps;
        match AssertUnwindSafe(work.go()).catch_unwind().await {
            Ok(()) => return,
            Err(_) if work.steps > steps + 1 => panics = 0,
            Err(_) => panics += 1,
        }
        // A timer that has panicked would do so at each further poll.
        let timer = mem::take(&mut work.timer);
        let _ = caught(|| drop(timer));
        work.core.note_sent();
        caught::panicked("clock or backend");
        pause().await;
    }
    // Without a clock there are no deadlines: the leases end with the task.
    log!(error, "the clock or the backend panics each time; the engine has stopped, and its leases are lost");
}

/// The task's own part of the work: the state has the rest.
struct Work {
    core: Arc<Core>,
    notices: mpsc::UnboundedReceiver<Notice>,
    exchange: Exchange,
    lists: FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// A notice that has come, and is not handled yet.
    notice: Option<Notice>,
    /// Whether other tasks are about to make requests, which can share the next call.
    gathers: bool,
    /// Whether they have had their turn.
    passed: bool,
    /// How often something has come that was handled before their turn.
    delays: usize,
    turn: Turn,
    timer: Timer,
    answers: usize,
    steps: usize,
}

/// What is polled to write requests and to read answers.
struct Exchange {
    core: Arc<Core>,
    told: backend::Calls,
    driver: Driver,
    /// Whether only sockets and timers wake it.
    is_driven: bool,
    turn: Turn,
    calls: FuturesUnordered<InFlight>,
    /// Replies on their way to `calls`.
    replies: Vec<(CallId, Reply<Answer>)>,
    /// Answers that have come, and are not handled yet.
    answered: VecDeque<(CallId, Replied<Answer>)>,
}

impl Exchange {
    /// Ready with answers, or with whether something waits that can leave now.
    ///
    /// The driver is polled before the calls: it reads what has arrived, and then the calls compare the clock with their limits. In the
    /// other order, a runtime that was starved for longer than a limit would report a time-out for answers that were already in the socket.
    /// The second poll writes what the calls have just queued; without it they would leave with the next wake-up.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        // With other calls in flight there is work for another thread, too, which the task moves to; see `free_slot`.
        let is_alone = self.is_driven && self.calls.is_empty();
        self.turn.poll_driven(is_alone, cx, |cx| poll_driver(&self.core, &mut self.driver, &self.told, cx));
        self.core.take_replies(&mut self.replies);
        let sends = self.replies.iter().any(|(_, reply)| reply.is_unsent());
        for (call, reply) in self.replies.drain(..) {
            let is_unsent = reply.is_unsent();
            let mut in_flight = InFlight { call, reply };
            // It leaves now, before anything that other threads send, however many answers there are.
            let polled = if is_unsent { Pin::new(&mut in_flight).poll(cx) } else { Poll::Pending };
            match polled {
                Poll::Ready(answer) => self.answered.push_back(answer),
                Poll::Pending => self.calls.push(in_flight),
            }
        }
        // A step that found one of these unsent has sent nothing: the next one sends what was due.
        let waits = sends && self.core.note_sent();
        // All that have come, before a step fails what is past its limit.
        while let Poll::Ready(Some(answer)) = self.calls.poll_next_unpin(cx) {
            self.answered.push_back(answer);
        }
        if sends {
            self.turn.poll_driven(is_alone, cx, |cx| poll_driver(&self.core, &mut self.driver, &self.told, cx));
            if self.core.has_replies() {
                // What has just been read may answer one of them, which nothing else shows.
                cx.waker().wake_by_ref();
            }
        }
        if self.answered.is_empty() && !waits { Poll::Pending } else { Poll::Ready(waits) }
    }
}

impl Work {
    fn new(core: Arc<Core>, turn: Turn) -> Self {
        let trusts = caught(|| core.backend.grants_leases()).unwrap_or(false);
        let mut state = core.state();
        state.queues.trusts = trusts;
        let (told, notices) = backend::Calls::new(Arc::clone(state.queues.channel()));
        drop(state);
        let exchange = Exchange {
            driver: driver(&core, told.clone()),
            is_driven: caught(|| core.backend.is_driven()).unwrap_or(false),
            core: Arc::clone(&core),
            told,
            turn: turn.clone(),
            calls: FuturesUnordered::new(),
            replies: Vec::new(),
            answered: VecDeque::new(),
        };
        Self {
            core,
            notices,
            exchange,
            lists: FuturesUnordered::new(),
            notice: None,
            gathers: false,
            passed: false,
            delays: 0,
            turn,
            timer: Timer::default(),
            answers: 0,
            steps: 0,
        }
    }

    /// Begins what the state has decided, except calls.
    fn begin(&mut self, lists: Vec<List>, messages: Vec<Message>) {
        self.lists.extend(lists.into_iter().map(|list| list_keys(&self.core, list)));
        self.lists.extend(messages.into_iter().map(|message| publish(&self.core, message)));
    }

    /// Whether something has come that is handled before other tasks have their turn.
    fn has_come(&mut self, cx: &mut Context<'_>) -> bool {
        while let Poll::Ready(Some(())) = self.lists.poll_next_unpin(cx) {}
        // Answers are handled before notices that come with them: a connection that is made has those leases renewed that are held by then.
        if self.exchange.poll(cx).is_ready() {
            return true;
        }
        // It has a budget, as the polls of the runtime do: notices that never end must not keep the thread.
        self.notice = match self.notices.poll_recv(cx) {
            Poll::Ready(notice) => notice,
            Poll::Pending => None,
        };
        self.notice.is_some()
    }

    async fn go(&mut self) {
        loop {
            if self.notice.is_some() {
                handle_notices(&self.core, &mut self.notice, &mut self.notices);
            }
            let mut has_paused = false;
            while !self.exchange.answered.is_empty() {
                let count: usize = self
                    .exchange
                    .answered
                    .iter()
                    .flat_map(|(_, result)| result)
                    .map(|answer| answer.outcomes.len())
                    .sum();
                self.gathers |= count > 1 && !self.passed;
                self.answers += self.exchange.answered.len();
                self.core.handle_answers(&mut self.exchange.answered, self.gathers);
                // Calls to a server that is known to be down are answered at once, and each answer may cause the next call. Without
                // a pause this task would never return to the runtime, whose timers and sockets would stand still; and grants that
                // have arrived would wait behind the answers until they are too old to be trusted.
                if self.answers >= ANSWERS && !std::mem::replace(&mut has_paused, true) {
                    self.answers = 0;
                    handle_notices(&self.core, &mut self.notice, &mut self.notices);
                    pause().await;
                    // Answers that have come meanwhile count, whatever the limits are by now.
                    let _ = poll_fn(|cx| Poll::Ready(self.exchange.poll(cx))).await;
                }
            }
            // The tasks that an answer has woken, or that run beside the one that has woken this task, are about to make requests, too.
            // They have their turn first, once, since otherwise the first of them would have a call of its own and the others would
            // wait for room. Renewals leave at once, and what has come is handled before.
            if self.gathers {
                let step = self.core.step(true);
                self.steps += 1;
                self.begin(step.lists, step.messages);
                // But answers to renewals may not run out for long.
                if self.delays < ANSWERS && poll_fn(|cx| Poll::Ready(self.has_come(cx))).await {
                    self.delays += 1;
                    continue;
                }
                self.turn.pass().await;
                (self.gathers, self.passed, self.delays) = (false, true, 0);
                // What was left of the wake-ups would gather once more.
                let _ = self.core.wake.notified().now_or_never();
                // Answers that have come meanwhile count, whatever the limits are by now: see `Exchange::poll`.
                if poll_fn(|cx| Poll::Ready(self.has_come(cx))).await {
                    continue;
                }
            }
            self.passed = false;
            let Step { now, lists: asked, messages, until, finished } = self.core.step(false);
            self.steps += 1;
            self.begin(asked, messages);
            if finished && self.lists.is_empty() && self.core.state().queues.waits_for_nothing() {
                return;
            }
            tokio::select! {
                biased;
                // Lists of keys are few, and come first because answers may never run out: behind them a list would starve.
                Some(()) = self.lists.next() => {}
                waits = poll_fn(|cx| self.exchange.poll(cx)) => self.gathers = waits && !self.exchange.calls.is_empty(),
                Some(arrived) = self.notices.recv() => self.notice = Some(arrived),
                // A request that comes alone leaves at once.
                () = self.core.wake.notified() => self.gathers = !self.exchange.calls.is_empty(),
                () = self.timer.until(&self.core, until, now) => {}
            }
        }
    }
}

/// Handles notices that have arrived, under one lock: one at a time, with a turn of the loop for each, they could arrive faster than
/// they are handled. A bounded number of them, because no request gets the lock meanwhile.
fn handle_notices(core: &Core, first: &mut Option<Notice>, notices: &mut mpsc::UnboundedReceiver<Notice>) {
    // Before the first one is taken: a clock that panics must not cost it.
    let now = core.clock.now();
    core.with(|state| {
        let rest = iter::from_fn(|| notices.try_recv().ok());
        first.take().into_iter().chain(rest).take(NOTICES).for_each(|notice| state.queues.handle_notice(notice, now));
    });
}

type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Polls the driver, which may have nothing left to do. After a panic of the backend it begins again, so that the connection does not
/// stay away.
fn poll_driver(core: &Arc<Core>, driver: &mut Driver, told: &backend::Calls, cx: &mut Context<'_>) {
    match caught(|| driver.as_mut().poll(cx)) {
        Ok(Poll::Pending) => {}
        Ok(Poll::Ready(())) => *driver = Box::pin(pending()),
        Err(_) => {
            let ended = std::mem::replace(driver, driver_again(core, told.clone()));
            let _ = caught(|| drop(ended));
            // Messages came over its connection. The next one says whether they reach this process again.
            told.listening(false);
            cx.waker().wake_by_ref();
        }
    }
}

fn driver(core: &Arc<Core>, told: backend::Calls) -> Driver {
    caught(|| core.backend.driver(told.clone())).unwrap_or_else(|_| driver_again(core, told))
}

/// Begins the driver after a rest.
fn driver_again(core: &Arc<Core>, told: backend::Calls) -> Driver {
    let core = Arc::clone(core);
    Box::pin(async move {
        for _ in 0..RESTS {
            let rest = async { core.clock.sleep(BEFORE_DRIVER).await };
            if AssertUnwindSafe(rest).catch_unwind().await.is_ok() {
                return driver(&core, told).await;
            }
            pause().await;
        }
        // Without a rest it would panic again and again, as on a runtime without timers.
        log!(error, "the clock panics, so the connection is not kept; does the runtime have timers?");
        pending().await
    })
}

/// Lists keys for a request. If the task ends before the answer is there, the request fails.
fn list_keys(core: &Arc<Core>, list: List) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    let backend = Arc::clone(&core.backend);
    let unanswered = Unanswered { core: Arc::clone(core), responder: list.responder };
    Box::pin(async move {
        let keys = async { backend.list(list.prefix).await };
        let keys = AssertUnwindSafe(keys).catch_unwind().await;
        unanswered.answer(keys.unwrap_or_else(|_| Err(BackendError::panicked())));
    })
}

/// Publishes a question about holders and waiters, or an answer to one.
fn publish(core: &Arc<Core>, Message { channel, text, asks }: Message) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    let core = Arc::clone(core);
    Box::pin(async move {
        let sent = async { core.backend.publish(channel, text).await };
        let sent = AssertUnwindSafe(sent).catch_unwind().await;
        let sent = sent.unwrap_or_else(|_| Err(BackendError::panicked()));
        core.with(|state| state.queues.was_published(asks, sent));
    })
}

/// A request for a list of keys that is in flight.
struct Unanswered {
    core: Arc<Core>,
    responder: Responder<Vec<LockKey>>,
}

impl Unanswered {
    fn answer(&self, keys: Replied<Vec<LockKey>>) {
        if let Some(waker) = self.responder.answer(keys) {
            deferred::wake(waker);
        }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        // The first answer stands.
        self.answer(Err(self.core.ended(ErrorKind::NoRuntime)));
    }
}

/// One timer, which is kept until an earlier one is needed. Firing too early does no harm, since the loop only asks the state again.
/// Setting a timer for each request would cost more: tokio wakes the thread that waits for the earliest timer.
#[derive(Default)]
struct Timer {
    set: Option<(Moment, Sleep)>,
}

impl Timer {
    async fn until(&mut self, core: &Core, until: Moment, now: Moment) {
        if until == Moment::NEVER {
            return pending().await;
        }
        if self.set.as_ref().is_none_or(|(at, _)| until < *at) {
            self.set = Some((until, core.clock.sleep(until.since(now))));
        }
        if let Some((_, sleep)) = &mut self.set {
            sleep.await;
        }
        self.set = None;
    }
}

/// How many notices are handled under one lock.
const NOTICES: usize = 64;

/// How often in a row the task continues after a panic without having taken a step.
const PANICS: usize = 100;

/// How often it tries to rest.
const RESTS: usize = 3;

/// How long the driver rests after a panic of the backend.
const BEFORE_DRIVER: Duration = Duration::from_millis(100);

/// After so many answers the runtime has a turn, even if more are there.
pub(super) const ANSWERS: usize = 16;

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;

    use super::*;
    use crate::{
        backend::{Backend, Calls, MemoryBackend},
        engine::{Engine, Looks, limits::Limits},
    };

    fn engine(runtime: Option<Handle>) -> Arc<Engine> {
        let backend = Arc::new(MemoryBackend::new());
        let looks = Looks { service: "test".into(), explain_after: None };
        let limits = Limits { per_key: usize::MAX, in_all: usize::MAX, answer: Duration::MAX };
        Engine::new(backend.clone(), backend.clock(), runtime, Some(1), looks, limits, None)
    }

    /// Each time it would fail all waiters: with many of them that takes the square of their number.
    #[test]
    fn the_end_of_the_builder_s_runtime_is_found_out_once() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let engine = engine(Some(runtime.handle().clone()));
        drop(runtime);
        for _ in 0..100 {
            assert_eq!(engine.admit("acquire").unwrap_err().kind(), crate::ErrorKind::NoRuntime);
        }
        assert_eq!(engine.core.state().ended, 1);
    }

    #[test]
    fn a_call_that_was_made_after_the_task_took_the_replies_has_not_left() {
        let core = &engine(None).core;
        let call = |number| {
            let mut state = core.state();
            state.unsent = true;
            state.replies.push((number, Reply::new(pending())));
        };
        let mut replies = Vec::new();
        for (number, is_unsent) in [(1, true), (2, false)] {
            call(number);
            core.take_replies(&mut replies);
            if is_unsent {
                call(3);
            }
            core.note_sent();
            assert_eq!(core.state().unsent, is_unsent);
            core.take_replies(&mut replies);
        }
    }

    #[test]
    fn a_bounded_number_of_notices_is_handled_under_one_lock() {
        let engine = engine(None);
        let (calls, mut notices) = Calls::new("channel".into());
        (0..10 * NOTICES).for_each(|_| calls.connected());
        handle_notices(&engine.core, &mut None, &mut notices);
        assert_eq!(notices.len(), 9 * NOTICES);
        handle_notices(&engine.core, &mut Some(Notice::Connected), &mut notices);
        assert_eq!(notices.len(), 8 * NOTICES + 1);
    }
}
