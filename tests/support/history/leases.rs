//! Events put together: which lease each of them is about, how long its holder relied on it, and how long it can have
//! stood in the way of others.

use std::collections::{BTreeMap, HashMap};

use super::{
    check::{Case, Rule, end, root},
    event::{Event, Op, Outcome},
};

/// A lease that was acquired.
#[derive(Debug)]
pub(super) struct Lease<'a> {
    /// The event of its acquire.
    pub(super) acquire: usize,
    pub(super) event: &'a Event,
    /// When the acquire was called, and when its holder knew.
    pub(super) asked: f64,
    pub(super) got: f64,
    pub(super) fence: Option<u64>,
    /// The extends, releases, losses and checks of it, by the time of their call.
    pub(super) story: Vec<usize>,
    /// Until when its own client relied on it. Nothing if that is before `got`.
    pub(super) valid_to: f64,
    /// Until when the key can have held its token, if nothing else is known of the key.
    pub(super) held_to: f64,
}

impl Lease<'_> {
    /// Whether its holder relied on it for a moment at least.
    pub(super) fn was_valid(&self) -> bool {
        self.valid_to > self.got
    }

    /// Whether both may be valid at once, if there are permits enough.
    pub(super) fn goes_with(&self, other: &Self) -> bool {
        self.event.mode.goes_with(other.event.mode)
    }

    pub(super) fn describe(&self) -> String {
        let Event { process, fence, foreign, .. } = self.event;
        match fence {
            _ if *foreign => format!("{process} (foreign)"),
            Some(fence) => format!("{process} (fence {fence})"),
            None => process.clone(),
        }
    }
}

/// Everything about one key.
#[derive(Debug)]
pub(super) struct Key<'a> {
    pub(super) name: &'a str,
    /// In the order of `got`.
    pub(super) leases: Vec<Lease<'a>>,
    /// Acquires that did not succeed: refused, not known, or never back.
    pub(super) attempts: Vec<usize>,
    /// The longest ttl that each process asked for.
    longest: HashMap<&'a str, f64>,
}

impl<'a> Key<'a> {
    fn new(name: &'a str) -> Self {
        Self { name, leases: Vec::new(), attempts: Vec::new(), longest: HashMap::new() }
    }

    /// The longest ttl that the process of a lease asked for: a hold that is passed on has the deadline of the one before
    /// it, which may have been extended.
    pub(super) fn longest_ttl(&self, lease: &Lease<'_>) -> Option<f64> {
        self.longest.get(root(&lease.event.process)).copied()
    }
}

/// Everything that was acquired or asked for.
#[derive(Debug)]
pub(super) struct Leases<'a> {
    keys: BTreeMap<&'a str, Key<'a>>,
    pub(super) crashes: Crashes<'a>,
    /// When the last thing happened.
    pub(super) end: f64,
    /// The windows in which slow wake-ups are excused, in order and apart.
    pub(super) faults: Vec<(f64, f64)>,
}

impl<'a> Leases<'a> {
    pub(super) fn keys(&self) -> impl Iterator<Item = &Key<'a>> {
        self.keys.values()
    }
}

/// Who was killed when.
#[derive(Debug, Default)]
pub(super) struct Crashes<'a> {
    /// When, and by which event.
    times: HashMap<&'a str, Vec<(f64, usize)>>,
}

impl Crashes<'_> {
    /// When, and by which event, `process` was killed, or the one that it is a task of.
    pub(super) fn of(&self, process: &str) -> impl Iterator<Item = (f64, usize)> {
        let tasks = process.match_indices('/').map(|(at, _)| &process[..at]).filter(|_| !self.times.is_empty());
        tasks.chain([process]).filter_map(|name| self.times.get(name)).flatten().copied()
    }

    /// When it was killed first after `since`.
    pub(super) fn after(&self, process: &str, since: f64) -> Option<f64> {
        self.of(process).map(|(at, _)| at).filter(|at| *at >= since).min_by(f64::total_cmp)
    }
}

/// Puts the `sound` events together.
pub(super) fn collect<'a>(case: &mut Case<'a>, sound: &[usize]) -> Leases<'a> {
    let mut all = Leases { keys: BTreeMap::new(), crashes: Crashes::default(), end: 0.0, faults: Vec::new() };
    let mut faults = Vec::new();
    for index in sound {
        let event = case.event(*index);
        match event.op {
            Op::Crash => all.crashes.times.entry(event.process.as_str()).or_default().push((event.t_invoke, *index)),
            Op::Fault => faults.push((event.t_invoke, end(event))),
            Op::Acquire => {
                let name = event.key.as_deref().unwrap_or_default();
                let key = all.keys.entry(name).or_insert_with(|| Key::new(name));
                match event.t_return {
                    Some(got) if event.result == Outcome::Ok => key.leases.push(Lease {
                        acquire: *index,
                        event,
                        asked: event.t_invoke,
                        got,
                        fence: event.fence,
                        story: Vec::new(),
                        valid_to: f64::INFINITY,
                        held_to: f64::INFINITY,
                    }),
                    _ => key.attempts.push(*index),
                }
            }
            _ => {}
        }
        if !matches!(event.op, Op::Leftover | Op::Vanished) {
            all.end = all.end.max(event.t_return.unwrap_or(event.t_invoke));
        }
    }
    all.faults = merged(faults);
    for key in all.keys.values_mut() {
        key.leases.sort_by(|a, b| a.got.total_cmp(&b.got).then(a.acquire.cmp(&b.acquire)));
    }
    tell_stories(case, sound, &mut all);
    for key in all.keys.values_mut() {
        for lease in &key.leases {
            for event in lease.story.iter().map(|part| case.event(*part)).chain([lease.event]) {
                let ttl = event.ttl.unwrap_or(0.0);
                let longest = key.longest.entry(root(&lease.event.process)).or_default();
                *longest = longest.max(ttl);
            }
        }
        key.longest.retain(|_, ttl| *ttl > 0.0);
    }
    for lease in all.keys.values_mut().flat_map(|key| &mut key.leases) {
        (lease.valid_to, lease.held_to) = reckon(case, lease, &all.crashes);
    }
    all
}

/// Finds the lease of each extend, release, loss and check.
fn tell_stories<'a>(case: &mut Case<'a>, sound: &[usize], all: &mut Leases<'a>) {
    let mut by_token: HashMap<(&str, &str), Vec<usize>> = HashMap::new();
    let mut by_process: HashMap<(&str, &str), Vec<usize>> = HashMap::new();
    for (name, key) in &all.keys {
        for (index, lease) in key.leases.iter().enumerate() {
            let token = lease.event.token.as_deref().unwrap_or_default();
            by_token.entry((name, token)).or_default().push(index);
            by_process.entry((name, &lease.event.process)).or_default().push(index);
        }
    }
    let mut parts: Vec<usize> = sound
        .iter()
        .copied()
        .filter(|event| matches!(case.event(*event).op, Op::Extend | Op::Release | Op::Lost | Op::Check))
        .collect();
    parts.sort_by(|a, b| case.event(*a).t_invoke.total_cmp(&case.event(*b).t_invoke));
    for part in parts {
        let event = case.event(part);
        let name = event.key.as_deref().unwrap_or_default();
        let candidates = match &event.token {
            Some(token) => by_token.get(&(name, token.as_str())),
            None => by_process.get(&(name, event.process.as_str())),
        };
        let key = all.keys.get_mut(name);
        let lease = candidates.zip(key.as_ref()).and_then(|(candidates, key)| {
            // A token that was wrongly used twice: the later one, if it was there by then.
            let got = |index: &&usize| key.leases[**index].got <= event.t_invoke;
            candidates.iter().rev().find(got).or_else(|| candidates.first()).copied()
        });
        match (lease, key) {
            (Some(lease), Some(key)) => {
                let lease = &mut key.leases[lease];
                if event.t_invoke < lease.got && event.op != Op::Lost {
                    let acquire = lease.acquire;
                    let message = || "it is about a lease that was not acquired yet".to_owned();
                    case.report(Rule::Malformed, message, &[acquire, part]);
                }
                lease.story.push(part);
            }
            // Of an acquire whose outcome nobody knows.
            (_, Some(key)) if key.attempts.iter().any(|attempt| case.event(*attempt).token == event.token) => {}
            _ if event.succeeded() || event.valid == Some(true) => {
                case.report(Rule::Malformed, || "it is about a lease that nobody acquired".to_owned(), &[part]);
            }
            _ => {}
        }
    }
}

/// Until when the holder relied on the lease, and until when the key can have held its token.
fn reckon(case: &Case<'_>, lease: &Lease<'_>, crashes: &Crashes<'_>) -> (f64, f64) {
    let acquire = lease.event;
    let expires = |event: &Event| event.ttl.map(|ttl| event.t_invoke + ttl);
    let mut deadline = acquire.deadline.or_else(|| expires(acquire)).unwrap_or(f64::INFINITY);
    let mut ttl = acquire.ttl.unwrap_or(f64::INFINITY);
    let mut touched = lease.got + ttl;
    // When it ended by the client's reckoning, and when the client did its last about it.
    let mut known = lease.got;
    let (mut ended, mut last_act) = (f64::INFINITY, None::<f64>);
    let mut removed = None;
    for event in lease.story.iter().map(|event| case.event(*event)) {
        match event.op {
            Op::Extend => {
                // A renewal may be noticed while the user extends: what was known last counts.
                if let Some(new) = event.deadline.or_else(|| expires(event).filter(|_| event.succeeded()))
                    && end(event) >= known
                {
                    (deadline, known) = (new, end(event));
                }
                if event.result != Outcome::Fail {
                    ttl = event.ttl.map_or(ttl, |new| new.max(if ttl.is_finite() { ttl } else { 0.0 }));
                    touched = touched.max(event.t_return.unwrap_or(event.t_invoke) + ttl);
                }
            }
            Op::Release => {
                ended = ended.min(event.t_invoke);
                let at = event.t_return.unwrap_or(event.t_invoke);
                if event.succeeded() {
                    removed = Some(removed.map_or(at, |earlier: f64| earlier.min(at)));
                }
                last_act = Some(last_act.unwrap_or(at).max(at));
            }
            Op::Lost => {
                ended = ended.min(event.t_invoke);
                last_act = Some(last_act.unwrap_or(event.t_invoke).max(event.t_invoke));
            }
            _ => {}
        }
    }
    if let Some(crash) = crashes.after(&acquire.process, lease.got) {
        ended = ended.min(crash);
        last_act = Some(last_act.map_or(crash, |act| act.min(crash)));
    }
    let held_to = match (removed, last_act) {
        (Some(removed), _) => removed,
        // What it or its engine sent last may have come late.
        (None, Some(last_act)) if !acquire.foreign => touched.max(last_act + ttl).max(deadline),
        (None, _) if acquire.foreign => touched.max(deadline),
        // Nobody knows when its engine renewed it last.
        (None, _) => f64::INFINITY,
    };
    (ended.min(deadline), held_to)
}

/// Windows that overlap, as one.
pub(super) fn merged(mut windows: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    windows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut apart: Vec<(f64, f64)> = Vec::with_capacity(windows.len());
    for (from, to) in windows {
        match apart.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => apart.push((from, to)),
        }
    }
    apart
}
