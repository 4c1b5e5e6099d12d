//! Leases that share a key, and permits: who may hold beside whom, and with which numbers.

use crate::history::lines::{self, *};

fn shared(process: &str, fence: u64, from: f64, to: f64) -> Event {
    acquire(process, fence, from, to).with(|event| event.mode = Mode::Shared)
}

fn permits(process: &str, (take, total): (u32, u32), fence: u64, from: f64, to: f64) -> Event {
    acquire(process, fence, from, to).with(|event| event.mode = Mode::Permits { total, take })
}

#[test]
fn readers_hold_together_with_one_number() {
    let history = [
        shared("p1", 3, 0.0, 2.0),
        shared("p2", 3, 10.0, 12.0),
        release("p1", 3, 20.0, 21.0),
        shared("p3", 3, 30.0, 31.0),
        extend("p2", 3, 40.0, 41.0, 1_000.0),
        release("p2", 3, 50.0, 51.0),
        release("p3", 3, 60.0, 61.0),
        acquire("p1", 4, 62.0, 63.0),
    ];
    assert_eq!(broken(&history), NONE);
}

#[test]
fn a_writer_beside_a_reader_is_caught_whichever_came_first() {
    assert_eq!(broken(&[shared("p1", 1, 0.0, 2.0), acquire("p2", 2, 10.0, 12.0)]), [Rule::TwoHolders]);
    assert_eq!(broken(&[acquire("p1", 1, 0.0, 2.0), shared("p2", 2, 10.0, 12.0)]), [Rule::TwoHolders]);
    // The first of the readers has gone, and the second has not.
    let history = [
        shared("p1", 1, 0.0, 2.0),
        shared("p2", 1, 3.0, 4.0),
        release("p1", 1, 5.0, 6.0),
        acquire("p3", 2, 10.0, 12.0),
    ];
    assert_eq!(broken(&history), [Rule::TwoHolders]);
}

#[test]
fn a_writer_that_comes_when_the_share_of_a_killed_reader_is_over_is_fine_and_before_is_caught() {
    let history = |got| [shared("p1", 1, 0.0, 2.0), lost("p1", 1, 983.0), acquire("p2", 2, 10.0, got)];
    assert_eq!(broken(&history(984.0)), NONE);
    assert_eq!(broken(&history(900.0)), [Rule::TwoHolders]);
}

#[test]
fn as_many_permits_as_there_are_may_be_held_and_no_more() {
    let four = [
        permits("p1", (1, 3), 1, 0.0, 1.0),
        permits("p2", (1, 3), 2, 2.0, 3.0),
        permits("p3", (1, 3), 3, 4.0, 5.0),
        permits("p4", (1, 3), 4, 6.0, 7.0),
    ];
    assert_eq!(broken(&four[..3]), NONE);
    assert_eq!(broken(&four), [Rule::TwoHolders]);
    let [first, second, third, fourth] = four;
    assert_eq!(broken(&[first, release("p1", 1, 5.2, 5.5), second, third, fourth]), NONE);
}

#[test]
fn the_weights_of_permits_count() {
    let both = |take| [permits("p1", (2, 3), 1, 0.0, 1.0), permits("p2", (take, 3), 2, 2.0, 3.0)];
    assert_eq!(broken(&both(1)), NONE);
    assert_eq!(broken(&both(2)), [Rule::TwoHolders]);
}

#[test]
fn permits_of_another_total_and_other_modes_exclude_each_other() {
    let permit = permits("p1", (1, 3), 1, 0.0, 1.0);
    for other in [permits("p2", (1, 4), 2, 2.0, 3.0), shared("p2", 2, 2.0, 3.0), acquire("p2", 2, 2.0, 3.0)] {
        assert_eq!(broken(&[permit.clone(), other]), [Rule::TwoHolders]);
    }
    assert_eq!(broken(&[shared("p1", 1, 0.0, 1.0), foreign("f", "x", 2.0, 3.0)]), [Rule::TwoHolders]);
}

#[test]
fn the_number_of_a_share_is_larger_than_those_of_writers_before_and_smaller_than_of_those_after() {
    let history = |share, next| {
        [
            acquire("p1", 5, 0.0, 2.0),
            release("p1", 5, 3.0, 4.0),
            shared("p2", share, 5.0, 6.0),
            release("p2", share, 7.0, 8.0),
            acquire("p3", next, 9.0, 10.0),
        ]
    };
    assert_eq!(broken(&history(6, 7)), NONE);
    for (share, next) in [(5, 7), (4, 7), (6, 6), (7, 6)] {
        assert_eq!(broken(&history(share, next)), [Rule::FenceOrder], "{share} then {next}");
    }
}

#[test]
fn readers_on_both_sides_of_a_writer_have_different_numbers() {
    let history = |second| {
        [
            shared("p1", 1, 0.0, 1.0),
            release("p1", 1, 2.0, 3.0),
            acquire("p2", 2, 0.0, 3.5),
            release("p2", 2, 4.0, 5.0),
            shared("p3", second, 3.0, 6.0),
        ]
    };
    assert_eq!(broken(&history(3)), NONE);
    assert_eq!(broken(&history(1)), [Rule::FenceOrder]);
}

#[test]
fn no_two_permits_have_one_number() {
    let history = |second| [permits("p1", (1, 3), 7, 0.0, 9.0), permits("p2", (1, 3), second, 1.0, 8.0)];
    assert_eq!(broken(&history(8)), NONE);
    assert_eq!(broken(&history(6)), NONE, "they were asked for together");
    assert_eq!(broken(&history(7)), [Rule::FenceOrder]);
}

#[test]
fn a_share_that_is_extended_or_released_after_a_writer_came_is_caught() {
    let late = |event| [shared("p1", 1, 0.0, 2.0), lost("p1", 1, 5.0), acquire("p2", 2, 10.0, 12.0), event];
    assert!(broken(&late(release("p1", 1, 20.0, 21.0))).contains(&Rule::StaleSuccess));
    assert!(broken(&late(extend("p1", 1, 20.0, 21.0, 900.0))).contains(&Rule::StaleSuccess));
    // Not so if another reader came meanwhile.
    let beside = [shared("p1", 1, 0.0, 2.0), shared("p2", 1, 10.0, 12.0), release("p1", 1, 20.0, 21.0)];
    assert_eq!(broken(&beside), NONE);
}

#[test]
fn a_writer_that_is_left_waiting_behind_readers_that_are_gone_is_caught() {
    let history = |got| {
        [
            shared("p1", 1, 0.0, 2.0),
            shared("p2", 1, 3.0, 4.0),
            release("p1", 1, 10.0, 11.0),
            release("p2", 1, 20.0, 21.0),
            acquire("p3", 2, 5.0, got),
        ]
    };
    assert_eq!(broken(&history(260.0)), NONE);
    assert_eq!(broken(&history(280.0)), [Rule::LeftWaiting]);
    // While one reader is there, it waits for that one.
    let [first, second, gone, _, writer] = history(280.0);
    let stays = release("p2", 1, 275.0, 276.0);
    assert_eq!(broken(&[first, second, gone, stays, writer]), NONE);
}

#[test]
fn a_register_that_changes_under_a_share_is_caught() {
    let read = |fence, value: u64, at| {
        call("p1", Op::Read, at, at + 1.0).with(|event| {
            event.token = Some("p1:3/1".to_owned());
            event.mode = Mode::Shared;
            event.fence = Some(fence);
            event.value = Some(json!(value));
        })
    };
    let write = |fence, from| {
        call("p2", Op::Write, from, from + 1.0).with(|event| {
            event.fence = Some(fence);
            (event.prev, event.value) = (Some(json!(7)), Some(json!(8)));
        })
    };
    let share = shared("p1", 3, 0.0, 2.0);
    assert_eq!(broken(&[share.clone(), read(0, 7, 10.0), read(0, 7, 30.0)]), NONE);
    assert_eq!(broken(&[share, read(0, 7, 10.0), write(2, 20.0), read(2, 8, 30.0)]), [Rule::Register]);
}

#[test]
fn readers_that_hold_together_with_different_numbers_are_caught_unless_they_are_of_a_quorum() {
    let history = |second, from| {
        [shared("p1", 3, 0.0, 2.0), release("p1", 3, 50.0, 51.0), shared("p2", second, from, from + 2.0)]
    };
    assert_eq!(broken(&history(3, 10.0)), NONE);
    assert_eq!(broken(&history(4, 10.0)), [Rule::FenceOrder]);
    assert_eq!(broken(&history(4, 60.0)), NONE, "the first one has gone");
    assert_eq!(broken_by(&Checker { of_quorum: true, ..Checker::new() }, &history(4, 10.0)), NONE);
    // Both were asked for together, and waited for a writer.
    let after_a_writer = |second| {
        [
            acquire("p3", 1, 0.0, 2.0),
            shared("p1", 3, 5.0, 12.0),
            shared("p2", second, 6.0, 13.0),
            release("p3", 1, 10.0, 11.0),
        ]
    };
    assert_eq!(broken(&after_a_writer(3)), NONE);
    assert_eq!(broken(&after_a_writer(4)), [Rule::FenceOrder]);
    // Nobody had the first number any longer when the key was shared again.
    let lost = Mark { key: None, from: 5.0, to: 6.0 };
    assert_eq!(broken_by(&Checker::new().mark(lost), &history(4, 10.0)), NONE);
}

#[test]
fn a_reader_that_is_left_waiting_beside_readers_is_caught() {
    let beside = |got, until| {
        [
            shared("p1", 3, 0.0, 2.0).with(|event| (event.ttl, event.deadline) = (Some(10_000.0), Some(9_000.0))),
            shared("p2", 3, 10.0, got),
            release("p1", 3, until, until + 1.0),
        ]
    };
    assert_eq!(broken(&beside(250.0, 2_000.0)), NONE);
    assert_eq!(broken(&beside(280.0, 2_000.0)), [Rule::LeftWaiting]);
    // A writer comes before it, which waits for the first reader; and one that has given up may have left its place.
    let [first, second, gone] = beside(1_100.0, 1_000.0);
    let writer = acquire("p3", 4, 5.0, 1_005.0);
    let next = shared("p2", 5, 10.0, 1_100.0);
    let written = [first.clone(), gone.clone(), writer, release("p3", 4, 1_050.0, 1_060.0), next];
    assert_eq!(broken(&written), NONE);
    let in_vain = in_vain("p3", 5.0, 30.0, Outcome::Fail);
    assert_eq!(broken(&[first.clone(), second.clone(), gone.clone(), in_vain]), NONE);
    let stays = release("p1", 3, 6_000.0, 6_001.0);
    let given_up = lines::in_vain("p3", 5.0, 30.0, Outcome::Fail);
    let much_later = shared("p2", 3, 10.0, 5_000.0);
    assert_eq!(broken(&[first, much_later, stays, given_up]), [Rule::LeftWaiting]);
}

/// An exclusive lease that becomes a shared one.
fn downgraded(process: &str, (before, after): (u64, u64), from: f64, to: f64) -> [Event; 2] {
    [
        release(process, before, from, from).with(outcome(Outcome::Info)),
        shared(process, after, from, to).with(|event| event.from = Some(format!("{process}:{before}/1"))),
    ]
}

#[test]
fn a_lease_that_becomes_a_shared_one_has_a_larger_number_and_nobody_comes_in_between() {
    let history = |after| [&[acquire("p1", 3, 0.0, 2.0)][..], &downgraded("p1", (3, after), 10.0, 12.0)].concat();
    assert_eq!(broken(&history(5)), NONE);
    assert_eq!(broken(&history(2)), [Rule::FenceOrder]);
    let between = |event: Event| [&history(5)[..], &[event, release("p2", 4, 11.0, 11.2)]].concat();
    assert_eq!(broken(&between(acquire("p2", 4, 5.0, 10.5))), [Rule::StaleSuccess]);
    assert_eq!(broken(&between(permits("p2", (1, 3), 4, 5.0, 10.5))), [Rule::StaleSuccess]);
    let lost = Mark { key: None, from: 9.0, to: 10.5 };
    assert_eq!(broken_by(&Checker::new().mark(lost), &between(acquire("p2", 4, 5.0, 10.5))), NONE);
    let beside = [&history(5)[..], &[shared("p2", 5, 11.0, 11.5)]].concat();
    assert_eq!(broken(&beside), NONE, "a reader may come in at once");
}

#[test]
fn what_was_not_exclusive_or_not_ones_own_does_not_become_a_shared_lease() {
    let [gone, next] = downgraded("p1", (3, 5), 10.0, 12.0);
    assert_eq!(broken(std::slice::from_ref(&next)), [Rule::Malformed], "there is no such lease");
    let writer = acquire("p1", 3, 0.0, 2.0);
    let permit = next.clone().with(|event| event.mode = Mode::Permits { total: 3, take: 1 });
    assert_eq!(broken(&[writer.clone(), gone.clone(), permit]), [Rule::Malformed]);
    let thief = next.clone().with(|event| event.process = "p2".to_owned());
    assert!(broken(&[writer, gone.clone(), thief]).contains(&Rule::Malformed));
    assert_eq!(broken(&[shared("p1", 3, 0.0, 2.0), gone, next]), [Rule::Malformed]);
}
