//! Exclusion: no two hold a key at once unless they share it or have permits of it, no store answers that a lease is held when it is not,
//! and no guard believes in a lease that is over.

use super::{
    check::{Case, Rule, end, root},
    event::{Op, Outcome},
    leases::{Key, Lease, Leases},
};

/// No two leases of a key are valid at once, but shared ones, and as many as there are permits.
pub(super) fn check(case: &mut Case<'_>, key: &Key<'_>) {
    let mut valid: Vec<&Lease<'_>> = Vec::new();
    for lease in key.leases.iter().filter(|lease| lease.was_valid()) {
        valid.retain(|earlier| earlier.valid_to > lease.got);
        let mut taken = lease.event.mode.permits().unwrap_or_default().0;
        for earlier in &valid {
            if case.may_both_hold(key.name, earlier, lease) {
                continue;
            }
            if earlier.goes_with(lease) {
                taken += earlier.event.mode.permits().unwrap_or_default().0;
                if lease.event.mode.permits().is_none_or(|(_, total)| taken <= total) {
                    continue;
                }
            }
            let message = || {
                let until = earlier.valid_to.min(lease.valid_to);
                format!(
                    "{:?}: {} relies on its lease from {} to {}, and {} from {} to {}: both for {:.3} ms",
                    key.name,
                    earlier.describe(),
                    earlier.got,
                    earlier.valid_to,
                    lease.describe(),
                    lease.got,
                    lease.valid_to,
                    until - lease.got,
                )
            };
            case.report(Rule::TwoHolders, message, &[earlier.acquire, lease.acquire]);
        }
        valid.push(lease);
        if valid.len() > AT_ONCE {
            valid.remove(0); // nobody keeps to the lock, and that has been told
        }
    }
}

/// No extend or release succeeds that should not; no guard says that it is valid, or is extended, after its end.
pub(super) fn check_answers(case: &mut Case<'_>, leases: &Leases<'_>) {
    for key in leases.keys() {
        let others = Others::of(key);
        for (index, lease) in key.leases.iter().enumerate() {
            check_story(case, lease);
            check_deadlines(case, key, lease);
            for part in lease.story.iter().copied() {
                let event = case.event(part);
                if !matches!(event.op, Op::Extend | Op::Release) || !event.succeeded() {
                    continue;
                }
                let verb = if event.op == Op::Extend { "extended" } else { "released" };
                let (from, to) = (event.t_invoke, end(event));
                let since = case.has_since(key.name, lease, to);
                if let Some(other) = others.acquired_within(index, since, from)
                    // Until it asks the server again a process cannot know that a lease vanished, and passes it on: it
                    // is released, or another passed on what it took nothing with, as its older fencing token tells.
                    && !(case.vanished(key.name, lease.asked, other.got)
                        && (event.op == Op::Release || other.fence.is_some_and(|fence| Some(fence) < lease.fence)))
                    && !is_undone(case, lease, other, from)
                {
                    let message = || {
                        let (name, who, other) = (key.name, lease.describe(), other.describe());
                        format!("{name:?}: {who} {verb} its lease at {from}, though {other} had acquired it meanwhile")
                    };
                    case.report(Rule::StaleSuccess, message, &[lease.acquire, other.acquire, part]);
                } else if let Some(other) = others.valid_throughout(index, from, to)
                    && !case.may_both_hold(key.name, lease, other)
                {
                    let message = || {
                        let (name, who, other) = (key.name, lease.describe(), other.describe());
                        format!("{name:?}: {who} {verb} its lease between {from} and {to}, while {other} held it")
                    };
                    case.report(Rule::StaleSuccess, message, &[lease.acquire, other.acquire, part]);
                }
            }
        }
    }
}

/// Whether a lease may be extended or released at a time, though another was acquired after it: the other was undone, or
/// the server that was asked is a former one.
fn is_undone(case: &Case<'_>, lease: &Lease<'_>, other: &Lease<'_>, at: f64) -> bool {
    case.undone(other).any(|undone| undone.meets(other.asked, other.got))
        || case.undone(lease).any(|undone| undone.meets(other.asked, at) && at <= undone.last)
}

/// One lease by itself.
fn check_story(case: &mut Case<'_>, lease: &Lease<'_>) {
    let mut deadlines = Deadlines::new(lease);
    let (mut released, mut removed, mut lost) = (None::<usize>, None::<usize>, None::<usize>);
    let parts = &lease.story;
    for part in parts.iter().copied() {
        deadlines.add(case, part);
    }
    for part in parts.iter().copied() {
        let event = case.event(part);
        let at = event.t_invoke;
        match event.op {
            Op::Lost => {
                lost.get_or_insert(part);
                continue;
            }
            Op::Check if event.valid == Some(true) => {}
            Op::Extend | Op::Release if event.succeeded() => {
                if root(&event.process) != root(&lease.event.process) {
                    let message = || format!("{} did so with the lease of {}", event.process, lease.describe());
                    case.report(Rule::StaleSuccess, message, &[lease.acquire, part]);
                }
                if let Some(before) = removed.filter(|before| end(case.event(*before)) <= at) {
                    let message = || format!("{} had removed its lease before", lease.describe());
                    case.report(Rule::StaleSuccess, message, &[lease.acquire, before, part]);
                }
            }
            _ => {}
        }
        let believes = event.op == Op::Check && event.valid == Some(true)
            // Another library may extend what is over by its own clock, as long as the key is there.
            || event.op == Op::Extend && event.succeeded() && !lease.event.foreign;
        if believes {
            let says = if event.op == Op::Check { "says that it is valid" } else { "is extended" };
            let deadline = deadlines.at(at, end(event), part);
            let ended = released.filter(|released| end(case.event(*released)) <= at);
            if let Some(lost) = lost.filter(|lost| case.event(*lost).t_invoke < at) {
                let told = case.event(lost).t_invoke;
                let message = || format!("the guard of {} {says} at {at}, lost at {told}", lease.describe());
                case.report(Rule::ValidAfterEnd, message, &[lease.acquire, lost, part]);
            } else if let Some(released) = ended {
                let message = || format!("the guard of {} {says} at {at}, after its release", lease.describe());
                case.report(Rule::ValidAfterEnd, message, &[lease.acquire, released, part]);
            } else if at > deadline + READING {
                let message =
                    || format!("the guard of {} {says} at {at}, after its deadline {deadline}", lease.describe());
                case.report(Rule::ValidAfterEnd, message, &[lease.acquire, part]);
            }
        }
        if event.op == Op::Release {
            released.get_or_insert(part);
            if event.succeeded() {
                removed.get_or_insert(part);
            }
        }
    }
}

/// Nobody relies on a lease for longer than a ttl from now on, less what is taken off for clocks that run at different
/// rates.
fn check_deadlines(case: &mut Case<'_>, key: &Key<'_>, lease: &Lease<'_>) {
    let Some(ttl) = key.longest_ttl(lease).filter(|_| !lease.event.foreign) else { return };
    for part in [lease.acquire].into_iter().chain(lease.story.iter().copied()) {
        let event = case.event(part);
        if let Some((deadline, known)) = event.deadline.zip(event.t_return)
            && deadline > known + ttl * LESS_DRIFT - READING
        {
            let who = lease.describe();
            let message = || format!("{who} relies on its lease at {known} until {deadline}, its ttl is {ttl} ms");
            case.report(Rule::ValidAfterEnd, message, &[lease.acquire, part]);
        }
    }
}

/// Which deadline a lease had when.
struct Deadlines {
    first: f64,
    /// Each change: when it was asked for, when it was known, what it became, and by which event.
    changes: Vec<(f64, f64, f64, usize)>,
}

impl Deadlines {
    fn new(lease: &Lease<'_>) -> Self {
        let by_ttl = lease.event.ttl.map(|ttl| lease.asked + ttl);
        Self { first: lease.event.deadline.or(by_ttl).unwrap_or(f64::INFINITY), changes: Vec::new() }
    }

    fn add(&mut self, case: &Case<'_>, part: usize) {
        let event = case.event(part);
        if event.op != Op::Extend || (event.result == Outcome::Fail && event.deadline.is_none()) {
            return;
        }
        let by_ttl = event.ttl.map(|ttl| end(event).min(event.t_invoke) + ttl);
        if let Some(deadline) = event.deadline.or(by_ttl) {
            // A renewal may be noticed while the user extends: what was known last counts.
            let at = self.changes.partition_point(|(_, known, ..)| *known <= end(event));
            self.changes.insert(at, (event.t_invoke, end(event), deadline, part));
        }
    }

    /// The latest deadline that can have been in force between `from` and `to`, `but` one change. Of two changes that were
    /// under way together either may have been the last.
    fn at(&self, from: f64, to: f64, but: usize) -> f64 {
        let (mut latest, mut last_known) = (self.first, f64::NEG_INFINITY);
        for (asked, known, deadline, part) in &self.changes {
            if *part == but || *asked > to {
                continue;
            }
            latest = if *known <= from && *asked >= last_known { *deadline } else { latest.max(*deadline) };
            last_known = last_known.max(*known);
        }
        latest
    }
}

/// The leases of one key, to ask who was in between.
struct Others<'k, 'a> {
    /// In the order of `got`.
    leases: &'k [Lease<'a>],
    /// Until when any of a lease and of all before it was valid.
    valid_to: Vec<f64>,
}

impl<'k, 'a> Others<'k, 'a> {
    fn of(key: &'k Key<'a>) -> Self {
        let valid_to = key.leases.iter().scan(f64::NEG_INFINITY, |longest, lease| {
            *longest = longest.max(lease.valid_to);
            Some(*longest)
        });
        Self { leases: &key.leases, valid_to: valid_to.collect() }
    }

    /// Whether one lease cannot be valid beside another.
    fn excludes(&self, one: usize, other: usize) -> bool {
        one != other && !self.leases[one].goes_with(&self.leases[other])
    }

    /// One that was asked for and got between two moments.
    fn acquired_within(&self, but: usize, from: f64, to: f64) -> Option<&'k Lease<'a>> {
        let got_before = |time: f64| self.leases.partition_point(|lease| lease.got < time);
        let got = (got_before(from)..self.leases.len()).take_while(|index| self.leases[*index].got <= to);
        let others = got.filter(|index| self.excludes(but, *index));
        others.map(|index| &self.leases[index]).find(|lease| lease.asked >= from)
    }

    /// One that was valid all the time between two moments: the longest.
    fn valid_throughout(&self, but: usize, from: f64, to: f64) -> Option<&'k Lease<'a>> {
        let got_before = self.leases.partition_point(|lease| lease.got <= from);
        // Before the first of these none was valid for so long.
        let valid = (0..got_before).rev().take_while(|index| self.valid_to[*index] >= to);
        let others = valid.filter(|index| self.excludes(but, *index)).map(|index| &self.leases[index]);
        let others = others.filter(|lease| lease.was_valid() && lease.valid_to >= to);
        others.max_by(|a, b| a.valid_to.total_cmp(&b.valid_to))
    }
}

/// How far the two clocks that a deadline is read from may be read apart.
const READING: f64 = 1.0;

/// What is left of a ttl at least when the allowance for drift was taken off and a clock runs as slowly as it may.
const LESS_DRIFT: f64 = 0.99 / 0.992;

/// How many holders at once are compared with a new one.
const AT_ONCE: usize = 64;
