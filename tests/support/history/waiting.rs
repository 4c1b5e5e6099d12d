//! Waiters of a key that nobody holds.

use super::{
    check::{Case, Rule, end},
    event::{Event, Outcome},
    leases::{Key, Lease, Leases},
    mode::Mode,
    standstill::Standing,
};

/// No waiter is left waiting longer than the bound while the key is surely free.
///
/// The key is surely free where no lease and no attempt can have it. A lease can have it from its acquire on, but not
/// before the end of what the former holder relied on, until it was released or has expired. An attempt whose outcome
/// nobody knows can have it, too; but nothing that is unknown reaches over another's hold. Who wants several keys at
/// once can have each all the time, and waits for no one knows which: he is not judged. While its process stood still a waiter
/// does not wait, nor while that of the test did; see [standstills](super#standstills).
///
/// A reader does not wait either while readers have the key, unless somebody else has or wants it: that one may come before it.
pub(super) fn check(case: &mut Case<'_>, key: &Key<'_>, all: &Leases<'_>) {
    let mut waiters: Vec<Cover> = Vec::new();
    for lease in &key.leases {
        waiters.push(Cover { acquire: lease.acquire, from: lease.asked, to: lease.got });
    }
    for attempt in key.attempts.iter().copied() {
        let event = case.event(attempt);
        let crash = all.crashes.after(&event.process, event.t_invoke);
        let to = end(event).min(crash.unwrap_or(f64::INFINITY)).min(all.end);
        waiters.push(Cover { acquire: attempt, from: event.t_invoke, to });
    }
    waiters.retain(|waiter| {
        let event = case.event(waiter.acquire);
        !event.only_tries && !event.several && !event.foreign && waiter.to - waiter.from > case.checker.bound
    });
    waiters.sort_by(|a, b| a.from.total_cmp(&b.from));

    let told = judge(case, key, all, &waiters, &Covers::of(case, key, all), "surely free");
    let is_reader = |waiter: &Cover| case.event(waiter.acquire).mode == Mode::Shared;
    waiters.retain(|waiter| is_reader(waiter) && !told.contains(&waiter.acquire));
    if !waiters.is_empty() {
        judge(case, key, all, &waiters, &Covers::but_readers(case, key, all), "surely for readers alone");
    }
}

/// Finds those that are left waiting while nothing covers the key. Returns who was.
fn judge(
    case: &mut Case<'_>,
    key: &Key<'_>,
    all: &Leases<'_>,
    waiters: &[Cover],
    covers: &Covers,
    state: &str,
) -> Vec<usize> {
    let mut left_out = Vec::new();
    let gaps = covers.gaps(case.checker.bound, all.end);
    let mut told = vec![false; gaps.len()];
    for waiter in waiters {
        let standing = case.history.standstills.of(&case.event(waiter.acquire).process);
        // Before anybody can have had it.
        let first = gaps.partition_point(|gap| gap.1 <= waiter.from);
        let mut reported = false;
        for (index, gap) in gaps.iter().enumerate().skip(first).take_while(|(_, gap)| gap.0 < waiter.to) {
            if let Some(left) = left_waiting(case, all, &standing, (waiter.from.max(gap.0), waiter.to.min(gap.1))) {
                if !told[index] {
                    tell(case, key, waiter, left, state);
                }
                told[index] = true;
                reported = true;
            }
        }
        // Until it got it, or gave up, itself.
        let free = covers.last_before(waiter.to, waiter.acquire);
        if !reported && let Some(left) = left_waiting(case, all, &standing, (waiter.from.max(free), waiter.to)) {
            tell(case, key, waiter, left, state);
            reported = true;
        }
        if reported {
            left_out.push(waiter.acquire);
        }
    }
    left_out
}

fn tell(case: &mut Case<'_>, key: &Key<'_>, waiter: &Cover, (from, to): (f64, f64), state: &str) {
    let process = &case.event(waiter.acquire).process;
    let stood = case.history.standstills.of(process).stood(from, to);
    let message = || {
        let (name, length) = (key.name, to - from);
        format!(
            "{name:?}: {process} waits from {from} to {to}, {length:.3} ms, for a key that is {state}; \
             it stood still for {stood:.3} ms of them"
        )
    };
    case.report(Rule::LeftWaiting, message, &[waiter.acquire]);
}

/// The first stretch between two moments in which the process of the waiter ran for longer than the bound, and that is not
/// excused.
fn left_waiting(case: &Case<'_>, all: &Leases<'_>, standing: &Standing, span: (f64, f64)) -> Option<(f64, f64)> {
    let (mut from, to) = span;
    let is_long = |from: f64, to: f64| to - from > case.checker.bound && standing.ran(from, to) > case.checker.bound;
    let first = all.faults.partition_point(|fault| fault.1 <= from);
    for fault in &all.faults[first..] {
        if fault.0 >= to {
            break;
        }
        if is_long(from, fault.0) {
            return Some((from, fault.0));
        }
        from = from.max(fault.1);
    }
    is_long(from, to).then_some((from, to))
}

/// When somebody waited for the key, or can have had it.
#[derive(Clone, Copy)]
struct Cover {
    acquire: usize,
    from: f64,
    to: f64,
}

/// All of a key, by their beginning; with each, of it and all before it, the two that end last.
struct Covers {
    covers: Vec<(Cover, [Option<Cover>; 2])>,
}

impl Covers {
    fn of(case: &Case<'_>, key: &Key<'_>, all: &Leases<'_>) -> Self {
        let valid: Vec<&Lease<'_>> = key.leases.iter().filter(|lease| lease.was_valid()).collect();
        let mut longest = f64::NEG_INFINITY;
        // Until when those that were got so far were relied on.
        let relied: Vec<f64> = valid
            .iter()
            .map(|lease| {
                longest = longest.max(lease.valid_to);
                longest
            })
            .collect();
        let begins = |event: &Event, asked: f64, known: f64| {
            if event.several {
                return asked;
            }
            let before = valid.partition_point(|lease| lease.got < known);
            let relied = before.checked_sub(1).map_or(f64::NEG_INFINITY, |last| relied[last]);
            asked.max(relied.min(known))
        };
        // The next one that cannot be valid beside it.
        let next_after = |time: f64, mode: Mode| {
            let mut later = valid[valid.partition_point(|lease| lease.got <= time)..].iter();
            later.find(|lease| !lease.event.mode.goes_with(mode)).map_or(f64::INFINITY, |lease| lease.got)
        };
        let mut covers: Vec<Cover> = Vec::with_capacity(key.leases.len());
        for lease in &key.leases {
            let (from, to) = if lease.was_valid() {
                (begins(lease.event, lease.asked, lease.got), lease.held_to)
            } else {
                // Known too late: others may have been in between.
                (lease.asked, lease.held_to.min(lease.got + lease.event.ttl.unwrap_or(f64::INFINITY)))
            };
            covers.push(Cover { acquire: lease.acquire, from, to: to.min(next_after(lease.got, lease.event.mode)) });
        }
        for attempt in key.attempts.iter().copied() {
            let event = case.event(attempt);
            if event.result == Outcome::Fail {
                continue;
            }
            let crash = all.crashes.after(&event.process, event.t_invoke);
            let known = end(event).min(crash.unwrap_or(f64::INFINITY)).min(all.end);
            let ttl = event.ttl.unwrap_or(f64::INFINITY);
            let from = begins(event, event.t_invoke, known);
            // One that hears nothing for ever does not renew either.
            let last = if event.t_return.is_none() && crash.is_none() { from } else { known };
            covers.push(Cover { acquire: attempt, from, to: (last + ttl).min(next_after(known, event.mode)) });
        }
        Self::new(covers)
    }

    /// When somebody can have had the key, or waited for it, who does not share it.
    fn but_readers(case: &Case<'_>, key: &Key<'_>, all: &Leases<'_>) -> Self {
        let is_other = |acquire: usize| case.event(acquire).mode != Mode::Shared;
        let leases = key.leases.iter().filter(|lease| is_other(lease.acquire));
        let mut covers: Vec<Cover> = leases
            .map(|lease| {
                let ttl = lease.event.ttl.unwrap_or(f64::INFINITY);
                let to = if lease.was_valid() { lease.held_to } else { lease.held_to.min(lease.got + ttl) };
                Cover { acquire: lease.acquire, from: lease.asked, to: to.max(lease.got) }
            })
            .collect();
        for attempt in key.attempts.iter().copied().filter(|attempt| is_other(*attempt)) {
            let event = case.event(attempt);
            let crash = all.crashes.after(&event.process, event.t_invoke);
            let known = end(event).min(crash.unwrap_or(f64::INFINITY)).min(all.end);
            let ttl = if event.result == Outcome::Fail { 0.0 } else { event.ttl.unwrap_or(f64::INFINITY) };
            covers.push(Cover { acquire: attempt, from: event.t_invoke, to: known + ttl.max(PLACE) });
        }
        Self::new(covers)
    }

    fn new(mut covers: Vec<Cover>) -> Self {
        covers.sort_by(|a, b| a.from.total_cmp(&b.from));
        let mut last = [None, None];
        let covers = covers
            .into_iter()
            .map(|cover| {
                enter(&mut last, cover, |a, b| a.to > b.to);
                (cover, last)
            })
            .collect();
        Self { covers }
    }

    /// Until when those that began before `time` can have had the key, `but` one.
    fn last_before(&self, time: f64, but: usize) -> f64 {
        let before = self.covers.partition_point(|(cover, _)| cover.from < time);
        let last = before.checked_sub(1).map(|last| self.covers[last].1);
        let other = last.iter().flatten().flatten().find(|cover| cover.acquire != but);
        other.map_or(f64::NEG_INFINITY, |cover| cover.to)
    }

    /// Where nobody can have had it for longer than `bound`, until `end`.
    fn gaps(&self, bound: f64, end: f64) -> Vec<(f64, f64)> {
        let mut free = f64::NEG_INFINITY;
        let mut gaps = Vec::new();
        for from in self.covers.iter().map(|(cover, _)| Some(cover)).chain([None]) {
            let until = from.map_or(end, |cover| cover.from);
            if until - free > bound {
                gaps.push((free, until));
            }
            free = free.max(from.map_or(end, |cover| cover.to));
        }
        gaps
    }
}

/// Enters one among the two best.
fn enter<T: Copy>(best: &mut [Option<T>; 2], one: T, better: impl Fn(T, T) -> bool) {
    match *best {
        [Some(first), _] if !better(one, first) => {
            if best[1].is_none_or(|second| better(one, second)) {
                best[1] = Some(one);
            }
        }
        [first, _] => *best = [Some(one), first],
    }
}

/// How long a place can outlast its owner, in ms: what was asked for last, and may come late, counts from then.
const PLACE: f64 = 4_000.0;
