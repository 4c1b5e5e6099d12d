//! The checker of histories: every rule with histories that keep to it and others that break it.

mod fence_order;
mod left_waiting;
mod leftovers;
mod lines;
mod malformed;
mod modes;
mod recording;
mod register;
mod stale_success;
mod token_reuse;
mod two_holders;
mod undone;
mod valid_after_end;

use rustix::time::{ClockId, clock_gettime};

use crate::history::lines::*;

/// The time that this thread has computed for, in seconds: what else the machine has to do does not count.
fn computed() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// How many times longer it takes to judge the history of eight times as many operations. Eight times would be linear, and 64 times
/// quadratic.
fn growth(few: &History, many: &History, is_right: impl Fn(&[Violation])) -> f64 {
    assert_eq!(many.events().len(), 8 * few.events().len());
    let mut least = [f64::INFINITY; 2];
    // The machine may be slower for a while: the shortest of each counts.
    for _ in 0..3 {
        for (least, history) in least.iter_mut().zip([few, many]) {
            let begun = computed();
            let violations = Checker::new().check(history);
            *least = least.min(computed() - begun);
            is_right(&violations);
        }
    }
    println!("{} operations were judged in {:.3} s", many.events().len(), least[1]);
    least[1] / least[0]
}

/// Operations of candidates that keep every rule: four times as many as rounds.
fn candidates(rounds: u32) -> History {
    let mut history = Vec::new();
    let keys = 7;
    for round in 0..rounds {
        let (key, at, fence) = (round % keys, f64::from(round / keys) * 10.0, u64::from(round) + 1);
        let process = format!("p{}/t{}", round % 4, round % 31);
        let here = |event: &mut Event| event.key = Some(format!("k{key}"));
        // Everybody asks a while before.
        history.push(acquire(&process, fence, (at - 20.0).max(0.0), at + 1.0).with(here));
        history.push(check(&process, fence, at + 2.0, true).with(here));
        history.push(call(&process, Op::Write, at + 3.0, at + 4.0).with(here).with(|event| event.fence = Some(fence)));
        history.push(release(&process, fence, at + 8.0, at + 9.0).with(here));
    }
    // Tasks of this history have several operations under way; that is another rule's business.
    for (index, event) in history.iter_mut().enumerate() {
        let process = format!("{}:{}", event.process, index / 4);
        event.process = process;
    }
    history.into_iter().collect()
}

#[test]
fn a_hundred_thousand_operations_are_judged_in_a_time_that_grows_with_their_number() {
    let growth = growth(&candidates(3_125), &candidates(25_000), |violations| {
        assert!(violations.is_empty(), "{}", violations[0]);
    });
    assert!(growth < 30.0, "{growth} times as long");
}

#[test]
fn a_client_that_ignores_the_lock_altogether_is_judged_in_a_time_that_grows_with_its_operations() {
    let at = |index: u64| index as f64 * 0.01;
    let ignores = |count: u64| -> History {
        (0..count).map(|index| acquire(&format!("p{index}"), index + 1, at(index), at(index) + 0.5)).collect()
    };
    let growth = growth(&ignores(2_500), &ignores(20_000), |violations| {
        assert!(violations.iter().all(|violation| violation.rule == Rule::TwoHolders));
        assert_eq!(violations.len(), 20, "the first are told");
    });
    assert!(growth < 30.0, "{growth} times as long");
}
