//! The register that the lock guards.

use crate::lines::*;

fn write(process: &str, fence: u64, from: f64, to: f64) -> Event {
    call(process, Op::Write, from, to).with(|event| event.fence = Some(fence))
}

fn read(process: &str, fence: u64, from: f64, to: f64) -> Event {
    write(process, fence, from, to).with(|event| event.op = Op::Read)
}

#[test]
fn writes_with_rising_fences_are_fine_and_a_holder_may_write_twice() {
    assert_eq!(broken(&[write("p1", 1, 0.0, 1.0), write("p1", 1, 2.0, 3.0), write("p2", 2, 4.0, 5.0)]), NONE);
}

#[test]
fn a_write_with_a_smaller_fence_is_caught_unless_it_is_refused() {
    let history = |result| [write("p2", 2, 0.0, 1.0), write("p1", 1, 2.0, 3.0).with(outcome(result))];
    assert_eq!(broken(&history(Outcome::Ok)), [Rule::Register]);
    assert_eq!(broken(&history(Outcome::Fail)), NONE);
    assert_eq!(broken(&history(Outcome::Info)), NONE);
}

#[test]
fn writes_at_the_same_time_may_have_come_in_any_order() {
    assert_eq!(broken(&[write("p2", 2, 0.0, 5.0), write("p1", 1, 2.0, 3.0)]), NONE);
}

#[test]
fn reads_never_go_back() {
    assert_eq!(broken(&[write("p1", 1, 0.0, 1.0), read("p2", 1, 2.0, 3.0), read("p3", 1, 2.0, 3.0)]), NONE);
    assert_eq!(broken(&[read("p1", 2, 0.0, 1.0), read("p2", 1, 2.0, 3.0)]), [Rule::Register]);
    assert_eq!(broken(&[read("p1", 2, 0.0, 1.0), write("p2", 1, 2.0, 3.0)]), [Rule::Register]);
    let nothing = read("p2", 0, 2.0, 3.0).with(|event| event.fence = None);
    assert_eq!(broken(&[write("p1", 1, 0.0, 1.0), nothing]), [Rule::Register]);
}

#[test]
fn a_lost_update_is_caught() {
    let update = |process: &str, fence, at, prev: u64, value: u64| {
        write(process, fence, at, at + 1.0).with(|event| {
            event.prev = Some(json!(prev));
            event.value = Some(json!(value));
        })
    };
    assert_eq!(broken(&[update("p1", 1, 0.0, 0, 1), update("p2", 2, 5.0, 1, 2)]), NONE);
    assert_eq!(broken(&[update("p1", 1, 0.0, 0, 1), update("p2", 2, 5.0, 0, 2)]), [Rule::Register]);
    let refused = update("p1", 1, 10.0, 1, 3).with(outcome(Outcome::Fail));
    assert_eq!(broken(&[update("p1", 1, 0.0, 0, 1), update("p2", 2, 5.0, 1, 2), refused]), NONE);
    // A register that is set to and fro says nothing.
    let toggles = [update("p1", 1, 0.0, 0, 1), update("p1", 1, 2.0, 1, 0), update("p2", 2, 5.0, 0, 1)];
    assert_eq!(broken(&toggles), NONE);
}
