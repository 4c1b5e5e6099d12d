//! Downgrades: an exclusive lease that becomes a shared one.

use super::{
    check::{Case, Rule, root},
    leases::Key,
    mode::Mode,
};

/// A lease that others may share follows the exclusive one of the same process, with a larger number, and nobody has the key in
/// between who could not share it.
pub(super) fn check(case: &mut Case<'_>, key: &Key<'_>) {
    for (index, lease) in key.leases.iter().enumerate().filter(|(_, lease)| lease.event.from.is_some()) {
        let former = key.leases.iter().find(|former| former.event.token == lease.event.from);
        let Some(former) = former.filter(|former| {
            former.event.mode.is_exclusive()
                && lease.event.mode == Mode::Shared
                && root(&former.event.process) == root(&lease.event.process)
                && former.got <= lease.asked
        }) else {
            let message =
                || format!("{:?}: {} lets others share a lease that it did not have", key.name, lease.describe());
            case.report(Rule::Malformed, message, &[lease.acquire]);
            continue;
        };
        if former.fence >= lease.fence {
            let message = || format!("{:?}: {} shares its key with the number of before", key.name, lease.describe());
            case.report(Rule::FenceOrder, message, &[former.acquire, lease.acquire]);
        }
        let is_between = |number: Option<u64>| former.fence < number && number < lease.fence;
        let between = key.leases.iter().enumerate().find(|(other, between)| {
            *other != index
                && between.event.mode != Mode::Shared
                && between.was_valid()
                && former.got <= between.got
                && between.got <= lease.got
                && (between.fence.is_none() || is_between(between.fence))
                && between.acquire != former.acquire
        });
        if let Some((_, between)) = between
            && !case.may_both_hold(key.name, former, between)
            && !case.may_both_hold(key.name, between, lease)
        {
            let message = || {
                let (process, other) = (&lease.event.process, between.describe());
                format!("{:?}: {process} lets others share its key, which {other} had in between", key.name)
            };
            case.report(Rule::StaleSuccess, message, &[former.acquire, between.acquire, lease.acquire]);
        }
    }
}
