//! Places of those who share a key, beside writers of the same process.

use super::*;
use crate::mode::Mode;

#[test]
fn a_reader_that_gives_up_while_a_writer_of_its_process_holds_leaves_its_place_to_no_later_writer() {
    for is_passed_on in [true, false] {
        let mut process = Process::new();
        process.queues.found_busy(&key(), at(0));
        let (writer, reader) = (process.wait(), process.wait_on(Terms { mode: Mode::Shared, ..terms(9_000) }));
        let asked = process.answer(|_, acquire| {
            Ok(if acquire.token.mode().is_exclusive() {
                Outcome::Held { fence: 1, block: 2, was_free: true }
            } else {
                BUSY
            })
        });
        assert_eq!(asked, ["acquire", "acquire"], "both have places of their own");
        let held = process.hold(writer);
        // The key is here, so that the newcomer does not contend, though the reader right before it does.
        let late = process.wait();
        process.leave(reader);
        let left = process.cleaned_up();
        assert!(left.len() == 1 && left[0].place && left[0].token.mode() == Mode::Shared, "{left:?}");
        assert!(!process.queues.lines.is_candidate(late));
        if is_passed_on {
            assert!(matches!(process.release(held), Departure::Passed));
        } else {
            process.pass_time(100);
            assert!(matches!(process.release(held), Departure::Released(())));
            let (operations, purposes) = process.send();
            let [Operation::Release(_), Operation::Acquire(acquire)] = &operations[..] else {
                panic!("{operations:?}")
            };
            assert_eq!(acquire.token.mode(), Mode::Exclusive, "a writer beside readers");
            drop(purposes);
        }
    }
}

#[test]
fn a_reader_behind_a_writer_that_leaves_asks_for_a_place_of_its_own() {
    let mut process = Process::new();
    process.queues.found_busy(&key(), at(0));
    let (first, second) = (process.wait(), process.wait());
    let reader = process.wait_on(Terms { mode: Mode::Shared, ..terms(9_000) });
    assert_eq!(process.answer(|_, _| Ok(BUSY)), ["acquire"], "the second writer stands between");
    process.leave(first);
    assert!(process.queues.lines.is_candidate(second) && process.queues.lines.is_candidate(reader));
    let (operations, _) = process.send();
    let modes = |operation: &Operation| token(operation).mode();
    assert!(operations.iter().map(modes).any(|mode| mode == Mode::Shared), "{operations:?}");
}

#[test]
fn a_reader_behind_a_try_that_is_refused_asks_for_a_place_of_its_own() {
    let mut process = Process::new();
    process.queues.found_busy(&key(), at(0));
    let writer = process.wait();
    let (operations, purposes) = process.send();
    assert_eq!(operations.len(), 1);
    process.try_it();
    let reader = process.wait_on(Terms { mode: Mode::Shared, ..terms(9_000) });
    assert!(!process.queues.lines.is_candidate(reader));
    for purpose in purposes {
        process.queues.answered(purpose, Ok(BUSY), process.trip());
    }
    assert!(process.queues.lines.is_candidate(writer) && process.queues.lines.is_candidate(reader));
}

#[test]
fn many_who_share_a_key_have_more_time_to_take_their_turns() {
    let mut process = Process::new();
    let terms = Terms { mode: Mode::Shared, ..terms(9_000) };
    let readers: Vec<_> = (0..200).map(|_| process.wait_on(terms)).collect();
    while !process.grant().is_empty() {}
    process.pass_time(150);
    let mut taken = readers.iter().map(|reader| process.poll(*reader).is_ready()).collect::<Vec<_>>();
    taken.dedup();
    assert_eq!(taken, [false, true], "the first few have 100 ms");
    let late = process.wait_on(terms);
    process.grant();
    process.pass_time(450);
    assert!(process.poll(late).is_pending(), "it may not keep its share for ever");
}
