//! Models of what threads share, run in every order of their steps by loom:
//!
//! ```sh
//! RUSTC_WORKSPACE_WRAPPER=$PWD/.ci/loom cargo test -p lock-core --lib --no-default-features models
//! ```
//!
//! The queues themselves are pure, under one lock. The models are about steps between two takings of that lock: a guard that ends
//! its hold and then calls the engine, and a task that goes to sleep while other threads have work for it.

use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Poll, Waker},
};

use loom::{
    future::block_on,
    thread::{Builder, JoinHandle},
};
use tokio::sync::{Notify, oneshot};

use super::{
    fixture::{Manual, at, key, terms},
    hold::Hold,
    *,
};
use crate::{
    backend::{Answer, BackendError, Operation, Outcome, Reply},
    end::End,
};

/// A backend that gives everything out, at once or never.
#[derive(Debug)]
struct Store {
    sends_at_once: bool,
    /// How many operations it was asked for.
    asked: AtomicUsize,
}

impl Backend for Store {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        self.asked.fetch_add(batch.len(), Ordering::Relaxed);
        if !self.sends_at_once {
            return Reply::new(std::future::pending());
        }
        Reply::ready(Ok(Answer::new(batch.iter().map(|operation| Ok(granted(operation))))))
    }

    fn list(&self, _: String) -> Reply<Vec<LockKey>> {
        Reply::new(std::future::pending())
    }

    fn sends_at_once(&self) -> bool {
        self.sends_at_once
    }
}

fn granted(operation: &Operation) -> Outcome {
    match operation {
        Operation::Acquire(_) => Outcome::Held { fence: 1, block: 9, was_free: true },
        _ => Outcome::Released,
    }
}

/// Runs a model in every order of its steps.
fn model(body: fn()) {
    loom::model(move || spawn(body).join().unwrap());
}

/// Loom's own stacks are too small for an engine.
fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().stack_size(STACK).spawn(body).unwrap()
}

/// In words.
const STACK: usize = 1 << 17;

fn engine_of(sends_at_once: bool) -> Arc<Engine> {
    engine_with(&Arc::new(Store { sends_at_once, asked: AtomicUsize::new(0) }))
}

fn engine_with<B: Backend>(store: &Arc<B>) -> Arc<Engine> {
    let limits = Limits { per_key: usize::MAX, in_all: usize::MAX, answer: Duration::MAX };
    let looks = Looks { service: "lock-core".into(), explain_after: None };
    let engine = Engine::new(
        Arc::clone(store) as Arc<dyn Backend>,
        Arc::new(Manual::default()),
        None,
        Some(1),
        looks,
        limits,
        None,
    );
    engine.core.run_by_hand();
    engine
}

/// An engine whose task is the test.
fn engine() -> Arc<Engine> {
    engine_of(false)
}

fn arrive(engine: &Engine) -> WaiterId {
    engine.arrive(Newcomer { key: &key(), terms: terms(9_000), tries: false }, at(0)).unwrap()
}

/// Sends what waits, and answers it. Returns how many operations there were.
fn send(engine: &Engine) -> usize {
    engine.core.with(|state| {
        let calls = state.queues.poll_transmit(at(0), 1);
        let sent = calls.iter().map(|(_, batch)| batch.len()).sum();
        for (call, batch) in calls {
            let answer = Answer::new(batch.iter().map(|operation| Ok(granted(operation))));
            state.queues.handle_response(call, Ok(answer), at(0), 1);
        }
        sent
    })
}

/// A lease that was acquired.
fn held(engine: &Engine) -> (HoldId, Arc<Hold>) {
    let waiter = arrive(engine);
    send(engine);
    let Poll::Ready(Ok(offer)) = engine.with(|state| state.queues.poll(waiter, Waker::noop(), at(0))) else {
        panic!("it was granted")
    };
    offer
}

/// Whether a waiter has its turn, now or after what waits was sent.
fn goes_on(engine: &Engine, waiter: WaiterId) -> bool {
    send(engine);
    engine.with(|state| state.queues.poll(waiter, Waker::noop(), at(0))).is_ready()
}

#[test]
fn a_request_made_while_a_guard_is_released_takes_nothing_from_it_and_is_served() {
    model(|| {
        let engine = engine();
        let (id, hold) = held(&engine);
        let other = spawn({
            let engine = Arc::clone(&engine);
            move || arrive(&engine)
        });
        hold.release_at(at(0)).unwrap();
        let departure = engine.release(id, at(0));
        let waiter = other.join().unwrap();
        assert!(!matches!(departure, Departure::Over), "the holder released it, and nobody else");
        assert!(goes_on(&engine, waiter));
    });
}

#[test]
fn of_two_requests_at_once_one_is_sent_and_both_are_served() {
    model(|| {
        let engine = engine();
        let other = spawn({
            let engine = Arc::clone(&engine);
            move || arrive(&engine)
        });
        let waiters = [arrive(&engine), other.join().unwrap()];
        assert_eq!(send(&engine), 1);
        let served = waiters.map(|waiter| engine.with(|state| state.queues.poll(waiter, Waker::noop(), at(0))));
        let held = served.into_iter().filter_map(|served| match served {
            Poll::Ready(offer) => Some(offer.unwrap().0),
            Poll::Pending => None,
        });
        assert_eq!(held.count(), 1);
    });
}

#[test]
fn two_threads_that_call_at_once_leave_nothing_unsent() {
    model(|| {
        let engine = engine_of(true);
        let both = |engine: &Engine, name: &str| {
            let key = LockKey::new(name).unwrap();
            let newcomer = Newcomer { key: &key, terms: terms(9_000), tries: false };
            let waiter = engine.arrive(newcomer, at(0)).unwrap();
            block_on(poll_fn(|cx| engine.with(|state| state.queues.poll(waiter, cx.waker(), at(0))))).unwrap()
        };
        let other = spawn({
            let engine = Arc::clone(&engine);
            move || both(&engine, "a").0
        });
        let (id, hold) = both(&engine, "b");
        hold.release_at(at(0)).unwrap();
        let Departure::Released(response) = engine.release(id, at(0)) else { panic!("nobody else waits") };
        assert!(block_on(response).is_ok());
        other.join().unwrap();
    });
}

#[test]
fn the_task_learns_of_a_lease_that_another_thread_got_at_once() {
    model(|| {
        let engine = engine_of(true);
        let other = spawn({
            let engine = Arc::clone(&engine);
            move || arrive(&engine)
        });
        let core = &engine.core;
        // The lease has a timer. The task may have looked while the other thread called the backend for it.
        block_on(async {
            while core.step(false).until == Moment::NEVER {
                core.wake.notified().await;
            }
        });
        other.join().unwrap();
    });
}

/// A connection: calls are sent at once, and answered when the task reads.
#[derive(Debug, Default)]
struct Server {
    asked: Mutex<Option<oneshot::Sender<Result<Answer, BackendError>>>>,
    /// The socket, which wakes the task.
    arrived: Notify,
    answered: Arc<AtomicU64>,
}

impl Backend for Server {
    fn call(&self, _: Batch) -> Reply<Answer> {
        let (sender, answer) = oneshot::channel();
        *self.asked.lock().unwrap() = Some(sender);
        self.arrived.notify_one();
        Reply::put(
            Box::pin(async { answer.await.expect("it is answered") }),
            Some([(Arc::clone(&self.answered), 0)].into()),
        )
    }

    fn list(&self, _: String) -> Reply<Vec<LockKey>> {
        Reply::new(std::future::pending())
    }

    fn sends_at_once(&self) -> bool {
        true
    }
}

#[test]
fn an_answer_that_is_read_before_the_task_knows_of_its_call_is_not_slept_over() {
    model(|| {
        let server = Arc::new(Server::default());
        let engine = engine_with(&server);
        let other = spawn({
            let engine = Arc::clone(&engine);
            move || arrive(&engine)
        });
        let core = &engine.core;
        let (mut replies, mut answers) = (Vec::new(), VecDeque::new());
        block_on(async {
            loop {
                // A timer would wake the task as well, but late.
                core.state().ignore_timers();
                if let Some(asked) = server.asked.lock().unwrap().take() {
                    let _ = asked.send(Ok(Answer::new([Ok(Outcome::Held { fence: 1, block: 9, was_free: true })])));
                    server.answered.fetch_add(1, Ordering::Release);
                }
                core.take_replies(&mut replies);
                if let Some((call, reply)) = replies.first_mut() {
                    let call = *call;
                    let answer = poll_fn(|cx| Poll::Ready(Pin::new(&mut *reply).poll(cx))).await;
                    answers.extend(match answer {
                        Poll::Ready(answer) => Some((call, answer)),
                        Poll::Pending => None,
                    });
                }
                if !answers.is_empty() {
                    return core.handle_answers(&mut answers, false);
                }
                tokio::select! {
                    biased;
                    () = core.wake.notified() => {}
                    () = server.arrived.notified() => {}
                }
            }
        });
        let waiter = other.join().unwrap();
        assert!(engine.with(|state| state.queues.poll(waiter, Waker::noop(), at(0))).is_ready());
    });
}

#[test]
fn the_future_of_a_request_is_woken_by_its_answer() {
    model(|| {
        let engine = engine();
        let mut response = engine.call(Batch::from([Operation::Inspect { key: key() }]));
        let other = spawn({
            let engine = Arc::clone(&engine);
            move || send(&engine)
        });
        assert!(block_on(Pin::new(&mut response)).is_ok());
        assert_eq!(other.join().unwrap(), 1);
    });
}

#[test]
fn a_request_in_flight_is_told_when_the_task_ends_under_it() {
    model(|| {
        let engine = engine();
        let response = engine.call(Batch::from([Operation::Inspect { key: key() }]));
        let calls = engine.core.with(|state| state.queues.poll_transmit(at(0), 1));
        assert_eq!(calls.len(), 1, "it is in flight");
        let other = spawn({
            let engine = Arc::clone(&engine);
            move || engine.core.stopped(true)
        });
        let told = block_on(async { pin!(response).await });
        assert_eq!(told.unwrap_err().kind(), ErrorKind::Backend);
        other.join().unwrap();
    });
}

#[test]
fn an_answer_that_came_before_the_task_ended_is_told() {
    model(|| {
        let engine = engine();
        let response = engine.call(Batch::from([Operation::Inspect { key: key() }]));
        let other = spawn({
            let engine = Arc::clone(&engine);
            move || {
                send(&engine);
                engine.core.stopped(true);
            }
        });
        assert!(block_on(async { pin!(response).await }).is_ok());
        other.join().unwrap();
    });
}

#[test]
fn what_there_is_to_do_is_never_slept_over() {
    model(|| {
        let store = Arc::new(Store { sends_at_once: false, asked: AtomicUsize::new(0) });
        let engine = engine_with(&store);
        let other = spawn({
            let engine = Arc::clone(&engine);
            move || {
                for token in 0..2 {
                    let doubt = Doubt { until: at(9), unanswered_since: None };
                    engine.clean_up(PendingRelease::at_once(key(), Token::from_random(token)), doubt);
                }
            }
        });
        let core = &engine.core;
        block_on(async {
            while store.asked.load(Ordering::Relaxed) < 2 {
                let until = core.step(false).until;
                // As the task, which polls them then. Nothing leaves before that.
                core.take_replies(&mut Vec::new());
                core.note_sent();
                if until > at(0) && store.asked.load(Ordering::Relaxed) < 2 {
                    core.wake.notified().await;
                }
            }
        });
        other.join().unwrap();
    });
}

#[test]
fn a_waiter_is_woken_when_its_turn_comes() {
    model(|| {
        let engine = engine();
        let (id, hold) = held(&engine);
        let waiter = arrive(&engine);
        let other = spawn({
            let engine = Arc::clone(&engine);
            move || {
                hold.release_at(at(0)).unwrap();
                assert!(matches!(engine.release(id, at(0)), Departure::Passed));
            }
        });
        let offer = block_on(poll_fn(|cx| engine.with(|state| state.queues.poll(waiter, cx.waker(), at(0)))));
        assert_eq!(offer.unwrap().1.fence.get(), 2);
        other.join().unwrap();
    });
}

#[test]
fn a_watcher_of_a_lease_is_told_of_its_loss() {
    model(|| {
        let engine = engine();
        let (id, hold) = held(&engine);
        let mut ended = crate::Lease::new(hold).ended();
        let other = spawn({
            let engine = Arc::clone(&engine);
            move || engine.taken(id)
        });
        assert_eq!(block_on(Pin::new(&mut ended)), End::Lost(LossReason::Taken));
        other.join().unwrap();
    });
}
