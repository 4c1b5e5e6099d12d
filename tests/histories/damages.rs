//! Damaged histories: one for each rule, made of a published one, which both judges have to reject.

use std::fs;

use lock_tests::history::{Mode, Op, Outcome};
use serde_json::{Value, json};

use super::*;

/// Damages a history, and demands that the judge in Python finds a breach of `rule`, and the checker one of `ours`.
fn rejected(name: &str, rule: &str, ours: Option<Rule>, damage: impl FnOnce(&mut Vec<Event>)) {
    let mut events = history(name).events().to_vec();
    damage(&mut events);
    let rules = broken_unless_excused(&events.iter().cloned().collect());
    assert!(ours.is_none_or(|ours| rules.contains(&ours)), "{rules:?}, not {ours:?}");

    let damaged = tempfile::Builder::new().suffix(".jsonl").tempfile().expect("a file can be made");
    let lines: Vec<_> = events.iter().map(Event::to_json).collect();
    fs::write(damaged.path(), lines.join("\n")).expect("it can be written");
    let Some((rules, said)) = judged_elsewhere(&[&damaged.path().display().to_string()]) else { return };
    assert!(rules.iter().any(|found| found == rule), "not {rule}: {said}");
}

fn number(event: &Event) -> u64 {
    event.fence.expect("it has a fencing token")
}

/// The acquires of leases, by key, in the order of their fencing tokens.
fn acquires(events: &[Event]) -> Vec<usize> {
    let is_lease = |index: &usize| events[*index].op == Op::Acquire && events[*index].succeeded();
    let mut acquires: Vec<_> = (0..events.len()).filter(is_lease).collect();
    acquires.sort_by(|a, b| (&events[*a].key, events[*a].fence).cmp(&(&events[*b].key, events[*b].fence)));
    acquires
}

/// The release of a lease, if it was answered.
fn release_of(events: &[Event], acquire: usize) -> Option<usize> {
    let is_release = |event: &Event| event.op == Op::Release && event.token == events[acquire].token;
    events.iter().position(|event| is_release(event) && event.succeeded())
}

/// Two leases of one key, of which the second follows on the release of the first.
fn successors(events: &[Event], are_meant: impl Fn(&Event, &Event) -> bool) -> [usize; 2] {
    let acquires = acquires(events);
    let pair = acquires.windows(2).find(|pair| {
        let [first, second] = [&events[pair[0]], &events[pair[1]]];
        first.key == second.key
            && first.process != second.process
            && are_meant(first, second)
            && release_of(events, pair[0])
                .is_some_and(|release| events[release].t_invoke - first.t_return.unwrap_or(f64::INFINITY) > 1.0)
    });
    let pair = pair.expect("there is one");
    [pair[0], pair[1]]
}

/// A lease of another process, granted in the middle of that of `acquire`, and over with it.
fn intruder(events: &[Event], acquire: usize, mode: Mode) -> Event {
    let release = release_of(events, acquire).expect("it is released");
    let (got, over) = (events[acquire].t_return.unwrap_or_default(), events[release].t_invoke);
    let at = f64::midpoint(got, over);
    let mut intruder = events[acquire].clone();
    intruder.process = "intruder".to_owned();
    (intruder.t_invoke, intruder.t_return) = (at, Some(at));
    (intruder.token, intruder.fence) = (Some("intruder:1/1".to_owned()), Some(number(&events[acquire]) + 1));
    (intruder.deadline, intruder.mode) = (Some(over), mode);
    intruder
}

#[test]
fn a_second_holder_is_rejected() {
    rejected(RANDOM, "exclusion", Some(Rule::TwoHolders), |events| {
        let [first, _] = successors(events, |_, _| true);
        events.push(intruder(events, first, Mode::Exclusive));
    });
}

#[test]
fn what_is_excused_excuses_no_second_holder_before_and_after() {
    let vanished = |event: &&Event| event.op == Op::Vanished;
    let window = history(FORGETS).events().iter().find(vanished).expect("data was lost").clone();
    let before = |event: &Event| event.t_return < Some(window.t_invoke - 300.0);
    let after = |event: &Event| Some(event.t_invoke) > window.t_return;
    let sides: [&dyn Fn(&Event) -> bool; 2] = [&before, &after];
    for side in sides {
        rejected(FORGETS, "exclusion", Some(Rule::TwoHolders), |events| {
            let [first, _] = successors(events, |first, _| side(first));
            events.push(intruder(events, first, Mode::Exclusive));
        });
    }
}

#[test]
fn a_writer_beside_a_reader_is_rejected() {
    rejected(MODES, "exclusion", Some(Rule::TwoHolders), |events| {
        let [reader, _] = successors(events, |first, _| first.mode == Mode::Shared);
        events.push(intruder(events, reader, Mode::Exclusive));
    });
}

#[test]
fn a_permit_too_many_is_rejected() {
    rejected(MODES, "exclusion", Some(Rule::TwoHolders), |events| {
        let [permit, _] = successors(events, |first, _| matches!(first.mode, Mode::Permits { .. }));
        let Mode::Permits { total, .. } = events[permit].mode else { unreachable!() };
        events.push(intruder(events, permit, Mode::Permits { total, take: total }));
    });
}

#[test]
fn a_release_after_the_next_holder_is_rejected() {
    rejected(RANDOM, "exclusion", Some(Rule::StaleSuccess), |events| {
        let [first, second] = successors(events, |_, _| true);
        let mut again = events[release_of(events, first).expect("it is released")].clone();
        let at = events[second].t_return.unwrap_or_default() + 0.001;
        (again.t_invoke, again.t_return, again.process) = (at, Some(at), format!("{}/again", again.process));
        events.push(again);
    });
}

#[test]
fn fencing_tokens_that_fall_are_rejected() {
    rejected(RANDOM, "fences", Some(Rule::FenceOrder), |events| {
        // The second was asked for when the first had been granted.
        swap_fences(events, |first, second| Some(second.t_invoke) > first.t_return);
    });
}

#[test]
fn fencing_tokens_that_fall_from_holder_to_waiter_are_rejected() {
    rejected(RANDOM, "fences", Some(Rule::FenceOrder), |events| {
        swap_fences(events, |first, second| Some(second.t_invoke) < first.t_return);
    });
}

fn swap_fences(events: &mut [Event], are_meant: impl Fn(&Event, &Event) -> bool) {
    let [first, second] = successors(events, are_meant);
    let (one, other) = (events[first].fence, events[second].fence);
    (events[first].fence, events[second].fence) = (other, one);
}

#[test]
fn a_fencing_token_that_is_given_twice_is_rejected() {
    rejected(RANDOM, "fences", Some(Rule::FenceOrder), |events| {
        let [first, second] = successors(events, |_, _| true);
        events[second].fence = events[first].fence;
    });
}

#[test]
fn a_token_that_is_used_twice_is_rejected() {
    rejected(RANDOM, "tokens", Some(Rule::TokenReuse), |events| {
        let [first, second] = successors(events, |_, _| true);
        let (one, other) = (events[first].token.clone(), events[second].token.clone());
        events.iter_mut().filter(|event| event.token == other).for_each(|event| event.token.clone_from(&one));
    });
}

#[test]
fn a_guard_that_is_valid_after_its_deadline_is_rejected() {
    // A stopped holder would learn of the loss when the deadline is over; here it learns nothing.
    rejected(RANDOM, "guard", Some(Rule::ValidAfterEnd), |events| {
        check_after_loss(events);
        let check = events.pop().expect("there is one");
        events.retain(|event| event.token != check.token || matches!(event.op, Op::Acquire | Op::Extend));
        events.push(check);
    });
}

#[test]
fn a_guard_that_is_valid_after_its_loss_is_rejected() {
    // After a failover the holder learns of the loss before the deadline.
    rejected(FAILS_OVER, "guard", Some(Rule::ValidAfterEnd), check_after_loss);
}

fn check_after_loss(events: &mut Vec<Event>) {
    let mut check = events.iter().find(|event| event.op == Op::Lost).expect("one is lost").clone();
    (check.op, check.valid) = (Op::Check, Some(true));
    (check.t_invoke, check.t_return) = (check.t_invoke + 0.002, Some(check.t_invoke + 0.002));
    check.process += "/later";
    events.push(check);
}

#[test]
fn a_deadline_further_away_than_the_ttl_is_rejected() {
    rejected(RANDOM, "guard", Some(Rule::ValidAfterEnd), |events| {
        let [first, _] = successors(events, |_, _| true);
        let until = events[first].t_return.unwrap_or_default() + events[first].ttl.unwrap_or_default() + 5.0;
        events[first].deadline = Some(until);
    });
}

#[test]
fn a_lost_update_is_rejected() {
    rejected(RANDOM, "register", Some(Rule::Register), |events| {
        let found = |event: &Event| event.prev.as_ref().and_then(Value::as_u64);
        let is_late = |event: &&mut Event| event.op == Op::Write && event.succeeded() && found(event) > Some(5);
        let write = events.iter_mut().find(is_late).expect("there are many");
        write.prev = found(write).map(|number| json!(number - 1));
    });
}

/// The checker has no such rule: a lock that is always busy keeps all of its promises but the one that waiters are served.
#[test]
fn a_key_that_nobody_has_and_is_busy_is_rejected() {
    rejected(RANDOM, "busy", None, |events| {
        let end = events.iter().filter_map(|event| event.t_return).fold(0.0, f64::max) + 3_600_000.0;
        let [first, _] = successors(events, |_, _| true);
        let mut tries = events[first].clone();
        (tries.op, tries.process) = (Op::Acquire, "late".to_owned());
        (tries.token, tries.fence, tries.deadline) = (None, None, None);
        (tries.only_tries, tries.result) = (true, Outcome::Fail);
        (tries.t_invoke, tries.t_return) = (end, Some(end + 1.0));
        events.push(tries);
    });
}

/// The history of processes that are stopped at random.
const RANDOM: &str = "fault-04";
/// The history of a server that comes back without its data.
const FORGETS: &str = "fault-07";
/// The history of a cluster that fails over to a replica without the lease.
const FAILS_OVER: &str = "fault-15-unreplicated";
/// The history of readers, writers and permits.
const MODES: &str = "fault-51";
