use super::*;
use crate::{
    ErrorKind,
    backend::{BackendError, BusyReason, Place, Release, Renew},
    key::LockKey,
    mode::Mode,
};

const TTL: Duration = Duration::from_secs(3);

fn at(ms: u64) -> Moment {
    Moment::from_origin(Duration::from_millis(ms))
}

fn key() -> LockKey {
    LockKey::new("k").unwrap()
}

fn token() -> Token {
    Token::from_random(1)
}

fn acquire() -> Batch {
    let place = Place::new("channel".into(), TTL, TTL, Moment::from_origin(Duration::ZERO));
    Batch::from([Operation::Acquire(Acquire::new(key(), token(), TTL).or_wait(place))])
}

fn renew() -> Batch {
    Batch::from([Operation::Renew(Renew::new(key(), token(), TTL))])
}

fn release() -> Batch {
    Batch::from([Operation::Release(Release::new(key(), token()).with_place())])
}

fn said(outcome: Outcome) -> Result<Answer, BackendError> {
    Ok(Answer::new([Ok(outcome)]))
}

fn held() -> Result<Answer, BackendError> {
    said(Outcome::Held { fence: 1, block: 1, was_free: true })
}

fn silence() -> Result<Answer, BackendError> {
    Err(BackendError::new(ErrorKind::Backend, "silence"))
}

fn way(epoch: u64) -> Way {
    Way { epoch, open: true }
}

impl Ledger {
    fn asks_for(&mut self, node: usize, batch: &Batch, sent: Moment, way: Way) -> Asked {
        let places = self.places();
        self.ask(node, places, batch, sent, way)
    }

    fn due_now(&mut self, node: usize, now: Moment) -> Vec<Try> {
        self.node(node).due(now, 10).unwrap_or_default()
    }
}

#[test]
fn every_node_is_asked_to_begin_with_the_same_number_where_numbers_are_drawn() {
    let mut ledger = Ledger::new(3);
    ledger.aim.showed(5_000_000, at(10), at(10));
    let mut batch = acquire();
    batch.push(Operation::Renew(Renew::new(key(), token(), TTL).with_block(7)));
    batch.extend(renew());
    ledger.aim.set(&mut batch, at(10));
    for node in 0..3_u8 {
        let asked = ledger.asks_for(node.into(), &batch, at(11 + u64::from(node)), way(1));
        let aims = asked.batch.iter().map(|operation| match operation {
            Operation::Acquire(acquire) => acquire.aim,
            Operation::Renew(renew) => renew.aim,
            _ => unreachable!("there is no other"),
        });
        assert_eq!(aims.collect::<Vec<_>>(), [5_000_000, 5_000_000, 0], "node {node}");
    }
}

fn place_of(asked: &Asked) -> Option<&str> {
    match &asked.batch[0] {
        Operation::Acquire(acquire) => acquire.place.as_ref().map(|place| &*place.channel),
        operation => panic!("{operation:?}"),
    }
}

fn puts_back(asked: &Asked) -> bool {
    matches!(asked.batch[0], Operation::Acquire(_))
}

#[test]
fn places_are_kept_by_the_first_node_that_answers_and_can_call_if_it_listens() {
    let mut ledger = Ledger::new(3);
    ledger.listens(0, true);
    let asked = [0, 1].map(|node| ledger.asks_for(node, &acquire(), at(0), way(0)));
    assert_eq!(asked.each_ref().map(place_of), [Some("channel"), None]);
    ledger.answered(&asked[0], &mut silence(), at(300), 0);
    assert_eq!(ledger.places().queue_node, 1);
    assert_eq!(place_of(&ledger.asks_for(1, &acquire(), at(400), way(0))), Some(""), "it does not hear that one");
    assert_eq!(ledger.listens(1, true), Some(true));
    assert_eq!(place_of(&ledger.asks_for(1, &acquire(), at(400), way(0))), Some("channel"));
}

#[test]
fn a_lease_that_a_node_lacks_is_put_back_until_it_is_released() {
    let mut ledger = Ledger::new(3);
    let busy = || said(Outcome::Busy { remaining: None, by: BusyReason::Holder, position: None });
    for (node, mut answer) in [(0, held()), (1, busy())] {
        let asked = ledger.asks_for(node, &acquire(), at(0), way(0));
        ledger.answered(&asked, &mut answer, at(1), 0);
    }
    assert!(!puts_back(&ledger.asks_for(1, &renew(), at(500), way(0))), "one of three is not a majority");
    let asked = ledger.asks_for(2, &acquire(), at(0), way(0));
    ledger.answered(&asked, &mut held(), at(500), 0);
    let asked = ledger.asks_for(1, &renew(), at(1_000), way(0));
    assert!(puts_back(&asked));
    assert!(!puts_back(&ledger.asks_for(0, &renew(), at(1_000), way(0))), "the others renew");
    ledger.answered(&asked, &mut held(), at(1_001), 0);
    let asked = ledger.asks_for(1, &renew(), at(2_000), way(0));
    assert!(!puts_back(&asked), "now it has it");
    ledger.answered(&asked, &mut said(Outcome::Gone), at(2_001), 0);
    assert!(puts_back(&ledger.asks_for(1, &renew(), at(2_500), way(0))), "it has forgotten it");
    assert!(!puts_back(&ledger.asks_for(1, &renew(), at(3_500), way(0))), "the others may have lost it");
    ledger.asks_for(0, &release(), at(2_600), way(0));
    assert!(!puts_back(&ledger.asks_for(1, &renew(), at(2_600), way(0))), "nobody would release it");
}

#[test]
fn a_renewal_counts_where_the_lease_was_all_the_time() {
    let renewed = || said(Outcome::Renewed { remaining: TTL, fence: None, block: 0 });
    let counts = |ledger: &mut Ledger, sent: u64, answered: u64| {
        let asked = ledger.asks_for(1, &renew(), at(sent), way(0));
        let mut answer = renewed();
        ledger.answered(&Asked { batch: renew(), ..asked }, &mut answer, at(answered), 0);
        matches!(answer.and_then(Answer::single), Ok(Outcome::Renewed { .. }))
    };
    let mut ledger = Ledger::new(3);
    for node in [0, 2] {
        let asked = ledger.asks_for(node, &acquire(), at(0), way(0));
        ledger.answered(&asked, &mut held(), at(1), 0);
    }
    let late = ledger.asks_for(1, &acquire(), at(0), way(0));
    assert!(!counts(&mut ledger, 900, 901), "it got it late, when another may have had it meanwhile");
    assert!(!counts(&mut ledger, 950, 951), "nobody knows that the others had it then");
    for node in [0, 2] {
        let asked = ledger.asks_for(node, &renew(), at(960), way(0));
        ledger.answered(&asked, &mut renewed(), at(961), 0);
    }
    assert!(counts(&mut ledger, 1_000, 1_001), "a majority had it then");
    ledger.answered(&late, &mut held(), at(1_002), 0);
    assert!(counts(&mut ledger, 3_000, 3_900));
    assert!(!counts(&mut ledger, 5_900, 5_990), "it may have expired before that was executed");
}

#[test]
fn a_release_that_a_node_does_not_answer_is_pending_until_the_lease_has_expired() {
    let mut ledger = Ledger::new(3);
    let asked = ledger.asks_for(1, &acquire(), at(0), way(0));
    ledger.answered(&asked, &mut held(), at(1), 0);
    let asked = ledger.asks_for(1, &release(), at(100), way(0));
    assert!(ledger.answered(&asked, &mut silence(), at(400), 0));
    let mut now = at(400);
    let mut tries = 0;
    while let Some(next) = ledger.next() {
        now = next.max(now);
        let due = ledger.due_now(1, now);
        if due.is_empty() {
            break;
        }
        assert!(due.len() == 1 && due[0].release.place && ledger.due_now(1, now).is_empty());
        assert!(!ledger.is_settled());
        tries += 1;
        ledger.node(1).releases_answered(due, &silence(), (now, now, 0));
    }
    assert!(tries > 3 && now == at(3_100), "{tries} tries until {now:?}");
    assert!(ledger.is_settled());
}

#[test]
fn an_acquire_in_doubt_is_released_again_after_a_reconnect_and_once_without() {
    for (epoch, again) in [(0, false), (1, true)] {
        let mut ledger = Ledger::new(3);
        let asked = ledger.asks_for(2, &acquire(), at(0), way(0));
        ledger.answered(&asked, &mut silence(), at(300), 0);
        let asked = ledger.asks_for(2, &release(), at(400), way(epoch));
        assert_eq!(ledger.answered(&asked, &mut said(Outcome::Gone), at(401), epoch), again, "epoch {epoch}");
        if again {
            let due = ledger.due_now(2, at(401));
            ledger.node(2).releases_answered(due, &said(Outcome::Gone), (at(401), at(402), 1));
            assert!(ledger.next().is_some(), "it may still be executed");
            let due = ledger.due_now(2, at(3_401));
            ledger.node(2).releases_answered(due, &said(Outcome::Gone), (at(3_401), at(3_402), 1));
        }
        assert_eq!(ledger.next(), None);
    }
}

#[test]
fn an_acquire_that_was_sent_twice_is_in_doubt_though_it_was_answered() {
    for (repeated, again) in [(false, false), (true, true)] {
        let mut ledger = Ledger::new(3);
        let asked = ledger.asks_for(2, &acquire(), at(0), way(0));
        let mut answer = held().map(|answer| Answer { repeated, ..answer });
        ledger.answered(&asked, &mut answer, at(300), 1);
        let asked = ledger.asks_for(2, &release(), at(400), way(1));
        let is_pending = ledger.answered(&asked, &mut said(Outcome::Released), at(401), 1);
        assert_eq!(is_pending, again, "the first may be executed still, over the connection that was given up");
        assert_eq!(ledger.next().is_some(), again);
    }
}

#[test]
fn an_answer_that_comes_late_does_not_outweigh_a_newer_one() {
    let busy = || said(Outcome::Busy { remaining: None, by: BusyReason::Holder, position: None });
    let gone = || said(Outcome::Gone);
    let renewed = || said(Outcome::Renewed { remaining: TTL, fence: None, block: 0 });
    // (An acquire that found another holder, and a renewal that found nothing, each before the lease was put back.)
    for (late, mut said_late) in [(acquire(), busy()), (renew(), gone())] {
        let mut ledger = Ledger::new(3);
        let late = ledger.asks_for(2, &late, at(0), way(0));
        for node in [0, 1] {
            let asked = ledger.asks_for(node, &acquire(), at(0), way(0));
            ledger.answered(&asked, &mut held(), at(1), 0);
        }
        let asked = ledger.asks_for(2, &renew(), at(500), way(0));
        assert!(puts_back(&asked));
        ledger.answered(&asked, &mut held(), at(501), 0);
        ledger.answered(&late, &mut said_late, at(600), 0);
        let asked = ledger.asks_for(2, &renew(), at(1_000), way(0));
        assert!(!puts_back(&asked), "it was there at 500");
        ledger.answered(&asked, &mut renewed(), at(1_001), 0);
        ledger.answered(&late, &mut gone(), at(1_002), 0);
        assert!(!puts_back(&ledger.asks_for(2, &renew(), at(3_900), way(0))), "and at 1,000");
    }
}

#[test]
fn a_request_that_surely_did_not_happen_leaves_no_doubt() {
    let mut ledger = Ledger::new(1);
    let asked = ledger.asks_for(0, &acquire(), at(0), way(0));
    let mut refused = Err(BackendError::new(ErrorKind::Backend, "down").did_not_happen());
    ledger.answered(&asked, &mut refused, at(1), 0);
    let asked = ledger.asks_for(0, &release(), at(2), way(5));
    assert!(!ledger.answered(&asked, &mut said(Outcome::Gone), at(3), 5));
}

#[test]
fn what_is_known_of_tokens_is_forgotten_when_it_has_expired() {
    let mut ledger = Ledger::new(1);
    for number in 0..20_000_u64 {
        let token = Token::from_random(u128::from(number));
        let batch = Batch::from([Operation::Acquire(Acquire::new(key(), token, TTL))]);
        let asked = ledger.asks_for(0, &batch, at(number * 10), way(0));
        let mut answer = if number % 2 == 0 { silence() } else { held() };
        ledger.answered(&asked, &mut answer, at(number * 10 + 1), 0);
    }
    let node = &ledger.nodes[0];
    assert!(node.surely.len() < 2_000 && node.unanswered.len() < 2_000, "{}", node.unanswered.len());
}

/// Answers of a node, each sent at a time in ms, and how long they took.
fn answers(ledger: &mut Ledger, node: usize, answers: impl IntoIterator<Item = (u64, u64)>) {
    for (sent, took) in answers {
        let asked = ledger.asks_for(node, &renew(), at(sent), way(0));
        ledger.answered(&asked, &mut said(Outcome::Gone), at(sent + took), 0);
    }
}

#[test]
fn a_node_is_slow_when_all_its_answers_of_a_while_take_longer_than_those_of_a_majority() {
    let mut ledger = Ledger::new(3);
    let slow = |ledger: &Ledger| [0, 1, 2].map(|node| ledger.nodes[node].slow);
    for node in 0..3 {
        answers(&mut ledger, node, [(0, 1), (200, 1), (400, 1), (600, 1)]);
    }
    assert_eq!(slow(&ledger), [false; 3]);
    answers(&mut ledger, 0, [(700, 300), (1_000, 300), (1_300, 300)]);
    assert_eq!(slow(&ledger), [false; 3], "three answers may be noise");
    answers(&mut ledger, 0, [(1_600, 300)]);
    assert_eq!((slow(&ledger), ledger.places().queue_node), ([true, false, false], 1));
    answers(&mut ledger, 1, [(2_000, 300), (2_001, 300), (2_002, 300), (2_003, 300)]);
    assert_eq!(slow(&ledger), [true, false, false], "four at once may be one stall");
    answers(&mut ledger, 0, [(2_100, 2)]);
    assert_eq!((slow(&ledger), ledger.places().queue_node), ([false; 3], 0), "noise makes no answer quicker");
}

#[test]
fn no_node_is_slow_where_a_majority_is_or_where_all_are_far() {
    let mut ledger = Ledger::new(3);
    let often = |took| [0, 200, 400, 600].map(|sent| (sent, took));
    for (node, took) in [(0, 1), (1, 300), (2, 310)] {
        answers(&mut ledger, node, often(took));
    }
    assert!((0..3).all(|node| !ledger.nodes[node].slow), "two are needed");
    let mut ledger = Ledger::new(3);
    for (node, took) in [(0, 10), (1, 10), (2, 50)] {
        answers(&mut ledger, node, often(took));
    }
    assert!((0..3).all(|node| !ledger.nodes[node].slow), "as far as another region");
}

#[test]
fn a_quorum_is_not_settled_while_a_slow_node_may_still_answer() {
    let mut ledger = Ledger::new(3);
    ledger.left += 1;
    assert!(!ledger.is_settled() && !ledger.is_held_up());
    ledger.left -= 1;
    assert!(ledger.is_settled());
}

#[test]
fn a_node_that_was_not_heard_is_asked_how_slow_it_is() {
    let mut ledger = Ledger::new(3);
    assert_eq!(ledger.patience([2].into_iter()), LEAST_PATIENCE);
    let asked = ledger.asks_for(2, &renew(), at(0), way(0));
    assert!(ledger.unheard(&asked, at(5), 0), "there is something to do");
    assert_eq!((ledger.next(), ledger.node(1).looks(at(5))), (Some(at(5)), false));
    assert!(ledger.node(2).looks(at(5)), "a sign of life");
    assert!(!ledger.node(2).looks(at(6)), "one at a time");
    assert!(ledger.look(2, at(6), way(0), 10).batch.is_empty(), "no lease");
    ledger.node(2).looked(false, at(5), at(300));
    assert_eq!((ledger.next(), ledger.node(2).looks(at(400))), (Some(at(800)), false));
    assert!(ledger.node(2).looks(at(800)));
    ledger.node(2).looked(true, at(800), at(830));
    assert_eq!(ledger.patience([2].into_iter()), Duration::from_millis(120), "now it is known");
    assert_eq!(ledger.next(), None);
}

#[test]
fn the_first_answer_of_a_node_says_how_long_its_answers_take() {
    let mut ledger = Ledger::new(3);
    let waited = ledger.asks_for(1, &acquire(), at(0), Way { epoch: 0, open: false });
    ledger.answered(&waited, &mut held(), at(800), 0);
    assert_eq!(ledger.patience([1].into_iter()), LEAST_PATIENCE, "it waited for its connection");
    let asked = ledger.asks_for(2, &acquire(), at(0), way(0));
    ledger.answered(&asked, &mut held(), at(20), 0);
    assert_eq!(ledger.patience([2].into_iter()), Duration::from_millis(80));
    assert_eq!(ledger.patience([1].into_iter()), Duration::from_millis(80), "as long as for the slowest that is known");
    let slow = ledger.asks_for(0, &acquire(), at(0), way(0));
    ledger.answered(&slow, &mut held(), at(9_000), 0);
    assert_eq!(ledger.patience([0].into_iter()), MOST_PATIENCE, "it says little of the next one");
}

#[test]
fn a_lease_that_lapsed_at_a_node_does_not_count_there_when_it_is_put_back() {
    let renewed = || said(Outcome::Renewed { remaining: TTL, fence: None, block: 0 });
    let mut ledger = Ledger::new(3);
    for node in 0..3 {
        let asked = ledger.asks_for(node, &acquire(), at(0), way(0));
        ledger.answered(&asked, &mut held(), at(1), 0);
    }
    for node in 0..2 {
        let asked = ledger.asks_for(node, &renew(), at(1_000), way(0));
        ledger.answered(&asked, &mut renewed(), at(1_001), 0);
    }
    // The lease of node 2 is over, and another holder may have had the key there since.
    let asked = ledger.asks_for(2, &renew(), at(3_500), way(0));
    assert!(puts_back(&asked));
    ledger.answered(&asked, &mut held(), at(3_501), 0);
    let asked = ledger.asks_for(2, &renew(), at(3_520), way(0));
    let mut answer = renewed();
    ledger.answered(&asked, &mut answer, at(3_521), 0);
    assert_eq!(answer.and_then(Answer::single).unwrap(), Outcome::Gone, "nobody knows that others had it then");
}

#[test]
fn each_of_those_who_share_a_key_is_looked_for() {
    let mut ledger = Ledger::new(3);
    let tokens = [1, 2].map(|number| Token::from_random(number).in_mode(Mode::Shared));
    let acquires: Batch = tokens.iter().map(|token| Operation::Acquire(Acquire::new(key(), *token, TTL))).collect();
    let held = Outcome::Held { fence: 1, block: 1, was_free: true };
    for node in [0, 1] {
        let asked = ledger.asks_for(node, &acquires, at(0), way(0));
        ledger.answered(&asked, &mut Ok(Answer::new([Ok(held), Ok(held)])), at(1), 0);
    }
    let asked = ledger.asks_for(2, &acquires, at(0), way(0));
    ledger.unheard(&asked, at(5), 0);
    let looks = ledger.look(2, at(6), way(0), 10).batch;
    let asked =
        looks.iter().filter_map(|look| if let Operation::Renew(renew) = look { Some(renew.token) } else { None });
    assert_eq!(asked.collect::<Vec<_>>(), tokens);
}

#[test]
fn a_release_of_a_lease_that_was_extended_is_pending_until_that_has_expired() {
    let mut ledger = Ledger::new(1);
    let asked = ledger.asks_for(0, &acquire(), at(0), way(0));
    ledger.unheard(&asked, at(5), 0);
    let longer = Batch::from([Operation::Renew(Renew::new(key(), token(), TTL * 100))]);
    let asked = ledger.asks_for(0, &longer, at(1_000), way(0));
    ledger.answered(&asked, &mut said(Outcome::Renewed { remaining: TTL * 100, fence: None, block: 0 }), at(1_001), 0);
    let asked = ledger.asks_for(0, &release(), at(10_000), way(0));
    ledger.answered(&asked, &mut silence(), at(10_300), 0);
    assert_eq!(ledger.due_now(0, at(10_300)).len(), 1, "the doubt of the first request is over, the lease is not");
    ledger.node(0).releases_answered(Vec::new(), &silence(), (at(10_300), at(10_600), 0));
    assert!(!ledger.is_settled());
}

#[test]
fn a_lease_whose_extension_a_node_did_not_answer_is_released_there() {
    let mut ledger = Ledger::new(3);
    let asked = ledger.asks_for(2, &acquire(), at(0), way(0));
    ledger.answered(&asked, &mut held(), at(1), 0);
    let longer = Batch::from([Operation::Renew(Renew::new(key(), token(), TTL * 100))]);
    let asked = ledger.asks_for(2, &longer, at(1_000), way(0));
    ledger.unheard(&asked, at(1_005), 0);
    ledger.node(2).surely.shrink_to_fit();
    for number in 0..10 {
        let other = Acquire::new(key(), Token::from_random(100 + number), TTL);
        let asked = ledger.asks_for(2, &Batch::from([Operation::Acquire(other)]), at(10_000), way(0));
        ledger.answered(&asked, &mut held(), at(10_001), 0);
    }
    let release = Batch::from([Operation::Release(Release::new(key(), token()))]);
    let asked = ledger.asks_for(2, &release, at(10_002), way(0));
    ledger.unheard(&asked, at(10_007), 0);
    assert_eq!(ledger.due_now(2, at(10_007)).len(), 1, "the node has it for as long as it was extended");
}

/// The acquire and the release may be given up in any order, and the release may be answered.
#[test]
fn a_key_that_is_to_stay_busy_is_not_freed_for_an_acquire_that_was_not_answered() {
    for release_is_answered in [false, true] {
        let mut ledger = Ledger::new(3);
        let acquire = ledger.asks_for(2, &acquire(), at(0), way(0));
        let kept = Batch::from([Operation::Release(Release::new(key(), token()).after(TTL * 10))]);
        let release = ledger.asks_for(2, &kept, at(100), way(0));
        if release_is_answered {
            ledger.answered(&release, &mut said(Outcome::Released), at(101), 0);
        }
        ledger.unheard(&acquire, at(200), 0);
        if !release_is_answered {
            ledger.unheard(&release, at(200), 0);
        }
        let due = ledger.due_now(2, at(1_100));
        let kept: Vec<_> = due.iter().map(|due| (due.release.after, due.release.quiet)).collect();
        assert_eq!(kept, [(TTL * 10 - Duration::from_millis(1_000), release_is_answered)]);
    }
}

#[test]
fn releases_of_one_token_are_pending_together_with_all_that_each_of_them_asks_for() {
    let mut ledger = Ledger::new(3);
    let plain = |after| Batch::from([Operation::Release(Release::new(key(), token()).after(after))]);
    let asked = ledger.asks_for(2, &acquire(), at(0), way(0));
    ledger.unheard(&asked, at(50), 0);
    for batch in [plain(Duration::ZERO), plain(TTL), release()] {
        let asked = ledger.asks_for(2, &batch, at(100), way(0));
        ledger.unheard(&asked, at(200), 0);
    }
    let due = ledger.due_now(2, at(1_100));
    let kept: Vec<_> = due.iter().map(|due| (due.release.after, due.release.place)).collect();
    assert_eq!(kept, [(TTL - Duration::from_millis(1_000), true)]);
}

#[test]
fn a_node_that_answers_no_release_leaves_nothing_of_the_leases_that_are_over() {
    for is_answered in [true, false] {
        let mut ledger = Ledger::new(3);
        for number in 0..10_000_u32 {
            let begun = u64::from(number) * 10_000;
            let token = Token::from_random(number.into());
            let acquire = Batch::from([Operation::Acquire(Acquire::new(key(), token, TTL))]);
            let asked = ledger.asks_for(1, &acquire, at(begun), way(0));
            ledger.answered(&asked, &mut held(), at(begun + 1), 0);
            let release = Batch::from([Operation::Release(Release::new(key(), token))]);
            let asked = ledger.asks_for(1, &release, at(begun + 100), way(0));
            assert!(ledger.answered(&asked, &mut silence(), at(begun + 400), 0), "the release is pending");
            let due = ledger.due_now(1, at(begun + 400));
            assert_eq!(due.len(), 1);
            let answer = if is_answered { said(Outcome::Released) } else { silence() };
            ledger.node(1).releases_answered(due, &answer, (at(begun + 400), at(begun + 401), 0));
            // The lease has ended by itself.
            assert!(ledger.due_now(1, at(begun + 9_000)).is_empty() && ledger.is_settled());
        }
        let node = ledger.node(1);
        assert!(
            node.pending.is_empty() && node.pending_tokens.is_empty(),
            "{} tokens are left",
            node.pending_tokens.len()
        );
        let left = [node.surely.len(), node.placed.len(), node.unanswered.len()];
        assert!(left.iter().all(|left| *left < 100) && ledger.asking.is_empty(), "{left:?}");
    }
}
