//! Leases that a failover has undone, and what that excuses.

use crate::history::lines::*;

/// The first lease of `p1` was undone: what was done for it from `from` on, until the server heard of it again at `to`.
fn undone(from: f64, to: f64, last: f64) -> Checker {
    Checker { undone: vec![Undone { token: "p1:1/1".to_owned(), from, to, last }], ..Checker::new() }
}

#[test]
fn another_may_hold_beside_a_lease_that_was_undone() {
    let across = [acquire("p1", 1, 0.0, 2.0), acquire("p2", 2, 30.0, 49.0)];
    assert_eq!(broken_by(&undone(1.0, f64::INFINITY, 40.0), &across), NONE);
    assert_eq!(broken_by(&undone(1.0, 25.0, 40.0), &across), [Rule::TwoHolders], "it was heard of before");
    assert_eq!(broken_by(&undone(60.0, 90.0, 95.0), &across), [Rule::TwoHolders], "it was undone later");
}

#[test]
fn a_lease_that_was_undone_excuses_nobody_else() {
    let third = [acquire("p1", 1, 0.0, 2.0), acquire("p2", 2, 30.0, 49.0), acquire("p3", 3, 60.0, 70.0)];
    assert_eq!(broken_by(&undone(1.0, f64::INFINITY, 40.0), &third), [Rule::TwoHolders]);
    let other = [acquire("p1", 4, 0.0, 2.0), acquire("p2", 5, 30.0, 49.0)];
    assert_eq!(
        broken_by(&undone(1.0, f64::INFINITY, 40.0), &other),
        [Rule::TwoHolders],
        "another lease of its process"
    );
}

#[test]
fn a_lease_that_is_known_late_may_have_been_undone() {
    let late = [acquire("p2", 2, 10.0, 20.0), acquire("p1", 1, 5.0, 30.0)];
    assert_eq!(broken_by(&undone(8.0, f64::INFINITY, 100.0), &late), NONE);
    assert_eq!(broken_by(&undone(8.0, 9.0, 100.0), &late), [Rule::TwoHolders, Rule::FenceOrder]);
}

#[test]
fn a_former_server_extends_and_releases_until_it_answers_nobody_any_more() {
    let story = |op: Event| [acquire("p1", 1, 0.0, 2.0), acquire("p2", 2, 30.0, 49.0), op];
    let last = |last| undone(1.0, f64::INFINITY, last);
    for op in [extend("p1", 1, 60.0, 62.0, 1_000.0), release("p1", 1, 60.0, 62.0)] {
        assert_eq!(broken_by(&last(70.0), &story(op.clone())), NONE);
        assert_eq!(broken_by(&last(55.0), &story(op)), [Rule::StaleSuccess]);
    }
}

#[test]
fn a_lease_goes_on_if_what_came_after_it_was_undone() {
    let story = [
        acquire("p2", 2, 0.0, 2.0).with(|event| event.deadline = Some(25.0)),
        acquire("p1", 1, 30.0, 32.0).with(|event| event.fence = Some(3)),
        release("p1", 1, 40.0, 41.0),
        release("p2", 2, 60.0, 61.0),
    ];
    assert_eq!(broken_by(&undone(31.0, f64::INFINITY, 70.0), &story), NONE);
    assert_eq!(broken(&story), [Rule::StaleSuccess]);
}

#[test]
fn two_servers_may_give_out_the_numbers_of_one_millisecond_twice() {
    let story = |first| {
        [
            acquire("p1", 1, 0.0, 0.2).with(|event| event.fence = Some(first)),
            release("p1", 1, 0.3, 0.4),
            acquire("p2", 7_001, 0.5, 0.9),
        ]
    };
    let undone = undone(0.1, f64::INFINITY, 10.0);
    assert_eq!(broken_by(&undone, &story(7_001)), NONE);
    assert_eq!(broken_by(&undone, &story(7_999)), NONE, "a block ends with its millisecond");
    assert_eq!(broken_by(&undone, &story(8_000)), [Rule::FenceOrder]);
    assert_eq!(broken(&story(7_001)), [Rule::FenceOrder]);
}
