//! Models of what threads share, run in every order of their steps by loom:
//!
//! ```sh
//! RUSTFLAGS="--cfg lock_loom" cargo test -p lock-core --lib --no-default-features --target-dir target/loom models
//! ```
//!
//! The queues themselves are pure, under one lock; here is what lies between two takings of it: a guard that ends its
//! hold and then speaks to the engine, and a task that goes to sleep while others have something for it to do.

use std::{future::poll_fn, pin::Pin};

use loom::{
    future::block_on,
    thread::{Builder, JoinHandle},
};

use super::*;
use crate::{
    backend::{Operation, Outcome},
    end::End,
    engine::{
        fixture::{Manual, at, key, terms},
        hold::Hold,
        task::Calls,
    },
};

/// A backend that is never asked.
#[derive(Debug)]
struct Nothing;

impl Backend for Nothing {
    fn call(&self, _: Batch) -> Reply<Answer> {
        Reply::new(std::future::pending())
    }

    fn list(&self, _: String) -> Reply<Vec<LockKey>> {
        Reply::new(std::future::pending())
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

fn engine() -> Arc<Engine> {
    let limits = Limits { per_key: usize::MAX, in_all: usize::MAX, answer: Duration::MAX };
    let engine = Engine::new(Arc::new(Nothing), Arc::new(Manual::default()), None, Some(1), limits);
    engine.core.state().running = true;
    engine
}

fn arrive(engine: &Engine) -> Arrival {
    engine.arrive(Newcomer { key: &key(), terms: terms(9_000), tries: false, waker: Waker::noop() }, at(0)).unwrap()
}

/// A lease that was acquired.
fn held(engine: &Engine) -> (HoldId, Arc<Hold>) {
    let Arrival::Ask(waiter, request) = arrive(engine) else { panic!("nothing is under way") };
    let answer = Answer::new([Ok(Outcome::Held { fence: 1, block: 9 })]);
    let trip = Trip { sent: at(0), now: at(0), epoch: 1, repeated: false };
    let granted = engine.acquired(&key(), waiter, Waker::noop(), request.token, Ok(answer), trip);
    let Poll::Ready(Ok(offer)) = granted else { panic!("it was granted") };
    offer
}

/// Whether a waiter has its turn, or somebody is about to ask for the key.
fn goes_on(engine: &Engine, arrival: &Arrival) -> bool {
    let &Arrival::Wait(waiter) = arrival else { return true };
    let turn = engine.poll_waiter(waiter, Waker::noop(), at(0)).is_ready();
    let asks = |operation: &Operation| matches!(operation, Operation::Acquire(_));
    turn || engine.core.state().queues.send(9, at(0), 1).0.iter().any(asks)
}

#[test]
fn who_arrives_while_a_guard_is_released_takes_nothing_from_it_and_is_served() {
    model(|| {
        let engine = engine();
        let (id, hold) = held(&engine);
        let other = spawn({
            let engine = Arc::clone(&engine);
            move || arrive(&engine)
        });
        hold.release_at(at(0)).unwrap();
        let departure = engine.release(id, at(0));
        let arrival = other.join().unwrap();
        assert!(!matches!(departure, Departure::Over), "the holder released it, and nobody else");
        assert!(goes_on(&engine, &arrival), "{arrival:?}");
    });
}

#[test]
fn of_two_who_arrive_at_once_one_asks_and_the_other_has_the_key_after_it() {
    model(|| {
        let engine = engine();
        let other = spawn({
            let engine = Arc::clone(&engine);
            move || arrive(&engine)
        });
        let arrivals = [arrive(&engine), other.join().unwrap()];
        let asks = arrivals.iter().filter(|arrival| matches!(arrival, Arrival::Ask(..))).count();
        assert_eq!(asks, 1, "{arrivals:?}");
    });
}

#[test]
fn what_there_is_to_do_is_never_slept_over() {
    model(|| {
        let engine = engine();
        let other = spawn({
            let engine = Arc::clone(&engine);
            move || {
                for token in 0..2 {
                    let doubt = Doubt { until: at(9), unanswered_since: None };
                    engine.clean_up(Parting::at_once(key(), Token::from_random(token)), doubt);
                }
            }
        });
        let core = &engine.core;
        let (mut counted, mut sent) = (Calls::default(), 0);
        block_on(async {
            while sent < 2 {
                let step = core.with(|state| state.step(core, at(0), 1, true, &mut counted));
                match step.work.iter().map(|(batch, _)| batch.len()).sum() {
                    0 => core.wake.notified().await,
                    batch => sent += batch,
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
        let waiter = match arrive(&engine) {
            Arrival::Wait(waiter) => waiter,
            asks => panic!("{asks:?}"),
        };
        let other = spawn({
            let engine = Arc::clone(&engine);
            move || {
                hold.release_at(at(0)).unwrap();
                assert!(matches!(engine.release(id, at(0)), Departure::Passed));
            }
        });
        let offer = block_on(poll_fn(|cx| engine.poll_waiter(waiter, cx.waker(), at(0))));
        assert_eq!(offer.unwrap().1.fence.get(), 2);
        other.join().unwrap();
    });
}

#[test]
fn who_listens_for_a_loss_is_told() {
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
