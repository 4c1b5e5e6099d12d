//! How holds and waits end that do not end by themselves: a shutdown, the end of the task, force.

use super::*;
use crate::{
    backend::{Acquire, Answer, Batch, BusyReason},
    ttl::Renewal,
};

#[test]
fn a_shut_down_sends_every_waiter_away_and_leaves_no_place() {
    let mut process = Process::new();
    let waiters = [process.wait(), process.wait()];
    process.answer(|_, _| Ok(Outcome::Busy { remaining: Some(KEPT), by: BusyReason::Waiters, position: Some(1) }));
    process.queues.shut_down(at(0));
    for waiter in waiters {
        assert_eq!(process.error(waiter), ErrorKind::ShutDown);
    }
    assert_eq!(process.cleaned_up().len(), 1);
    assert!(process.queues.is_empty());
}

#[test]
fn a_shut_down_gives_back_what_was_offered_to_a_waiter() {
    let mut process = Process::new();
    let (first, second) = (process.wait(), process.wait());
    process.grant();
    process.queues.shut_down(at(0));
    assert_eq!((process.error(first), process.error(second)), (ErrorKind::ShutDown, ErrorKind::ShutDown));
    assert_eq!(process.queues.tenures.len(), 0);
    assert_eq!(process.cleaned_up().len(), 1);
    assert!(process.queues.is_empty());
}

#[test]
fn a_release_that_was_sent_when_the_task_ended_is_sent_again() {
    let mut process = Process::new();
    let id = process.wait();
    process.grant();
    let held = process.hold(id);
    assert!(matches!(process.release(held), Departure::Released(())));
    let (operations, purposes) = process.send();
    drop(purposes);
    process.queues.restart(at(0));
    assert!(!process.queues.is_released());
    let again = process.cleaned_up();
    assert_eq!(again.iter().map(|release| release.token).collect::<Vec<_>>(), [token(&operations[0])]);
    assert!(process.queues.is_empty());
}

/// A process whose holder has asked for its release, which is not sent yet; and the token of the lease.
fn releasing() -> (Process, Token) {
    let mut process = Process::new();
    let id = process.wait();
    process.grant();
    let held = process.hold(id);
    let token = process.queues.tenures.token(held.0.tenure).expect("it is held");
    assert!(matches!(process.release(held), Departure::Released(())));
    (process, token)
}

#[test]
fn a_release_that_waits_to_be_sent_is_not_forestalled_by_a_clean_up_of_its_token() {
    let (mut process, token) = releasing();
    // An older request of the same token was answered out of order.
    process.queues.release_stray(key(), token, Doubt { until: at(0), unanswered_since: None }, at(0));
    assert!(process.cleaned_up().is_empty(), "the release would find nothing");
    assert_eq!(process.grant(), ["release"]);
    process.queues.release_stray(key(), token, Doubt { until: at(0), unanswered_since: None }, at(0));
    assert_eq!(process.cleaned_up().len(), 1, "it may have been executed after the release");
}

#[test]
fn a_release_that_is_in_flight_is_not_overtaken_by_a_clean_up_of_its_token() {
    let (mut process, token) = releasing();
    let (call, batch) = process.queues.poll_transmit(at(0), 1).pop().expect("the release is sent");
    assert!(matches!(&batch[..], [Operation::Release(release)] if release.token == token));
    // A second copy of the message that the key was granted arrives.
    process.queues.release_stray(key(), token, Doubt { until: at(50), unanswered_since: None }, at(0));
    assert!(process.cleaned_up().is_empty(), "over a new connection it might be executed first");
    process.queues.handle_response(call, Ok(Answer::new([Ok(Outcome::Released)])), at(1), 1);
    assert!(!process.queues.cleanup.is_empty(), "what the message is about may have been executed after the release");
    let again = process.queues.cleanup.next().expect("it is released again");
    assert!(at(1) < again && again < at(9_000), "{again:?}");
}

/// Requests that wait for a new connection leave in any order, and one that is not answered may have been executed.
#[test]
fn a_renewal_that_may_have_come_after_the_release_does_not_keep_the_key_busy_for_longer_than_at_least() {
    let renewed = || Answer::new([Ok(Outcome::Renewed { remaining: Duration::from_secs(9), fence: None, block: 0 })]);
    for result in [
        Ok(Answer { repeated: true, ..renewed() }),
        Ok(Answer { out_of_order: true, ..renewed() }),
        Err(BackendError::new(ErrorKind::Backend, "silence")),
        Ok(Answer::new([Err(BackendError::new(ErrorKind::Backend, "silence"))])),
    ] {
        let mut process = Process::new();
        let id = process.wait_on(Terms { at_least: Duration::from_secs(5), ..terms(9_000) });
        process.grant();
        let held = process.hold(id);
        process.pass_time(3_500);
        let now = process.now();
        let (call, batch) = process.queues.poll_renewals(now).pop().expect("a renewal");
        assert!(matches!(process.release(held), Departure::Released(())));
        assert_eq!(process.grant(), ["release"]);
        assert!(process.cleaned_up().is_empty());
        process.queues.handle_response(call, result, now, 1);
        let again = process.cleaned_up();
        assert_eq!(again.iter().map(|release| release.token).collect::<Vec<_>>(), [token(&batch[0])]);
        assert_eq!(again[0].after, Duration::from_millis(1_500), "the key stays busy for no longer");
    }
}

#[test]
fn a_renewal_that_was_executed_before_the_release_leaves_nothing_to_be_done() {
    let mut process = Process::new();
    let id = process.wait_on(Terms { at_least: Duration::from_secs(5), ..terms(9_000) });
    process.grant();
    let held = process.hold(id);
    process.pass_time(3_500);
    let now = process.now();
    let (call, _) = process.queues.poll_renewals(now).pop().expect("a renewal");
    assert!(matches!(process.release(held), Departure::Released(())));
    let (_, purposes) = process.send();
    let renewed = Outcome::Renewed { remaining: Duration::from_secs(9), fence: None, block: 0 };
    process.queues.handle_response(call, Ok(Answer::new([Ok(renewed)])), now, 1);
    for purpose in purposes {
        process.queues.answered(purpose, Ok(Outcome::Released), process.trip());
    }
    assert!(process.queues.cleanup.is_empty(), "a shutdown need not wait");
}

#[test]
fn a_lease_without_renewal_that_began_while_its_key_was_released_by_force_ends_too() {
    let mut process = Process::new();
    let before: Vec<_> = process.queues.tenures_of(&key()).collect();
    let id = process.wait_on(Terms { renewal: Renewal::Never, ..terms(9_000) });
    process.grant();
    let (_, hold) = process.hold(id);
    process.queues.forced(&key(), &before, at(0));
    assert!(hold.held(at(0)).is_none(), "it could not find out that it was struck");
}

#[test]
fn every_lease_of_a_key_that_is_released_by_force_is_lost_and_no_other() {
    let mut process = Process::new();
    let waiter = process.wait();
    process.grant();
    let (_, of_line) = process.hold(waiter);
    let mut take_up = |name: &str, token| {
        let doubt = Doubt { until: at(0), unanswered_since: None };
        let token = Token::from_random(token);
        let acquired = Acquired { token, fence: 7, block: 1, sent: at(0), doubt, passes: false, granted: None };
        process.queues.enter(&LockKey::new(name).unwrap(), &terms(9_000), acquired, at(0))
    };
    // The first of them lost its key unnoticed.
    let (taken_up, again, other) = (take_up("k", 1), take_up("k", 2), take_up("other", 3));
    let before: Vec<_> = process.queues.tenures_of(&key()).collect();
    process.queues.forced(&key(), &before, at(0));
    let held = [&of_line, &taken_up.1, &again.1, &other.1].map(|hold| hold.held(at(0)).is_some());
    assert_eq!(held, [false, false, false, true]);
    assert_eq!(process.cleaned_up().len(), 3);
    process.queues.abandon(other.0, at(0));
    process.cleaned_up();
    assert!(process.queues.is_empty() && process.queues.beside.is_empty());
}

#[test]
fn releasing_many_keys_by_force_looks_at_no_more_leases_for_each_than_releasing_few() {
    let looks_for_each = |keys: u64| {
        let mut process = Process::new();
        let key = |number| LockKey::new(format!("k:{number}")).unwrap();
        let mut holds = Vec::new();
        for number in 0..keys {
            let doubt = Doubt { until: at(0), unanswered_since: None };
            let token = Token::from_random(number.into());
            let acquired = Acquired { token, fence: 7, block: 1, sent: at(0), doubt, passes: false, granted: None };
            holds.push(process.queues.enter(&key(number), &terms(9_000), acquired, at(0)).1);
        }
        let before = COMPARED.get();
        for number in 0..keys {
            let before: Vec<_> = process.queues.tenures_of(&key(number)).collect();
            process.queues.forced(&key(number), &before, at(0));
        }
        assert!(holds.iter().all(|hold| hold.held(at(0)).is_none()));
        (COMPARED.get() - before) / keys as usize
    };
    let (few, many) = (looks_for_each(100), looks_for_each(10_000));
    assert!(many <= few + 2, "{many} looks for each of 10,000 keys, {few} for each of 100");
}

#[test]
fn a_hold_that_is_over_ends_nobody_else_s() {
    let mut process = Process::new();
    let (first, second) = (process.wait(), process.wait());
    process.grant();
    let held = process.hold(first);
    let over = held.0;
    assert!(matches!(process.release(held), Departure::Passed));
    let next = process.hold(second);
    assert!(matches!(process.queues.release(over, at(0), || (Responder::new(at(0)), ())), Departure::Over));
    process.queues.abandon(over, at(0));
    assert!(process.queues.hand_over(over, at(0)).is_none());
    assert!(next.1.check().is_ok() && process.queues.tenures.of_hold(next.0).is_some());
}

#[test]
fn an_acquire_that_surely_did_nothing_leaves_nothing_to_release() {
    for happened in [false, true] {
        let mut process = Process::new();
        let waiter = process.wait();
        let (call, batch) = process.queues.poll_transmit(at(0), 1).pop().expect("the request is sent");
        assert_eq!(batch.len(), 1);
        // By the script, after a transaction that found that the key is not free.
        let error = BackendError::wrong_type("the key holds a value that is not a lock");
        let error = if happened { error } else { error.did_not_happen() };
        let mut answer = Answer::new([Err(error)]);
        answer.out_of_order = true;
        process.queues.handle_response(call, Ok(answer), at(1), 1);
        assert_eq!(process.error(waiter), ErrorKind::WrongType);
        assert_eq!(process.queues.is_released(), !happened, "a shutdown waits for what is to be released");
    }
}

#[test]
fn an_acquire_out_of_order_that_nobody_waits_for_stays_in_doubt_until_it_is_answered() {
    for is_answered in [true, false] {
        let mut process = Process::new();
        let responder = Responder::new(at(0));
        let waits = Arc::clone(&responder.slot);
        let acquire = Acquire::new(key(), Token::from_random(7), Duration::from_secs(10));
        process.queues.request(Batch::from([Operation::Acquire(acquire)]), responder);
        let (call, _) = process.queues.poll_transmit(at(0), 1).pop().expect("the request is sent");
        drop(waits);
        let held = Outcome::Held { fence: 1, block: 1, was_free: true };
        let lost = BackendError::new(ErrorKind::Backend, "the connection broke");
        let mut answer = Answer::new([if is_answered { Ok(held) } else { Err(lost) }]);
        answer.out_of_order = true;
        process.queues.handle_response(call, Ok(answer), at(1), 1);
        let (release, batch) = process.queues.poll_transmit(at(1), 1).pop().expect("its token is released");
        assert!(matches!(batch.first(), Some(Operation::Release(_))), "{batch:?}");
        process.queues.handle_response(release, Ok(Answer::new([Ok(Outcome::Released)])), at(2), 1);
        assert_eq!(process.queues.is_released(), is_answered);
    }
}
