use super::*;
use crate::{
    backend::Outcome,
    clock::{Clock, Sleep},
    engine::{
        deferred::Deferred,
        fixture::{Manual, at, terms},
        pulse::Pulse,
        terms::Terms,
    },
    error::LossReason,
    mode::Mode,
};

fn pulse() -> Arc<Pulse> {
    Pulse::new(Arc::new(Manual::default()), None)
}

fn enter_with(tenures: &mut Tenures, key: &str, terms: &Terms, block: u32) -> HoldId {
    let doubt = Doubt { until: at(0), unanswered_since: None };
    let acquired =
        Acquired { token: Token::from_random(1), fence: 10, block, sent: at(0), doubt, passes: true, granted: None };
    let (id, _) = tenures.enter(&LockKey::new(key).unwrap(), terms, acquired, at(0));
    tenures.begin(id, terms, at(0));
    id
}

fn enter(tenures: &mut Tenures, key: &str, ttl_ms: u64) -> HoldId {
    enter_with(tenures, key, &terms(ttl_ms), 1)
}

#[test]
fn holds_follow_one_another_with_the_fencing_tokens_of_the_block_and_then_of_the_next() {
    let mut tenures = Tenures::new(pulse());
    let terms = terms(900);
    let first = enter_with(&mut tenures, "k", &terms, 2);
    let (second, hold) = tenures.pass(first, &terms, at(1)).unwrap();
    assert_eq!(hold.fence.get(), 11);
    assert!(tenures.of_hold(first).is_none() && tenures.of_hold(second).is_some());
    assert!(tenures.pass(second, &terms, at(1)).is_none(), "the block is used up");
    let refill = tenures.refill(second.tenure, 5, 0, at(1)).unwrap();
    assert_eq!(refill.request.block, 5);
    assert!(tenures.refill(second.tenure, 5, 0, at(1)).is_none(), "asked for already");
    let answer = Outcome::Renewed { remaining: Duration::from_millis(900), fence: Some(20), block: 5 };
    assert!(tenures.refilled(&refill, Some(answer), (at(1), at(1)), &mut Deferred::default()).is_none());
    let (_, hold) = tenures.pass(second, &terms, at(2)).unwrap();
    assert_eq!(hold.fence.get(), 20);
    assert!(tenures.refill(second.tenure, 5, 0, at(2)).is_none(), "enough is left");
}

#[test]
fn a_tenure_does_not_go_on_beyond_its_budget_half_its_ttl_or_other_terms() {
    let pass = |terms: &Terms, next: &Terms, now| {
        let mut tenures = Tenures::new(pulse());
        let first = enter_with(&mut tenures, "k", terms, 9);
        tenures.pass(first, next, now).is_some()
    };
    let long = terms(900);
    assert!(pass(&long, &long, at(99)));
    assert!(!pass(&long, &long, at(100)), "others have waited for long enough");
    assert!(!pass(&long, &terms(901), at(1)));
    assert!(!pass(&long, &Terms { renewal: Renewal::Never, ..long }, at(1)));
    let fixed = Terms { renewal: Renewal::Never, ..long };
    assert!(!pass(&fixed, &fixed, at(1)), "nothing would renew it");
    let short = terms(100);
    assert!(pass(&short, &short, at(40)));
    assert!(!pass(&short, &short, at(60)), "less than half the ttl is left");
    let kept = Terms { at_least: Duration::from_millis(50), ..long };
    assert!(!pass(&kept, &long, at(49)) && pass(&kept, &long, at(50)));
}

#[test]
fn a_hold_that_was_held_for_too_long_is_counted_as_lost_though_its_tenure_goes_on() {
    let mut tenures = Tenures::new(pulse());
    let terms = Terms { max_hold: Some(Duration::from_millis(10)), ..terms(900) };
    let first = enter_with(&mut tenures, "k", &terms, 2);
    // The guard is dropped before the engine has looked.
    let released = tenures.of_hold(first).unwrap().hold.release_at(at(11));
    assert_eq!(released, Err(LossReason::MaxHold));
    assert!(tenures.pass(first, &terms, at(11)).is_some());
    assert!(tenures.losses.contains(&(LossReason::MaxHold, 1)), "{:?}", tenures.losses);
    assert_eq!(tenures.lost.len(), 1, "and told to the log: {:?}", tenures.lost);
}

#[test]
fn renewals_that_fell_behind_are_sent_with_the_nearest_deadline_first() {
    let mut tenures = Tenures::new(pulse());
    for ttl_ms in [900, 500, 700, 1_200] {
        enter(&mut tenures, &ttl_ms.to_string(), ttl_ms);
    }
    assert!(tenures.advance(at(420)).is_empty());
    let first = tenures.renewals(2, at(420));
    let rest = tenures.renewals(9, at(420));
    let keys = |renewals: &[Renewing]| -> Vec<_> {
        renewals.iter().map(|renewal| renewal.request.key.as_str().to_owned()).collect()
    };
    assert_eq!((keys(&first), keys(&rest)), (vec!["500".into(), "700".into()], vec!["900".into(), "1200".into()]));
}

#[test]
fn a_hold_that_is_over_names_nothing_even_when_its_place_is_taken_again() {
    let mut tenures = Tenures::new(pulse());
    let first = enter(&mut tenures, "first", 900);
    assert!(tenures.leave(first, at(0)).is_some());
    let second = enter(&mut tenures, "second", 900);
    assert_eq!(first.tenure.index, second.tenure.index);
    assert!(tenures.leave(first, at(0)).is_none() && tenures.lose(first, LossReason::Taken, at(0)).is_none());
    assert!(tenures.of_hold(first).is_none() && tenures.of_hold(second).is_some());
    let later = HoldId { number: 2, ..second };
    assert!(tenures.leave(later, at(0)).is_none(), "a later hold of the tenure is another hold");
    assert_eq!(tenures.len(), 1);
}

#[test]
fn a_tenure_whose_holder_has_just_released_it_is_left_to_what_that_says_next() {
    let mut tenures = Tenures::new(pulse());
    let hold = enter(&mut tenures, "k", 900);
    // The guard ends its hold first, and speaks to the engine then: others may come in between.
    assert_eq!(tenures.of_hold(hold).unwrap().hold.release_at(at(0)), Ok(()));
    assert!(tenures.settle(hold.tenure).is_none());
    assert!(tenures.advance(at(300)).is_empty());
    assert!(tenures.leave(hold, at(300)).is_some());
}

#[test]
fn a_renewal_under_way_is_not_sent_again_and_its_late_answer_is_ignored() {
    let mut tenures = Tenures::new(pulse());
    let hold = enter(&mut tenures, "k", 900);
    tenures.advance(at(300));
    let renewals = tenures.renewals(9, at(300));
    tenures.advance(at(600));
    assert_eq!(tenures.due.len(), 0);
    tenures.leave(hold, at(600));
    assert!(
        tenures.renewed(&renewals[0], Some(Outcome::Gone), at(300), at(601), 0.5, &mut Deferred::default()).is_none()
    );
}

#[test]
fn what_comes_between_the_end_of_a_hold_and_the_next_is_not_lost() {
    let (long, short) = (terms(900), terms(90));
    let ended = |terms: &Terms| {
        let mut tenures = Tenures::new(pulse());
        let hold = enter_with(&mut tenures, "k", terms, 9);
        tenures.advance(at(29));
        assert_eq!(tenures.of_hold(hold).unwrap().hold.release_at(at(29)), Ok(()));
        (tenures, hold)
    };
    // A newcomer looks.
    let (mut tenures, hold) = ended(&long);
    assert!(tenures.settle(hold.tenure).is_none());
    assert!(tenures.pass(hold, &long, at(30)).is_some());
    // The time of a renewal has come.
    let (mut tenures, hold) = ended(&short);
    assert!(tenures.advance(at(30)).is_empty());
    assert!(tenures.pass(hold, &short, at(30)).is_some());
    tenures.advance(at(31));
    assert!(!tenures.due.is_empty(), "the next hold is renewed");
    // A renewal is answered.
    let (mut tenures, hold) = ended(&long);
    let renewal = Renewing { tenure: hold.tenure, version: 0, request: tenures.of_hold(hold).unwrap().renew(long.ttl) };
    tenures.renewed(
        &renewal,
        Some(Outcome::Renewed { remaining: long.ttl.get(), fence: None, block: 0 }),
        at(29),
        at(30),
        0.5,
        &mut Deferred::default(),
    );
    assert!(tenures.pass(hold, &long, at(30)).is_some());
    tenures.advance(at(330));
    assert!(!tenures.due.is_empty(), "the next hold is renewed");
    // It says that the key is not ours, or the key was released by force.
    let (mut tenures, hold) = ended(&long);
    assert!(tenures.renewed(&renewal, Some(Outcome::Gone), at(29), at(30), 0.5, &mut Deferred::default()).is_none());
    assert!(tenures.pass(hold, &long, at(30)).is_none());
    let (mut tenures, hold) = ended(&long);
    assert!(tenures.lose_all(LossReason::Forced, at(30)).is_empty());
    assert!(tenures.pass(hold, &long, at(30)).is_none());
    assert!(tenures.leave(hold, at(30)).is_some());
}

#[test]
fn a_key_that_uses_its_fencing_tokens_up_gets_larger_blocks() {
    assert_eq!([block_for(0, 0), block_for(7, 15), block_for(99, 16)], [1, 7, 32]);
    assert_eq!([block_for(2, 20), block_for(2, 999), block_for(2, u32::MAX)], [40, 512, 512]);
    let mut tenures = Tenures::new(pulse());
    let terms = terms(900);
    let mut hold = enter_with(&mut tenures, "k", &terms, 32);
    for _ in 0..15 {
        hold = tenures.pass(hold, &terms, at(1)).unwrap().0;
        assert!(tenures.refill(hold.tenure, 2, 0, at(1)).is_none(), "enough for two");
    }
    hold = tenures.pass(hold, &terms, at(1)).unwrap().0;
    assert_eq!(tenures.refill(hold.tenure, 2, 0, at(1)).unwrap().request.block, 34);
    let hold = enter_with(&mut tenures, "other", &terms, 100);
    let refill = tenures.refill(hold.tenure, 2, 300, at(1)).unwrap();
    assert_eq!(refill.request.block, 512, "the last tenure was over before an answer could come");
}

#[test]
fn a_tenure_whose_key_was_written_at_is_renewed_soon_and_not_more_often() {
    let mut tenures = Tenures::new(pulse());
    let id = enter(&mut tenures, "k", 900).tenure;
    let renewed = Some(Outcome::Renewed { remaining: Duration::from_millis(900), fence: None, block: 0 });
    let renewal = |tenures: &mut Tenures, now| {
        assert!(tenures.advance(now).is_empty());
        let mut due = tenures.renewals(9, now);
        assert!(due.iter().all(|renewing| renewing.request.watch), "the store is asked to tell of the next one");
        due.pop()
    };
    tenures.renew_soon(id, at(3));
    assert!(renewal(&mut tenures, at(9)).is_none(), "the lease began a moment ago");
    let first = renewal(&mut tenures, at(10)).expect("ten ms after the acquire");
    // It may have been executed before the write.
    tenures.renew_soon(id, at(11));
    assert!(tenures.renewed(&first, renewed, at(10), at(12), 0.0, &mut Deferred::default()).is_none());
    let second = renewal(&mut tenures, at(20)).expect("ten ms after the first");
    assert!(tenures.renewed(&second, renewed, at(20), at(21), 0.0, &mut Deferred::default()).is_none());
    assert!(renewal(&mut tenures, at(300)).is_none(), "nothing has been written since");
    tenures.renew_all_soon(at(301));
    assert!(renewal(&mut tenures, at(302)).is_some());
    let fixed = enter_with(&mut tenures, "fixed", &Terms { renewal: Renewal::Never, ..terms(900) }, 1).tenure;
    tenures.renew_soon(fixed, at(303));
    assert!(renewal(&mut tenures, at(350)).is_none(), "a fixed lease is not renewed");
}

/// A store forgets with a write of our own that it is to tell of one by others.
#[test]
fn each_request_of_an_exclusive_lease_that_was_not_granted_has_its_key_watched() {
    for (mode, granted, is_watched) in [
        (Mode::Exclusive, None, true),
        (Mode::Exclusive, Some(Ttl::new(Duration::from_secs(1)).unwrap()), false),
        (Mode::Shared, None, false),
    ] {
        let mut tenures = Tenures::new(pulse());
        let (terms, doubt) = (terms(9_000), Doubt { until: at(0), unanswered_since: None });
        let token = Token::from_random(1).in_mode(mode);
        let acquired = Acquired { token, fence: 10, block: 1, sent: at(0), doubt, passes: true, granted };
        let (hold, _) = tenures.enter(&LockKey::new("k").unwrap(), &terms, acquired, at(0));
        tenures.begin(hold, &terms, at(0));
        let refill = tenures.refill(hold.tenure, 5, 0, at(1)).expect("nothing is left of the block");
        assert_eq!(refill.request.watch, is_watched, "{mode:?} {granted:?}");
        let extends = tenures.extending(hold, at(2), terms.ttl).expect("it is held");
        assert_eq!(extends.watch, is_watched, "{mode:?} {granted:?}");
    }
}

#[test]
fn a_new_connection_has_all_leases_renewed_at_once_and_then_not_more_often_than_each_second() {
    let mut tenures = Tenures::new(pulse());
    let terms = terms(60_000);
    for (key, fence) in [("a", 1), ("b", 2)] {
        enter_with(&mut tenures, key, &terms, fence);
    }
    let renewed = Some(Outcome::Renewed { remaining: Duration::from_secs(60), fence: None, block: 0 });
    let send = |tenures: &mut Tenures, now: u64| {
        assert!(tenures.advance(at(now)).is_empty());
        tenures.renewals(9, at(now))
    };
    tenures.connected(at(50));
    let mut under_way = send(&mut tenures, 51);
    assert_eq!(under_way.len(), 2);
    // It breaks again and again, also while renewals are in flight.
    let mut sent = 0;
    for now in 52..5_000 {
        tenures.connected(at(now));
        for renewal in under_way.drain(..) {
            tenures.renewed(&renewal, renewed, at(now), at(now), 0.0, &mut Deferred::default());
        }
        under_way = send(&mut tenures, now);
        sent += under_way.len();
    }
    assert!((8..=20).contains(&sent), "{sent} renewals of two leases in five seconds");
}

/// A call that waits for another node brings the answer of one that has failed over since.
#[test]
fn an_answer_to_a_request_that_was_sent_before_a_connection_was_made_is_followed_by_a_look() {
    let minute = Ttl::new(Duration::from_secs(60)).unwrap();
    let looks = |tenures: &mut Tenures, now| {
        assert!(tenures.advance(at(now)).is_empty());
        tenures.renewals(9, at(now)).len()
    };
    for (connected, looked_at) in [(30_000, 1), (19_999, 0)] {
        // A renewal.
        let mut tenures = Tenures::new(pulse());
        enter(&mut tenures, "k", 60_000);
        assert!(tenures.advance(at(20_500)).is_empty());
        let renewal = tenures.renewals(9, at(20_500)).pop().expect("it is due");
        tenures.connected(at(connected));
        let renewed = Outcome::Renewed { remaining: minute.get(), fence: None, block: 0 };
        tenures.renewed(&renewal, Some(renewed), at(20_500), at(30_100), 0.0, &mut Deferred::default());
        assert_eq!(looks(&mut tenures, 30_102), looked_at, "renewed");
        // An acquire.
        let mut tenures = Tenures::new(pulse());
        tenures.connected(at(connected));
        let doubt = Doubt { until: at(0), unanswered_since: None };
        let (token, sent) = (Token::from_random(1), at(20_500));
        let acquired = Acquired { token, fence: 10, block: 1, sent, doubt, passes: true, granted: None };
        tenures.enter(&LockKey::new("k").unwrap(), &terms(60_000), acquired, at(30_100));
        assert_eq!(looks(&mut tenures, 30_102), looked_at, "acquired");
        // An extend, whose answer is handled before the look that the connection has caused is sent.
        let mut tenures = Tenures::new(pulse());
        let id = enter(&mut tenures, "k", 60_000);
        tenures.extending(id, at(20_500), minute);
        tenures.connected(at(connected));
        tenures.extended(id, at(20_500), minute);
        assert_eq!(looks(&mut tenures, 30_102), looked_at, "extended");
    }
}

/// A node of a quorum that has lost its data is given back what the holder relies on, and not only the ttl.
#[test]
fn a_lease_that_was_extended_is_renewed_up_to_the_end_that_was_promised() {
    let mut tenures = Tenures::new(pulse());
    let id = enter_with(&mut tenures, "a", &terms(900), 1);
    let minute = Ttl::new(Duration::from_secs(60)).unwrap();
    tenures.extending(id, at(0), minute);
    let hold = &tenures.of_hold(id).unwrap().hold;
    hold.raise(at(1), minute.deadline(at(0)), hold.validity().version);
    let deadline = hold.validity().deadline;
    for now in [1_000, 30_000] {
        tenures.renew_all_soon(at(now));
        assert!(tenures.advance(at(now)).is_empty());
        let renewal = tenures.renewals(9, at(now)).pop().expect("it is due");
        let ttl = Ttl::new(renewal.request.ttl).unwrap();
        assert!(ttl.deadline(at(now)) >= deadline && ttl.end(at(now)) <= minute.end(at(1)), "{ttl:?}");
        let renewed = Outcome::Renewed { remaining: renewal.request.ttl, fence: None, block: 0 };
        tenures.renewed(&renewal, Some(renewed), at(now), at(now), 0.0, &mut Deferred::default());
    }
    assert_eq!(tenures.of_hold(id).unwrap().hold.validity().deadline, deadline, "no later than promised");
}

/// Panics once it is switched on.
#[derive(Debug, Default)]
struct Panics(std::sync::atomic::AtomicBool);

impl Clock for Panics {
    fn now(&self) -> Moment {
        assert!(!self.0.load(std::sync::atomic::Ordering::Relaxed), "a bug of the application's");
        at(0)
    }

    fn sleep(&self, _: Duration) -> Sleep {
        Box::pin(std::future::pending())
    }
}

/// The rest of the answers to a call would be lost, and their leases be taken for ones that are being renewed.
#[test]
fn answers_are_handled_without_a_look_at_the_clock() {
    let clock = Arc::new(Panics::default());
    let mut tenures = Tenures::new(Pulse::new(Arc::clone(&clock) as Arc<dyn Clock>, None));
    let ids = ["refilled", "gone", "held", "granted"].map(|key| enter(&mut tenures, key, 900).tenure);
    let refill = tenures.refill(ids[0], 5, 0, at(1)).unwrap();
    assert!(tenures.advance(at(300)).is_empty());
    let renewals = tenures.renewals(9, at(300));
    clock.0.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut deferred = Deferred::default();
    let filled = Outcome::Renewed { remaining: Duration::from_millis(900), fence: Some(20), block: 5 };
    assert!(tenures.refilled(&refill, Some(filled), (at(1), at(301)), &mut deferred).is_none());
    let gone = renewals.iter().find(|renewal| renewal.tenure == ids[1]).unwrap();
    assert!(tenures.renewed(gone, Some(Outcome::Gone), at(300), at(301), 0.0, &mut deferred).is_some());
    assert!(tenures.held_again(ids[2], (10, false), at(300), at(301)).is_none());
    assert!(tenures.refused_again(ids[2], at(301), at(302)).is_some());
    assert!(tenures.granted_anew(ids[3], 11, at(302)).is_some());
}

#[test]
fn a_lease_that_was_extended_beyond_its_ttl_is_not_passed_on() {
    for (ttl_ms, passes) in [(800, true), (900, true), (60_000, false)] {
        let mut tenures = Tenures::new(pulse());
        let id = enter_with(&mut tenures, "a", &terms(900), 2);
        tenures.extending(id, at(1), Ttl::new(Duration::from_millis(ttl_ms)).unwrap());
        assert_eq!(tenures.pass(id, &terms(900), at(2)).is_some(), passes, "{ttl_ms}");
    }
}

#[test]
fn a_look_is_not_forgotten_when_an_extend_is_sent_or_answered() {
    let mut tenures = Tenures::new(pulse());
    let hold = enter_with(&mut tenures, "a", &terms(60_000), 1);
    let minute = Ttl::new(Duration::from_secs(60)).unwrap();
    tenures.connected(at(50));
    tenures.extending(hold, at(50), minute);
    assert!(tenures.advance(at(52)).is_empty());
    assert_eq!(tenures.renewals(9, at(52)).len(), 1);

    // The extend may have been executed before the write, and is answered before the look is sent.
    let hold = enter_with(&mut tenures, "b", &terms(60_000), 1);
    tenures.extending(hold, at(100), minute);
    tenures.renew_soon(hold.tenure, at(101));
    tenures.extended(hold, at(100), minute);
    assert!(tenures.advance(at(112)).is_empty());
    assert_eq!(tenures.renewals(9, at(112)).len(), 1);
}

#[test]
fn a_renewal_waits_for_half_of_what_its_lease_has_left_and_for_all_of_it_only_after_a_grant() {
    let mut tenures = Tenures::new(pulse());
    let hold = enter(&mut tenures, "k", 900);
    // That it is to end soon in any case is nothing that a new connection would help.
    tenures.end_by(hold, at(850));
    let left = |tenures: &Tenures, now| tenures.hold(hold.tenure).expect("it goes on").validity().deadline.since(now);
    for (now, is_answered) in [(at(300), false), (at(400), true), (at(800), true)] {
        assert!(tenures.advance(now).is_empty());
        let renewals = tenures.renewals(9, now);
        let [renewal] = &renewals[..] else { panic!("{renewals:?}") };
        assert_eq!(renewal.request.within, left(&tenures, now) / 2, "the other half is for another try");
        let renewed = Outcome::Renewed { remaining: Duration::from_millis(900), fence: None, block: 0 };
        let answer = is_answered.then_some(renewed);
        assert!(tenures.renewed(renewal, answer, now, now, 0.0, &mut Deferred::default()).is_none());
    }
    let mut tenures = Tenures::new(pulse());
    let (terms, doubt) = (terms(9_000), Doubt { until: at(0), unanswered_since: None });
    let granted = Some(Ttl::new(Duration::from_millis(1_025)).unwrap());
    let acquired =
        Acquired { token: Token::from_random(1), fence: 10, block: 1, sent: at(0), doubt, passes: true, granted };
    let (hold, _) = tenures.enter(&LockKey::new("k").unwrap(), &terms, acquired, at(0));
    tenures.begin(hold, &terms, at(0));
    let danger = tenures.hold(hold.tenure).expect("it goes on").validity().danger;
    // Not from the beginning on, though what it has is less than the margin of its ttl.
    assert!((at(450)..at(550)).contains(&danger), "half of what it was granted, and not {danger:?}");
    assert!(tenures.advance(at(500)).is_empty());
    let renewals = tenures.renewals(9, at(500));
    let [renewal] = &renewals[..] else { panic!("{renewals:?}") };
    let left = tenures.hold(hold.tenure).expect("it goes on").end().since(at(500));
    assert_eq!(renewal.request.within, left, "half of it is within the jitter of a slow server");
}

/// Answers the renewal that is due `now`, and returns how many milliseconds later the next one is.
fn until_next_renewal(tenures: &mut Tenures, now: &mut u64, outcome: Option<Outcome>) -> u64 {
    let renewals = tenures.renewals(9, at(*now));
    let [renewal] = &renewals[..] else { panic!("{renewals:?}") };
    assert!(tenures.renewed(renewal, outcome, at(*now), at(*now), 1.0, &mut Deferred::default()).is_none());
    let before = *now;
    while tenures.due.is_empty() {
        *now += 1;
        assert!(tenures.advance(at(*now)).is_empty());
    }
    *now - before
}

#[test]
fn a_renewal_that_fails_after_a_success_is_tried_again_as_soon_as_the_first_that_failed() {
    let mut tenures = Tenures::new(pulse());
    enter(&mut tenures, "k", 60_000);
    let mut now = 21_000;
    assert!(tenures.advance(at(now)).is_empty());
    let pauses: Vec<_> = (0..5).map(|_| until_next_renewal(&mut tenures, &mut now, None)).collect();
    assert!(pauses.is_sorted() && pauses[4] > 8 * pauses[0], "{pauses:?}");
    let renewed = Outcome::Renewed { remaining: Duration::from_secs(60), fence: None, block: 0 };
    assert!(until_next_renewal(&mut tenures, &mut now, Some(renewed)) > 19_000);
    let again: Vec<_> = (0..2).map(|_| until_next_renewal(&mut tenures, &mut now, None)).collect();
    assert_eq!(again, pauses[..2]);
}
