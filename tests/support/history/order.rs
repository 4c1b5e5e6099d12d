//! Fencing tokens and tokens.

use std::collections::HashMap;

use super::{
    check::{Case, Rule, root},
    event::Outcome,
    leases::{Key, Lease, Leases},
    mode::Mode,
};

/// Fencing tokens of a key strictly rise, in real-time order and in the order of holding. Those who share it may have the same.
pub(super) fn check(case: &mut Case<'_>, key: &Key<'_>) {
    for lease in key.leases.iter().filter(|lease| lease.fence.is_none() && !lease.event.foreign) {
        let message = || format!("{:?}: {} has a lease without a fencing token", key.name, lease.describe());
        case.report(Rule::FenceOrder, message, &[lease.acquire]);
    }
    let by_got: Vec<&Lease<'_>> = key.leases.iter().filter(|lease| lease.fence.is_some()).collect();
    let mut by_asked = by_got.clone();
    by_asked.sort_by(|a, b| a.asked.total_cmp(&b.asked));

    // In real time: of those that were over before this one began, the largest.
    let mut over = by_got.iter().peekable();
    let mut largest: Option<&Lease<'_>> = None;
    for lease in by_asked {
        while let Some(earlier) = over.next_if(|earlier| earlier.got < lease.asked) {
            largest = larger(largest, earlier);
        }
        if let Some(earlier) = largest.filter(|earlier| !rises(earlier, lease))
            && !(case.checker.failed_over && lease.event.mode == Mode::Shared)
            && !is_passed_on(case, key, earlier, lease)
            && !is_of_one_millisecond(case, earlier, lease)
        {
            case.report(Rule::FenceOrder, || out_of_order(key, earlier, lease), &[earlier.acquire, lease.acquire]);
        }
    }

    // In the order of holding, which is that of knowing it: who knows that it holds has not been followed by anybody
    // yet, so the next one took the key after that.
    // Those that may hold it together are in no order.
    let mut largest: Vec<&Lease<'_>> = Vec::new();
    for lease in by_got.into_iter().filter(|lease| lease.was_valid()) {
        let others = largest.iter().filter(|earlier| !earlier.goes_with(lease) && earlier.fence >= lease.fence);
        if let Some(earlier) = others.max_by_key(|earlier| earlier.fence)
            && !(case.checker.failed_over && lease.event.mode == Mode::Shared)
            && earlier.got >= lease.asked // else it has been told
            && !case.vanished(key.name, sent(key, lease), lease.got) // else it was granted before, and known late
            && !is_known_late(case, key, earlier, lease)
            && !is_passed_on(case, key, earlier, lease)
        {
            case.report(Rule::FenceOrder, || out_of_order(key, earlier, lease), &[earlier.acquire, lease.acquire]);
        }
        match largest.iter_mut().find(|earlier| earlier.event.mode.is_of_kind(lease.event.mode)) {
            Some(earlier) if earlier.fence >= lease.fence => {}
            Some(earlier) => *earlier = lease,
            None => largest.push(lease),
        }
    }
    check_permits(case, key);
    if !case.checker.of_quorum {
        check_readers(case, key);
    }
}

/// Readers that hold a key at the same time have one number.
fn check_readers(case: &mut Case<'_>, key: &Key<'_>) {
    let is_reader = |lease: &&Lease<'_>| lease.event.mode == Mode::Shared && lease.fence.is_some() && lease.was_valid();
    let mut readers: Vec<&Lease<'_>> = Vec::new();
    for lease in key.leases.iter().filter(is_reader) {
        readers.retain(|reader| reader.valid_to > lease.got);
        let other =
            readers.iter().find(|reader| reader.fence != lease.fence && !case.may_both_hold(key.name, reader, lease));
        if let Some(other) = other {
            let message = || {
                let (one, other) = (lease.describe(), other.describe());
                format!("{:?}: {one} and {other} share it from {} on with different numbers", key.name, lease.got)
            };
            case.report(Rule::FenceOrder, message, &[other.acquire, lease.acquire]);
        }
        readers.push(lease);
    }
}

/// No permit has the fencing token of another.
fn check_permits(case: &mut Case<'_>, key: &Key<'_>) {
    let mut permits: Vec<&Lease<'_>> = key.leases.iter().filter(|lease| lease.event.mode.permits().is_some()).collect();
    permits.sort_by_key(|lease| lease.fence);
    for pair in permits.windows(2) {
        let [one, other] = pair else { continue };
        if one.fence == other.fence && !is_of_one_millisecond(case, one, other) {
            case.report(Rule::FenceOrder, || out_of_order(key, one, other), &[one.acquire, other.acquire]);
        }
    }
}

/// Whether the fencing token of a lease is larger than that of an earlier one, or the same where both share the key.
fn rises(earlier: &Lease<'_>, lease: &Lease<'_>) -> bool {
    let is_shared = |lease: &Lease<'_>| lease.event.mode == Mode::Shared;
    earlier.fence < lease.fence || earlier.fence == lease.fence && is_shared(earlier) && is_shared(lease)
}

/// When the request that got it was sent, at the earliest: its holder counts the ttl from then. A hold that was passed
/// on inside its process has the deadline of the one before, which may have been extended by a longer ttl. Of several
/// keys the first may have been renewed before the last was there.
fn sent(key: &Key<'_>, lease: &Lease<'_>) -> f64 {
    if lease.event.several {
        return lease.asked;
    }
    let counted = lease.event.deadline.zip(key.longest_ttl(lease)).map(|(deadline, ttl)| deadline - ttl);
    counted.map_or(lease.asked, |counted| counted.max(lease.asked))
}

/// Whether a lease that has just vanished can have been passed on as this one inside its process, which asks nobody, and
/// so with a fencing token of before. What is asked for meanwhile, and granted by the server later, is not.
fn is_passed_on(case: &Case<'_>, key: &Key<'_>, earlier: &Lease<'_>, lease: &Lease<'_>) -> bool {
    let is_former = |former: &&Lease<'_>| former.fence.is_some() && former.fence < lease.fence;
    // Either may be the lease that a former server has granted, or forgotten.
    let mut undone = case.undone(lease).chain(case.undone(earlier));
    let mut is_undone = || undone.any(|undone| undone.from <= lease.got && lease.got <= undone.last);
    (case.vanished(key.name, lease.got, lease.got) || is_undone())
        && key
            .leases
            .iter()
            .filter(is_former)
            .any(|former| former.got <= lease.got && root(&former.event.process) == root(&lease.event.process))
}

/// Whether one of two leases was granted by a server that the other one's knew nothing of, and was known late.
fn is_known_late(case: &Case<'_>, key: &Key<'_>, earlier: &Lease<'_>, lease: &Lease<'_>) -> bool {
    let from = sent(key, lease);
    case.undone(lease).chain(case.undone(earlier)).any(|undone| undone.meets(from, lease.got))
}

/// Whether two servers have given out numbers of one millisecond, of which each knew nothing of the other's.
fn is_of_one_millisecond(case: &Case<'_>, one: &Lease<'_>, other: &Lease<'_>) -> bool {
    let millisecond = |lease: &Lease<'_>| lease.fence.map(|fence| fence / 1_000);
    millisecond(one) == millisecond(other) && case.undone(one).chain(case.undone(other)).next().is_some()
}

fn larger<'l, 'a>(largest: Option<&'l Lease<'a>>, lease: &'l Lease<'a>) -> Option<&'l Lease<'a>> {
    largest.filter(|largest| largest.fence >= lease.fence).or(Some(lease))
}

fn out_of_order(key: &Key<'_>, earlier: &Lease<'_>, later: &Lease<'_>) -> String {
    format!(
        "{:?}: {} had it at {}, and after it {} at {}: the fencing token did not rise",
        key.name,
        earlier.describe(),
        earlier.got,
        later.describe(),
        later.got,
    )
}

/// A token belongs to one lease, and a tenure to one process and one unbroken stay in possession of one key.
pub(super) fn check_tokens(case: &mut Case<'_>, leases: &Leases<'_>) {
    let mut acquires: Vec<usize> = Vec::new();
    for key in leases.keys() {
        acquires.extend(key.leases.iter().map(|lease| lease.acquire));
        let unknown = key.attempts.iter().filter(|attempt| case.event(**attempt).result != Outcome::Fail);
        acquires.extend(unknown);
        check_stays(case, key);
    }
    let mut owners: HashMap<&str, usize> = HashMap::new();
    let mut tenures: HashMap<&str, usize> = HashMap::new();
    for acquire in acquires {
        let event = case.event(acquire);
        let Some(token) = event.token.as_deref() else {
            continue;
        };
        if let Some(before) = owners.insert(token, acquire) {
            let message = || format!("the token {token:?} was used twice");
            case.report(Rule::TokenReuse, message, &[before, acquire]);
            continue;
        }
        let Some(tenure) = tenure(token) else {
            continue;
        };
        let first = *tenures.entry(tenure).or_insert(acquire);
        let other = case.event(first);
        if other.key != event.key || root(&other.process) != root(&event.process) {
            let message = || format!("the tenure {tenure:?} is of two processes or two keys");
            case.report(Rule::TokenReuse, message, &[first, acquire]);
        }
    }
}

/// Nobody else holds the key between two holds of a tenure.
fn check_stays(case: &mut Case<'_>, key: &Key<'_>) {
    let mut over: HashMap<&str, (usize, usize)> = HashMap::new();
    let mut current: Option<(Option<&str>, usize)> = None;
    for lease in key.leases.iter().filter(|lease| lease.was_valid() && lease.event.mode.is_exclusive()) {
        let tenure = lease.event.token.as_deref().and_then(tenure);
        if let Some((before, last)) = current
            && (before != tenure || tenure.is_none())
        {
            if let Some(before) = before {
                over.insert(before, (last, lease.acquire));
            }
            if let Some((tenure, (last, other))) = tenure.and_then(|tenure| over.get_key_value(tenure)) {
                let message =
                    || format!("{:?}: the tenure {tenure:?} goes on though another one held in between", key.name);
                case.report(Rule::TokenReuse, message, &[*last, *other, lease.acquire]);
            }
        }
        current = Some((tenure, lease.acquire));
    }
}

/// `T` of `T/1`; none for a token of another form.
fn tenure(token: &str) -> Option<&str> {
    let (tenure, hold) = token.rsplit_once('/')?;
    (!tenure.is_empty() && !hold.is_empty() && hold.bytes().all(|digit| digit.is_ascii_digit())).then_some(tenure)
}
