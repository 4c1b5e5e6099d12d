//! Who comes first. A history of real processes does not tell, since nobody sees from outside when a place was made;
//! here it is known by when, if nothing breaks.

use std::collections::HashMap;

use super::world::{State, World};
use crate::history::{Event, Op, Outcome};

/// One acquire.
struct Wait<'a> {
    event: &'a Event,
    client: &'a str,
    from: f64,
    /// When it was answered.
    to: f64,
    /// When its lease was over, if it got one.
    over: f64,
}

impl Wait<'_> {
    /// Whether both may have the key at once.
    fn goes_with(&self, other: &Self) -> bool {
        self.event.mode.goes_with(other.event.mode)
    }

    fn got(&self) -> bool {
        self.event.succeeded()
    }

    /// Whether it stood in line from its beginning to its end: it was polled in time, and is not one of several.
    fn stands_in_line(&self) -> bool {
        let Event { only_tries, several, foreign, result, .. } = self.event;
        !only_tries && !several && !foreign && *result != Outcome::Info
    }
}

/// Every waiter that was passed by a later one: the rule, and how.
pub(super) fn check(world: &World, state: &State, events: &[Event]) -> Vec<(&'static str, String)> {
    let mut ends: HashMap<&str, f64> = HashMap::new();
    for event in events.iter().filter(|event| matches!(event.op, Op::Release | Op::Lost)) {
        if let Some(token) = &event.token {
            let end = event.t_return.unwrap_or(f64::INFINITY);
            ends.entry(token).and_modify(|known| *known = known.max(end)).or_insert(end);
        }
    }
    let mut keys: HashMap<&str, Vec<Wait<'_>>> = HashMap::new();
    for event in events.iter().filter(|event| event.op == Op::Acquire) {
        let to = event.t_return.unwrap_or(f64::INFINITY);
        let token = event.token.as_deref().filter(|_| event.succeeded());
        let over = token.map_or(to, |token| ends.get(token).copied().unwrap_or(f64::INFINITY));
        let client = event.process.split('/').next().unwrap_or_default();
        let key = event.key.as_deref().unwrap_or_default();
        keys.entry(key).or_default().push(Wait { event, client, from: event.t_invoke, to, over });
    }
    let mut found = Vec::new();
    for (key, mut waits) in keys {
        waits.sort_by(|a, b| a.to.total_cmp(&b.to));
        // A connection and a call that waits for those under way.
        let margin = (world.plan.latency.1 * 10) as f64 / 1_000.0 + 10.0;
        if !state.has_vanished(key) {
            found.extend(within(world, state, &waits, margin));
        }
        if world.plan.is_calm() && !world.plan.store.is_quorum() {
            let in_gaps = &state.servers[0].node.audit.in_gaps;
            let in_gap = |wait: &Wait<'_>| {
                in_gaps.iter().any(|(of, fence)| of.as_str() == key && wait.event.fence == Some(*fence))
            };
            found.extend(between(&waits, margin, in_gap));
        }
    }
    found
}

/// Inside a process: first come, first served.
fn within(world: &World, state: &State, waits: &[Wait<'_>], margin: f64) -> Option<(&'static str, String)> {
    let link = |client: &str| {
        let number = client.trim_start_matches('c').parse::<usize>().ok();
        number.and_then(|number| state.links.get(number))
    };
    let is_steady = |client: &str| link(client).is_some_and(|link| link.disturbed == 0 && !link.dead);
    // Calls that wait for the first connection leave in any order, if they come together.
    let is_connected = |wait: &Wait<'_>| {
        let since = link(wait.client).and_then(|link| link.ways.first()?.first_up);
        since.is_some_and(|since| wait.from > since as f64 / 1_000.0)
    };
    for later in waits.iter().filter(|wait| wait.stands_in_line() && wait.got() && is_steady(wait.client)) {
        let passed = waits.iter().filter(|wait| wait.client == later.client && wait.stands_in_line());
        for first in passed.filter(|first| !first.goes_with(later)) {
            // Each has a place of its own, which may be lost.
            let is_first = is_connected(first) || later.from >= first.from + margin;
            let is_judged = world.plan.is_calm() && !world.plan.store.is_quorum() && is_first;
            if !world.plan.mix.is_plain() && !is_judged {
                continue;
            }
            if first.from < later.from && later.to + AT_ONCE < first.to {
                return Some(("out-of-turn", told(first, later)));
            }
        }
    }
    None
}

/// Between processes: a waiter that is alone in its process comes before the first of another that came after it, unless that
/// one came in the gap between an expiry, or the release of another library, and the next check of those who wait.
fn between(waits: &[Wait<'_>], margin: f64, in_gap: impl Fn(&Wait<'_>) -> bool) -> Option<(&'static str, String)> {
    let leases: Vec<_> = waits.iter().filter(|wait| wait.got()).collect();
    for first in waits.iter().filter(|wait| wait.stands_in_line() && wait.to - wait.from > margin) {
        let alone = waits.iter().all(|other| {
            std::ptr::eq(other, first)
                || other.client != first.client
                || other.from > first.to
                || other.over + SETTLED < first.from
        });
        if !alone {
            continue;
        }
        for pair in leases.windows(2) {
            let [before, later] = pair else { continue };
            let passes = later.stands_in_line()
                && !in_gap(later)
                && later.client != first.client
                && !later.goes_with(first)
                && later.from > first.from + margin
                && later.to + AT_ONCE < first.to;
            // It may have had the place of one who came before, and a process passes a key on inside itself.
            let is_first = before.client != later.client
                && waits.iter().all(|other| {
                    other.client != later.client
                        || other.from > first.from + margin
                        || other.over + SETTLED < first.from
                });
            if passes && is_first {
                return Some(("overtaken", told(first, later)));
            }
        }
    }
    None
}

fn told(first: &Wait<'_>, later: &Wait<'_>) -> String {
    let (one, other) = (&first.event.process, &later.event.process);
    format!("{one} waits from {} to {}, and {other} from {} to {}", first.from, first.to, later.from, later.to)
}

/// What happens within one moment has no order, in ms.
const AT_ONCE: f64 = 1.0;

/// How long after its end an acquire may have left something, in ms.
const SETTLED: f64 = 300.0;
