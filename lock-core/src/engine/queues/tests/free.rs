//! Acquires that go without a look at the queue.

use super::{line::WaiterId, *};
use crate::{
    backend::{BackendError, BusyReason},
    mode::Mode,
};

/// Whether what a newcomer sends expects the key to be free, and its waiter.
fn expects_free(process: &mut Process, terms: Terms) -> (bool, WaiterId) {
    let (id, request) = process.ask(newcomer(&key(), terms, false));
    (request.expects_free, id)
}

fn busy() -> Outcome {
    let remaining = Some(Duration::from_secs(1));
    Outcome::Busy { remaining, by: BusyReason::Holder, position: Some(1) }
}

/// The answer to a try.
fn unplaced() -> Outcome {
    Outcome::Busy { remaining: Some(Duration::from_secs(1)), by: BusyReason::Holder, position: None }
}

#[test]
fn the_first_request_of_a_waiter_who_is_alone_expects_a_free_key() {
    let mut process = Process::new();
    let (expects, first) = expects_free(&mut process, terms(9_000));
    assert!(expects);
    process.pass_time(700);
    let (operations, _) = process.send();
    let [Operation::Acquire(again)] = &operations[..] else { panic!("{operations:?}") };
    assert!(!again.expects_free, "a check keeps the place");
    process.queues.leave(first, process.now());
    let mut process = Process::new();
    process.wait();
    process.wait();
    let (operations, _) = process.send();
    let [Operation::Acquire(request)] = &operations[..] else { panic!("{operations:?}") };
    assert!(!request.expects_free, "others wait, and want numbers");
}

#[test]
fn a_key_that_is_kept_on_is_never_expected_to_be_free() {
    let kept = Terms { at_least: Duration::from_secs(1), ..terms(9_000) };
    assert!(!expects_free(&mut Process::new(), kept).0);
}

#[test]
fn a_key_that_was_busy_is_not_expected_to_be_free_for_two_seconds() {
    for (outcome, at_once) in [(busy(), 0), (Outcome::NotFree, 1)] {
        let mut process = Process::new();
        let first = process.wait();
        assert_eq!(process.answer(|_, _| Ok(outcome)), ["acquire"]);
        let (operations, _) = process.send();
        assert_eq!(operations.len(), at_once, "who has a key that is not free is asked at once");
        process.queues.leave(first, process.now());
        process.pass_time(1_999);
        process.send();
        assert!(!expects_free(&mut process, terms(9_000)).0, "{outcome:?}");
    }
    let mut process = Process::new();
    let first = process.wait();
    process.answer(|_, _| Ok(busy()));
    process.queues.leave(first, process.now());
    process.pass_time(2_000);
    process.send();
    assert!(expects_free(&mut process, terms(9_000)).0);
}

#[test]
fn a_waiter_whose_key_is_not_free_asks_again_with_its_token_and_leaves_nothing_behind() {
    let mut process = Process::new();
    let (id, request) = process.ask(newcomer(&key(), terms(9_000), false));
    process.queues.acquired(&key(), request.token, Ok(Outcome::NotFree), process.trip());
    let (operations, _) = process.send();
    let [Operation::Acquire(again)] = &operations[..] else { panic!("{operations:?}") };
    assert!(again.token == request.token && !again.expects_free && again.place.is_some());
    // The failed request may have left its token at the key.
    let failed = BackendError::new(ErrorKind::Unsupported, "no counter").did_not_happen();
    process.queues.acquired(&key(), request.token, Err(failed), process.trip());
    assert_eq!(process.error(id), ErrorKind::Unsupported);
    assert!(process.cleaned_up().iter().any(|release| release.token == request.token));
}

#[test]
fn nobody_asks_for_a_place_before_the_one_in_front_of_it_has_been_told_that_it_needs_one() {
    let shared = Terms { mode: Mode::Shared, ..terms(9_000) };
    for outcome in [Ok(Outcome::NotFree), Err(BackendError::new(ErrorKind::Backend, "it broke"))] {
        let mut process = Process::new();
        let (writer, request) = process.ask(newcomer(&key(), terms(9_000), false));
        assert!(request.expects_free, "it goes past the queue");
        let readers = [process.wait_on(shared), process.wait_on(shared)];
        assert!(process.send().0.is_empty(), "their places would come before the writer's");
        assert_eq!(process.queues.lines.waiting(), readers.len(), "but they wait, and count as such");
        let is_known = outcome.is_ok();
        process.queues.acquired(&key(), request.token, outcome, process.trip());
        let asked: Vec<_> = process.send().0.iter().map(token).collect();
        if is_known {
            assert_eq!(asked.len(), 3);
            assert_eq!(asked[0], request.token, "the writer makes its place first");
            assert!(asked[1..].iter().all(|token| token.mode() == Mode::Shared));
        } else {
            assert!(asked.is_empty(), "they share its answer");
            readers.into_iter().chain([writer]).for_each(|id| assert_eq!(process.error(id), ErrorKind::Backend));
        }
    }
}

#[test]
fn a_reader_expects_a_free_key_as_a_writer_does_and_keeps_no_reader_waiting() {
    let shared = Terms { mode: Mode::Shared, ..terms(9_000) };
    let mut process = Process::new();
    let (_, request) = process.ask(newcomer(&key(), shared, false));
    assert!(request.expects_free, "it needs one round trip to a quorum");
    process.wait_on(shared);
    let (asked, _) = process.send();
    assert_eq!(asked.len(), 1, "the first has a place, so nobody waits for its answer");
    assert!(asked.iter().all(|operation| matches!(operation, Operation::Acquire(acquire) if !acquire.expects_free)));
}

#[test]
fn those_behind_a_request_past_the_queue_ask_when_it_is_dropped_or_its_engine_has_ended() {
    let shared = Terms { mode: Mode::Shared, ..terms(9_000) };
    let mut process = Process::new();
    let (writer, _) = process.ask(newcomer(&key(), terms(9_000), false));
    process.wait_on(shared);
    process.leave(writer);
    assert_eq!(process.send().0.len(), 1, "nobody is before it any longer");
    let mut process = Process::new();
    let (_, request) = process.ask(newcomer(&key(), terms(9_000), false));
    process.wait_on(shared);
    let now = process.now();
    process.queues.restart(now);
    let asked: Vec<_> = process.send().0.iter().map(token).collect();
    assert_eq!(asked, [request.token], "again, and by itself");
    process.queues.acquired(&key(), request.token, Ok(busy()), process.trip());
    assert_eq!(process.send().0.len(), 1);
}

#[test]
fn a_try_of_a_key_that_is_not_free_asks_once_more() {
    let mut process = Process::new();
    let id = process.try_it();
    process.answer(|_, request| Ok(if request.expects_free { Outcome::NotFree } else { unplaced() }));
    assert!(process.poll(id).is_pending());
    assert_eq!(process.answer(|_, _| Ok(unplaced())), ["acquire"]);
    assert_eq!(process.error(id), ErrorKind::Busy);
    assert!(process.cleaned_up().is_empty(), "another has the key, so that nothing is left");
}

#[test]
fn acquires_without_a_queue_go_behind_the_rest_of_a_call() {
    let mut process = Process::new();
    let first = process.wait();
    process.grant();
    let held = process.hold(first);
    let other = LockKey::new("other").unwrap();
    process.join(newcomer(&other, terms(9_000), false));
    assert!(matches!(process.release(held), Departure::Released(())));
    let (operations, purposes) = process.send();
    let [Operation::Release(_), Operation::Acquire(acquire)] = &operations[..] else { panic!("{operations:?}") };
    assert!(acquire.expects_free);
    assert!(
        matches!(&purposes[..], [in_flight::Purpose::Release(..), in_flight::Purpose::Ask(key, ..)] if *key == other)
    );
}
