mod ends;
mod free;
mod granted;
mod leaks;
mod limits;
mod notices;
mod outage;
mod process;
mod shares;
mod split;
mod told;

use std::task::{Poll, Waker};

use self::process::{Process, newcomer};
use super::{in_flight::RoundTrip, *};
use crate::{
    backend::{self, BusyReason, Operation, Outcome, cleanup::Doubt},
    engine::{
        fixture::{at, key, terms},
        question::{
            Asker,
            message::{Draft, Question, Subject},
        },
        responder::Responder,
        tenure::{Acquired, Offer},
        terms::Terms,
    },
    error::ErrorKind,
    key::COMPARED,
};

/// The answer to a request that finds another holder, and keeps a place.
const BUSY: Outcome = Outcome::Busy { remaining: None, by: BusyReason::Holder, position: Some(1) };

/// For how long a key is kept for another waiter that it was granted to.
const KEPT: Duration = Duration::from_millis(100);

fn token(operation: &Operation) -> Token {
    match operation {
        Operation::Acquire(acquire) => acquire.token,
        Operation::Renew(renew) => renew.token,
        Operation::Release(release) => release.token,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_release_travels_with_the_request_of_the_next_waiter() {
    let mut process = Process::new();
    let (id, request) = process.ask(newcomer(&key(), terms(9_000), false));
    let second = process.wait();
    assert!(process.send().0.is_empty(), "one request for the key is enough");
    let held = Outcome::Held { fence: 1, block: 1, was_free: true };
    process.queues.acquired(&key(), request.token, Ok(held), process.trip());
    assert!(process.poll(second).is_pending());
    let first = process.hold(id);
    assert!(matches!(process.release(first), Departure::Released(())));
    assert_eq!(process.grant(), ["release", "acquire"], "they travel together");
    assert!(process.poll(second).is_ready());
}

#[test]
fn a_request_after_a_dropped_guard_travels_with_its_release() {
    let mut process = Process::new();
    let first = process.wait();
    process.grant();
    let held = process.hold(first);
    process.queues.abandon(held.0, at(0));
    process.wait();
    assert_eq!((process.cleaned_up().len(), process.grant()), (1, vec!["acquire"]));
}

#[test]
fn waiters_are_served_in_the_order_in_which_they_came_with_rising_fences_and_one_request() {
    let mut process = Process::new();
    let waiters: Vec<_> = (0..5).map(|_| process.wait()).collect();
    let (operations, purposes) = process.send();
    let Operation::Acquire(request) = &operations[0] else { panic!("{operations:?}") };
    assert_eq!((operations.len(), request.block), (1, 5), "a fencing token for each who waits");
    for purpose in purposes {
        process.queues.answered(purpose, Ok(Outcome::Held { fence: 100, block: 5, was_free: true }), process.trip());
    }
    for (index, waiter) in waiters.iter().enumerate() {
        for later in &waiters[index + 1..] {
            assert!(process.poll(*later).is_pending());
        }
        let held = process.hold(*waiter);
        assert_eq!(held.1.fence.get(), 100 + index as u64);
        let departure = process.release(held);
        assert!(index == 4 || matches!(departure, Departure::Passed), "{departure:?}");
    }
    assert_eq!(process.grant(), ["release"]);
    assert!(process.queues.is_empty());
}

#[test]
fn a_hot_key_has_its_fencing_tokens_filled_up_before_they_are_used_up() {
    let mut process = Process::new();
    let waiters: Vec<_> = (0..100).map(|_| process.wait()).collect();
    assert_eq!(process.grant(), ["acquire"]);
    let (mut last, mut renewals) = (0, 0);
    for waiter in waiters.iter().take(99) {
        let held = process.hold(*waiter);
        assert!(held.1.fence.get() > last);
        last = held.1.fence.get();
        assert!(matches!(process.release(held), Departure::Passed));
        renewals += process.grant().len();
    }
    assert!((3..9).contains(&renewals), "{renewals} requests for 99 holds");
}

#[test]
fn after_its_budget_a_process_lets_others_come_first() {
    let mut process = Process::new();
    let (first, second) = (process.wait(), process.wait());
    process.grant();
    let held = process.hold(first);
    process.pass_time(99);
    let Departure::Passed = process.release(held) else { panic!("the budget is not used up") };
    let held = process.hold(second);
    let third = process.wait();
    process.pass_time(1);
    assert!(matches!(process.release(held), Departure::Released(())));
    let (operations, _) = process.send();
    let [Operation::Release(release), Operation::Acquire(acquire)] = &operations[..] else { panic!("{operations:?}") };
    assert_ne!(release.token, acquire.token, "each tenure has a token of its own");
    assert!(process.poll(third).is_pending());
}

#[test]
fn a_waiter_that_is_not_polled_in_time_loses_its_turn_and_stands_at_the_end_when_it_is() {
    let mut process = Process::new();
    let (first, second, third) = (process.wait(), process.wait(), process.wait());
    process.grant();
    process.pass_time(99);
    assert!(process.poll(second).is_pending());
    process.pass_time(2);
    // Out of budget too: the next one asks.
    process.grant();
    let held = process.hold(second);
    assert!(process.poll(first).is_pending());
    let Departure::Passed = process.release(held) else { panic!("there are waiters") };
    let held = process.hold(third);
    let Departure::Released(()) = process.release(held) else { panic!("the fencing tokens are used up") };
    process.grant();
    let held = process.hold(first);
    assert!(matches!(process.release(held), Departure::Released(())));
    process.grant();
    process.cleaned_up();
    assert!(process.queues.is_empty());
}

#[test]
fn a_future_dropped_when_its_turn_has_come_passes_the_key_on() {
    let mut process = Process::new();
    let (first, second) = (process.wait(), process.wait());
    process.grant();
    process.leave(first);
    let held = process.hold(second);
    process.queues.abandon(held.0, at(0));
    assert_eq!(process.cleaned_up().len(), 1);
    assert!(process.queues.is_empty());
}

#[test]
fn a_candidate_that_gives_up_leaves_its_place_to_the_next_on_the_same_terms() {
    let mut process = Process::new();
    let (first, second) = (process.wait(), process.wait());
    let (operations, purposes) = process.send();
    let first_token = token(&operations[0]);
    for purpose in purposes {
        process.queues.answered(
            purpose,
            Ok(Outcome::Busy { remaining: Some(KEPT), by: BusyReason::Waiters, position: Some(1) }),
            process.trip(),
        );
    }
    assert!(matches!(process.queues.give_up(first, at(0)), Poll::Ready(error) if error.is_busy()));
    assert!(process.cleaned_up().is_empty(), "the place is kept");
    process.granted(key(), first_token, at(0));
    let (operations, _) = process.send();
    assert_eq!(token(&operations[0]), first_token);

    // On other terms the place is given up, and the next one asks again.
    let mut process = Process::new();
    let (first, other) = (process.wait(), process.wait_on(terms(500)));
    process.answer(|_, _| Ok(Outcome::Busy { remaining: Some(KEPT), by: BusyReason::Waiters, position: Some(1) }));
    assert!(matches!(process.queues.give_up(first, at(0)), Poll::Ready(error) if error.is_busy()));
    let left = process.cleaned_up();
    assert!(left.len() == 1 && left[0].place);
    let (operations, _) = process.send();
    assert_ne!(token(&operations[0]), left[0].token);
    let _ = (second, other);
}

#[test]
fn a_waiter_that_takes_over_a_place_comes_when_the_holder_s_ttl_is_over() {
    let mut process = Process::new();
    process.queues.listen(true);
    let (first, second) = (process.wait(), process.wait());
    let remaining = Some(Duration::from_millis(30));
    process.answer(|_, _| Ok(Outcome::Busy { remaining, by: BusyReason::Holder, position: Some(1) }));
    process.pass_time(10);
    process.leave(first);
    assert!(process.poll(second).is_pending());
    assert!(process.send().0.is_empty(), "its place can be called");
    process.pass_time(20);
    assert!(process.send().0.is_empty());
    process.pass_time(1);
    assert_eq!(process.send().0.len(), 1, "no message tells of a key that expires");
}

#[test]
fn a_wait_that_is_over_ends_with_the_answer_to_its_first_request() {
    let mut process = Process::new();
    let waiter = process.wait();
    let (_, purposes) = process.send();
    assert!(process.queues.give_up(waiter, at(0)).is_pending(), "the key may be free");
    for purpose in purposes {
        let busy = Outcome::Busy { remaining: None, by: BusyReason::Holder, position: Some(1) };
        process.queues.answered(purpose, Ok(busy), process.trip());
    }
    assert_eq!(process.error(waiter), ErrorKind::Busy);
    let left = process.cleaned_up();
    assert!(left.len() == 1 && left[0].place, "its place is left");
    assert!(process.queues.is_empty());
}

#[test]
fn a_wait_that_ends_is_told_what_the_holder_has_left_unless_that_is_over_by_now() {
    for (later, said) in [(40, Duration::from_millis(60)), (100, Duration::from_secs(1))] {
        let mut process = Process::new();
        let (first, second) = (process.wait(), process.wait());
        let remaining = Some(Duration::from_millis(100));
        process.answer(|_, _| Ok(Outcome::Busy { remaining, by: BusyReason::Holder, position: Some(1) }));
        process.clock.set(later);
        for waiter in [second, first] {
            let Poll::Ready(error) = process.queues.give_up(waiter, at(later)) else { panic!("it knows") };
            assert_eq!(error.retry_after(), Some(said), "after {later} ms");
        }
    }
}

#[test]
fn an_answer_without_validity_is_no_acquire_and_a_new_token_asks() {
    let mut process = Process::new();
    let waiter = process.wait_on(terms(100));
    let (operations, purposes) = process.send();
    let over = token(&operations[0]);
    let sent = process.trip();
    process.clock.set(100);
    for purpose in purposes {
        let trip = RoundTrip { now: at(100), ..sent };
        process.queues.answered(purpose, Ok(Outcome::Held { fence: 1, block: 1, was_free: true }), trip);
    }
    assert!(process.poll(waiter).is_pending());
    assert_eq!(process.cleaned_up()[0].token, over);
    assert_ne!(token(&process.send().0[0]), over);
}

#[test]
fn what_the_backend_says_of_a_key_is_told_to_all_who_wait_for_it_and_to_no_others() {
    let mut process = Process::new();
    let waiters = [process.wait(), process.wait()];
    let other = process.join(newcomer(&LockKey::new("other").unwrap(), terms(9_000), false));
    let mut first = true;
    process.answer(|_, _| match std::mem::take(&mut first) {
        true => Err(BackendError::new(ErrorKind::WrongType, "a list")),
        false => Ok(Outcome::Held { fence: 1, block: 1, was_free: true }),
    });
    for waiter in waiters {
        assert_eq!(process.error(waiter), ErrorKind::WrongType);
    }
    assert!(matches!(process.poll(other), Poll::Ready(Ok(_))));
}

#[test]
fn a_try_takes_no_place_and_leaves_nothing_to_be_released() {
    let mut process = Process::new();
    let (id, request) = process.ask(newcomer(&key(), terms(9_000), true));
    assert!(request.place.is_none());
    let busy = Outcome::Busy { remaining: None, by: BusyReason::Holder, position: None };
    process.queues.acquired(&key(), request.token, Ok(busy), process.trip());
    assert_eq!(process.error(id), ErrorKind::Busy);
    assert!(process.queues.is_empty());
}

#[test]
fn more_waiters_than_allowed_are_refused_and_holders_do_not_count() {
    let mut process = Process::limited(2, 3);
    let held = process.wait();
    process.grant();
    process.hold(held);
    let (first, _second) = (process.wait(), process.wait());
    let error = process.arrive(newcomer(&key(), terms(9_000), false)).unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Overloaded, Some("k")));
    assert!(error.to_string().contains("max_waiters_per_key"), "{error}");
    process.leave(first);
    process.wait();
    // In all: one more elsewhere, behind a holder there.
    let other = LockKey::new("other").unwrap();
    let id = process.join(newcomer(&other, terms(9_000), false));
    process.grant();
    process.hold(id);
    process.join(newcomer(&other, terms(9_000), false));
    let error = process.arrive(newcomer(&other, terms(9_000), false)).unwrap_err();
    assert!(error.to_string().contains("`max_waiters`"), "{error}");
}

#[test]
fn places_are_asked_for_again_when_calls_can_come() {
    let mut process = Process::new();
    let _waiter = process.wait();
    let (operations, purposes) = process.send();
    let Operation::Acquire(request) = &operations[0] else { panic!("{operations:?}") };
    assert_eq!(&*request.place.as_ref().unwrap().channel, "", "nobody would hear a call");
    for purpose in purposes {
        process.queues.answered(
            purpose,
            Ok(Outcome::Busy { remaining: Some(KEPT), by: BusyReason::Waiters, position: Some(1) }),
            process.trip(),
        );
    }
    process.queues.listen(true);
    let (operations, _) = process.send();
    let Operation::Acquire(request) = &operations[0] else { panic!("{operations:?}") };
    assert_eq!(request.place.as_ref().unwrap().channel, *process.queues.channel());
}

#[test]
fn a_try_that_missed_its_turn_is_over() {
    let mut process = Process::new();
    let id = process.try_it();
    process.grant();
    let other = process.wait();
    process.pass_time(101);
    assert_eq!(process.error(id), ErrorKind::Busy);
    process.grant();
    process.hold(other);
}

#[test]
fn who_is_told_that_his_key_is_busy_counts_as_a_waiter_and_not_before() {
    let mut process = Process::limited(usize::MAX, 1);
    let keys = ["a", "b", "c"].map(|key| LockKey::new(key).unwrap());
    let waiters = keys.each_ref().map(|key| process.join(newcomer(key, terms(9_000), false)));
    let busy = Outcome::Busy { remaining: None, by: BusyReason::Holder, position: Some(1) };
    let granted = Outcome::Held { fence: 1, block: 1, was_free: true };
    process.answer(|_, acquire| Ok(if acquire.key.as_str() == "c" { granted } else { busy }));
    assert!(process.poll(waiters[0]).is_pending(), "the first who waits");
    assert_eq!(process.error(waiters[1]), ErrorKind::Overloaded);
    process.hold(waiters[2]);
    assert_eq!(process.cleaned_up().len(), 1, "the place of the one who was refused");
    process.leave(waiters[0]);
    process.join(newcomer(&keys[2], terms(9_000), false));
}

#[test]
fn waiters_come_by_themselves_while_nobody_may_be_called() {
    let mut process = Process::new();
    process.queues.listen(true);
    let _waiter = process.wait();
    let queued = |_: &mut Process, _: &backend::Acquire| {
        Ok(Outcome::Busy { remaining: Some(KEPT), by: BusyReason::Waiters, position: Some(9) })
    };
    process.answer(queued);
    process.pass_time(200);
    assert!(process.answer(queued).is_empty(), "it will be called");
    process.pass_time(500);
    process.queues.calls_refused = true;
    assert_eq!(process.answer(queued), ["acquire"]);
    for _ in 0..9 {
        process.pass_time(81);
        assert_eq!(process.answer(queued), ["acquire"], "it comes by itself");
    }
    // Somebody may call again.
    process.granted(LockKey::new("other").unwrap(), Token::from_random(1), at(9));
    process.pass_time(81);
    process.answer(queued);
    process.pass_time(200);
    assert!(process.answer(queued).iter().all(|kind| *kind != "acquire"), "it will be called");
}

#[test]
fn who_has_taken_over_the_place_of_one_that_is_polled_is_woken() {
    struct Flag(std::sync::atomic::AtomicBool);
    impl std::task::Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let mut process = Process::limited(usize::MAX, 1);
    let (first, request) = process.ask(newcomer(&key(), terms(9_000), false));
    let second = process.wait();
    process.pass_time(700);
    assert_eq!(process.send().0.len(), 1, "a check");
    let woken = Arc::new(Flag(false.into()));
    assert!(process.queues.poll(second, &Waker::from(Arc::clone(&woken)), at(700)).is_pending());
    // There are too many waiters, and the second has the first one's token.
    let busy = Outcome::Busy { remaining: None, by: BusyReason::Holder, position: Some(1) };
    process.queues.acquired(&key(), request.token, Ok(busy), process.trip());
    let granted = Outcome::Held { fence: 1, block: 1, was_free: true };
    process.queues.acquired(&key(), request.token, Ok(granted), process.trip());
    assert_eq!(process.error(first), ErrorKind::Overloaded);
    drop(process.queues.take_deferred());
    assert!(woken.0.load(std::sync::atomic::Ordering::Relaxed), "its turn has come");
    process.hold(second);
}

#[test]
fn questions_for_a_holder_elsewhere_are_over_in_one_turn() {
    let mut process = Process::new();
    for id in 1..=2 {
        let subject = Subject::Holder(LockKey::new(format!("elsewhere:{id}")).unwrap());
        process.queues.questions.ask(Question { id, channel: "lock-core:calls:another".into(), subject });
    }
    let now = process.now();
    assert!(process.queues.poll_messages(now).is_empty());
    assert!(
        !process.queues.has_messages(),
        "the task would be due at once, and take its process for one that stood still"
    );
}

#[test]
fn only_an_answer_that_names_the_holder_ends_the_question_of_a_wait() {
    let mut process = Process::new();
    let (asked_for, other, now) = (key(), LockKey::new("other").unwrap(), process.now());
    process.queues.ask_managers(Subject::Holder(asked_for.clone()), Asker::Waits(asked_for.clone()), now);
    let id = process.queues.poll_messages(now).pop().and_then(|message| message.asks).unwrap();
    let answer = |of: &LockKey, manager: &str| {
        let mut draft = Draft::default();
        draft.add(["holds", of.wire(), "", "1", "9000", "7", "", "exclusive"]).unwrap();
        draft.finish(id, manager, &this_process("shop"))
    };
    process.queues.take_message(answer(&other, "lock-core:calls:a"));
    process.queues.take_message(answer(&asked_for, "lock-core:calls:b").replace("exclusive", "something"));
    assert!(process.queues.questions.take_done(now).is_empty());
    process.queues.take_message(answer(&asked_for, "lock-core:calls:c"));
    let done = process.queues.questions.take_done(now);
    assert!(matches!(&done[..], [(Asker::Waits(_), heard)] if heard.answers.len() == 1));
}

/// As of a machine that is restored from its snapshot twice. With a seed they are the same, so that a schedule can be repeated.
#[test]
fn two_copies_of_a_process_draw_the_same_tokens_only_if_it_is_seeded() {
    for is_seeded in [true, false] {
        let [first, second] = [(); 2].map(|()| {
            let mut process = Process::new();
            process.queues.is_seeded = is_seeded;
            process.queues.token()
        });
        assert_eq!(first == second, is_seeded);
    }
}

impl Queues {
    /// Whether no key is held, wanted or to be released, and no waiter is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_done() && self.lines.ids().is_empty()
    }
}
