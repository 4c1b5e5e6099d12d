//! The judge: which rules there are, what is excused, and what a breach looks like.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::Serialize;

use super::{
    downgrade,
    event::{Event, Op},
    exclusion,
    leases::{self, Crashes, Lease},
    order,
    read::History,
    record::Run,
    register,
    undone::{TakenAgain, Undone},
    waiting,
};
use crate::wait::HANDOFF;

/// What a history has to keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// A line says what cannot be: it is no history.
    Malformed,
    /// No two leases of a key are valid at once, each by its own client's reckoning, but shared ones, and as many as there are
    /// permits.
    TwoHolders,
    /// Each lease has a fencing token, and they strictly rise, in real-time order and in the order of holding. Shared leases may
    /// have the same, with no other lease in between, and have the same if they are valid at once, unless they are of a quorum.
    FenceOrder,
    /// No token is used by two tenures.
    TokenReuse,
    /// No extend or release succeeds while, or after, another holds; none twice, and none by another process. Nobody holds between
    /// an exclusive lease and the shared one that it becomes.
    StaleSuccess,
    /// No guard says that it is valid after its deadline, release or loss, and no extend revives it. No deadline lies
    /// further ahead than a ttl.
    ValidAfterEnd,
    /// The register never goes back, no update of it is lost, nobody finds in it what nobody wrote, and nobody writes while it
    /// is read under a share.
    Register,
    /// No waiter is left waiting longer than the bound while the key is surely free, and no reader while surely nobody but readers
    /// has the key or waits for it.
    LeftWaiting,
    /// Nothing is left over.
    Leftover,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A breach of a rule.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Of which one.
    pub rule: Rule,
    /// What is wrong, with the times.
    pub message: String,
    /// The lines that prove it.
    pub lines: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.message)?;
        self.lines.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// A moment at which leases vanished though their holders believed in them: the server lost its data, or somebody
/// deleted the key. A holder from before and one from after may be valid at once, and within the mark a process may
/// pass on inside itself what it had before, with a fencing token of before; nothing else is excused.
#[derive(Clone, Debug)]
pub struct Mark {
    /// Which key; all when none is named.
    pub key: Option<String>,
    /// When at the earliest.
    pub from: f64,
    /// When at the latest.
    pub to: f64,
}

/// Judges histories.
#[derive(Clone, Debug, Default)]
pub struct Checker {
    /// How long a waiter may wait while its key is free, in ms.
    pub bound: f64,
    /// Across these two holders are excused.
    pub marks: Vec<Mark>,
    /// What follows from leases that a server has forgotten is excused, and nothing about any other lease.
    pub undone: Vec<Undone>,
    /// That a lease which vanished is extended after its key came back to it unseen is excused.
    pub taken_again: Vec<TakenAgain>,
    /// A reader is excused that gets the fencing token of the readers that held the key when a server was copied:
    /// it failed over to the copy, which knows nothing of their releases, and of no lease after them.
    pub failed_over: bool,
    /// Readers are excused that hold a key together with numbers of their own, as those of a quorum do.
    pub of_quorum: bool,
}

impl Checker {
    /// A checker that excuses nothing and lets waiters wait 250 ms for a free key.
    pub fn new() -> Self {
        Self { bound: 250.0, ..Self::default() }
    }

    /// Lets waiters wait for `bound` while the key is surely free. Only time counts in which their process ran, and that of the
    /// test; see [standstills](super#standstills).
    pub fn bound(mut self, bound: Duration) -> Self {
        self.bound = bound.as_secs_f64() * 1_000.0;
        self
    }

    /// Excuses two holders across `mark`, and what a process passes on inside itself within it.
    pub fn mark(mut self, mark: Mark) -> Self {
        self.marks.push(mark);
        self
    }

    /// Every breach of a rule, in the order of the rules; none for a history without fault. Of each rule the first
    /// twenty are told.
    pub fn check(&self, history: &History) -> Vec<Violation> {
        let mut case = Case { history, checker: self, violations: BTreeMap::new() };
        let sound = case.sound_events();
        let leases = leases::collect(&mut case, &sound);
        case.check_crashes(&sound, &leases.crashes);
        for key in leases.keys() {
            exclusion::check(&mut case, key);
            order::check(&mut case, key);
            downgrade::check(&mut case, key);
            waiting::check(&mut case, key, &leases);
        }
        order::check_tokens(&mut case, &leases);
        exclusion::check_answers(&mut case, &leases);
        register::check(&mut case, &sound);
        case.check_leftovers(&sound);
        case.violations.into_values().flatten().collect()
    }

    /// Panics with every breach, if there is one.
    ///
    /// # Panics
    /// That is what it is for.
    #[track_caller]
    pub fn assert_clean(&self, history: &History) {
        let violations = self.check(history);
        if !violations.is_empty() {
            let told: Vec<_> = violations.iter().map(ToString::to_string).collect();
            panic!("{} rules were broken:\n{}", violations.len(), told.join("\n"));
        }
    }
}

/// One history under judgement.
pub(super) struct Case<'a> {
    pub(super) history: &'a History,
    pub(super) checker: &'a Checker,
    violations: BTreeMap<Rule, Vec<Violation>>,
}

impl<'a> Case<'a> {
    pub(super) fn event(&self, event: usize) -> &'a Event {
        &self.history.events[event]
    }

    /// Notes a breach; `events` prove it.
    pub(super) fn report(&mut self, rule: Rule, message: impl FnOnce() -> String, events: &[usize]) {
        let told = self.violations.entry(rule).or_default();
        if told.len() < TOLD_AT_MOST {
            let lines = events.iter().map(|event| self.history.show(*event)).collect();
            told.push(Violation { rule, message: message(), lines });
        }
    }

    /// Whether leases of `key` vanished at some moment between `from` and `to`.
    pub(super) fn vanished(&self, key: &str, from: f64, to: f64) -> bool {
        let mut marks = self.checker.marks.iter().filter(|mark| mark.key.as_deref().is_none_or(|marked| marked == key));
        marks.any(|mark| from <= mark.to && mark.from <= to)
    }

    /// What a server has forgotten of a lease.
    pub(super) fn undone(&self, lease: &Lease<'_>) -> impl Iterator<Item = &'a Undone> {
        let token = lease.event.token.clone();
        self.checker.undone.iter().filter(move |undone| token.as_ref() == Some(&undone.token))
    }

    /// Since when a lease has had its key without a break, as far as anybody can know at a time.
    pub(super) fn has_since(&self, key: &str, lease: &Lease<'_>, at: f64) -> f64 {
        let of_lease = |again: &&TakenAgain| lease.event.token.as_ref() == Some(&again.token);
        // A key that did not vanish was not free, unless its lease had lapsed. That is no excuse: the holder knows of it.
        let is_excused = |again: &f64| *again <= at && self.vanished(key, lease.asked, *again);
        let again = self.checker.taken_again.iter().filter(of_lease).map(|again| again.at);
        again.filter(is_excused).fold(lease.got, f64::max)
    }

    /// Whether two leases of `key` may be valid at once: leases vanished between them, or the server knew nothing of one
    /// when the other was granted.
    pub(super) fn may_both_hold(&self, key: &str, one: &Lease<'_>, other: &Lease<'_>) -> bool {
        let got = one.got.max(other.got);
        self.vanished(key, one.asked.min(other.asked), got)
            || self.undone(one).any(|undone| undone.meets(other.asked, got))
            || self.undone(other).any(|undone| undone.meets(one.asked, got))
    }

    /// The events that make sense each for itself; the others are reported.
    fn sound_events(&mut self) -> Vec<usize> {
        let mut sound = Vec::with_capacity(self.history.events.len());
        for (index, event) in self.history.events.iter().enumerate() {
            let wrong = if event.op != Op::Leftover && !event.t_invoke.is_finite() {
                "t_invoke is missing"
            } else if event.t_return.is_some_and(|t_return| t_return.is_nan() || t_return < event.t_invoke) {
                "it returned before it was called"
            } else if event.op.is_call() && event.key.is_none() {
                "it names no key"
            } else if event.op.is_call() && event.process.is_empty() {
                "it names no process"
            } else if event.op == Op::Acquire && event.succeeded() && event.token.is_none() {
                "it acquired a lease without a token"
            } else {
                sound.push(index);
                continue;
            };
            self.report(Rule::Malformed, || wrong.to_owned(), &[index]);
        }
        self.check_overlaps(&sound);
        sound
    }

    /// Nobody acts any more who was killed.
    fn check_crashes(&mut self, sound: &[usize], crashes: &Crashes<'_>) {
        for index in sound.iter().copied() {
            let event = self.event(index);
            if event.op.is_call()
                && let Some((_, crash)) = crashes.of(&event.process).find(|(at, _)| *at < event.t_invoke)
            {
                let message = || format!("{} acts after it was killed", event.process);
                self.report(Rule::Malformed, message, &[crash, index]);
            }
        }
    }

    /// A process has at most one operation under way. (It can be told of a loss at any time.)
    fn check_overlaps(&mut self, sound: &[usize]) {
        let mut calls: Vec<usize> = sound
            .iter()
            .copied()
            .filter(|event| self.event(*event).op.is_call() && self.event(*event).op != Op::Lost)
            .collect();
        calls.sort_by(|a, b| {
            let (a, b) = (self.event(*a), self.event(*b));
            a.process.cmp(&b.process).then(a.t_invoke.total_cmp(&b.t_invoke)).then(end(a).total_cmp(&end(b)))
        });
        for pair in calls.windows(2) {
            let (former, next) = (self.event(pair[0]), self.event(pair[1]));
            if former.process == next.process && former.t_return.is_some_and(|t_return| next.t_invoke < t_return) {
                let message = || format!("{} has two operations under way", next.process);
                self.report(Rule::Malformed, message, pair);
            }
        }
    }

    fn check_leftovers(&mut self, sound: &[usize]) {
        for index in sound {
            let event = self.event(*index);
            if event.op != Op::Leftover || event.allowed {
                continue;
            }
            let is_short = |max: f64| event.pttl.is_some_and(|pttl| pttl >= 0.0 && pttl < max);
            if !event.max_pttl.is_some_and(is_short) {
                let key = event.key.as_deref().unwrap_or("?");
                let lives = event.pttl.map_or_else(|| "for ever".to_owned(), |pttl| format!("{pttl} ms more"));
                self.report(Rule::Leftover, || format!("{key:?} is left over, and lives {lives}"), &[*index]);
            }
        }
    }
}

/// The history of a run that breaks no rule.
///
/// # Panics
/// With every breach, if there is one.
#[track_caller]
pub fn judged(run: &Run) -> History {
    judged_by(run, Checker::new())
}

/// The same by a checker that excuses something: its marks are written down, for other judges. A waiter may wait for [`HANDOFF`]
/// while its key is free.
///
/// # Panics
/// With every breach, if there is one.
#[track_caller]
pub fn judged_by(run: &Run, checker: Checker) -> History {
    checker.marks.iter().for_each(|mark| run.vanished(mark));
    let history = run.history().expect("the files can be read");
    checker.bound(HANDOFF).assert_clean(&history);
    history
}

/// The process that a task belongs to, or the process itself.
pub(super) fn root(process: &str) -> &str {
    process.split('/').next().unwrap_or_default()
}

/// When a call was over; never for one that did not come back.
pub(super) fn end(event: &Event) -> f64 {
    event.t_return.unwrap_or(f64::INFINITY)
}

const TOLD_AT_MOST: usize = 20;
