//! Trust: which waiters hold as soon as the message of a grant arrives, and for how long; pure.
//!
//! A release grants the key to a place: the key then holds the place's token for T, and a message says so. A place is
//! *reserving* if its waiter confirms the grant by an acquire, and *trusting* if its waiter holds at once, which saves
//! a round trip. To confirm is always safe, so that it is the way out of every doubt here.
//!
//! **Why it is safe.** The grant is executed after the request that made the place, or refreshed it last, and gives T
//! from then on. So `sent + T`, counted from the sending of that request, lies before the expiry of the key, however
//! late the message is and whatever the server's clock did before. The message repeats `sent` and T as the place has
//! them: the terms of the present candidate, or what it asked for last, say nothing of a place that an older request
//! has made. Requests that come late or twice can only make `sent` older, which is safe.
//!
//! **A place trusts** ([`Placing::trusts_for`]) if
//! * the store is one node: the answer of one of several is not a majority;
//! * the waiter cannot keep the engine's only thread busy (the backend knows): its lease would end before its first renewal;
//! * messages reach this process, and others may send them: otherwise a long T costs the others time and gains nothing;
//! * the lease is renewed, since it begins with what is left of T and not with its ttl;
//! * the ttl is not less than T, so that a silent waiter blocks the others for no longer than its ttl; nor are [two
//!   seconds](LONGEST), which a server that is far away would exceed.
//!
//! T outlasts the time from one check to the next, which may be the age of a place, and a lost message, which the next
//! check finds. It is what a waiter that is stopped costs the others, so it is no longer than that.
//!
//! **A message is trusted** ([`Told::holds`]) if
//! * it comes from a store of one node, and its T is that of a trusting place: the candidate may have had other terms
//!   when that place was made, for example before messages could reach this process;
//! * this process can have asked for its T and `sent`: another client than the store may have forged the message;
//! * no request that was sent after `sent` has been answered. If the key was not held for it then, it was executed
//!   after the grant (one before the grant would have refreshed the place), and the key was taken away in between;
//! * enough is left for the first renewal to fail once, and for the waiter to come.
//!
//! **The lease**
//! * is renewed soon ([`renew_at`]): what it has is less than its ttl, and a server or a runtime that stands still for
//!   a moment would end it. A holder that is done sooner sends nothing but its release.
//! * is passed on inside the process while half of what it had when it began is left ([`leaves_enough`]), as others are while
//!   half their ttl is left.
//! * leaves a doubt ([`doubt`]): the key may hold the token until T after the message, since it is not known how long the
//!   message was in flight. The message answers no request: those in flight may be executed after the release.
//! * is lost if the key was not held for a request of its own that was sent after `sent` ([`is_later`]): that was
//!   executed after the grant, by the same reasoning. An answer that the key was held only raises the deadline, if its
//!   fencing token is not smaller: else it was executed before the grant.
//! * is lost if its key is granted again with a larger fencing token, or was found free by a request of its own with a
//!   larger one. A message that comes twice changes nothing.
//! * counts its holds from the fencing token of the first message. A request in flight may draw larger ones, which are
//!   not used.
//! * is renewed when it is handed over, if it was not before: the process that takes it up relies on the whole ttl.

use std::time::Duration;

use crate::backend::cleanup::Doubt;
use crate::{backend::Grant, clock::Moment, ttl::Ttl};

/// The properties of a waiter that makes a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placing {
    /// Whether the store's word is enough, and the waiter cannot keep the engine's only thread.
    pub(crate) trusts: bool,
    /// Whether messages reach this process, and others may send them.
    pub(crate) is_told: bool,
    pub(crate) is_renewed: bool,
    pub(crate) ttl: Ttl,
    /// The longest time from one check to the next.
    pub(crate) check: Duration,
    pub(crate) round_trip: Duration,
}

impl Placing {
    /// For how long the key is to be kept for a trusting place; `None` if the waiter has to confirm.
    pub(crate) fn trusts_for(self) -> Option<Duration> {
        let Self { trusts, is_told, is_renewed, ttl, check, round_trip } = self;
        let kept = kept_for(check, round_trip);
        (trusts && is_told && is_renewed && kept <= ttl.get().min(LONGEST)).then_some(kept)
    }
}

/// For how long the key is kept for a trusting place.
fn kept_for(check: Duration, round_trip: Duration) -> Duration {
    let kept = check + SPARE.max(round_trip * 8);
    // The store counts whole milliseconds, and drops what is over.
    Duration::from_millis(u64::try_from(kept.as_millis()).unwrap_or(u64::MAX))
}

/// The message of a grant to the candidate, and what is known beside it.
#[derive(Debug)]
pub(crate) struct Told<'a> {
    pub(crate) grant: &'a Grant,
    /// The ttl of the candidate.
    pub(crate) ttl: Ttl,
    /// When the newest of its requests was sent that was answered.
    pub(crate) heard: Moment,
    /// The longest time from one check to the next.
    pub(crate) check: Duration,
    pub(crate) round_trip: Duration,
    pub(crate) now: Moment,
}

impl Told<'_> {
    /// For how long the grant keeps the key, if the candidate holds by it; `None` if it has to confirm.
    pub(crate) fn holds(&self) -> Option<Ttl> {
        let Self { ttl, heard, check, round_trip, now, .. } = *self;
        let Grant { sent, lasts, of_one_node, .. } = *self.grant;
        let is_whole = !of_one_node && lasts >= kept_for(check, Duration::ZERO);
        let is_possible = sent <= now && lasts <= ttl.get();
        let is_newest = !is_later(heard, sent);
        let kept = Ttl::new(lasts).ok().filter(|_| is_whole && is_possible && is_newest)?;
        let left = kept.deadline(sent).since(now);
        (left >= LEAST_LEFT.max(round_trip * 4)).then_some(kept)
    }
}

/// Whether a request was sent after another. The message of a grant has whole microseconds.
pub(crate) fn is_later(sent: Moment, other: Moment) -> bool {
    sent.since_origin().as_micros() > other.since_origin().as_micros()
}

/// When a lease that began `now` by a grant is renewed first.
pub(crate) fn renew_at(now: Moment, deadline: Moment) -> Moment {
    now + (deadline.since(now) / 3).min(RENEWED_AFTER)
}

/// Whether a lease that began by a grant at `since`, and was not renewed yet, may be passed on.
pub(crate) fn leaves_enough(since: Moment, deadline: Moment, now: Moment) -> bool {
    deadline.since(now) >= deadline.since(since) / 2
}

/// The condition under which a token can be forgotten that was granted the key for `kept`, in a message that arrived `now`.
pub(crate) fn doubt(of_requests: Doubt, kept: Ttl, now: Moment) -> Doubt {
    let unanswered_since = of_requests.unanswered_since;
    Doubt { until: of_requests.until.max(kept.end(now)), unanswered_since }
}

/// The longest T of a trusting place.
const LONGEST: Duration = Duration::from_secs(2);

/// The least by which T exceeds the time from one check to the next: for the request to arrive, and the answer to come
/// back.
const SPARE: Duration = Duration::from_millis(400);

/// The least that a lease has left when it begins.
const LEAST_LEFT: Duration = Duration::from_millis(200);

/// When a lease that began by a grant is renewed at the latest: later than most holders of a hot key are done, and soon
/// for all others.
const RENEWED_AFTER: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        backend::Token,
        engine::fixture::{at, key},
    };

    const CHECK: Duration = Duration::from_millis(625);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn grant(sent: u64, lasts: u64) -> Grant {
        Grant::new(key(), Token::from_random(1), at(sent), ms(lasts), (7, 1))
    }

    /// A grant that is told 1,300 ms after the origin, of a lease of 9 s, when the newest answered request was sent at
    /// 1,000 ms.
    fn told(grant: &Grant) -> Told<'_> {
        let ttl = Ttl::new(ms(9_000)).unwrap();
        Told { grant, ttl, heard: at(1_000), check: CHECK, round_trip: ms(1), now: at(1_300) }
    }

    fn holds(grant: &Grant) -> bool {
        told(grant).holds().is_some()
    }

    #[test]
    fn a_key_is_kept_for_longer_than_a_check_takes_to_find_a_lost_message() {
        assert_eq!(kept_for(CHECK, ms(1)), ms(1_025));
        assert_eq!(kept_for(CHECK, ms(50)), ms(1_025));
        assert_eq!(kept_for(CHECK, Duration::from_micros(100_100)), ms(1_425), "in whole milliseconds");
    }

    #[test]
    fn a_place_trusts_only_if_nothing_speaks_against_it() {
        let ttl = |length| Ttl::new(ms(length)).unwrap();
        let placing =
            Placing { trusts: true, is_told: true, is_renewed: true, ttl: ttl(1_025), check: CHECK, round_trip: ms(1) };
        assert_eq!(placing.trusts_for(), Some(ms(1_025)));
        for other in [
            Placing { trusts: false, ..placing },
            Placing { is_told: false, ..placing },
            Placing { is_renewed: false, ..placing },
            Placing { ttl: ttl(1_024), ..placing },
            Placing { ttl: ttl(9_000), round_trip: ms(172), ..placing },
        ] {
            assert_eq!(other.trusts_for(), None, "{other:?}");
        }
        assert_eq!(Placing { ttl: ttl(9_000), round_trip: ms(171), ..placing }.trusts_for(), Some(ms(1_993)));
    }

    #[test]
    fn a_grant_is_trusted_for_what_its_place_says() {
        let kept = told(&grant(1_000, 1_025)).holds().unwrap();
        assert_eq!(kept.deadline(at(1_000)), at(1_000) + ms(1_025 - 2) - Duration::from_micros(10_250));
        assert!(holds(&grant(1_000, 1_400)), "the round trip was longer when the place was made");
    }

    #[test]
    fn the_grant_of_a_place_that_does_not_trust_is_confirmed() {
        assert!(!holds(&grant(1_000, 1_024)));
        assert!(!holds(&Grant { of_one_node: true, ..grant(1_000, 1_025) }));
    }

    #[test]
    fn what_this_process_cannot_have_asked_for_is_confirmed() {
        assert!(holds(&grant(1_300, 9_000)));
        assert!(!holds(&grant(1_301, 9_000)), "sent in the future");
        assert!(!holds(&grant(1_300, 9_001)), "longer than its ttl");
        assert!(!holds(&grant(1_300, u64::MAX)));
    }

    #[test]
    fn a_grant_is_confirmed_if_a_later_request_was_answered() {
        let grant = grant(1_000, 1_025);
        let heard = |nanoseconds| Told { heard: at(1_000) + Duration::from_nanos(nanoseconds), ..told(&grant) };
        assert!(heard(999).holds().is_some(), "the message has whole microseconds");
        assert!(heard(1_000).holds().is_none());
    }

    #[test]
    fn a_grant_that_leaves_too_little_is_confirmed() {
        // The deadline is at 2,012.75 ms.
        let grant = grant(1_000, 1_025);
        let at_time = |now, round_trip| Told { now: at(now), round_trip: ms(round_trip), ..told(&grant) }.holds();
        assert!(at_time(1_812, 50).is_some());
        assert!(at_time(1_813, 50).is_none());
        assert!(at_time(1_772, 60).is_some() && at_time(1_773, 60).is_none());
        assert!(at_time(9_000, 1).is_none());
    }

    #[test]
    fn a_lease_that_began_by_a_grant_is_renewed_soon_and_passed_on_for_half_of_what_it_has() {
        assert_eq!(renew_at(at(1_000), at(2_000)), at(1_000) + RENEWED_AFTER);
        assert_eq!(renew_at(at(1_000), at(1_030)), at(1_010));
        assert!(leaves_enough(at(1_000), at(1_300), at(1_150)));
        assert!(!leaves_enough(at(1_000), at(1_300), at(1_151)));
    }

    #[test]
    fn the_message_of_a_grant_answers_no_request_and_the_key_may_hold_the_token_for_as_long_again() {
        let kept = Ttl::new(ms(1_025)).unwrap();
        let of_requests = Doubt { until: at(1_500), unanswered_since: Some(3) };
        assert_eq!(doubt(of_requests, kept, at(1_000)), Doubt { until: at(2_025), unanswered_since: Some(3) });
        let longer = Doubt { until: at(9_000), unanswered_since: None };
        assert_eq!(doubt(longer, kept, at(1_000)), longer);
    }
}
