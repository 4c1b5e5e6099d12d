//! Tokens are used once.

use crate::history::lines::*;

fn with_token(token: &str) -> impl FnOnce(&mut Event) {
    let token = token.to_owned();
    move |event| event.token = Some(token)
}

/// Holds one after the other, by processes and tokens.
fn holds(holds: &[(&str, &str)]) -> Vec<Event> {
    let mut events = Vec::new();
    for (index, (process, token)) in holds.iter().enumerate() {
        let (at, fence) = (index as f64 * 100.0, index as u64 + 1);
        events.push(acquire(process, fence, at, at + 1.0).with(with_token(token)));
        events.push(release(process, fence, at + 50.0, at + 51.0).with(with_token(token)));
    }
    events
}

#[test]
fn holds_of_a_tenure_follow_one_another() {
    assert_eq!(broken(&holds(&[("p1/t1", "T/1"), ("p1/t2", "T/2"), ("p1/t1", "T/3"), ("p2", "U/1")])), NONE);
}

#[test]
fn the_same_hold_twice_is_caught() {
    assert_eq!(broken(&holds(&[("p1/t1", "T/1"), ("p1/t2", "T/1")])), [Rule::TokenReuse]);
}

#[test]
fn a_tenure_that_goes_on_after_another_one_is_caught() {
    let history = holds(&[("p1", "T/1"), ("p2", "U/1"), ("p1", "T/2")]);
    assert_eq!(broken(&history), [Rule::TokenReuse]);
    let history = holds(&[("p1", "T/1"), ("f", "anything"), ("p1", "T/2")]);
    assert_eq!(broken(&history), [Rule::TokenReuse]);
}

#[test]
fn a_tenure_of_two_processes_is_caught() {
    assert_eq!(broken(&holds(&[("p1/t1", "T/1"), ("p2/t1", "T/2")])), [Rule::TokenReuse]);
}

#[test]
fn a_token_on_two_keys_is_caught() {
    let mut history = holds(&[("p1/t1", "T/1"), ("p1/t2", "U/1")]);
    let elsewhere = acquire("p1/t3", 9, 0.0, 1.0).with(with_token("T/2"));
    history.push(elsewhere.with(|event| event.key = Some("other".to_owned())));
    assert_eq!(broken(&history), [Rule::TokenReuse]);
}

#[test]
fn the_token_of_an_unknown_attempt_counts_and_that_of_a_refused_one_does_not() {
    let attempt = |result| {
        let attempt = in_vain("p1", 100.0, 110.0, result).with(with_token("T/1"));
        let mut history = holds(&[("p1", "T/1")]);
        history.push(attempt);
        broken(&history)
    };
    assert_eq!(attempt(Outcome::Fail), NONE);
    assert_eq!(attempt(Outcome::Info), [Rule::TokenReuse]);
}

#[test]
fn tokens_of_other_libraries_have_no_holds() {
    assert_eq!(broken(&holds(&[("f", "a-1"), ("f", "a-2"), ("f", "/"), ("f", "x/y")])), NONE);
    assert_eq!(broken(&holds(&[("f", "a-1"), ("f", "a-1")])), [Rule::TokenReuse]);
}
