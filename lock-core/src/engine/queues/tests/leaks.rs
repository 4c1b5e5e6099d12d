//! What is remembered of leases that are over, after very many of them.

use super::*;

/// Tokens that are remembered at once at most. Ten are not over yet; the rest is what a map may keep until it is swept.
const FEW: usize = 100;

/// Acquires a key, and returns its hold.
fn acquire(process: &mut Process, terms: Terms) -> (crate::engine::tenure::HoldId, Arc<crate::engine::hold::Hold>) {
    let id = process.wait_on(terms);
    process.grant();
    process.hold(id)
}

#[test]
fn tokens_that_were_handed_over_are_forgotten_when_their_leases_must_have_ended() {
    let mut process = Process::new();
    for _ in 0..10_000 {
        let (id, _) = acquire(&mut process, terms(9_000));
        let now = process.now();
        assert!(process.queues.hand_over(id, now).is_some());
        assert!(!process.queues.handed_over.is_empty(), "this one is on its way");
        process.pass_time(1_000);
    }
    let left = process.queues.handed_over.len();
    assert!(left < FEW, "{left} tokens are remembered");
    assert!(process.queues.is_empty());
}

#[test]
fn tokens_whose_keys_are_kept_are_forgotten_when_the_keys_are_free() {
    let mut process = Process::new();
    let kept = Terms { at_least: Duration::from_secs(9), ..terms(9_000) };
    for _ in 0..10_000 {
        let (id, _) = acquire(&mut process, kept);
        let now = process.now();
        process.queues.abandon(id, now);
        assert_eq!(process.cleaned_up().len(), 1);
        assert!(!process.queues.kept.is_empty(), "this key is kept");
        process.pass_time(1_000);
    }
    let left = process.queues.kept.len();
    assert!(left < FEW, "{left} tokens are remembered");
    assert!(process.queues.is_empty());
}
