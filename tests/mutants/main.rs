//! Deliberate bugs, which the tests must notice. A build has them with `--cfg lock_mutants`, see CONTRIBUTING.md.
//!
//! The tests here look for each bug of `engine.txt` in simulated schedules, and are part of `.ci/nightly`. `tests/mutants/run` tries the
//! bugs that other tests must notice.

#[cfg(lock_mutants)]
mod simulation;

#[cfg(not(lock_mutants))]
#[test]
#[ignore = "this build has no deliberate bugs: it needs --cfg lock_mutants"]
fn every_bug_is_found() {
    panic!("this build has no deliberate bugs: it needs --cfg lock_mutants");
}
