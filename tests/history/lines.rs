//! Lines of histories, short to write.

pub(crate) use std::time::Duration;

pub(crate) use lock_tests::history::{
    Checker, Event, History, Mark, Mode, Op, Outcome, Rule, TakenAgain, Undone, Violation,
};
pub(crate) use serde_json::json;

/// The rules that a history breaks, each once.
pub(crate) fn broken(events: &[Event]) -> Vec<Rule> {
    broken_by(&Checker::new(), events)
}

pub(crate) fn broken_by(checker: &Checker, events: &[Event]) -> Vec<Rule> {
    // Through text, in another order: neither may matter.
    let text: Vec<_> = events.iter().rev().map(Event::to_json).collect();
    let mut history = History::default();
    history.add_lines("test.jsonl", &text.join("\n")).expect("what was written can be read");
    let mut rules: Vec<_> = checker.check(&history).into_iter().map(|violation| violation.rule).collect();
    rules.dedup();
    rules
}

pub(crate) const NONE: [Rule; 0] = [];

pub(crate) trait With: Sized {
    fn with(self, change: impl FnOnce(&mut Self)) -> Self;
}

impl With for Event {
    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// A call for the key `k` that came back well.
pub(crate) fn call(process: &str, op: Op, from: f64, to: f64) -> Event {
    Event::new(process, op, from).with(|event| {
        event.key = Some("k".to_owned());
        event.t_return = Some(to);
    })
}

/// An acquire with a ttl of 1 s: the token is made of process and fencing token.
pub(crate) fn acquire(process: &str, fence: u64, from: f64, to: f64) -> Event {
    call(process, Op::Acquire, from, to).with(|event| {
        event.token = Some(format!("{process}:{fence}/1"));
        event.fence = Some(fence);
        event.ttl = Some(1_000.0);
        event.deadline = Some(to + 980.0);
    })
}

pub(crate) fn on_lease(process: &str, fence: u64, op: Op, from: f64, to: f64) -> Event {
    call(process, op, from, to).with(|event| event.token = Some(format!("{process}:{fence}/1")))
}

pub(crate) fn release(process: &str, fence: u64, from: f64, to: f64) -> Event {
    on_lease(process, fence, Op::Release, from, to)
}

pub(crate) fn extend(process: &str, fence: u64, from: f64, to: f64, deadline: f64) -> Event {
    on_lease(process, fence, Op::Extend, from, to).with(|event| event.deadline = Some(deadline))
}

pub(crate) fn check(process: &str, fence: u64, at: f64, valid: bool) -> Event {
    on_lease(process, fence, Op::Check, at, at).with(|event| event.valid = Some(valid))
}

pub(crate) fn lost(process: &str, fence: u64, at: f64) -> Event {
    on_lease(process, fence, Op::Lost, at, at)
}

pub(crate) fn crash(process: &str, at: f64) -> Event {
    Event::new(process, Op::Crash, at)
}

pub(crate) fn fault(from: f64, to: f64) -> Event {
    Event::new("nemesis", Op::Fault, from).with(|event| event.t_return = Some(to))
}

pub(crate) fn standstill(process: &str, from: f64, to: f64) -> Event {
    Event::new(process, Op::Standstill, from).with(|event| event.t_return = Some(to))
}

pub(crate) fn foreign(process: &str, token: &str, from: f64, to: f64) -> Event {
    call(process, Op::Acquire, from, to).with(|event| {
        event.token = Some(token.to_owned());
        event.foreign = true;
        event.ttl = Some(1_000.0);
        event.deadline = Some(from + 1_000.0);
    })
}

pub(crate) fn outcome(outcome: Outcome) -> impl FnOnce(&mut Event) {
    move |event| event.result = outcome
}

pub(crate) fn never_back(event: &mut Event) {
    event.t_return = None;
}

/// Asked for and got nothing: no token, no fencing token, no deadline.
pub(crate) fn in_vain(process: &str, from: f64, to: f64, result: Outcome) -> Event {
    call(process, Op::Acquire, from, to).with(|event| {
        event.ttl = Some(1_000.0);
        event.result = result;
    })
}
