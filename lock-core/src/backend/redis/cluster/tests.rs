//! The answers of several slots, joined.

use super::*;
use crate::{backend::Outcome, error::ErrorKind};

/// The answer of a slot whose outcomes have these fencing tokens.
fn said(fences: &[u64]) -> Answer {
    Answer::new(fences.iter().map(|fence| Ok(Outcome::Held { fence: *fence, block: 1, was_free: true })))
}

fn fences(answer: &Answer) -> Vec<Option<u64>> {
    let fence = |outcome: &Result<Outcome, BackendError>| match outcome {
        Ok(Outcome::Held { fence, .. }) => Some(*fence),
        _ => None,
    };
    answer.outcomes.iter().map(fence).collect()
}

fn flags(answer: &Answer) -> [bool; 3] {
    [answer.repeated, answer.out_of_order, answer.calls_refused]
}

#[test]
fn whatever_an_answer_says_of_one_slot_counts_for_the_whole_batch() {
    for part in 0..2 {
        for flag in 0..3 {
            let mut expected = [false; 3];
            expected[flag] = true;
            let mut answers = [said(&[1, 3]), said(&[2])];
            let [repeated, out_of_order, calls_refused] = expected;
            let answer = &mut answers[part];
            (answer.repeated, answer.out_of_order, answer.calls_refused) = (repeated, out_of_order, calls_refused);
            let whole = joined(3, [vec![0, 2], vec![1]].into_iter().zip(answers.map(Ok)));
            assert_eq!(flags(&whole), expected, "slot {part}");
            assert_eq!(fences(&whole), [Some(1), Some(2), Some(3)]);
        }
    }
    let plain = joined(3, [vec![0, 2], vec![1]].into_iter().zip([said(&[1, 3]), said(&[2])].map(Ok)));
    assert_eq!(flags(&plain), [false; 3]);
}

#[test]
fn a_slot_that_fails_leaves_the_flags_and_the_outcomes_of_the_others() {
    let failed = Err(BackendError::new(ErrorKind::Backend, "no node has the slot"));
    let late = Answer { out_of_order: true, ..said(&[2]) };
    let whole = joined(3, [vec![0, 2], vec![1]].into_iter().zip([failed, Ok(late)]));
    assert_eq!((flags(&whole), fences(&whole)), ([false, true, false], vec![None, Some(2), None]));
    assert!(whole.outcomes[2].as_ref().is_err_and(|error| error.to_string().contains("no node has the slot")));
}
