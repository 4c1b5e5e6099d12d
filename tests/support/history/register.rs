//! The fenced register that the lock guards.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{
    check::{Case, Rule, end},
    event::Op,
};

/// The register never goes back, and no update of it is lost.
pub(super) fn check(case: &mut Case<'_>, sound: &[usize]) {
    let mut registers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for index in sound {
        let event = case.event(*index);
        if matches!(event.op, Op::Write | Op::Read) && event.succeeded() {
            registers.entry(event.key.as_deref().unwrap_or_default()).or_default().push(*index);
        }
    }
    for (name, mut by_call) in registers {
        let mut by_return = by_call.clone();
        by_call.sort_by(|a, b| case.event(*a).t_invoke.total_cmp(&case.event(*b).t_invoke));
        by_return.sort_by(|a, b| end(case.event(*a)).total_cmp(&end(case.event(*b))));
        check_order(case, name, &by_call, &by_return);
        check_updates(case, name, &by_call);
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

/// No two updates begin with the same value, where no value is written twice.
fn check_updates(case: &mut Case<'_>, name: &str, calls: &[usize]) {
    let writes = || calls.iter().copied().filter(|index| case.event(*index).op == Op::Write);
    let mut values = HashSet::new();
    let unique = writes().filter_map(|index| case.event(index).value.as_ref()).all(|value| values.insert(value));
    if !unique {
        return;
    }
    let mut begun: HashMap<_, usize> = HashMap::new();
    let mut lost = Vec::new();
    for index in writes() {
        if let Some(prev) = &case.event(index).prev
            && let Some(other) = begun.insert(prev, index)
        {
            lost.push((other, index, prev));
        }
    }
    for (other, index, prev) in lost {
        let message = || format!("an update of the register of {name:?} is lost: two began with the value {prev}");
        case.report(Rule::Register, message, &[other, index]);
    }
}
