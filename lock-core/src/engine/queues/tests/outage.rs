//! Waiters of a backend that does not answer.

use std::task::Poll;

use super::{
    KEPT,
    process::{ANSWER, Process, newcomer},
};
use crate::{
    backend::{self, BusyReason, Outcome},
    clock::Clock,
    engine::{
        fixture::{at, key, terms},
        queues::{in_flight::*, *},
    },
    error::ErrorKind,
};

fn no_answer() -> BackendError {
    BackendError::new(ErrorKind::Backend, "no answer")
}

fn queued(_: &mut Process, _: &backend::Acquire) -> Result<Outcome, BackendError> {
    Ok(Outcome::Busy { remaining: Some(KEPT), by: BusyReason::Waiters, position: Some(1) })
}

fn fail(_: &mut Process, _: &backend::Acquire) -> Result<Outcome, BackendError> {
    Err(no_answer())
}

/// Lets time pass until the engine has something to send, and says what it sends.
fn asks(process: &mut Process) -> Token {
    for _ in 0..2_000 {
        let (operations, purposes) = process.send();
        if let Some(operation) = operations.first() {
            let (token, now) = (super::token(operation), process.now());
            let trip = RoundTrip { sent: now, now, epoch: 1, repeated: false };
            purposes.into_iter().for_each(|purpose| process.queues.answered(purpose, Err(no_answer()), trip));
            return token;
        }
        process.pass_time(1);
    }
    panic!("nobody asks");
}

#[test]
fn waiters_that_know_their_key_to_be_busy_stay_in_line_with_their_token_while_nothing_answers() {
    let mut process = Process::new();
    let (first, second) = (process.wait(), process.wait());
    process.answer(queued);
    let token = asks(&mut process);
    for _ in 0..20 {
        assert_eq!(asks(&mut process), token, "the place in the backend is kept");
        assert!(process.poll(first).is_pending() && process.poll(second).is_pending());
    }
    assert!(process.cleaned_up().is_empty());
    while process.grant().is_empty() {
        process.pass_time(1);
    }
    let held = process.hold(first);
    assert!(matches!(process.release(held), Departure::Passed));
    process.hold(second);
}

#[test]
fn waiters_that_were_never_answered_fail_with_the_request_and_are_not_told_that_the_key_is_busy() {
    let mut process = Process::new();
    let waiters = [process.wait(), process.try_it(), process.wait(), process.try_it()];
    // The wait of one is over: nobody knows yet whether the key is busy.
    assert!(process.queues.give_up(waiters[2], at(0)).is_pending());
    process.answer(fail);
    for waiter in waiters {
        assert_eq!(process.error(waiter), ErrorKind::Backend);
    }
    process.cleaned_up();
    assert!(process.queues.is_empty());
}

#[test]
fn tries_behind_a_request_in_flight_are_told_what_it_finds() {
    let mut process = Process::new();
    let (first, tries, waits) = (process.wait(), process.try_it(), process.wait());
    let late = process.wait();
    assert!(process.queues.give_up(late, at(0)).is_pending());
    process.answer(queued);
    assert_eq!((process.error(tries), process.error(late)), (ErrorKind::Busy, ErrorKind::Busy));
    assert!(process.poll(first).is_pending() && process.poll(waits).is_pending());
    let refused = process.arrive(newcomer(&key(), terms(9_000), true));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Busy, "that is known now");

    let mut process = Process::new();
    let (first, tries) = (process.wait(), process.try_it());
    process.grant();
    assert_eq!(process.error(tries), ErrorKind::Busy, "this process has it");
    process.hold(first);
}

#[test]
fn several_tries_of_a_busy_key_cost_one_request() {
    let mut process = Process::new();
    let tries = [process.try_it(), process.try_it(), process.try_it()];
    let busy = |_: &mut Process, _: &backend::Acquire| {
        Ok(Outcome::Busy { remaining: None, by: BusyReason::Holder, position: None })
    };
    assert_eq!(process.answer(busy), ["acquire"]);
    assert_eq!(tries.map(|id| process.error(id)), [ErrorKind::Busy; 3]);
    assert!(process.answer(busy).is_empty() && process.queues.is_empty());
}

#[test]
fn a_waiter_that_cannot_even_be_asked_for_fails_within_the_limit_of_asking() {
    let mut process = Process::new();
    let first = process.wait();
    process.pass_time(400);
    let second = process.wait();
    // The engine has its fill of calls that are not answered: nothing is sent.
    process.pass_time(ANSWER.as_millis() as u64 - 400);
    assert!(process.poll(first).is_pending());
    // A call would have ended with an error of its own.
    process.pass_time(250);
    assert_eq!(process.error(first), ErrorKind::Backend);
    assert!(process.poll(second).is_pending());
    process.pass_time(399);
    assert!(process.poll(second).is_pending());
    process.pass_time(1);
    assert_eq!(process.error(second), ErrorKind::Backend);
    assert!(process.send().0.is_empty() && process.queues.is_empty());
}

#[test]
fn one_that_knows_is_told_of_the_outage_when_its_wait_is_over() {
    let mut process = Process::new();
    let (first, second) = (process.wait(), process.wait());
    process.answer(queued);
    asks(&mut process);
    for waiter in [second, first] {
        let now = process.now();
        let Poll::Ready(error) = process.queues.give_up(waiter, now) else { panic!("it knows of the outage") };
        assert_eq!(error.kind(), ErrorKind::Backend);
    }
    assert_eq!(process.cleaned_up().len(), 1, "its place");
    assert!(process.queues.is_empty());
}

#[test]
fn a_newcomer_behind_a_candidate_after_an_error_has_it_ask_at_once_and_fails_alone() {
    let mut process = Process::new();
    let first = process.wait();
    process.answer(queued);
    asks(&mut process);
    let (tries, waits) = (process.try_it(), process.wait());
    assert_eq!(process.answer(fail), ["acquire"], "the backend may be well again");
    assert_eq!((process.error(tries), process.error(waits)), (ErrorKind::Backend, ErrorKind::Backend));
    assert!(process.poll(first).is_pending());
    process.wait();
    process.grant();
    process.hold(first);
}

#[test]
fn waiters_after_an_error_ask_at_once_when_there_is_a_connection() {
    let mut process = Process::new();
    let _waiter = process.wait();
    process.answer(queued);
    for _ in 0..9 {
        asks(&mut process);
    }
    assert!(process.send().0.is_empty());
    process.queues.listen(false);
    assert_eq!(process.grant(), ["acquire"]);
}

#[test]
fn the_failure_of_an_older_request_says_nothing_when_a_newer_one_was_answered() {
    let mut process = Process::new();
    let (id, request) = process.ask(newcomer(&key(), terms(9_000), false));
    assert!(process.poll(id).is_pending());
    let second = process.wait();
    let sent = process.trip();
    process.pass_time(700);
    assert_eq!(process.answer(queued), ["acquire"], "a check");
    process.pass_time(300);
    let trip = RoundTrip { now: process.now(), ..sent };
    process.queues.acquired(&key(), request.token, Err(no_answer()), trip);
    assert!(process.poll(id).is_pending() && process.poll(second).is_pending());
    process.answer(queued);
    let now = process.now();
    assert!(matches!(process.queues.give_up(second, now), Poll::Ready(error) if error.is_busy()), "no outage is told");
}

#[test]
fn a_grant_of_a_later_request_with_the_same_token_raises_the_deadline() {
    let mut process = Process::new();
    let (id, request) = process.ask(newcomer(&key(), terms(1_000), false));
    assert!(process.poll(id).is_pending());
    process.pass_time(700);
    let (_, purposes) = process.send();
    let trip = process.trip();
    let held = Outcome::Held { fence: 1, block: 1, was_free: true };
    let late = RoundTrip { sent: at(0), ..trip };
    process.queues.acquired(&key(), request.token, Ok(held), late);
    let (_, hold) = process.hold(id);
    let before = hold.remaining();
    for purpose in purposes {
        process.queues.answered(purpose, Ok(Outcome::Held { fence: 2, block: 1, was_free: false }), trip);
    }
    assert_eq!(hold.remaining(), before + Duration::from_millis(700));
}

#[test]
fn tries_behind_a_request_in_flight_take_nothing_of_what_may_wait_for_a_key() {
    let mut process = Process::limited(2, usize::MAX);
    let tries = [(); 3].map(|()| process.try_it());
    let waiters = [process.wait(), process.wait()];
    let refused = process.queues.arrive(newcomer(&key(), terms(9_000), false), at(0));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Overloaded);
    process.answer(queued);
    assert_eq!(tries.map(|id| process.error(id)), [ErrorKind::Busy; 3]);
    assert!(waiters.map(|id| process.poll(id).is_pending()) == [true; 2]);
}

#[test]
fn a_newcomer_has_a_candidate_after_an_error_ask_whose_request_ended_with_the_task() {
    let mut process = Process::new();
    let _first = process.wait();
    process.answer(queued);
    asks(&mut process);
    process.pass_time(100);
    assert_eq!(process.send().0.len(), 1, "it is never answered");
    process.queues.restart(process.clock.now());
    assert_eq!(process.answer(fail), ["acquire"]);
    let newcomer = process.wait();
    assert_eq!(process.answer(fail), ["acquire"], "the backend may be well again");
    assert_eq!(process.error(newcomer), ErrorKind::Backend);
}

#[test]
fn what_came_of_a_request_just_before_its_wait_was_over_is_told() {
    let mut process = Process::new();
    let waiter = process.wait();
    process.answer(fail);
    assert!(process.queues.give_up(waiter, at(0)).is_pending());
    assert_eq!(process.error(waiter), ErrorKind::Backend, "nobody has the key");

    let tries = process.try_it();
    process.grant();
    assert!(process.queues.give_up(tries, at(0)).is_pending());
    process.hold(tries);

    let mut process = Process::new();
    let waiter = process.wait();
    process.grant();
    process.pass_time(200);
    let now = process.now();
    assert!(process.queues.give_up(waiter, now).is_pending());
    assert_eq!(process.error(waiter), ErrorKind::Busy, "its turn was missed");
}
