//! The register that the lock guards.

use crate::history::lines::*;

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
    assert_eq!(broken(&[update("p1", 1, 0.0, 0, 1), update("p2", 2, 5.0, 1, 2)]), NONE);
    assert_eq!(broken(&[update("p1", 1, 0.0, 0, 1), update("p2", 2, 5.0, 0, 2)]), [Rule::Register]);
    let refused = update("p1", 1, 10.0, 1, 3).with(outcome(Outcome::Fail));
    assert_eq!(broken(&[update("p1", 1, 0.0, 0, 1), update("p2", 2, 5.0, 1, 2), refused]), NONE);
    // A register that is set to and fro says nothing.
    let toggles = [update("p1", 1, 0.0, 0, 1), update("p1", 1, 2.0, 1, 0), update("p2", 2, 5.0, 0, 1)];
    assert_eq!(broken(&toggles), NONE);
}

/// An update that reads `prev` and writes `value`.
fn update(process: &str, fence: u64, at: f64, prev: u64, value: u64) -> Event {
    write(process, fence, at, at + 1.0).with(|event| {
        event.prev = Some(json!(prev));
        event.value = Some(json!(value));
    })
}

#[test]
fn a_lost_update_that_writes_the_same_value_twice_is_caught() {
    let first = [update("p1", 1, 0.0, 0, 1), update("p2", 2, 5.0, 1, 2)];
    let twice = [&first[..], &[update("p3", 3, 10.0, 1, 2)]].concat();
    assert_eq!(broken(&twice), [Rule::Register]);
    // It is told where it happened, however it goes on.
    let on = [&twice[..], &[update("p4", 4, 15.0, 2, 3), update("p5", 5, 20.0, 3, 4)]].concat();
    assert_eq!(broken(&on), [Rule::Register]);
    let at_first = [update("p1", 1, 0.0, 0, 1), update("p2", 2, 5.0, 0, 1)];
    assert_eq!(broken(&at_first), [Rule::Register]);
    // One that may have been done has made room for another.
    let unknown = update("p3", 3, 6.0, 2, 1).with(outcome(Outcome::Info));
    assert_eq!(broken(&[&twice[..], &[unknown]].concat()), NONE);
}

#[test]
fn an_older_value_may_be_back_when_data_was_lost_and_only_then() {
    let history = [update("p1", 1, 0.0, 0, 1), update("p2", 2, 5.0, 1, 2), update("p3", 3, 20.0, 1, 2)];
    let marked = |from| Checker::new().mark(Mark { key: None, from, to: from + 1.0 });
    assert_eq!(broken_by(&marked(10.0), &history), NONE);
    assert_eq!(broken_by(&marked(30.0), &history), [Rule::Register]);
}

#[test]
fn a_read_of_a_value_that_nobody_wrote_is_caught() {
    let found = |fence: u64, value: u64| read("p3", fence, 10.0, 11.0).with(|event| event.value = Some(json!(value)));
    let written = update("p1", 1, 0.0, 0, 1);
    assert_eq!(broken(&[written.clone(), found(1, 1)]), NONE);
    assert_eq!(broken(&[written.clone(), found(1, 7)]), [Rule::Register]);
    assert_eq!(broken(&[found(0, 7)]), NONE, "it was there at first");
    let later = update("p2", 2, 20.0, 1, 7);
    assert_eq!(broken(&[written.clone(), found(1, 7), later.clone()]), [Rule::Register], "not written yet");
    let never_back = later.with(|event| event.t_invoke = 5.0).with(never_back);
    assert_eq!(broken(&[written, never_back, found(2, 7)]), NONE, "it may have been done");
}
