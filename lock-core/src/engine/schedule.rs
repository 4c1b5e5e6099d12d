//! When a lease is renewed; pure.

use std::time::Duration;

use crate::clock::Moment;

/// When to renew next, after a success that was sent at `sent` and left the lease valid until `deadline`.
///
/// Usually that is one interval later, or a little sooner, so that leases whose times lie close together share a call. It is
/// sooner if the user shortened the lease and less than an interval is left.
pub(crate) fn after_success(sent: Moment, interval: Duration, deadline: Moment) -> Moment {
    let due = sent + interval;
    let step = Moment::from_origin(interval / STEPS).nanoseconds();
    let past = due.nanoseconds().checked_rem(step).unwrap_or(0);
    let together = due - Duration::from_nanos(past);
    together.min(sent + deadline.since(sent) / 2)
}

/// From when on a lease is in danger that was to be renewed at `renew_at`: half of the time between that and its deadline has passed
/// then. A lease that is never renewed is never in danger.
pub(crate) fn danger(renew_at: Moment, deadline: Moment) -> Moment {
    renew_at + deadline.since(renew_at) / 2
}

/// When to retry after `failures` failures in a row (at least one). The pauses are 20 ms, 40 ms, … up to a quarter of the
/// interval or 500 ms. `jitter` is in 0.0..1.0, so that a fleet does not retry in step.
pub(crate) fn after_failure(now: Moment, failures: u32, interval: Duration, jitter: f64) -> Moment {
    let longest = (interval / 4).clamp(FIRST_RETRY, LONGEST_RETRY);
    let pause = FIRST_RETRY.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(longest);
    now + pause.mul_f64(0.5 + jitter / 2.0)
}

/// Into how many steps an interval is cut: renewals that fall into one of them are due together.
const STEPS: u32 = 64;

const FIRST_RETRY: Duration = Duration::from_millis(20);
const LONGEST_RETRY: Duration = Duration::from_millis(500);

/// The most renewals in one call to the backend. A server does nothing else meanwhile, and takes about 2 µs for each.
pub(crate) const BATCH: usize = 64;

/// The calls for renewals that are in flight at once. Renewals that become due meanwhile wait, the nearest deadline first.
pub(crate) const CALLS: usize = 4;

/// Whether another call is sent while so many are in flight. `usual` calls are enough if round trips are short. If they are long,
/// leases would end, and requests be out of time, before they are sent: then more go if they are whole calls.
pub(crate) fn takes_another(under_way: usize, usual: usize, waiting: usize, whole: usize) -> bool {
    under_way < usual || under_way < MOST_CALLS && waiting >= whole
}

/// How many whole calls are in flight at most.
pub(crate) const MOST_CALLS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(SECOND * seconds as u32)
    }

    #[test]
    fn a_renewal_follows_one_interval_after_the_last_success() {
        assert_eq!(after_success(at(12), SECOND * 3, at(21)), at(15));
    }

    #[test]
    fn renewals_close_together_are_due_together_and_not_later_than_they_should() {
        let (interval, step) = (SECOND * 64, SECOND);
        let due = |ms: u64| after_success(at(64) + Duration::from_millis(ms), interval, at(1_000));
        assert_eq!((due(0), due(1), due(999)), (at(128), at(128), at(128)));
        assert_eq!(due(1_000), at(128) + step);
    }

    #[test]
    fn a_shortened_lease_is_renewed_before_it_ends() {
        assert_eq!(after_success(at(10), SECOND * 3, at(14)), at(12));
    }

    #[test]
    fn danger_begins_halfway_from_a_renewal_to_the_deadline_and_never_without_one() {
        assert_eq!(danger(at(10), at(30)), at(20));
        assert_eq!(danger(Moment::NEVER, at(30)), Moment::NEVER);
    }

    #[test]
    fn retries_come_faster_than_the_interval_and_slow_down() {
        let pause = |failures| after_failure(at(0), failures, SECOND, 1.0).since(at(0));
        assert_eq!(pause(1), FIRST_RETRY);
        assert!(pause(2) > pause(1));
        assert_eq!(pause(60), SECOND / 4);
        assert_eq!(after_failure(at(0), 60, SECOND * 60, 1.0).since(at(0)), LONGEST_RETRY);
        assert_eq!(after_failure(at(0), 1, SECOND, 0.0).since(at(0)), FIRST_RETRY / 2);
    }
}
