//! No guard believes in what is over.

use crate::history::lines::*;

#[test]
fn a_guard_may_believe_until_its_deadline() {
    let first = acquire("p1", 1, 0.0, 2.0); // until 982
    assert_eq!(broken(&[first.clone(), check("p1", 1, 981.0, true)]), NONE);
    assert_eq!(broken(&[first.clone(), check("p1", 1, 990.0, false)]), NONE);
    assert_eq!(broken(&[first, check("p1", 1, 990.0, true)]), [Rule::ValidAfterEnd]);
}

#[test]
fn the_deadline_is_the_one_in_force() {
    let first = acquire("p1", 1, 0.0, 2.0);
    let raised = [first.clone(), extend("p1", 1, 500.0, 502.0, 1_480.0)];
    assert_eq!(broken(&[&raised[..], &[check("p1", 1, 1_400.0, true)]].concat()), NONE);
    assert_eq!(broken(&[&raised[..], &[check("p1", 1, 1_490.0, true)]].concat()), [Rule::ValidAfterEnd]);
    let lowered = [first.clone(), extend("p1", 1, 500.0, 502.0, 600.0)];
    assert_eq!(broken(&[&lowered[..], &[check("p1", 1, 590.0, true)]].concat()), NONE);
    assert_eq!(broken(&[&lowered[..], &[check("p1", 1, 610.0, true)]].concat()), [Rule::ValidAfterEnd]);
    let refused = extend("p1", 1, 500.0, 502.0, 1_480.0).with(|event| {
        event.result = Outcome::Fail;
        event.deadline = None;
    });
    assert_eq!(broken(&[first, refused, check("p1", 1, 1_400.0, true)]), [Rule::ValidAfterEnd]);
}

#[test]
fn a_guard_that_believes_after_its_loss_is_caught() {
    let first = acquire("p1", 1, 0.0, 2.0);
    assert_eq!(broken(&[first.clone(), lost("p1", 1, 50.0), check("p1", 1, 49.0, true)]), NONE);
    assert_eq!(broken(&[first.clone(), lost("p1", 1, 50.0), check("p1", 1, 51.0, false)]), NONE);
    assert_eq!(broken(&[first, lost("p1", 1, 50.0), check("p1", 1, 51.0, true)]), [Rule::ValidAfterEnd]);
}

#[test]
fn a_guard_that_believes_after_its_release_is_caught() {
    let first = acquire("p1", 1, 0.0, 2.0);
    for result in [Outcome::Ok, Outcome::Info, Outcome::Fail] {
        let release = release("p1", 1, 50.0, 52.0).with(outcome(result));
        assert_eq!(
            broken(&[first.clone(), release.clone(), check("p1", 1, 53.0, true)]),
            [Rule::ValidAfterEnd],
            "{result:?}"
        );
        assert_eq!(broken(&[first.clone(), release, check("p1", 1, 53.0, false)]), NONE);
    }
}

#[test]
fn an_extend_that_revives_is_caught() {
    let first = acquire("p1", 1, 0.0, 2.0);
    let revives = extend("p1", 1, 990.0, 991.0, 1_970.0);
    assert_eq!(broken(&[first.clone(), revives.clone()]), [Rule::ValidAfterEnd]);
    assert_eq!(
        broken(&[first.clone(), lost("p1", 1, 50.0), extend("p1", 1, 60.0, 61.0, 900.0)]),
        [Rule::ValidAfterEnd]
    );
    // A renewal that was noticed later: it came between two looks.
    assert_eq!(broken(&[first, extend("p1", 1, 900.0, 1_100.0, 1_900.0), check("p1", 1, 1_800.0, true)]), NONE);
    let theirs = revives.with(|event| {
        event.process = "f".to_owned();
        event.token = Some("x".to_owned());
        event.t_invoke = 1_010.0;
        event.t_return = Some(1_011.0);
    });
    assert_eq!(broken(&[foreign("f", "x", 0.0, 2.0), theirs]), NONE, "what is still there may be extended");
}

#[test]
fn a_deadline_further_ahead_than_the_ttl_is_caught() {
    let until = |deadline| acquire("p1", 1, 0.0, 2.0).with(|event| event.deadline = Some(deadline));
    assert_eq!(broken(&[until(990.0)]), NONE);
    // Counted from the answer, without the allowance for drift.
    assert_eq!(broken(&[until(1_002.0)]), [Rule::ValidAfterEnd]);
    let first = until(982.0);
    assert_eq!(broken(&[first.clone(), extend("p1", 1, 500.0, 502.0, 1_502.0)]), [Rule::ValidAfterEnd]);
    let longer = |ttl| extend("p1", 1, 500.0, 502.0, 3_400.0).with(|event| event.ttl = Some(ttl));
    assert_eq!(broken(&[first.clone(), longer(3_000.0)]), NONE);
    assert_eq!(broken(&[first.clone(), longer(2_000.0)]), [Rule::ValidAfterEnd]);
    // The next hold in the process has the deadline of the extended one.
    let next = acquire("p1/t2", 2, 3.0, 602.0).with(|event| event.deadline = Some(3_400.0));
    assert_eq!(broken(&[first, longer(3_000.0), release("p1", 1, 600.0, 601.0), next]), NONE);
}

#[test]
fn a_renewal_that_is_noticed_while_the_user_extends_does_not_shorten_the_lease() {
    let longer = extend("p1", 1, 500.0, 510.0, 2_450.0).with(|event| event.ttl = Some(2_000.0));
    let noticed = extend("p1/r", 1, 504.0, 505.0, 1_480.0).with(|event| event.token = Some("p1:1/1".to_owned()));
    let history = [acquire("p1", 1, 0.0, 2.0), longer, noticed];
    assert_eq!(broken(&[&history[..], &[check("p1", 1, 2_000.0, true)]].concat()), NONE);
    assert_eq!(broken(&[&history[..], &[check("p1", 1, 2_460.0, true)]].concat()), [Rule::ValidAfterEnd]);
    let other = acquire("p2", 2, 1_500.0, 2_000.0);
    assert!(broken(&[&history[..], &[other]].concat()).contains(&Rule::TwoHolders));
}

#[test]
fn a_renewal_that_revives_a_lease_is_a_breach_from_when_the_guard_said_no() {
    let first = acquire("p1", 1, 0.0, 2.0).with(|event| event.deadline = Some(988.0));
    let renewed =
        extend("p1/renewal 1", 1, 1_020.5, 1_050.0, 1_890.0).with(|event| event.token = Some("p1:1/1".to_owned()));
    let history = [first, check("p1", 1, 1_020.0, false), renewed, check("p1", 1, 1_051.0, true)];
    assert_eq!(broken(&history), [Rule::ValidAfterEnd]);
}
