//! Waiters of a free key.

use crate::history::lines::*;

#[test]
fn a_waiter_that_comes_within_the_bound_is_fine_and_a_later_one_is_caught() {
    let history = |got| [acquire("p1", 1, 0.0, 2.0), release("p1", 1, 50.0, 52.0), acquire("p2", 2, 10.0, got)];
    assert_eq!(broken(&history(300.0)), NONE);
    assert_eq!(broken(&history(303.0)), [Rule::LeftWaiting]);
    assert_eq!(broken_by(&Checker::new().bound(Duration::from_millis(300)), &history(303.0)), NONE);
}

#[test]
fn a_waiter_that_never_comes_is_caught_however_it_ends() {
    let before = [acquire("p1", 1, 0.0, 2.0), release("p1", 1, 50.0, 52.0)];
    let waits = [
        in_vain("p2", 10.0, 400.0, Outcome::Fail),
        in_vain("p2", 10.0, 400.0, Outcome::Info),
        in_vain("p2", 10.0, 400.0, Outcome::Ok).with(never_back),
    ];
    let later = acquire("p3", 3, 2_000.0, 2_001.0);
    for waits in waits {
        let history = [&before[..], &[waits.clone(), later.clone()]].concat();
        assert_eq!(broken(&history), [Rule::LeftWaiting], "{waits:?}");
    }
    let killed = [&before[..], &[in_vain("p2", 10.0, 0.0, Outcome::Ok).with(never_back), later]].concat();
    assert_eq!(broken(&[&killed[..], &[crash("p2", 400.0)]].concat()), [Rule::LeftWaiting]);
    assert_eq!(broken(&[&killed[..], &[crash("p2", 200.0)]].concat()), NONE);
}

#[test]
fn a_waiter_may_wait_as_long_as_others_hold() {
    let mut history = vec![acquire("p0", 1_000, 5.0, 3_100.0)];
    for index in 0..10 {
        let (at, fence) = (f64::from(index) * 300.0, u64::try_from(index).unwrap() + 1);
        history.push(acquire("p1", fence, at, at + 10.0));
        history.push(release("p1", fence, at + 290.0, at + 299.0));
    }
    assert_eq!(broken(&history), NONE);
}

#[test]
fn a_free_key_between_two_others_is_noticed_by_whoever_waits() {
    let history = [
        acquire("p1", 1, 0.0, 2.0),
        release("p1", 1, 50.0, 52.0),
        // A newcomer takes it, long after.
        acquire("p3", 2, 400.0, 402.0),
        release("p3", 2, 410.0, 411.0),
        acquire("p2", 3, 10.0, 412.0),
    ];
    assert_eq!(broken(&history), [Rule::LeftWaiting]);
}

#[test]
fn tries_and_foreign_clients_are_no_waiters() {
    let before = [acquire("p1", 1, 0.0, 2.0), release("p1", 1, 50.0, 52.0)];
    let tries = acquire("p2", 2, 10.0, 900.0).with(|event| event.only_tries = true);
    assert_eq!(broken(&[&before[..], &[tries]].concat()), NONE);
    let theirs = foreign("f", "x", 10.0, 900.0).with(|event| event.deadline = Some(1_900.0));
    assert_eq!(broken(&[&before[..], &[theirs]].concat()), NONE);
}

#[test]
fn a_fault_excuses_the_wait_within_it_and_no_more() {
    let history = |window: Event| {
        [acquire("p1", 1, 0.0, 2.0), release("p1", 1, 50.0, 52.0), acquire("p2", 2, 10.0, 900.0), window]
    };
    assert_eq!(broken(&history(fault(40.0, 700.0))), NONE);
    assert_eq!(broken(&history(fault(40.0, 600.0))), [Rule::LeftWaiting]);
    assert_eq!(broken(&history(fault(310.0, 900.0))), [Rule::LeftWaiting]);
    assert_eq!(broken(&history(fault(40.0, 0.0).with(never_back))), NONE, "one that never ends");
}

/// A key that is free from 52 on, and a waiter that gets it at 600, so that it waits for 548 ms: 298 more than the bound.
fn waits_too_long(standstills: &[Event]) -> Vec<Event> {
    let waits = [acquire("p1", 1, 0.0, 2.0), release("p1", 1, 50.0, 52.0), acquire("p2/t3", 2, 10.0, 600.0)];
    [&waits, standstills].concat()
}

#[test]
fn a_wait_is_excused_for_as_long_as_its_process_stood_still() {
    assert_eq!(broken(&waits_too_long(&[])), [Rule::LeftWaiting]);
    assert_eq!(broken(&waits_too_long(&[standstill("p2", 100.0, 398.5)])), NONE);
    assert_eq!(broken(&waits_too_long(&[standstill("p2", 100.0, 397.5)])), [Rule::LeftWaiting]);
}

#[test]
fn standstills_add_up_and_count_once_and_within_the_wait() {
    let parts = [standstill("p2", 100.0, 250.0), standstill("p2", 300.0, 448.5)];
    assert_eq!(broken(&waits_too_long(&parts)), NONE);
    let overlapping = [standstill("p2", 100.0, 250.0), standstill("p2", 150.0, 300.0)];
    assert_eq!(broken(&waits_too_long(&overlapping)), [Rule::LeftWaiting]);
    let outside = [standstill("p2", 0.0, 52.0), standstill("p2", 600.0, 1_000.0)];
    assert_eq!(broken(&waits_too_long(&outside)), [Rule::LeftWaiting]);
    // Until the release comes back, the holder may have the key.
    assert_eq!(broken(&waits_too_long(&[standstill("p2", 0.0, 349.0)])), [Rule::LeftWaiting]);
    assert_eq!(broken(&waits_too_long(&[standstill("p2", 0.0, 351.0)])), NONE);
}

#[test]
fn standstills_excuse_their_own_process_and_those_of_the_test_everybody() {
    assert_eq!(broken(&waits_too_long(&[standstill("p1", 60.0, 600.0)])), [Rule::LeftWaiting]);
    assert_eq!(broken(&waits_too_long(&[standstill("nemesis", 100.0, 398.5)])), NONE);
    let both = [standstill("nemesis", 100.0, 250.0), standstill("p2", 200.0, 398.5)];
    assert_eq!(broken(&waits_too_long(&both)), NONE);
    let at_once = [standstill("nemesis", 100.0, 300.0), standstill("p2", 100.0, 300.0)];
    assert_eq!(broken(&waits_too_long(&at_once)), [Rule::LeftWaiting]);
}

#[test]
fn a_standstill_excuses_nothing_but_waiting() {
    let stands = [standstill("p1", 0.0, 2_000.0), standstill("p2", 0.0, 2_000.0), standstill("nemesis", 0.0, 2_000.0)];
    let two_holders = [acquire("p1", 1, 0.0, 2.0), acquire("p2", 2, 100.0, 102.0)];
    assert_eq!(broken(&[&stands[..], &two_holders].concat()), [Rule::TwoHolders]);
    let after_its_deadline = [acquire("p1", 1, 0.0, 2.0), check("p1", 1, 1_000.0, true)];
    assert_eq!(broken(&[&stands[..], &after_its_deadline].concat()), [Rule::ValidAfterEnd]);
}

#[test]
fn a_killed_holder_blocks_for_its_ttl() {
    // Renewed at 400 at the latest, when it was killed.
    let history = |got| [acquire("p1", 1, 0.0, 2.0), crash("p1", 400.0), acquire("p2", 2, 10.0, got)];
    assert_eq!(broken(&history(1_600.0)), NONE);
    assert_eq!(broken(&history(1_660.0)), [Rule::LeftWaiting]);
}

#[test]
fn what_may_have_been_taken_unknowingly_blocks_for_its_ttl() {
    let history = |got| {
        [
            acquire("p1", 1, 0.0, 2.0),
            release("p1", 1, 50.0, 52.0),
            in_vain("p3", 40.0, 100.0, Outcome::Info),
            acquire("p2", 2, 10.0, got),
        ]
    };
    assert_eq!(broken(&history(1_300.0)), NONE);
    assert_eq!(broken(&history(1_400.0)), [Rule::LeftWaiting]);
}

#[test]
fn who_asks_for_several_keys_may_hold_one_all_the_time_and_is_no_waiter() {
    let before = [acquire("p1", 1, 0.0, 2.0), release("p1", 1, 50.0, 52.0)];
    let history = |several| {
        let attempt = in_vain("p3/k", 40.0, 900.0, Outcome::Info).with(|event| event.several = several);
        [&before[..], &[attempt, acquire("p2", 2, 10.0, 500.0)]].concat()
    };
    assert_eq!(broken(&history(true)), NONE);
    assert_eq!(broken(&history(false)), [Rule::LeftWaiting]);
    let waits = acquire("p2/k", 2, 10.0, 900.0).with(|event| event.several = true);
    assert_eq!(broken(&[&before[..], &[waits]].concat()), NONE);
}

#[test]
fn what_is_unknown_ends_with_the_next_hold() {
    let history = [
        acquire("p1", 1, 0.0, 2.0),
        release("p1", 1, 50.0, 0.0).with(never_back).with(outcome(Outcome::Info)),
        in_vain("p3", 40.0, 100.0, Outcome::Info),
        acquire("p2", 2, 10.0, 110.0),
        release("p2", 2, 120.0, 121.0),
        acquire("p4", 3, 15.0, 400.0),
    ];
    assert_eq!(broken(&history), [Rule::LeftWaiting]);
}

#[test]
fn a_foreign_key_without_ttl_blocks_until_it_is_removed() {
    let for_ever = foreign("f", "x", 0.0, 2.0).with(|event| {
        event.ttl = None;
        event.deadline = None;
    });
    let removed = call("f", Op::Release, 5_000.0, 5_001.0).with(|event| event.token = Some("x".to_owned()));
    let history = |got| [for_ever.clone(), removed.clone(), acquire("p1", 1, 10.0, got)];
    assert_eq!(broken(&history(5_200.0)), NONE);
    assert_eq!(broken(&history(5_300.0)), [Rule::LeftWaiting]);
}
