//! Waiters that hold as soon as they are told of their grant.

use super::{line::WaiterId, *};
use crate::{
    LossReason,
    backend::Grant,
    engine::tenure::HoldId,
    ttl::{Renewal, Ttl},
};

/// For how long a key is kept for a waiter that trusts its grant.
const TRUSTED: Duration = Duration::from_millis(1_025);

/// A process whose store is one node that can tell it of grants.
fn listening() -> Process {
    let mut process = Process::new();
    process.queues.trusts = true;
    process.queues.listen(true);
    process
}

/// Sends what is to be sent, and has the key be busy. Returns the last request for it.
fn refused(process: &mut Process) -> backend::Acquire {
    let mut asked = None;
    process.answer(|_, acquire| {
        asked = Some(acquire.clone());
        Ok(BUSY)
    });
    asked.expect("somebody asks")
}

/// The grant to the place that a request has made.
fn grant_to(request: &backend::Acquire, fences: (u64, u32)) -> Grant {
    let place = request.place.as_ref().expect("it waits");
    Grant::new(request.key.clone(), request.token, place.sent, place.lasts, fences)
}

/// Tells the process of a grant.
fn tell(process: &mut Process, grant: &Grant) {
    let now = process.now();
    process.queues.granted(grant.clone(), now);
}

/// A waiter that holds by the grant to its place, told 300 ms after the place was made.
fn told(process: &mut Process) -> ((HoldId, Arc<crate::engine::hold::Hold>), backend::Acquire, Grant) {
    let id = process.wait();
    let request = refused(process);
    process.pass_time(300);
    let grant = grant_to(&request, (70, 3));
    tell(process, &grant);
    (process.hold(id), request, grant)
}

/// A process whose waiter was refused at first, and has a check in flight.
fn checking() -> (Process, WaiterId, backend::Acquire, RoundTrip) {
    let mut process = listening();
    let id = process.wait();
    let request = refused(&mut process);
    process.pass_time(700);
    assert_eq!(process.send().0.len(), 1, "a check");
    let check = process.trip();
    (process, id, request, check)
}

#[test]
fn only_a_lease_that_is_renewed_and_lasts_and_that_can_be_told_of_is_trusted() {
    let kept = |process: &mut Process, terms: Terms| {
        process.wait_on(terms);
        let request = refused(process);
        request.place.unwrap().lasts
    };
    assert_eq!(kept(&mut listening(), terms(9_000)), TRUSTED);
    assert_eq!(kept(&mut listening(), terms(1_025)), TRUSTED);
    let short = kept(&mut listening(), terms(1_024));
    assert_eq!(short, LEAST_RESERVED, "a silent waiter would block the others for longer than its ttl");
    let fixed = Terms { renewal: Renewal::Never, ..terms(9_000) };
    assert_eq!(kept(&mut listening(), fixed), LEAST_RESERVED, "it would have less than was asked for");
    let mut quorum = listening();
    quorum.queues.trusts = false;
    assert_eq!(kept(&mut quorum, terms(9_000)), LEAST_RESERVED);
    let mut deaf = listening();
    deaf.queues.listen(false);
    assert_eq!(kept(&mut deaf, terms(9_000)), LEAST_UNHEARD);
    let mut refused = listening();
    refused.queues.calls_refused = true;
    assert_eq!(kept(&mut refused, terms(9_000)), LEAST_RESERVED);
    let mut far = listening();
    far.queues.round_trip = 100_000_000;
    assert_eq!(kept(&mut far, terms(9_000)), Duration::from_millis(1_425));
    let mut farther = listening();
    farther.queues.round_trip = 200_000_000;
    assert_eq!(kept(&mut farther, terms(9_000)), Duration::from_millis(800), "a silent waiter would cost two seconds");
}

#[test]
fn a_waiter_that_is_told_holds_at_once_for_what_its_place_leaves() {
    let mut process = listening();
    let ((id, hold), ..) = told(&mut process);
    assert_eq!(hold.fence.get(), 70);
    let kept = Ttl::new(TRUSTED).unwrap();
    assert_eq!(hold.end(), kept.deadline(at(0)), "it counts from the request that made the place, and from its T");
    assert!(process.send().0.is_empty(), "nothing is confirmed");
    assert!(matches!(process.release((id, hold)), Departure::Released(())));
    assert_eq!(process.grant(), ["release"]);
    assert!(process.queues.is_empty());
}

/// Answer and grant may come in one read, and the future that asked for the forced release may be polled last.
#[test]
fn a_grant_that_comes_with_the_answer_to_a_forced_release_is_not_ended_by_it() {
    let mut process = listening();
    let before: Vec<_> = process.queues.tenures_of(&key()).collect();
    let ((id, hold), ..) = told(&mut process);
    let now = process.now();
    process.queues.forced(&key(), &before, now);
    assert!(hold.held(now).is_some());
    assert!(matches!(process.release((id, hold)), Departure::Released(())));
}

#[test]
fn a_lease_that_began_by_a_grant_is_renewed_soon_and_then_has_its_ttl() {
    let mut process = listening();
    let ((_, hold), ..) = told(&mut process);
    process.pass_time(19);
    let now = process.now();
    assert!(process.queues.poll_renewals(now).is_empty());
    process.pass_time(1);
    let now = process.now();
    let mut calls = process.queues.poll_renewals(now);
    let (call, batch) = calls.pop().expect("a renewal");
    let [Operation::Renew(renew)] = &batch[..] else { panic!("{batch:?}") };
    assert_eq!(renew.ttl, Duration::from_secs(9));
    let renewed = Outcome::Renewed { remaining: Duration::from_secs(9), fence: None, block: 0 };
    process.queues.handle_response(call, Ok(backend::Answer::new([Ok(renewed)])), now, 1);
    assert_eq!(hold.end(), terms(9_000).ttl.deadline(at(320)));
    process.pass_time(2_000);
    let now = process.now();
    assert!(process.queues.poll_renewals(now).is_empty(), "from then on by its ttl");
}

#[test]
fn a_grant_in_doubt_is_confirmed() {
    // The place was made when nobody could be told.
    let mut process = Process::new();
    process.queues.trusts = true;
    let id = process.wait();
    let unheard = refused(&mut process);
    process.queues.listen(true);
    tell(&mut process, &grant_to(&unheard, (70, 1)));
    assert!(process.poll(id).is_pending());
    // The engine runs on another runtime by now, of a single thread.
    let mut process = listening();
    let id = process.wait();
    let request = refused(&mut process);
    process.queues.trusts = false;
    tell(&mut process, &grant_to(&request, (70, 1)));
    assert!(process.poll(id).is_pending());
    assert_eq!(process.grant(), ["acquire"]);
    // A later request was answered, so that the key was taken away since.
    let mut process = listening();
    let id = process.wait();
    let first = refused(&mut process);
    process.pass_time(700);
    refused(&mut process);
    tell(&mut process, &grant_to(&first, (70, 1)));
    assert!(process.poll(id).is_pending());
    assert_eq!(process.grant(), ["acquire"]);
    // It came too late.
    let mut process = listening();
    let id = process.wait();
    let request = refused(&mut process);
    process.clock.advance(900);
    tell(&mut process, &grant_to(&request, (70, 1)));
    assert!(process.poll(id).is_pending());
    assert_eq!(process.grant(), ["acquire"]);
    assert_eq!(process.hold(id).1.fence.get(), 100);
}

#[test]
fn terms_that_have_changed_since_the_place_was_made_do_not_count() {
    let mut process = listening();
    let id = process.wait();
    let request = refused(&mut process);
    // Nobody listens for a while, and the round trip has become long.
    process.queues.listen(false);
    process.queues.round_trip = 40_000_000;
    process.queues.listen(true);
    tell(&mut process, &grant_to(&request, (70, 1)));
    let hold = process.hold(id).1;
    assert_eq!(hold.end(), Ttl::new(TRUSTED).unwrap().deadline(at(0)));
    assert!(process.send().0.is_empty(), "what was to be asked is no longer asked");
}

#[test]
fn a_grant_that_is_told_twice_changes_nothing_and_another_one_ends_the_lease() {
    let mut process = listening();
    let ((_, hold), _, grant) = told(&mut process);
    let end = hold.end();
    tell(&mut process, &grant);
    tell(&mut process, &Grant { fence: 69, ..grant.clone() });
    assert!(hold.check().is_ok() && hold.end() == end && process.send().0.is_empty());
    tell(&mut process, &Grant { fence: 71, ..grant });
    assert_eq!(hold.check(), Err(End::Lost(LossReason::Taken)));
    assert_eq!(process.cleaned_up().len(), 1);
}

#[test]
fn requests_that_were_in_flight_when_the_grant_was_told_are_judged_by_when_they_were_sent() {
    let mut process = listening();
    let id = process.wait();
    let (operations, _) = process.send();
    let [Operation::Acquire(request)] = &operations[..] else { panic!("{operations:?}") };
    let first = process.trip();
    process.pass_time(700);
    assert_eq!(process.send().0.len(), 1, "a check");
    let check = process.trip();
    // The message comes before the answer to the request that made the place.
    tell(&mut process, &grant_to(request, (70, 1)));
    let hold = process.hold(id).1;
    process.queues.acquired(&key(), request.token, Ok(BUSY), RoundTrip { now: check.now, ..first });
    assert!(hold.check().is_ok(), "that was executed before the grant");
    process.queues.acquired(&key(), request.token, Ok(BUSY), check);
    assert_eq!(hold.check(), Err(End::Lost(LossReason::Taken)), "and that after it");
}

#[test]
fn a_check_that_finds_the_grant_raises_the_deadline_and_its_numbers_are_not_used() {
    let (mut process, id, request, check) = checking();
    tell(&mut process, &grant_to(&request, (70, 2)));
    let held = process.hold(id);
    process.queues.acquired(&key(), request.token, Ok(Outcome::Held { fence: 90, block: 5, was_free: false }), check);
    assert_eq!(held.1.end(), terms(9_000).ttl.deadline(at(700)));
    let next = process.wait();
    assert!(matches!(process.release(held), Departure::Passed));
    let hold = process.hold(next).1;
    assert_eq!((hold.fence.get(), hold.end()), (71, terms(9_000).ttl.deadline(at(700))));
}

#[test]
fn a_check_that_found_the_key_free_after_the_grant_ends_the_lease() {
    let raised = terms(9_000).ttl.deadline(at(700));
    for (fence, was_free, expected) in
        [(69, true, None), (69, false, None), (71, false, Some(Ok(raised))), (71, true, Some(Err(LossReason::Taken)))]
    {
        let (mut process, id, request, check) = checking();
        tell(&mut process, &grant_to(&request, (70, 1)));
        let hold = process.hold(id).1;
        let expected = expected.unwrap_or_else(|| Ok(hold.end()));
        process.queues.acquired(&key(), request.token, Ok(Outcome::Held { fence, block: 1, was_free }), check);
        let found = hold.check().map(|()| hold.end());
        assert_eq!(found, expected.map_err(End::Lost), "{fence} {was_free}");
        assert_eq!(process.cleaned_up().len(), usize::from(expected.is_err()), "what it has taken is released");
    }
}

#[test]
fn a_request_that_was_in_flight_when_the_grant_was_told_is_settled_by_a_release_of_its_epoch_only() {
    for (epoch, is_settled) in [(1, true), (2, false)] {
        let mut process = listening();
        let id = process.wait();
        let request = refused(&mut process);
        process.pass_time(700);
        assert_eq!(process.send().0.len(), 1, "a check, never answered");
        tell(&mut process, &grant_to(&request, (70, 1)));
        let held = process.hold(id);
        let Departure::Released(()) = process.release(held) else { panic!("nobody waits") };
        let (_, purposes) = process.send();
        for purpose in purposes {
            let trip = RoundTrip { epoch, ..process.trip() };
            process.queues.answered(purpose, Ok(Outcome::Released), trip);
        }
        assert_eq!(process.queues.is_released(), is_settled);
    }
}

#[test]
fn a_lease_that_began_by_a_grant_is_passed_on_to_those_who_wait() {
    let mut process = listening();
    let first = process.wait();
    let request = refused(&mut process);
    let (second, third) = (process.wait(), process.wait());
    process.pass_time(300);
    tell(&mut process, &grant_to(&request, (70, 1)));
    assert_eq!(process.answer(|_, _| Ok(BUSY)), ["renew"], "for the fencing tokens of those who have come since");
    for (waiter, fence) in [(first, 70), (second, 100), (third, 101)] {
        let held = process.hold(waiter);
        assert_eq!(held.1.fence.get(), fence);
        let departure = process.release(held);
        assert!(waiter == third || matches!(departure, Departure::Passed), "{departure:?}");
    }
}

#[test]
fn a_lease_that_is_handed_over_before_it_was_renewed_is_renewed_for_who_takes_it_up() {
    let mut process = listening();
    let ((id, _), _, grant) = told(&mut process);
    let now = process.now();
    assert!(process.queues.hand_over(id, now).is_some());
    assert_eq!(process.grant(), ["renew"]);
    process.pass_time(5_000);
    tell(&mut process, &grant);
    assert!(process.cleaned_up().is_empty(), "it is another's");
    assert!(process.queues.is_empty());
}

#[test]
fn a_turn_that_is_not_taken_goes_to_the_next() {
    let mut process = listening();
    let first = process.wait();
    let request = refused(&mut process);
    let second = process.wait();
    tell(&mut process, &grant_to(&request, (70, 2)));
    process.leave(first);
    assert_eq!(process.hold(second).1.fence.get(), 71);
}

#[test]
fn a_check_that_found_the_key_free_ends_the_lease_though_a_later_request_was_answered_first() {
    for is_passed in [false, true] {
        let (mut process, id, request, check) = checking();
        let next = process.wait();
        tell(&mut process, &grant_to(&request, (70, 1)));
        let first = process.hold(id);
        assert_eq!(process.answer(|_, _| Ok(BUSY)), ["renew"], "for fencing tokens, from 100 on");
        let hold = match is_passed {
            true => {
                assert!(matches!(process.release(first), Departure::Passed));
                process.hold(next).1
            }
            false => first.1,
        };
        let held = Outcome::Held { fence: 90, block: 1, was_free: true };
        process.queues.acquired(&key(), request.token, Ok(held), check);
        assert_eq!(hold.check(), Err(End::Lost(LossReason::Taken)), "{is_passed}");
    }
}
