//! No two leases of a key are valid at once.

use crate::history::lines::*;

#[test]
fn leases_one_after_the_other_are_fine() {
    assert_eq!(
        broken(&[
            acquire("p1", 1, 0.0, 2.0),
            release("p1", 1, 50.0, 52.0),
            acquire("p2", 2, 10.0, 51.0), // taken while the release was on its way back
            release("p2", 2, 60.0, 61.0),
        ]),
        NONE
    );
}

#[test]
fn leases_that_overlap_are_caught() {
    let overlap = [acquire("p1", 1, 0.0, 2.0), lost("p1", 1, 50.0), acquire("p2", 2, 10.0, 49.0)];
    assert_eq!(broken(&overlap), [Rule::TwoHolders]);
    let released = [acquire("p1", 1, 0.0, 2.0), release("p1", 1, 50.0, 52.0), acquire("p2", 2, 10.0, 49.0)];
    assert_eq!(broken(&released), [Rule::TwoHolders, Rule::StaleSuccess], "one of the two had no lease to give back");
}

#[test]
fn message_names_the_rule_the_times_and_the_lines() {
    let history: History = [acquire("p1", 1, 0.0, 2.0), acquire("p2", 2, 10.0, 49.0)].into_iter().collect();
    let violations = Checker::new().check(&history);
    let message = violations[0].to_string();
    for part in ["two-holders", "\"k\"", "p1 (fence 1)", "p2 (fence 2)", "933.000 ms", "#0: {", "#1: {"] {
        assert!(message.contains(part), "{part} is not in: {message}");
    }
}

#[test]
fn a_deadline_ends_a_lease_without_a_word() {
    assert_eq!(broken(&[acquire("p1", 1, 0.0, 2.0), acquire("p2", 2, 500.0, 1_000.0)]), NONE);
    assert_eq!(broken(&[acquire("p1", 1, 0.0, 2.0), acquire("p2", 2, 500.0, 900.0)]), [Rule::TwoHolders]);
}

#[test]
fn an_extend_moves_the_deadline() {
    let first = acquire("p1", 1, 0.0, 2.0);
    let second = acquire("p2", 2, 500.0, 1_000.0);
    let longer = extend("p1", 1, 300.0, 302.0, 1_280.0);
    assert_eq!(broken(&[first.clone(), longer, second]), [Rule::TwoHolders]);
    let shorter = extend("p1", 1, 300.0, 302.0, 400.0);
    assert_eq!(broken(&[first.clone(), shorter.clone(), acquire("p2", 2, 400.0, 450.0)]), NONE);
    let unknown = shorter.with(outcome(Outcome::Info));
    assert_eq!(broken(&[first.clone(), unknown, acquire("p2", 2, 400.0, 450.0)]), NONE);
    let refused = call("p1", Op::Extend, 300.0, 302.0).with(|event| {
        event.token = Some("p1:1/1".to_owned());
        event.ttl = Some(100.0);
        event.result = Outcome::Fail;
    });
    assert_eq!(broken(&[first, refused, acquire("p2", 2, 400.0, 450.0)]), [Rule::TwoHolders]);
}

#[test]
fn a_loss_and_a_crash_end_a_lease() {
    let first = acquire("p1/t1", 1, 0.0, 2.0);
    let second = acquire("p2", 2, 10.0, 100.0);
    assert_eq!(broken(&[first.clone(), lost("p1/t1", 1, 50.0), second.clone()]), NONE);
    assert_eq!(broken(&[first.clone(), crash("p1/t1", 50.0), second.clone()]), NONE);
    assert_eq!(broken(&[first.clone(), crash("p1", 50.0), second.clone()]), NONE, "it takes its tasks along");
    assert_eq!(broken(&[first.clone(), crash("p11", 50.0), second.clone()]), [Rule::TwoHolders]);
    assert_eq!(broken(&[first, crash("p1", 101.0), second]), [Rule::TwoHolders]);
}

#[test]
fn a_release_whose_outcome_is_unknown_ends_it_when_it_is_called() {
    let first = acquire("p1", 1, 0.0, 2.0);
    let second = acquire("p2", 2, 10.0, 100.0);
    for result in [Outcome::Info, Outcome::Fail] {
        let release = release("p1", 1, 50.0, 52.0).with(outcome(result));
        assert_eq!(broken(&[first.clone(), release.clone(), second.clone()]), NONE);
        assert_eq!(broken(&[first.clone(), release.with(never_back), second.clone()]), NONE);
    }
}

#[test]
fn an_acquire_that_failed_or_is_unknown_holds_nothing() {
    for result in [Outcome::Fail, Outcome::Info] {
        let refused = acquire("p2", 2, 10.0, 20.0).with(outcome(result));
        assert_eq!(broken(&[acquire("p1", 1, 0.0, 2.0), refused]), NONE);
    }
    let unanswered = acquire("p2", 2, 10.0, 20.0).with(never_back);
    assert_eq!(broken(&[acquire("p1", 1, 0.0, 2.0), unanswered]), NONE);
}

#[test]
fn an_answer_that_comes_without_validity_left_holds_nothing() {
    let late = acquire("p1", 1, 0.0, 1_200.0).with(|event| event.deadline = Some(980.0));
    assert_eq!(broken(&[late, acquire("p2", 2, 1_000.0, 1_100.0)]), NONE);
}

#[test]
fn keys_have_nothing_to_do_with_each_other() {
    let other = acquire("p2", 2, 10.0, 20.0).with(|event| event.key = Some("other".to_owned()));
    assert_eq!(broken(&[acquire("p1", 1, 0.0, 2.0), other]), NONE);
}

#[test]
fn foreign_holders_exclude_and_are_excluded() {
    assert_eq!(broken(&[foreign("f", "x", 0.0, 2.0), acquire("p2", 2, 10.0, 900.0)]), [Rule::TwoHolders]);
    assert_eq!(broken(&[acquire("p2", 2, 890.0, 900.0), foreign("f", "x", 1_000.0, 1_002.0)]), [Rule::TwoHolders]);
    assert_eq!(broken(&[foreign("f", "x", 0.0, 2.0), acquire("p2", 2, 10.0, 1_002.0)]), NONE);
    let for_ever = foreign("f", "x", 0.0, 2.0).with(|event| {
        event.ttl = None;
        event.deadline = None;
    });
    assert_eq!(broken(&[for_ever, acquire("p2", 2, 10.0, 90_000.0)]), [Rule::TwoHolders]);
}

#[test]
fn a_fault_excuses_no_second_holder() {
    let overlap = [acquire("p1", 1, 0.0, 2.0), acquire("p2", 2, 10.0, 49.0), fault(0.0, 1_000.0)];
    assert_eq!(broken(&overlap), [Rule::TwoHolders]);
}

#[test]
fn a_mark_excuses_two_holders_across_it_and_no_others() {
    let mark = |key: Option<&str>, at| Mark { key: key.map(str::to_owned), from: at, to: at + 1.0 };
    let across = [acquire("p1", 1, 0.0, 2.0), acquire("p2", 2, 30.0, 49.0)];
    assert_eq!(broken_by(&Checker::new().mark(mark(None, 20.0)), &across), NONE);
    assert_eq!(broken_by(&Checker::new().mark(mark(Some("k"), 20.0)), &across), NONE);
    assert_eq!(broken_by(&Checker::new().mark(mark(Some("other"), 20.0)), &across), [Rule::TwoHolders]);
    assert_eq!(broken_by(&Checker::new().mark(mark(None, 60.0)), &across), [Rule::TwoHolders]);
    let two_after_it = [across[0].clone(), across[1].clone(), acquire("p3", 3, 60.0, 70.0)];
    assert_eq!(broken_by(&Checker::new().mark(mark(None, 20.0)), &two_after_it), [Rule::TwoHolders]);
}

#[test]
fn a_hand_over_inside_a_process_is_release_and_acquire() {
    let hold = |number: u32| move |event: &mut Event| event.token = Some(format!("T/{number}"));
    let history = |returned| {
        [
            acquire("p1/t1", 1, 0.0, 2.0).with(hold(1)),
            release("p1/t1", 1, 20.0, 20.5).with(hold(1)),
            acquire("p1/t2", 2, 5.0, returned).with(hold(2)),
            release("p1/t2", 2, 40.0, 41.0).with(hold(2)),
        ]
    };
    assert_eq!(broken(&history(20.2)), NONE);
    assert!(broken(&history(19.0)).contains(&Rule::TwoHolders));
}
