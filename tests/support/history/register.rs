//! The fenced register that the lock guards.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::{
    check::{Case, Rule, end},
    event::{Op, Outcome},
    mode::Mode,
};

/// The register never goes back, no update of it is lost, nobody finds in it what nobody wrote, and nobody writes while it is
/// read under a share.
pub(super) fn check(case: &mut Case<'_>, sound: &[usize]) {
    let mut registers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for index in sound {
        let event = case.event(*index);
        if matches!(event.op, Op::Write | Op::Read) && event.succeeded() {
            registers.entry(event.key.as_deref().unwrap_or_default()).or_default().push(*index);
        }
    }
    // By value, when each write began that may have been done.
    let mut written: HashMap<&str, HashMap<&Value, Vec<f64>>> = HashMap::new();
    for event in sound.iter().map(|index| case.event(*index)) {
        if let Some(value) = event.value.as_ref().filter(|_| event.op == Op::Write && event.result != Outcome::Fail) {
            let register = written.entry(event.key.as_deref().unwrap_or_default()).or_default();
            register.entry(value).or_default().push(event.t_invoke);
        }
    }
    for (name, mut by_call) in registers {
        let mut by_return = by_call.clone();
        by_call.sort_by(|a, b| case.event(*a).t_invoke.total_cmp(&case.event(*b).t_invoke));
        by_return.sort_by(|a, b| end(case.event(*a)).total_cmp(&end(case.event(*b))));
        check_order(case, name, &by_call, &by_return);
        let none = HashMap::new();
        let supplies = written.get(name).unwrap_or(&none);
        check_updates(case, name, &by_call, supplies);
        check_reads(case, name, &by_call, supplies);
        check_shares(case, name, &by_call);
    }
}

/// Nobody writes while the key is shared: those who share it find the same each time. One whose share is over is refused.
fn check_shares(case: &mut Case<'_>, name: &str, calls: &[usize]) {
    let mut first: HashMap<&str, usize> = HashMap::new();
    for index in calls.iter().copied() {
        let event = case.event(index);
        let is_shared = event.op == Op::Read && event.mode == Mode::Shared;
        let Some(token) = event.token.as_deref().filter(|_| is_shared) else { continue };
        let before = *first.entry(token).or_insert(index);
        let (found, finds) = (&case.event(before).value, &event.value);
        if found != finds && !case.vanished(name, case.event(before).t_invoke, end(event)) {
            let message = || format!("{} shares {name:?}, and somebody writes meanwhile", event.process);
            case.report(Rule::Register, message, &[before, index]);
        }
    }
}

/// What was over before another call began had no larger fencing token. One that found nothing found 0.
fn check_order(case: &mut Case<'_>, name: &str, by_call: &[usize], by_return: &[usize]) {
    let fence = |case: &Case<'_>, index: usize| case.event(index).fence.unwrap_or(0);
    let mut over = by_return.iter().copied().peekable();
    let mut largest: Option<usize> = None;
    for index in by_call.iter().copied() {
        let event = case.event(index);
        while let Some(earlier) = over.next_if(|earlier| end(case.event(*earlier)) < event.t_invoke) {
            if largest.is_none_or(|largest| fence(case, largest) < fence(case, earlier)) {
                largest = Some(earlier);
            }
        }
        if let Some(earlier) = largest.filter(|earlier| fence(case, *earlier) > fence(case, index)) {
            let (before, now) = (fence(case, earlier), fence(case, index));
            let message = || {
                let at = event.t_invoke;
                format!("the register of {name:?} goes back at {at}: from fencing token {before} to {now}")
            };
            case.report(Rule::Register, message, &[earlier, index]);
        }
    }
}

/// As many updates begin with a value as have written it, and one more with what was there at first. Where data was lost,
/// an older value may be back.
fn check_updates(case: &mut Case<'_>, name: &str, calls: &[usize], supplies: &HashMap<&Value, Vec<f64>>) {
    let mut begun: BTreeMap<String, (&Value, Vec<usize>)> = BTreeMap::new();
    let mut initial = None;
    for index in calls.iter().copied().filter(|index| case.event(*index).op == Op::Write) {
        if let Some(prev) = &case.event(index).prev {
            initial.get_or_insert(prev);
            begun.entry(prev.to_string()).or_insert_with(|| (prev, Vec::new())).1.push(index);
        }
    }
    for (prev, updates) in begun.values() {
        // What nobody wrote was there at first, or is told elsewhere.
        let written = supplies.get(prev).map_or(&[][..], Vec::as_slice);
        let there = written.len() + usize::from(initial == Some(*prev) || written.is_empty());
        let at = |index: usize| case.event(index).t_invoke;
        let lost: Vec<[usize; 2]> = updates
            .windows(2)
            .map(|pair| [pair[0], pair[1]])
            .filter(|pair| !case.vanished(name, at(pair[0]), end(case.event(pair[1]))))
            .collect();
        if lost.len() < there {
            continue;
        }
        // As a rule nobody wrote it again between the two.
        let anew = |pair: &&[usize; 2]| written.iter().any(|written| at(pair[0]) < *written && *written < at(pair[1]));
        if let Some(pair) = lost.iter().find(|pair| !anew(pair)).or_else(|| lost.first()) {
            let message = || format!("an update of the register of {name:?} is lost: two began with the value {prev}");
            case.report(Rule::Register, message, pair);
        }
    }
}

/// What is read was written before, or was there at first.
fn check_reads(case: &mut Case<'_>, name: &str, calls: &[usize], supplies: &HashMap<&Value, Vec<f64>>) {
    for index in calls.iter().copied() {
        let event = case.event(index);
        let Some(value) = &event.value else { continue };
        let is_first = event.fence.unwrap_or(0) == 0;
        let written = || supplies.get(value).is_some_and(|written| written.iter().any(|from| *from <= end(event)));
        if event.op == Op::Read && !is_first && !written() {
            let message = || format!("nobody wrote the value {value} that is found in the register of {name:?}");
            case.report(Rule::Register, message, &[index]);
        }
    }
}
