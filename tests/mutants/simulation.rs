//! Bugs that the simulation must find: some schedule finds each of them, except those that are listed with the reason.

use std::collections::BTreeSet;

use lock_core::mutants::Mutant;
use lock_tests::sim::{self, NodeMutant, Report};

/// A deliberate bug in what a schedule runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    Engine(Mutant),
    Node(NodeMutant),
}

impl Bug {
    /// Runs the schedule of a seed with this bug.
    fn run_on(self, nodes: usize, seed: u64) -> Report {
        match self {
            Self::Engine(mutant) => mutant.during(|| sim::run_on(nodes, seed, None, false)),
            Self::Node(mutant) => sim::run_on(nodes, seed, Some(mutant), false),
        }
    }
}

/// In how many schedules a bug has to be found.
const WITHIN: u64 = 10_000;

/// Where the rarer ones were found last: tried first, so that the search is short. Any change of the simulation moves
/// them; then the search takes longer, and nothing else.
const LAST_FOUND: [(Bug, u64); 8] = [
    (Bug::Engine(Mutant::RenewalRevives), 1_096),
    (Bug::Engine(Mutant::CleanUpOnce), 318),
    (Bug::Engine(Mutant::AnswerSettlesAll), 2_385),
    (Bug::Engine(Mutant::RefillFromReply), 2_396),
    (Bug::Engine(Mutant::LateGrantTrusted), 4_675),
    (Bug::Engine(Mutant::FenceNotWrittenBack), 151),
    (Bug::Engine(Mutant::PutBackCounts), 209),
    (Bug::Engine(Mutant::UnansweredNotOwed), 359),
];

/// Rules that judge what no other does, and a bug that breaks each.
const RULES: [(&str, Mutant); 4] = [
    ("overtaken", Mutant::PlaceNotKept),
    ("out-of-turn", Mutant::LastComeFirst),
    ("loss-not-told", Mutant::GoneIsFailure),
    ("beyond-expiry", Mutant::ExtendFromReply),
];

/// Bugs that no schedule finds, and why.
const SURVIVES: [(Mutant, &str); 9] = [
    (
        Mutant::RepeatSettles,
        "it shows if an old copy comes after the release of a long lease; a test of contenders finds it",
    ),
    (Mutant::RepeatKnown, "the same at one node, which the others outvote"),
    (Mutant::DeafPlacePassedOn, "waiters look again after a while; a test of acquires finds it"),
    (Mutant::RefusalIgnored, "the key has to be taken away between two answers; a test of contention finds it"),
    (Mutant::RegrantIgnored, "so has it, and the place of the holder has to be granted; a test of contention finds it"),
    (
        Mutant::OldGrantTrusted,
        "the key has to be taken away, too, before its holder is told of the grant; a test of grants finds it",
    ),
    (
        Mutant::GrantSettlesAll,
        "a check has to be in flight over a connection that breaks, and to come after the release; a test of grants finds it",
    ),
    (Mutant::ShutDownForgets, "only a lease that is being taken up is owed; a test of shutdowns finds it"),
    (
        Mutant::ReleaseSettlesAll,
        "the epoch of a quorum is that of all nodes, so the engine itself repeats such a release",
    ),
];

/// In how many schedules one of those must not be found: then it is to come off the list.
const SURVIVES_FOR: u64 = 300;

/// Runs schedules on so many nodes until one of them finds the bug; whether one does.
fn is_found(bug: Bug, nodes: usize) -> bool {
    let first = LAST_FOUND.iter().filter(|(known, _)| *known == bug).map(|(_, seed)| *seed);
    for seed in first.chain(0..WITHIN) {
        let report = bug.run_on(nodes, seed);
        if !report.breaches.is_empty() {
            // It is the bug that breaks the rule, not the schedule.
            let healthy = sim::run_on(nodes, seed, None, false);
            assert!(
                healthy.breaches.is_empty(),
                "SIM_SEED={seed} breaks a rule on {nodes} nodes without any bug: {:?}",
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
fn missed(mutants: impl IntoIterator<Item = Mutant>, nodes: usize) -> Vec<Mutant> {
    let survives = |mutant: &Mutant| SURVIVES.iter().any(|(known, _)| known == mutant);
    let found = |mutant: &Mutant| is_found(Bug::Engine(*mutant), nodes);
    mutants.into_iter().filter(|mutant| !survives(mutant) && !found(mutant)).collect()
}

#[test]
fn every_bug_in_the_engine_is_found() {
    let missed = missed(Mutant::ALL, 1);
    assert!(missed.is_empty(), "not found in {WITHIN} schedules: {missed:?}");
}

#[test]
fn every_bug_in_the_quorum_is_found() {
    let missed = missed(Mutant::OF_QUORUMS, 3);
    assert!(missed.is_empty(), "not found in {WITHIN} schedules: {missed:?}");
}

#[test]
fn every_rule_that_judges_alone_is_broken_by_a_bug() {
    for (rule, mutant) in RULES {
        let breaks = |seed: &u64| {
            let report = Bug::Engine(mutant).run_on(1, *seed);
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
        let nodes = if Mutant::OF_QUORUMS.contains(&mutant) { 3 } else { 1 };
        let breaks = |seed: &u64| !Bug::Engine(mutant).run_on(nodes, *seed).breaches.is_empty();
        let found = (0..SURVIVES_FOR).find(breaks);
        assert_eq!(found, None, "{mutant:?} is found now, and not covered any more: {why}");
    }
}

#[test]
fn every_bug_in_the_node_is_found() {
    let missed: Vec<_> = NodeMutant::ALL.into_iter().filter(|mutant| !is_found(Bug::Node(*mutant), 1)).collect();
    assert!(missed.is_empty(), "not found in {WITHIN} schedules: {missed:?}");
}

#[test]
fn every_bug_of_whole_processes_has_tests_that_must_notice_it() {
    let list = include_str!("run");
    let without: Vec<_> =
        Mutant::OF_WHOLE_SYSTEM.into_iter().filter(|bug| !list.contains(&format!("\n{bug:?} "))).collect();
    assert!(without.is_empty(), "tests/mutants/run names no test for {without:?}");
}
