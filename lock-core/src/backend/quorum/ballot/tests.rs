use std::time::Duration;

use super::*;
use crate::error::ErrorKind;
use crate::{
    backend::{Acquire, BusyReason, Place, Release, Renew, Token},
    clock::Moment,
    key::LockKey,
    mode::Mode,
};

const TTL: Duration = Duration::from_secs(3);

fn key() -> LockKey {
    LockKey::new("k").unwrap()
}

fn acquire() -> Operation {
    let place = Place::new("channel".into(), TTL, TTL, Moment::from_origin(Duration::ZERO));
    Operation::Acquire(Acquire::new(key(), Token::from_random(1), TTL).or_wait(place))
}

#[test]
fn a_shared_key_has_the_leases_that_a_majority_counts() {
    let ttl = |tenths: u32| TTL * tenths / 10;
    let shared = |leases| Outcome::Shared { leases, permits: 0, first: ttl(leases), last: ttl(10 - leases) };
    // Of each node how many leases it has, if it is heard: none is a key that is free.
    let inspect = |votes: &[Option<u32>]| {
        let mut ballot = ballot(Operation::Inspect { key: key() }, votes.len());
        for (node, vote) in votes.iter().enumerate() {
            match vote {
                Some(0) => ballot.says(node, Outcome::Gone),
                Some(leases) => ballot.says(node, shared(*leases)),
                None => ballot.fails(node, error()),
            }
        }
        ballot.sure()
    };
    let leases = |votes: &[Option<u32>]| match inspect(votes) {
        Outcome::Shared { leases, .. } => leases,
        outcome => panic!("{outcome:?}"),
    };
    assert_eq!(leases(&[Some(2), Some(2), Some(3)]), 2, "one is being acquired");
    assert_eq!(leases(&[Some(3), Some(1), Some(3)]), 3, "one node has lost two");
    assert_eq!(leases(&[Some(4), Some(3), Some(2), Some(2), Some(1)]), 2);
    assert_eq!(leases(&[Some(3), Some(2), None]), 2, "one node is down");
    assert_eq!(leases(&[Some(3), None, Some(0)]), 3, "the node that failed may have it");
    assert_eq!(inspect(&[Some(1), Some(0), Some(0)]), Outcome::Gone);
    assert_eq!(
        inspect(&[Some(2), Some(3), None]),
        Outcome::Shared { leases: 2, permits: 0, first: ttl(2), last: ttl(8) }
    );
}

#[test]
fn a_key_is_shared_if_more_nodes_say_so_than_that_one_holder_has_it() {
    let shared = Outcome::Shared { leases: 2, permits: 0, first: TTL / 2, last: TTL * 2 };
    let inspect = |votes: [Outcome; 3]| {
        let mut ballot = ballot(Operation::Inspect { key: key() }, 3);
        votes.into_iter().enumerate().for_each(|(node, vote)| ballot.says(node, vote));
        ballot.sure()
    };
    assert_eq!(inspect([shared, Outcome::Gone, shared]), shared);
    assert_eq!(inspect([busy(None), Outcome::Gone, busy(None)]), busy(None));
    let longest = Outcome::Busy { remaining: Some(TTL * 2), by: BusyReason::Holder, position: None };
    assert_eq!(inspect([busy(None), Outcome::Gone, shared]), longest);
    let foreign = Outcome::Busy { remaining: Some(TTL), by: BusyReason::Foreign, position: None };
    assert!(matches!(inspect([shared, foreign, shared]), Outcome::Busy { by: BusyReason::Foreign, .. }));
}

fn renew(block: u32) -> Operation {
    Operation::Renew(Renew::new(key(), Token::from_random(1), TTL).with_block(block))
}

fn release() -> Operation {
    Operation::Release(Release::new(key(), Token::from_random(1)))
}

fn ballot(operation: Operation, nodes: usize) -> Ballot {
    Ballot::new(Batch::from([operation]), nodes, 0)
}

fn held(fence: u64, block: u32) -> Outcome {
    Outcome::Held { fence, block, was_free: false }
}

fn busy(position: Option<u32>) -> Outcome {
    Outcome::Busy { remaining: Some(TTL), by: BusyReason::Holder, position }
}

fn renewed(fence: Option<u64>, block: u32) -> Outcome {
    Outcome::Renewed { remaining: TTL, fence, block }
}

fn error() -> BackendError {
    BackendError::new(ErrorKind::Backend, "it broke")
}

impl Ballot {
    fn says(&mut self, node: usize, outcome: Outcome) {
        self.vote(node, Ok(Answer::new([Ok(outcome)])));
        assert!(self.write_backs().is_empty());
    }

    fn fails(&mut self, node: usize, error: BackendError) {
        self.vote(node, Err(error));
    }

    fn outcome(&self) -> Result<Outcome, BackendError> {
        self.answer().and_then(Answer::single)
    }

    /// The outcome, which nobody has to be waited for.
    fn sure(&self) -> Outcome {
        assert_eq!(self.certainty(), Certainty::Sure);
        self.outcome().unwrap()
    }
}

#[test]
fn a_majority_that_counts_alike_holds() {
    let mut ballot = ballot(acquire(), 3);
    ballot.says(0, held(10, 2));
    assert_eq!(ballot.certainty(), Certainty::Open);
    ballot.says(2, held(10, 3));
    assert_eq!(ballot.certainty(), Certainty::Likely, "the more have it, the more may fail");
    ballot.says(1, busy(None));
    assert_eq!(ballot.sure(), held(10, 2), "as many as all have");
}

#[test]
fn the_largest_fencing_token_is_written_back_to_a_majority_first() {
    let mut ballot = ballot(acquire(), 5);
    for (node, fence) in [(0, 20), (1, 10)] {
        ballot.says(node, held(fence, 4));
    }
    ballot.vote(2, Ok(Answer::new([Ok(held(30, 3))])));
    let requests = ballot.write_backs();
    let asked: Vec<_> = requests.iter().map(|request| request.node).collect();
    assert_eq!(asked, [0, 1], "who has not counted to 32");
    for request in &requests {
        let Operation::Acquire(acquire) = &request.operation else { panic!("{:?}", request.operation) };
        assert_eq!((acquire.floor, acquire.block, &acquire.place), (32, 1, &None));
    }
    assert!(ballot.write_backs().is_empty(), "once");
    ballot.vote_on(0, [0], Ok(Answer::new([Ok(held(32, 1))])));
    assert_eq!(ballot.certainty(), Certainty::Open, "two of five count so far");
    ballot.vote_on(1, [0], Ok(Answer::new([Ok(held(40, 1))])));
    assert_eq!((ballot.certainty(), ballot.outcome().unwrap()), (Certainty::Likely, held(30, 3)));
}

#[test]
fn a_node_that_does_not_count_on_does_not_hold() {
    for broken in [Ok(Answer::new([Ok(held(5, 1))])), Ok(Answer::new([Ok(busy(None))])), Err(error())] {
        let mut ballot = ballot(acquire(), 3);
        ballot.says(0, held(10, 1));
        ballot.vote(1, Ok(Answer::new([Ok(held(20, 1))])));
        assert_eq!(ballot.write_backs().len(), 1);
        ballot.vote_on(0, [0], broken);
        assert_ne!(ballot.certainty(), Certainty::Sure, "the third may make up for it");
        ballot.vote(2, Ok(Answer::new([Ok(busy(None))])));
        assert_eq!(ballot.certainty(), Certainty::Sure);
        assert!(matches!(ballot.outcome(), Ok(Outcome::Split { .. })), "{:?}", ballot.outcome());
    }
}

#[test]
fn a_request_that_has_not_left_says_nothing_of_another_to_the_same_node() {
    let mut ballot = Ballot::new(Batch::from_iter([acquire(), acquire()]), 3, 0);
    ballot.has_left(2, Some(&[0]), true);
    ballot.has_left(2, Some(&[1]), false);
    ballot.has_left(1, None, false);
    let is_away = |node: usize| [0, 1].map(|item| matches!(ballot.seats[item * 3 + node].vote, Vote::Away));
    assert_eq!([0, 1, 2].map(is_away), [[false, false], [true, true], [false, true]]);
}

#[test]
fn a_refusal_by_too_few_nodes_proves_nothing_against_a_lease() {
    for (refused, proves) in [(1, false), (2, true), (3, true)] {
        let mut ballot = ballot(acquire(), 3).with_placed(vec![true]);
        (0..refused).for_each(|node| ballot.says(node, busy(None)));
        assert_eq!(ballot.outcome().unwrap(), busy(None), "its place is kept");
        assert_eq!(
            ballot.answer().unwrap().out_of_order,
            !proves,
            "a majority may have it, if {refused} of three refuse it"
        );
    }
    let mut held = ballot(acquire(), 3);
    (0..3).for_each(|node| held.says(node, self::held(10, 1)));
    assert!(!held.answer().unwrap().out_of_order);
}

#[test]
fn who_is_busy_everywhere_keeps_its_place() {
    let mut ballot = ballot(acquire(), 3);
    ballot.says(0, busy(Some(4)));
    ballot.says(1, busy(None));
    assert_eq!(ballot.certainty(), Certainty::Likely, "the third may have it");
    assert_eq!(ballot.outcome().unwrap(), busy(Some(4)), "which the next check finds");
    ballot.says(2, Outcome::Busy { remaining: Some(TTL), by: BusyReason::Waiters, position: None });
    assert_eq!(ballot.sure(), busy(Some(4)));
}

#[test]
fn a_token_with_a_place_at_any_node_is_kept_while_others_are_not_heard() {
    for (position, placed, unheard) in [(Some(2), false, 0), (Some(2), true, 2), (None, true, 1), (None, false, 2)] {
        let mut ballot = ballot(acquire(), 3).with_placed(vec![placed]);
        ballot.says((unheard + 1) % 3, busy(position));
        ballot.says((unheard + 2) % 3, busy(None));
        assert_eq!(ballot.certainty(), Certainty::Likely);
        let is_kept = position.is_some() || placed;
        assert_eq!(ballot.outcome().unwrap() == busy(position), is_kept, "{:?}", ballot.outcome());
        ballot.fails(unheard, error());
        assert_eq!(ballot.sure() == busy(position), is_kept, "{:?}", ballot.outcome());
    }
}

#[test]
fn a_token_that_a_node_has_is_over_though_it_has_places() {
    let mut ballot = ballot(acquire(), 3).with_placed(vec![true]);
    ballot.says(0, busy(Some(1)));
    ballot.says(1, busy(Some(1)));
    ballot.says(2, held(10, 1));
    assert!(matches!(ballot.sure(), Outcome::Split { .. }), "two could have a part each for ever");
}

#[test]
fn nobody_passes_those_whom_the_queue_node_calls_first() {
    let mut ballot = ballot(acquire(), 3);
    ballot.says(1, held(10, 1));
    ballot.says(2, held(10, 1));
    assert_eq!(ballot.certainty(), Certainty::Likely, "it is heard, where it answers soon");
    assert_eq!(ballot.outcome().unwrap(), held(10, 1));
    ballot.says(0, Outcome::Busy { remaining: Some(TTL), by: BusyReason::Waiters, position: Some(2) });
    assert!(matches!(ballot.sure(), Outcome::Split { .. }), "two nodes have the token");
    let mut alone = self::ballot(acquire(), 3);
    for node in 0..3 {
        alone.says(node, Outcome::Busy { remaining: Some(TTL), by: BusyReason::Waiters, position: Some(2) });
    }
    assert_eq!(alone.sure(), Outcome::Busy { remaining: Some(TTL), by: BusyReason::Waiters, position: Some(2) });
}

/// A reader that is asked for in turn: first at nodes 0 and 1 of three.
fn in_turn() -> Ballot {
    let Operation::Acquire(mut acquire) = acquire() else { unreachable!("it is made so") };
    acquire.token = acquire.token.in_mode(Mode::Shared);
    ballot(Operation::Acquire(acquire), 3).in_turn(Places { queue_node: 0, deputy: Some(1) }, |_| false, |_, _| false)
}

#[test]
fn a_reader_that_comes_later_at_the_queue_node_is_asked_for_nowhere_else() {
    let mut ballot = in_turn();
    assert_eq!([0, 1, 2].map(|node| ballot.first_items(node)), [None, None, Some(vec![])]);
    ballot.says(1, busy(Some(2)));
    assert!(ballot.turns(false).is_empty(), "the queue node decides");
    ballot.says(0, Outcome::Busy { remaining: Some(TTL), by: BusyReason::Waiters, position: Some(2) });
    assert!(ballot.turns(false).is_empty());
    assert!(!ballot.has_later());
    let behind = Outcome::Busy { remaining: Some(TTL), by: BusyReason::Waiters, position: Some(2) };
    assert_eq!(ballot.sure(), behind, "it keeps its place");
    let mut ballot = in_turn();
    ballot.says(0, Outcome::Busy { remaining: Some(TTL), by: BusyReason::Waiters, position: Some(2) });
    ballot.says(1, held(10, 1));
    ballot.turns(false);
    assert!(matches!(ballot.sure(), Outcome::Split { .. }), "the deputy has given it the key");
}

#[test]
fn a_key_that_the_queue_node_says_is_held_is_asked_for_elsewhere_unless_the_deputy_says_so_too() {
    let mut ballot = in_turn();
    ballot.says(0, busy(Some(2)));
    assert!(ballot.turns(false).is_empty() && ballot.has_later(), "the deputy is heard first");
    ballot.says(1, busy(Some(2)));
    assert!(ballot.turns(false).is_empty() && !ballot.has_later());
    assert_eq!(ballot.sure(), busy(Some(2)), "it is held");
    let mut ballot = in_turn();
    ballot.says(0, busy(Some(2)));
    assert!(ballot.turns(true).is_empty() && !ballot.has_later(), "the deputy is too slow");
    for granted_first in [false, true] {
        let mut ballot = in_turn();
        ballot.says(usize::from(granted_first), if granted_first { held(10, 1) } else { busy(Some(2)) });
        assert!(ballot.turns(false).is_empty());
        ballot.says(usize::from(!granted_first), if granted_first { busy(Some(2)) } else { held(10, 1) });
        assert_eq!(ballot.turns(false), [0], "perhaps by a holder that no majority has");
        ballot.vote_on(2, [0], Ok(Answer::new([Ok(held(10, 1))])));
        assert!(ballot.write_backs().is_empty(), "they count alike");
        assert_eq!(ballot.outcome().unwrap(), held(10, 1));
    }
    let mut ballot = in_turn();
    ballot.says(0, busy(Some(1)));
    assert_eq!(ballot.turns(false), [0], "nobody comes before it, so that it passes nobody");
    let Operation::Acquire(mut acquire) = acquire() else { unreachable!("it is made so") };
    acquire.token = acquire.token.in_mode(Mode::Shared);
    let alone = self::ballot(Operation::Acquire(acquire), 3);
    let mut alone = alone.in_turn(Places { queue_node: 0, deputy: None }, |_| false, |_, _| false);
    alone.says(0, busy(Some(2)));
    assert_eq!(alone.turns(false), [0], "there is no deputy to say so");
}

#[test]
fn a_reader_whose_turn_it_is_is_asked_for_everywhere() {
    let said: [fn(&mut Ballot); 3] = [|ballot| ballot.says(0, held(10, 1)), |ballot| ballot.fails(0, error()), |_| {}];
    for (number, said) in said.into_iter().enumerate() {
        let mut ballot = in_turn();
        said(&mut ballot);
        let is_late = number == 2;
        assert_eq!(ballot.turns(is_late), [0], "by the queue node, or as it cannot tell, or not in time");
        assert!(ballot.turns(is_late).is_empty(), "once");
        ballot.says(1, held(10, 1));
        ballot.vote_on(2, [0], Ok(Answer::new([Ok(held(10, 1))])));
        assert!(ballot.write_backs().is_empty(), "they count alike");
        assert_eq!(ballot.outcome().unwrap(), held(10, 1));
    }
}

#[test]
fn only_a_reader_that_may_have_to_wait_is_asked_for_in_turn() {
    let shared = |change: fn(&mut Acquire)| {
        let Operation::Acquire(mut acquire) = acquire() else { unreachable!("it is made so") };
        acquire.token = acquire.token.in_mode(Mode::Shared);
        change(&mut acquire);
        waits_for_turn(&Operation::Acquire(acquire))
    };
    assert!(shared(|_| {}));
    assert!(!shared(|acquire| acquire.expects_free = true), "as a rule it takes one round trip");
    assert!(!shared(|acquire| acquire.place = None), "it keeps no place");
    assert!(!shared(|acquire| acquire.from = Some(Token::from_random(2))), "nobody comes before it");
    assert!(!waits_for_turn(&acquire()) && !waits_for_turn(&renew(0)));
}

#[test]
fn too_few_answers_are_an_error_that_names_the_causes_and_keeps_the_doubt() {
    let mut all_surely = ballot(acquire(), 3);
    all_surely.fails(0, error().did_not_happen());
    assert_eq!(all_surely.certainty(), Certainty::Open);
    all_surely.fails(1, BackendError::new(ErrorKind::Backend, "it is down").did_not_happen());
    let told = all_surely.outcome().unwrap_err();
    assert_eq!(told.to_string(), "2 of 3 nodes failed, and a lock needs 2: it broke; it is down");
    assert!(told.may_have_happened(), "the third was not heard");
    all_surely.says(2, busy(None));
    assert!(!all_surely.outcome().unwrap_err().may_have_happened());
    let mut denied = ballot(acquire(), 3);
    for node in 0..2 {
        denied.fails(node, BackendError::new(ErrorKind::Denied, "no"));
    }
    assert_eq!(denied.outcome().unwrap_err().kind(), ErrorKind::Denied);
}

#[test]
fn a_place_at_the_one_node_that_answers_leaves_a_doubt() {
    let unsent = || error().did_not_happen();
    for (position, doubt) in [(Some(1), true), (None, false)] {
        let mut ballot = ballot(acquire(), 3);
        ballot.says(0, busy(position));
        ballot.fails(1, unsent());
        ballot.fails(2, unsent());
        assert_eq!(ballot.outcome().unwrap_err().may_have_happened(), doubt, "{position:?}");
    }
}

#[test]
fn a_failure_beside_a_busy_majority_is_no_error_but_in_doubt() {
    for (error, is_busy) in [(error().did_not_happen(), true), (error(), false)] {
        let mut ballot = ballot(acquire(), 3);
        ballot.says(0, busy(None));
        ballot.fails(1, error);
        ballot.says(2, busy(None));
        assert_eq!(ballot.sure() == busy(None), is_busy);
    }
}

#[test]
fn a_lease_is_taken_from_a_token_where_a_majority_has_it() {
    let take = || Operation::Acquire(Acquire::new(key(), Token::from_random(2), TTL).from(Token::from_random(1)));
    let mut gone = ballot(take(), 3);
    for node in 0..3 {
        gone.says(node, Outcome::Gone);
    }
    assert_eq!((gone.sure(), gone.answer().unwrap().out_of_order), (Outcome::Gone, false));
    for vote in [Ok(held(1, 1)), Err(error())] {
        let mut gone = ballot(take(), 3);
        gone.says(1, Outcome::Gone);
        gone.says(2, Outcome::Gone);
        assert_eq!((gone.certainty(), gone.outcome().unwrap()), (Certainty::Likely, Outcome::Gone));
        assert!(gone.answer().unwrap().out_of_order, "the other may have the new token");
        gone.vote(0, Ok(Answer::new([vote])));
        assert_eq!((gone.sure(), gone.answer().unwrap().out_of_order), (Outcome::Gone, true));
    }
    let mut split = ballot(take(), 3);
    split.says(0, held(1, 1));
    split.says(1, Outcome::Gone);
    split.fails(2, error());
    assert!(matches!(split.sure(), Outcome::Split { .. }));
}

#[test]
fn a_lease_is_renewed_or_gone_by_a_majority_and_else_in_doubt() {
    let mut goes_on = ballot(renew(0), 3);
    goes_on.says(1, held(10, 1));
    goes_on.says(0, renewed(None, 0));
    assert_ne!(goes_on.certainty(), Certainty::Sure, "it was put back there, and had been gone");
    goes_on.says(2, renewed(None, 0));
    assert_eq!(goes_on.sure(), renewed(None, 0));
    let mut gone = ballot(renew(0), 3);
    gone.says(0, busy(None));
    gone.says(2, Outcome::Gone);
    assert_eq!(gone.sure(), Outcome::Gone);
    let mut unknown = ballot(renew(0), 3);
    unknown.says(0, renewed(None, 0));
    unknown.fails(1, error());
    unknown.says(2, Outcome::Gone);
    assert_eq!(unknown.certainty(), Certainty::Sure);
    assert!(unknown.outcome().is_err());
}

#[test]
fn further_fencing_tokens_are_written_back_too_or_left_out() {
    let mut ballot = ballot(renew(8), 3);
    ballot.says(0, renewed(Some(10), 8));
    ballot.vote(1, Ok(Answer::new([Ok(renewed(Some(20), 8))])));
    let requests = ballot.write_backs();
    let [WriteBack { node: 0, item: 0, operation: Operation::Renew(renew) }] = &requests[..] else {
        panic!("one request to the one behind")
    };
    assert_eq!((renew.floor, renew.block), (27, 1));
    assert_eq!(ballot.certainty(), Certainty::Open);
    ballot.vote_on(0, [0], Ok(Answer::new([Ok(renewed(Some(27), 1))])));
    assert_eq!(ballot.certainty(), Certainty::Likely, "the third is heard, so that it counts next time");
    ballot.says(2, Outcome::Gone);
    assert_eq!(ballot.sure(), renewed(Some(20), 8));
    let mut without = self::ballot(self::renew(8), 3);
    without.says(0, renewed(None, 0));
    without.says(1, renewed(Some(20), 8));
    without.says(2, renewed(None, 0));
    assert_eq!(without.sure(), renewed(None, 0), "renewed all the same");
}

#[test]
fn a_release_tells_whether_a_majority_can_have_held() {
    let released = |votes: &[Option<Outcome>]| {
        let mut ballot = ballot(release(), votes.len());
        for (node, vote) in votes.iter().enumerate() {
            match vote {
                Some(outcome) => ballot.says(node, *outcome),
                None => ballot.fails(node, error()),
            }
        }
        assert_eq!(ballot.certainty(), Certainty::Sure);
        ballot.outcome().ok()
    };
    let (yes, gone) = (Some(Outcome::Released), Some(Outcome::Gone));
    assert_eq!(released(&[yes, gone, yes]), yes);
    assert_eq!(released(&[yes, gone, None]), yes, "the third may have had it");
    assert_eq!(released(&[yes, gone, gone]), gone, "that was no majority");
    assert_eq!(released(&[gone, None, gone]), gone);
    assert_eq!(released(&[yes, None, None]), None, "somebody has to say it again");
}

#[test]
fn a_key_that_is_to_stay_busy_is_kept_by_a_majority_or_that_is_told() {
    let kept = || Operation::Release(Release::new(key(), Token::from_random(1)).after(Duration::from_secs(60)));
    let said = |votes: &[Outcome]| {
        let mut ballot = ballot(kept(), 3);
        votes.iter().enumerate().for_each(|(node, vote)| ballot.says(node, *vote));
        ballot
    };
    let mut one = said(&[Outcome::Released, Outcome::Gone]);
    assert_eq!(one.certainty(), Certainty::Open, "the third may keep it");
    one.fails(2, error());
    assert!(one.outcome().is_err(), "the other two may not");
    assert_eq!(said(&[Outcome::Released, Outcome::Gone, Outcome::Released]).outcome().ok(), Some(Outcome::Released));
    assert_eq!(said(&[Outcome::Released, Outcome::Gone, Outcome::Gone]).outcome().ok(), Some(Outcome::Gone));
}

#[test]
fn a_release_waits_for_those_who_are_not_slower_than_others() {
    let mut ballot = ballot(release(), 3);
    ballot.says(0, Outcome::Released);
    ballot.says(1, Outcome::Released);
    assert_eq!(ballot.certainty(), Certainty::Likely);
    ballot.says(2, Outcome::Released);
    assert_eq!(ballot.sure(), Outcome::Released);
}

#[test]
fn an_empty_batch_is_answered_when_a_majority_lives() {
    let mut ballot = Ballot::new(Batch::new(), 3, 0);
    ballot.vote(0, Ok(Answer::new([])));
    assert_eq!(ballot.certainty(), Certainty::Open);
    ballot.vote(2, Err(error()));
    ballot.vote(1, Ok(Answer::new([])));
    assert_eq!((ballot.certainty(), ballot.answer().is_ok()), (Certainty::Sure, true));
    let mut dead = Ballot::new(Batch::new(), 3, 0);
    dead.vote(0, Err(error()));
    dead.vote(1, Err(error()));
    assert_eq!((dead.certainty(), dead.answer().is_ok()), (Certainty::Sure, false));
}

#[test]
fn each_item_of_a_batch_is_decided_by_itself() {
    let mut ballot = Ballot::new(Batch::from_vec(vec![release(), renew(0)]), 3, 0);
    let both = |one, other| Ok(Answer::new([Ok(one), Ok(other)]));
    ballot.vote(0, both(Outcome::Released, Outcome::Gone));
    assert_eq!(ballot.certainty(), Certainty::Open);
    ballot.vote(1, both(Outcome::Released, renewed(None, 0)));
    assert_eq!(ballot.certainty(), Certainty::Doubtful, "the third decides whether it is renewed");
    ballot.vote(2, both(Outcome::Gone, renewed(None, 0)));
    let outcomes: Vec<_> = ballot.answer().unwrap().outcomes.into_iter().map(Result::unwrap).collect();
    assert_eq!(outcomes, [Outcome::Released, renewed(None, 0)]);
}

#[test]
fn a_node_without_a_connection_leaves_no_doubt_and_is_waited_for_where_it_matters() {
    let mut ballot = ballot(acquire(), 3);
    ballot.has_left(2, None, false);
    ballot.says(0, busy(Some(1)));
    ballot.says(1, busy(None));
    assert_eq!(ballot.sure(), busy(Some(1)), "nothing has happened there");
    ballot.has_left(2, None, true);
    assert_eq!(ballot.certainty(), Certainty::Likely, "now it may");
    let mut alone = self::ballot(acquire(), 3);
    alone.has_left(1, None, false);
    alone.has_left(2, None, false);
    alone.says(0, held(1, 1));
    assert_eq!(alone.certainty(), Certainty::Open, "they may come back in time");
}

#[test]
fn who_has_a_part_does_not_keep_it_for_the_sake_of_a_slow_node() {
    let mut ballot = ballot(acquire(), 3);
    ballot.says(0, held(1, 1));
    ballot.says(1, busy(None));
    assert_eq!(ballot.certainty(), Certainty::Likely);
    assert!(matches!(ballot.outcome(), Ok(Outcome::Split { .. })));
    ballot.says(2, held(1, 1));
    assert_eq!(ballot.sure(), held(1, 1));
}

#[test]
fn a_release_by_force_hears_everybody() {
    let force = || Operation::Force { key: key(), foreign: false };
    let mut forced = ballot(force(), 3);
    forced.says(0, Outcome::Released);
    forced.says(1, Outcome::Gone);
    assert_eq!(forced.certainty(), Certainty::Open);
    let mut stopped = ballot(force(), 3);
    stopped.says(0, Outcome::Released);
    stopped.says(1, Outcome::Released);
    stopped.fails(2, error());
    assert!(stopped.outcome().is_err(), "it may strike later");
    forced.fails(2, error().did_not_happen());
    assert_eq!(forced.sure(), Outcome::Released);
}

#[test]
fn a_key_is_busy_where_the_nodes_that_failed_may_make_a_majority() {
    let inspect = || Operation::Inspect { key: key() };
    for (votes, is_busy) in [
        ([Some(true), Some(true), None], true),
        ([Some(true), Some(false), None], true),
        ([Some(true), Some(false), Some(false)], false),
        ([Some(false), Some(false), None], false),
    ] {
        let mut ballot = ballot(inspect(), 3);
        for (node, vote) in votes.into_iter().enumerate() {
            match vote {
                Some(held) => ballot.says(node, if held { busy(None) } else { Outcome::Gone }),
                None => ballot.fails(node, error()),
            }
        }
        assert_eq!(ballot.sure() == busy(None), is_busy, "{votes:?}");
    }
}

#[test]
fn a_lease_that_is_taken_over_is_written_back_without_the_token_that_it_was_taken_from() {
    let (from, to) = (Token::from_random(1), Token::from_random(2));
    let mut ballot = ballot(Operation::Acquire(Acquire::new(key(), to, TTL).from(from)), 3);
    ballot.vote(0, Ok(Answer::new([Ok(held(20, 1))])));
    ballot.vote(1, Ok(Answer::new([Ok(held(10, 1))])));
    let requests = ballot.write_backs();
    let [WriteBack { node: 1, item: 0, operation: Operation::Acquire(acquire) }] = &requests[..] else {
        panic!("one request to the one behind")
    };
    // The former token is gone there: the node would refuse what it has given already.
    assert_eq!((acquire.token, acquire.from, acquire.floor), (to, None, 20));
    ballot.vote_on(1, [0], Ok(Answer::new([Ok(held(20, 1))])));
    ballot.says(2, Outcome::Gone);
    assert_eq!(ballot.sure(), held(20, 1));
}

/// What another node has said of its holder, and whether the late node is waited for: a lease that is new may be about to be released.
#[test]
fn a_late_node_is_waited_for_where_another_has_a_token_that_was_left() {
    use BusyReason::{Foreign, Holder, Waiters};
    let place = Place::new("channel".into(), TTL, TTL, Moment::from_origin(Duration::ZERO));
    let one_of_sixteen = Token::from_random(16);
    for (by, remaining, is_waited_for) in [
        (Holder, Some(TTL), false),
        (Holder, Some(TTL - TTL / 5), false),
        (Holder, Some(TTL - TTL / 3), true),
        (Holder, Some(TTL * 1_000), true),
        (Holder, None, true),
        (Foreign, None, true),
        (Waiters, Some(TTL / 3), false),
    ] {
        let acquire = Acquire::new(key(), one_of_sixteen, TTL).or_wait(place.clone());
        let mut ballot = ballot(Operation::Acquire(acquire), 3);
        ballot.says(0, held(1, 1));
        ballot.says(1, Outcome::Busy { remaining, by, position: None });
        let certainty = if is_waited_for { Certainty::Doubtful } else { Certainty::Likely };
        assert_eq!(ballot.certainty(), certainty, "{by:?} {remaining:?}");
    }
}
