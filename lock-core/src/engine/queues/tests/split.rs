//! Acquires that too few nodes of a quorum have granted.

use std::collections::HashSet;

use super::process::{Process, newcomer};
use crate::{
    backend::Outcome,
    engine::fixture::{key, terms},
    error::ErrorKind,
};

#[test]
fn a_token_that_some_nodes_may_have_is_cleaned_up_and_another_asks_after_a_pause_that_grows() {
    let mut process = Process::new();
    let waiter = process.wait();
    let (mut tokens, mut pauses) = (HashSet::new(), Vec::new());
    for _ in 0..8 {
        let asked = process.answer(|_, acquire| {
            assert!(tokens.insert(acquire.token), "a token that is over is not used again");
            Ok(Outcome::Split { remaining: None, foreign: false })
        });
        assert_eq!(asked, ["acquire"]);
        let over: Vec<_> = process.cleaned_up().into_iter().map(|release| (release.token, release.place)).collect();
        assert!(over.len() == 1 && tokens.contains(&over[0].0) && over[0].1, "{over:?}");
        let mut pause = 0;
        while process.queues.outbox.is_empty() {
            assert!(process.poll(waiter).is_pending());
            process.pass_time(1);
            pause += 1;
        }
        pauses.push(pause);
    }
    assert!(pauses[7] > pauses[0] * 4, "{pauses:?}");
    assert_eq!(process.grant(), ["acquire"]);
    assert!(process.poll(waiter).is_ready());
}

#[test]
fn who_only_tries_is_busy_where_some_nodes_may_have_the_token() {
    let mut process = Process::new();
    let (id, request) = process.ask(newcomer(&key(), terms(9_000), true));
    let split = Outcome::Split { remaining: None, foreign: false };
    process.queues.acquired(&key(), request.token, Ok(split), process.trip());
    assert_eq!(process.error(id), ErrorKind::Busy);
    assert_eq!(process.cleaned_up().len(), 1);
    assert!(process.queues.is_empty());
}
