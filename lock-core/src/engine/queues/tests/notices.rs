//! Messages of the backend that are not about a waiter.

use super::*;
use crate::backend::Notice;

/// The tokens that the process renews `now`.
fn renewed(process: &mut Process) -> Vec<Token> {
    let now = process.now();
    let calls = process.queues.poll_renewals(now);
    calls.iter().flat_map(|(_, batch)| batch.iter().map(token)).collect()
}

#[test]
fn leases_are_looked_at_as_soon_as_a_connection_is_made() {
    let mut process = Process::new();
    let id = process.wait_on(terms(60_000));
    process.grant();
    let (hold, _) = process.hold(id);
    process.pass_time(1_000);
    assert!(renewed(&mut process).is_empty(), "the next renewal is nineteen seconds away");
    let now = process.now();
    process.queues.handle_notice(Notice::Connected, now);
    process.pass_time(2);
    let token = process.queues.tenures.token(hold.tenure).expect("it is held");
    assert_eq!(renewed(&mut process), [token], "the server may have lost its data");
}
