//! Grants that are confirmed, that come late, or that nobody wants.

use super::*;
use crate::backend::BusyReason;

#[test]
fn a_call_makes_the_candidate_ask_and_one_for_nobody_is_answered_with_a_release() {
    let mut process = Process::new();
    let waiter = process.wait();
    let (operations, purposes) = process.send();
    let ours = token(&operations[0]);
    for purpose in purposes {
        process.queues.answered(
            purpose,
            Ok(Outcome::Busy { remaining: Some(KEPT), by: BusyReason::Waiters, position: Some(1) }),
            process.trip(),
        );
    }
    process.granted(key(), ours, at(0));
    process.granted(key(), ours, at(0));
    assert_eq!(process.grant(), ["acquire"], "once is enough");
    process.granted(key(), ours, at(0));
    assert!(process.cleaned_up().is_empty() && process.send().0.is_empty(), "it has the key meanwhile");
    let stranger = Token::from_random(7);
    process.granted(key(), stranger, at(0));
    let left = process.cleaned_up();
    assert!(left.len() == 1 && left[0].token == stranger && left[0].place);
    assert!(process.poll(waiter).is_ready());
}

#[test]
fn a_call_for_a_token_that_was_handed_over_leaves_it_alone() {
    let mut process = Process::new();
    let id = process.wait();
    process.grant();
    let (hold, _) = process.hold(id);
    let left = process.queues.hand_over(hold, at(0)).unwrap();
    let (pending, ttl) = (left.pending(), left.ttl);
    process.granted(key(), pending.token, at(1));
    assert!(process.cleaned_up().is_empty());
    process.clock.set(ttl.get().as_millis() as u64);
    let now = process.now();
    process.granted(key(), Token::from_random(7), now);
    assert_eq!(process.cleaned_up().len(), 1, "of a place that nobody has");
}

#[test]
fn a_call_that_comes_after_the_release_leaves_a_key_that_is_kept_for_a_while() {
    for dropped in [false, true] {
        let mut process = Process::new();
        let waiter = process.wait_on(Terms { at_least: Duration::from_secs(60), ..terms(9_000) });
        let (operations, purposes) = process.send();
        let token = token(&operations[0]);
        for purpose in purposes {
            process.queues.answered(purpose, Ok(Outcome::Held { fence: 1, block: 1, was_free: true }), process.trip());
        }
        let held = process.hold(waiter);
        if dropped {
            held.1.release_at(at(0)).unwrap();
            process.queues.abandon(held.0, at(0));
            assert_eq!(process.cleaned_up()[0].after, Duration::from_secs(60));
        } else {
            assert!(matches!(process.release(held), Departure::Released(())));
            assert_eq!(process.grant(), ["release"]);
        }
        process.pass_time(10);
        process.granted(key(), token, at(10));
        let released = process.cleaned_up();
        assert_eq!((released[0].token, released[0].after), (token, Duration::from_millis(59_990)));
        process.clock.advance(60_000);
        let now = process.now();
        process.granted(key(), token, now);
        assert_eq!(process.cleaned_up()[0].after, Duration::ZERO);
    }
}

/// A waiter whose request is in flight twice, the second sent 700 ms after the first; the first is granted. Returns its
/// hold, its token, and how the second went.
fn held_with_a_check_in_flight(process: &mut Process) -> (Offer, Token, RoundTrip) {
    let (id, request) = process.ask(newcomer(&key(), terms(9_000), false));
    let first = process.trip();
    process.pass_time(700);
    assert_eq!(process.send().0.len(), 1, "a check");
    let check = process.trip();
    let granted = Outcome::Held { fence: 5, block: 1, was_free: true };
    process.queues.acquired(&key(), request.token, Ok(granted), RoundTrip { now: check.now, ..first });
    (process.hold(id), request.token, check)
}

#[test]
fn a_lease_whose_own_later_request_finds_another_holder_is_lost() {
    let mut process = Process::new();
    let ((_, hold), token, check) = held_with_a_check_in_flight(&mut process);
    process.queues.acquired(&key(), token, Ok(BUSY), RoundTrip { sent: at(0), ..check });
    assert!(hold.check().is_ok(), "that was executed before the lease began");
    process.queues.acquired(&key(), token, Ok(BUSY), check);
    assert_eq!(hold.check(), Err(End::Lost(crate::LossReason::Taken)));
    let left = process.cleaned_up();
    assert!(left.len() == 1 && left[0].token == token, "the place that it was given goes");
}

#[test]
fn a_check_that_comes_after_its_lease_was_handed_over_leaves_nothing() {
    let held = |fence, was_free| Outcome::Held { fence, block: 1, was_free };
    for (outcome, sent, is_stray) in [
        // Who has taken the lease up has the key, or has released it.
        (BUSY, 700, true),
        (held(9, true), 700, true),
        // As above, among others who share the key.
        (held(5, true), 700, true),
        // It was executed before.
        (BUSY, 0, false),
        (held(5, true), 0, false),
        (held(5, false), 700, false),
        (held(9, false), 700, false),
    ] {
        let mut process = Process::new();
        let ((hold, _), token, check) = held_with_a_check_in_flight(&mut process);
        assert!(process.queues.hand_over(hold, check.now).is_some());
        process.queues.acquired(&key(), token, Ok(outcome), RoundTrip { sent: at(sent), ..check });
        assert_eq!(process.cleaned_up().len(), usize::from(is_stray), "{outcome:?}");
    }
    let mut process = Process::new();
    let ((hold, _), token, check) = held_with_a_check_in_flight(&mut process);
    assert!(process.queues.hand_over(hold, check.now).is_some());
    for (fence, is_stray) in [(5, false), (6, true)] {
        process.granted_with(fence, key(), token, at(700));
        assert_eq!(process.cleaned_up().len(), usize::from(is_stray), "a grant with {fence}");
    }
}

#[test]
fn a_lease_whose_key_is_granted_once_more_is_lost_unless_the_push_is_an_old_one() {
    let mut process = Process::new();
    let ((_, hold), token, _) = held_with_a_check_in_flight(&mut process);
    for fence in [0, 4, 5] {
        process.granted_with(fence, key(), token, at(700));
        assert!(hold.check().is_ok(), "{fence}");
    }
    process.granted_with(6, key(), token, at(700));
    assert_eq!(hold.check(), Err(End::Lost(crate::LossReason::Taken)));
    assert_eq!(process.cleaned_up().len(), 1);
}

#[test]
fn a_confirmation_overtakes_a_check_that_waits_to_be_sent() {
    let mut process = Process::new();
    let _first = process.wait();
    let other = LockKey::new("other").unwrap();
    let (operations, purposes) = process.send();
    let ours = token(&operations[0]);
    for purpose in purposes {
        process.queues.answered(purpose, Ok(BUSY), process.trip());
    }
    process.join(newcomer(&other, terms(9_000), false));
    process.queues.listen(true);
    process.granted(key(), ours, at(0));
    let (operations, _) = process.send();
    let asked: Vec<_> = operations.iter().map(|operation| operation.key().clone()).collect();
    assert_eq!(asked, [key(), other], "first, and once");
}
