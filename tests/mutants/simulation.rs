//! Bugs that the simulation must find: some schedule finds each of them, except those that are listed with the reason.
//!
//! What the protocol rests on, and the bug that breaks it (in the engine, in the store that a node is made of, or in the rest of the node and the way to it):
//!
//! | rule | bug |
//! | --- | --- |
//! | a grant draws its number as an acquire does, by the clock | `GrantWithoutClock`, `FenceByPlainIncr` |
//! | the number is drawn before the key is written | `DrawnLast` |
//! | the key is written before the grant is told | `ToldBeforeSet` |
//! | a renewal or an acquire of the own token never shortens | `RenewalShortens`, `OwnAcquireShortens` |
//! | an answer never lowers a deadline | `AnswerLowersDeadline` |
//! | a deadline counts from the sending of an own request, not from a grant | `DeadlineFromReply`, `GrantHolds`, `GrantFromHearing`, `GrantForTheTtl` |
//! | a grant lasts T, and T is short | `GrantWithoutEnd`, `GrantTooLong` |
//! | a release removes its own place before it looks for the next | `ReleaseGrantsToItself` |
//! | a lease that is told of twice is held once | `TwiceToldTwiceHeld` |
//! | an answer that leaves no validity is no acquire | `LateAnswerHolds` |
//! | keys released in a call are deleted before its later acquires | `DeletedLast` |
//! | an own later request that finds another holder is a loss, and so is a new grant | `RefusalIgnored`, `RegrantIgnored` |
//! | a place goes with its grant, and with its holder | `PlaceKeptOnGrant`, `PlaceKeptOnTaking` |
//! | a release grants, and so does an acquire that finds the key free | `NoGrantInRelease`, `NoGrantInAcquire` |
//! | nobody passes a live place | `Barging` |
//! | a place that seems endless, or that nobody can be told of, is passed over | `DeadPlacesLive`, `PlaceEndless` |
//! | every refresh of a place is announced | `WNotRaised` |
//! | a grant to a token that nobody has is released | `StrayKept` |
//! | a grant is heard, and trusted or confirmed before all else | `CallNotHeard`, `LateGrantTrusted`, `ConfirmLast` |
//! | checks go on while a place stands, with the same token | `NoChecks`, `PlaceNotKept` |
//! | what a place can do lasts for its life and T | `DoubtWithoutPlace`, `LedgerForgetsPlace` |
//! | a quiet release grants nobody | `QuietGrants` |
//! | a copy has everything up to a moment | `CopyLacksKeys` |
//! | its counter goes on by the clock | `CopyCountsOn` |
//! | nothing that a former node does counts | `FormerWins` |
//! | a new connection is a new epoch | `EpochKept` |
//! | a slot that has moved away is not served | `MovedExecutes` |
//! | the counter and the places move with their slot | `CounterStays`, `QueueStays` |
//! | a change of the map is a new epoch, and so is each connection | `EpochWithoutMap`, `EpochOfOneNode` |
//! | a request that is sent once more has the same token, and is said to be out of order, also if it fails | `TokenAnew`, `OrderNotSaid`, `OrderLostInError` |
//! | what was sent before an error may have happened | `DoubtDropped` |
//! | a key that the queue node keeps for another is not taken elsewhere | `ReservedIgnored` |
//! | an exclusive lease is beside no other | `WriterBesideReaders`, `DowngradeLetsIn` |
//! | as many permits are given as there are, of one total | `WeightIgnored`, `OneTooMany`, `TotalOverwritten` |
//! | nobody who could share passes a live place, or one that is about to be made in its process | `ReaderPassesWriter`, `LaterContendFirst`, `PlaceBeforeAnswer` |
//! | a key goes to all places at the front that can share it | `OneReaderAtATime`, `TakerLetsNobodyIn` |
//! | a share counts until its own end, and the key lasts as long as the last | `RenewalRaisesAll`, `GroupEndsWithFirst`, `DeadShareCounts` |
//! | those who share a key have one number | `SharedRaisesFence` |
//! | a call for several keys leaves all or nothing, and so does one that is dropped | `AllOrNoneKeepsSome`, `TogetherForgets` |
//! | what an unanswered downgrade may have left is released | `DowngradeForgets` |
//!
//! `SET` and the draw in one `MULTI`: the simulated node executes them in one step; `tests/free.rs` shows the rest.

use std::collections::BTreeSet;

use lock_core::mutants::Mutant;
use lock_tests::sim::{self, Report, Store};

/// Runs the schedule of a seed with a bug.
fn run_with(bug: Mutant, store: Store, seed: u64) -> Report {
    bug.during(|| sim::run_on(store, seed, false))
}

/// In how many schedules a bug has to be found.
const WITHIN: u64 = 10_000;

/// Where the rarer ones were found last: tried first, so that the search is short. Any change of the simulation moves
/// them; then the search takes longer, and nothing else.
const LAST_FOUND: [(Mutant, u64); 11] = [
    (Mutant::RenewalRevives, 141),
    (Mutant::CleanUpOnce, 243),
    (Mutant::AnswerSettlesAll, 1_614),
    (Mutant::RefillFromReply, 2_396),
    (Mutant::FenceNotWrittenBack, 24),
    (Mutant::PutBackCounts, 139),
    (Mutant::UnansweredNotPending, 68),
    (Mutant::OwnAcquireShortens, 6_709),
    (Mutant::DrawnLast, 1_957),
    (Mutant::OrderNotSaid, 18_822),
    (Mutant::DoubtDropped, 423),
];

/// Rules that judge what no other does, and a bug that breaks each.
const RULES: [(&str, Mutant); 7] = [
    ("overtaken", Mutant::PlaceNotKept),
    ("out-of-turn", Mutant::LastComeFirst),
    ("loss-not-told", Mutant::GoneIsFailure),
    ("beyond-expiry", Mutant::ExtendFromReply),
    ("not-answered", Mutant::StrayKept),
    ("kept-too-long", Mutant::GrantTooLong),
    ("lowered", Mutant::AnswerLowersDeadline),
];

/// Bugs that no schedule finds, and why.
const SURVIVES: [(Mutant, &str); 16] = [
    (
        Mutant::EpochWithoutMap,
        "a request has to be late, its slot to move away and back meanwhile, and its future to be dropped: one of some ten \
         thousand schedules finds it",
    ),
    (
        Mutant::OrderLostInError,
        "a request that was sent once more has to be executed behind its release, and its answer to be lost: one of some \
         thirty thousand schedules finds it",
    ),
    (
        Mutant::PlaceEndless,
        "a place goes with its grant: one that seems endless after a step of the clock costs its T once, as a live one does",
    ),
    (
        Mutant::RepeatSettles,
        "it shows if an old copy comes after the release of a long lease; a test of candidates finds it",
    ),
    (Mutant::RepeatKnown, "the same at one node, which the others outvote"),
    (
        Mutant::ReservedIgnored,
        "the deputy keeps the key as well, so a newcomer to three nodes finds no majority; a test of ballots finds it",
    ),
    (Mutant::DeafPlacePassedOn, "waiters look again after a while; a test of acquires finds it"),
    (Mutant::RefusalIgnored, "the key has to be taken away between two answers; a test of contention finds it"),
    (
        Mutant::RegrantIgnored,
        "the key has to be taken away, and found free by a request of the lease itself: one of some two million schedules finds it; a \
         test of grants finds it",
    ),
    (
        Mutant::OldGrantTrusted,
        "the key has to be taken away, too, before its holder is told of the grant; a test of grants finds it",
    ),
    (Mutant::LateGrantTrusted, "the message has to be late by less than the lease lasts; a test of trust finds it"),
    (
        Mutant::GrantSettlesAll,
        "a check has to be in flight over a connection that breaks, and to come after the release; a test of grants finds it",
    ),
    (Mutant::ConfirmLast, "it is a delay, unless whole calls wait; a test of queues finds it"),
    (
        Mutant::DoubtWithoutPlace,
        "what is executed so late is granted to a token that nobody has, and that is answered by its release",
    ),
    (
        Mutant::LedgerForgetsPlace,
        "a release removes the place whatever it says; only a lost one is to be repeated, and the place ends by itself",
    ),
    (
        Mutant::ReleaseSettlesAll,
        "the epoch of a quorum is that of all nodes, so the engine itself repeats such a release",
    ),
];

/// In how many schedules one of those must not be found: then it is to come off the list.
const SURVIVES_FOR: u64 = 300;

/// Runs schedules on a store until one of them finds the bug; whether one does.
fn is_found(bug: Mutant, store: Store) -> bool {
    let first = LAST_FOUND.iter().filter(|(known, _)| *known == bug).map(|(_, seed)| *seed);
    for seed in first.chain(0..WITHIN) {
        let report = run_with(bug, store, seed);
        if !report.breaches.is_empty() {
            // It is the bug that breaks the rule, not the schedule.
            let healthy = sim::run_on(store, seed, false);
            assert!(
                healthy.breaches.is_empty(),
                "SIM_SEED={seed} breaks a rule on a store {store:?} without any bug: {:?}",
                healthy.breaches
            );
            let rules: BTreeSet<_> = report.breaches.iter().map(|(rule, _)| rule.as_str()).collect();
            println!("{bug:?}: found by seed {seed}: {}", rules.into_iter().collect::<Vec<_>>().join(", "));
            return true;
        }
    }
    println!("{bug:?}: not found");
    false
}

/// The bugs that no schedule finds within [`WITHIN`], though they are not listed.
fn missed(mutants: impl IntoIterator<Item = Mutant>, store: Store) -> Vec<Mutant> {
    let survives = |mutant: &Mutant| SURVIVES.iter().any(|(known, _)| known == mutant);
    let found = |mutant: &Mutant| is_found(*mutant, store);
    mutants.into_iter().filter(|mutant| !survives(mutant) && !found(mutant)).collect()
}

#[test]
fn every_bug_in_the_engine_is_found() {
    let missed = missed(Mutant::ALL, Store::Single);
    assert!(missed.is_empty(), "not found in {WITHIN} schedules: {missed:?}");
}

#[test]
fn every_bug_in_the_quorum_is_found() {
    let missed = missed(Mutant::OF_QUORUMS, Store::Quorum);
    assert!(missed.is_empty(), "not found in {WITHIN} schedules: {missed:?}");
}

#[test]
fn every_bug_in_the_store_is_found() {
    let missed = missed(Mutant::OF_STORE, Store::Single);
    assert!(missed.is_empty(), "not found in {WITHIN} schedules: {missed:?}");
}

#[test]
fn every_bug_in_the_modes_is_found() {
    let missed = missed(Mutant::OF_MODES, Store::Modes);
    assert!(missed.is_empty(), "not found in {WITHIN} schedules: {missed:?}");
}

#[test]
fn every_rule_that_judges_alone_is_broken_by_a_bug() {
    for (rule, mutant) in RULES {
        let breaks = |seed: &u64| {
            let report = run_with(mutant, Store::Single, *seed);
            report.breaches.iter().any(|(broken, _)| broken == rule)
        };
        let found = (0..WITHIN).find(breaks);
        println!("{rule}: broken by {mutant:?} with seed {found:?}");
        assert!(found.is_some(), "{mutant:?} breaks {rule} in none of {WITHIN} schedules");
    }
}

#[test]
fn what_is_listed_as_not_found_is_not() {
    for (mutant, why) in SURVIVES {
        let store = match mutant {
            _ if Mutant::OF_QUORUMS.contains(&mutant) => Store::Quorum,
            _ if Mutant::OF_SLOTS.contains(&mutant) => Store::Slots,
            _ => Store::Single,
        };
        let breaks = |seed: &u64| !run_with(mutant, store, *seed).breaches.is_empty();
        let found = (0..SURVIVES_FOR).find(breaks);
        assert_eq!(found, None, "{mutant:?} is found now, and not covered any more: {why}");
    }
}

#[test]
fn every_bug_in_the_node_is_found() {
    let mut of_all = missed(Mutant::OF_NODE, Store::Single);
    of_all.extend(missed(Mutant::OF_REPLICAS, Store::Replicated));
    of_all.extend(missed(Mutant::OF_SLOTS, Store::Slots));
    assert!(of_all.is_empty(), "not found in {WITHIN} schedules: {of_all:?}");
}

#[test]
fn readme_counts_the_bugs() {
    let engine = Mutant::ALL.len() + Mutant::OF_STORE.len() + Mutant::OF_QUORUMS.len() + Mutant::OF_MODES.len();
    let node = Mutant::OF_NODE.len() + Mutant::OF_REPLICAS.len() + Mutant::OF_SLOTS.len();
    let (all, survive) = (engine + node, SURVIVES.len());
    let told = format!("{} of {all} deliberate bugs", all - survive);
    assert!(include_str!("../../README.md").contains(&told), "the README does not say {told:?}");
}

#[test]
fn every_bug_of_whole_processes_has_tests_that_must_notice_it() {
    let list = include_str!("engine.txt");
    let has_tests = |bug: &Mutant| {
        let head = format!(": {bug:?}");
        let mut texts = list.split(&head).skip(1).filter_map(|rest| rest.split_once('\n'));
        texts.any(|(others, text)| (others.is_empty() || others.starts_with(',')) && text.starts_with("- "))
    };
    let without: Vec<_> = Mutant::OF_WHOLE_SYSTEM.into_iter().filter(|bug| !has_tests(bug)).collect();
    assert!(without.is_empty(), "engine.txt names no test for {without:?}");
}
