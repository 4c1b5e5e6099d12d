//! Fencing tokens rise.

use crate::history::lines::*;

#[test]
fn a_fence_that_does_not_rise_in_real_time_is_caught() {
    for second in [1, 2] {
        let history = [
            acquire("p1", 2, 0.0, 2.0),
            release("p1", 2, 10.0, 12.0),
            acquire("p2", second, 20.0, 22.0),
            release("p2", second, 30.0, 32.0),
        ];
        assert_eq!(broken(&history), [Rule::FenceOrder], "{second} after 2");
    }
}

#[test]
fn an_earlier_larger_fence_is_found_behind_smaller_ones() {
    let history = [
        acquire("p1", 7, 0.0, 2.0),
        release("p1", 7, 10.0, 12.0),
        acquire("p2", 8, 20.0, 22.0),
        release("p2", 8, 30.0, 32.0),
        acquire("p3", 7, 40.0, 42.0).with(|event| event.token = Some("other/1".to_owned())),
    ];
    assert_eq!(broken(&history), [Rule::FenceOrder]);
}

#[test]
fn acquires_at_the_same_time_are_ordered_by_their_holds() {
    let history = |first, second| {
        [
            acquire("p1", first, 0.0, 10.0),
            release("p1", first, 20.0, 22.0),
            acquire("p2", second, 0.0, 24.0),
            release("p2", second, 30.0, 32.0),
        ]
    };
    assert_eq!(broken(&history(1, 2)), NONE);
    assert_eq!(broken(&history(2, 1)), [Rule::FenceOrder]);
}

#[test]
fn an_acquire_that_was_known_too_late_says_nothing_about_the_order_of_holding() {
    // p1 took it first and was stopped before it knew.
    let late = acquire("p1", 1, 0.0, 1_500.0).with(|event| event.deadline = Some(985.0));
    let other = [acquire("p2", 2, 0.0, 1_010.0), release("p2", 2, 1_020.0, 1_021.0)];
    assert_eq!(broken(&[late, other[0].clone(), other[1].clone(), fault(100.0, 1_500.0)]), NONE);
}

#[test]
fn foreign_holders_have_no_fence() {
    let history = [
        acquire("p1", 1, 0.0, 2.0),
        release("p1", 1, 10.0, 12.0),
        foreign("f", "x", 20.0, 22.0),
        call("f", Op::Release, 30.0, 31.0).with(|event| event.token = Some("x".to_owned())),
        acquire("p1", 2, 40.0, 42.0),
    ];
    assert_eq!(broken(&history), NONE);
}

#[test]
fn fences_rise_even_over_a_loss_of_data() {
    let history = [acquire("p1", 2, 0.0, 2.0), acquire("p2", 1, 20.0, 22.0)];
    let checker = Checker::new().mark(Mark { key: None, from: 10.0, to: 11.0 });
    assert_eq!(broken_by(&checker, &history), [Rule::FenceOrder]);
}

#[test]
fn a_vanished_lease_may_be_passed_on_inside_its_process_with_a_fence_of_before() {
    let marked = Checker::new().mark(Mark { key: None, from: 10.0, to: 110.0 });
    // p1 has several numbers of one stay; the server loses its data, and grants p2 a larger one.
    let rules = |checker: &Checker, process: &str, got| {
        let history = [
            acquire("p1/t1", 1, 0.0, 2.0),
            acquire("p2", 9, 12.0, 14.0),
            release("p1/t1", 1, got - 1.0, got - 0.5),
            acquire(process, 2, 20.0, got),
        ];
        broken_by(checker, &history).contains(&Rule::FenceOrder)
    };
    assert!(!rules(&marked, "p1/t2", 100.0), "passed on in time");
    assert!(rules(&marked, "p1/t2", 120.0), "too late to be passed on: from the server");
    assert!(rules(&marked, "p3", 100.0), "another process has nothing to pass on");
    assert!(rules(&Checker::new(), "p1/t2", 100.0), "nothing had vanished");
}

#[test]
fn a_waiter_from_before_a_loss_of_data_gets_a_larger_fence_after_it() {
    let marked = Checker::new().mark(Mark { key: None, from: 10.0, to: 510.0 });
    let history = |fence| [acquire("p1", 9, 0.0, 2.0), acquire("p2", fence, 1.0, 700.0), fault(3.0, 700.0)];
    assert_eq!(broken_by(&marked, &history(1)), [Rule::FenceOrder]);
    assert_eq!(broken_by(&marked, &history(10)), NONE);
}

#[test]
fn a_grant_from_before_a_loss_of_data_may_be_known_after_the_next_one() {
    let history =
        [acquire("p1", 1, 0.0, 40.0).with(|event| event.deadline = Some(985.0)), acquire("p2", 9, 12.0, 14.0)];
    let marked = Checker::new().mark(Mark { key: None, from: 10.0, to: 11.0 });
    assert_eq!(broken_by(&marked, &history), NONE);
    assert!(broken(&history).contains(&Rule::FenceOrder));
}

#[test]
fn a_grant_that_was_asked_for_while_data_was_lost_has_a_larger_fence_all_the_same() {
    // The server is down for half a second, and numbers begin anew.
    let marked = Checker::new().mark(Mark { key: None, from: 10.0, to: 510.0 });
    for process in ["p1", "p2"] {
        let history = [
            acquire("p1", 1, 0.0, 2.0),
            release("p1", 1, 3.0, 4.0),
            acquire("p3", 9, 5.0, 6.0),
            release("p3", 9, 7.0, 8.0),
            acquire(process, 2, 300.0, 700.0),
            fault(10.0, 700.0),
        ];
        assert_eq!(broken_by(&marked, &history), [Rule::FenceOrder], "{process}");
    }
}

#[test]
fn a_lease_without_a_fencing_token_is_caught() {
    let without = acquire("p1", 1, 0.0, 2.0).with(|event| event.fence = None);
    assert_eq!(broken(&[without]), [Rule::FenceOrder]);
}

#[test]
fn a_hold_that_is_passed_on_counts_from_an_extend_of_the_one_before_it() {
    // p1 has several numbers of one stay, and extends it to 3 s. The data is lost before the next hold is known.
    let longer = |ttl| extend("p1/t1", 1, 4.0, 5.0, 2_900.0).with(|event| event.ttl = Some(ttl));
    let next = acquire("p1/t2", 2, 3.0, 130.0).with(|event| event.deadline = Some(2_900.0));
    let history = |ttl| {
        let of_others = acquire("p2", 9, 12.0, 14.0);
        [acquire("p1/t1", 1, 0.0, 2.0), longer(ttl), release("p1/t1", 1, 120.0, 121.0), of_others, next.clone()]
    };
    let marked = Checker::new().mark(Mark { key: None, from: 10.0, to: 110.0 });
    assert!(!broken_by(&marked, &history(3_000.0)).contains(&Rule::FenceOrder));
    assert!(broken_by(&Checker::new(), &history(3_000.0)).contains(&Rule::FenceOrder), "nothing had vanished");
    // One of several keys was renewed before the last was there.
    let several = acquire("p1", 1, 0.0, 700.0).with(|event| {
        event.several = true;
        event.deadline = Some(1_600.0);
    });
    let other = acquire("p2", 9, 12.0, 14.0);
    assert!(!broken_by(&marked, &[several.clone(), other.clone()]).contains(&Rule::FenceOrder));
    let one = several.with(|event| event.several = false);
    assert!(broken_by(&marked, &[one, other]).contains(&Rule::FenceOrder), "it was asked for after the loss");
}
