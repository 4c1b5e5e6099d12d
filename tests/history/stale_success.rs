//! Nobody is told "done" about a lease that is not theirs any more.

use crate::history::lines::*;

/// A lease that expires, and another's from 1,000 to its release at 1,500.
fn expired() -> [Event; 3] {
    [acquire("p1", 1, 0.0, 2.0), acquire("p2", 2, 900.0, 1_000.0), release("p2", 2, 1_500.0, 1_502.0)]
}

fn with(more: Event) -> Vec<Event> {
    let mut history = expired().to_vec();
    history.push(more);
    history
}

#[test]
fn a_release_that_removes_another_ones_lease_is_caught() {
    assert_eq!(broken(&with(release("p1", 1, 1_100.0, 1_101.0))), [Rule::StaleSuccess]);
}

#[test]
fn one_that_does_nothing_is_fine() {
    for result in [Outcome::Fail, Outcome::Info] {
        let release = release("p1", 1, 1_100.0, 1_101.0).with(outcome(result));
        assert_eq!(broken(&with(release.clone())), NONE);
        assert_eq!(broken(&with(release.with(never_back))), NONE);
    }
}

#[test]
fn one_that_may_have_come_before_the_other_is_fine() {
    // Past its deadline by its own clock, and not yet expired in the server.
    assert_eq!(broken(&with(release("p1", 1, 990.0, 1_200.0))), NONE);
}

#[test]
fn a_release_after_another_has_been_and_gone_is_caught() {
    assert_eq!(broken(&with(release("p1", 1, 1_600.0, 1_601.0))), [Rule::StaleSuccess]);
}

#[test]
fn the_holder_in_between_may_have_asked_long_before() {
    let mut history = with(release("p1", 1, 1_100.0, 1_101.0));
    history[0] = acquire("p1", 1, 901.0, 902.0).with(|event| {
        event.deadline = Some(990.0);
        event.ttl = Some(90.0);
    });
    assert_eq!(broken(&history), [Rule::StaleSuccess]);
}

#[test]
fn an_extend_while_another_holds_is_caught() {
    let extend = extend("p1", 1, 1_100.0, 1_101.0, 2_000.0);
    let rules = broken(&with(extend.clone()));
    assert!(rules.contains(&Rule::StaleSuccess), "{rules:?}");
    assert_eq!(
        broken(&with(extend.with(|event| {
            event.result = Outcome::Fail;
            event.deadline = None;
        }))),
        NONE
    );
}

#[test]
fn a_foreign_release_without_a_look_at_the_token_is_caught() {
    let history = [
        foreign("f", "x", 0.0, 2.0),
        acquire("p2", 2, 900.0, 1_001.0),
        call("f", Op::Release, 1_100.0, 1_101.0).with(|event| event.token = Some("x".to_owned())),
    ];
    assert_eq!(broken(&history), [Rule::StaleSuccess]);
}

#[test]
fn a_second_release_is_caught() {
    let history = [acquire("p1", 1, 0.0, 2.0), release("p1", 1, 10.0, 11.0), release("p1", 1, 20.0, 21.0)];
    assert_eq!(broken(&history), [Rule::StaleSuccess]);
    let repeated = history[2].clone().with(outcome(Outcome::Info));
    assert_eq!(broken(&[history[0].clone(), history[1].clone(), repeated]), NONE);
}

#[test]
fn what_is_passed_on_of_a_vanished_lease_takes_nothing_from_who_has_the_key() {
    let marked = Checker::new().mark(Mark { key: None, from: 10.0, to: 110.0 });
    let extended = |checker: &Checker, fence| {
        let history = [
            acquire("p1/t1", 1, 0.0, 2.0),
            acquire("p2", 9, 12.0, 14.0),
            release("p1/t1", 1, 19.0, 19.5),
            acquire("p1/t2", fence, 15.0, 20.0),
            extend("p2", 9, 30.0, 31.0, 1_000.0),
        ];
        !broken_by(checker, &history).contains(&Rule::StaleSuccess)
    };
    assert!(extended(&marked, 2));
    assert!(!extended(&marked, 10), "it has got the key from the server");
    assert!(!extended(&Checker::new(), 2), "nothing had vanished");
}

/// A lease of `p1` that vanishes, one of `p2` while it is gone, and an extend of the first from 50 to 51.
fn vanished() -> Vec<Event> {
    vec![
        acquire("p1", 1, 0.0, 2.0),
        acquire("p2", 9, 12.0, 14.0),
        release("p2", 9, 20.0, 21.0),
        extend("p1", 1, 50.0, 51.0, 1_000.0),
    ]
}

/// The key of `p1` vanishes at 10, and a late request of its own takes it again.
fn taken_again(at: f64) -> Checker {
    let again = TakenAgain { token: "p1:1/1".to_owned(), at };
    Checker { taken_again: vec![again], ..Checker::new().mark(Mark { key: None, from: 10.0, to: 110.0 }) }
}

#[test]
fn a_key_that_came_back_unseen_is_extended() {
    assert_eq!(broken_by(&taken_again(40.0), &vanished()), NONE);
    assert_eq!(broken_by(&taken_again(50.5), &vanished()), NONE, "the request may come while the extend is in flight");
    assert_eq!(broken_by(&taken_again(60.0), &vanished()), [Rule::StaleSuccess], "it was not back yet");
}

#[test]
fn a_key_that_came_back_excuses_no_other_lease() {
    let of_other = TakenAgain { token: "p2:9/1".to_owned(), at: 40.0 };
    let checker =
        Checker { taken_again: vec![of_other], ..Checker::new().mark(Mark { key: None, from: 10.0, to: 110.0 }) };
    assert_eq!(broken_by(&checker, &vanished()), [Rule::StaleSuccess]);
    let mut followed = vanished();
    followed.extend([acquire("p3", 10, 42.0, 43.0), release("p3", 10, 45.0, 46.0)]);
    assert_eq!(broken_by(&taken_again(40.0), &followed), [Rule::StaleSuccess], "it was lost once more");
}

#[test]
fn a_key_that_nobody_took_away_does_not_come_back() {
    let again = TakenAgain { token: "p1:1/1".to_owned(), at: 40.0 };
    let history: History = vanished().into_iter().collect();
    let violations = Checker { taken_again: vec![again], ..Checker::new() }.check(&history);
    // The release of the other lease breaks the rule as well.
    let is_extend = |violation: &&Violation| violation.message.contains("p1 (fence 1) extended its lease");
    let rule = violations.iter().find(is_extend).map(|violation| violation.rule);
    assert_eq!(rule, Some(Rule::StaleSuccess), "{violations:?}");
}

#[test]
fn a_release_or_extend_by_another_process_is_caught() {
    let first = acquire("p1/t1", 1, 0.0, 2.0);
    let by = |process: &str, op| on_lease("p1/t1", 1, op, 10.0, 11.0).with(|event| event.process = process.to_owned());
    for op in [Op::Release, Op::Extend] {
        assert_eq!(broken(&[first.clone(), by("p1/t2", op)]), NONE, "{op:?}: a guard may go to another task");
        assert_eq!(broken(&[first.clone(), by("p2", op)]), [Rule::StaleSuccess], "{op:?}");
        assert_eq!(broken(&[first.clone(), by("p2", op).with(outcome(Outcome::Fail))]), NONE, "{op:?}");
    }
}
