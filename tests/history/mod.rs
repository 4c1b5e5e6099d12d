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

use std::time::Instant;

use crate::history::lines::*;

#[test]
fn a_hundred_thousand_operations_are_judged_at_once() {
    let mut history = Vec::new();
    let keys = 7;
    for round in 0..25_000_u32 {
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
    let history: History = history.into_iter().collect();
    let start = Instant::now();
    let violations = Checker::new().check(&history);
    let took = start.elapsed();
    assert!(violations.is_empty(), "{}", violations[0]);
    println!("{} operations were judged in {took:?}", history.events().len());
    // Without optimisation, on a busy machine; the figure above is what counts.
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn a_client_that_ignores_the_lock_altogether_is_judged_in_reasonable_time() {
    let at = |index: u64| index as f64 * 0.01;
    let history: History =
        (0..20_000).map(|index| acquire(&format!("p{index}"), index + 1, at(index), at(index) + 0.5)).collect();
    let start = Instant::now();
    let violations = Checker::new().check(&history);
    assert!(violations.iter().all(|violation| violation.rule == Rule::TwoHolders));
    assert_eq!(violations.len(), 20, "the first are told");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}
