//! Calls of nothing but plain renewals, which have a form of their own: a manager of many leases sends thousands a second,
//! and the server does nothing else meanwhile.

use std::time::Duration;

use redis::Value;

use super::{
    commands::Commands,
    connection::Connection,
    reply::{failed, millis, misread},
};
use crate::backend::{Answer, Operation, Outcome, Renew, Replied};

/// The script's answer for a lease that is gone.
const GONE: i64 = -1;

/// Returns whether a batch consists of renewals that ask for nothing but the ttl.
pub(super) fn is_plain(batch: &[Operation]) -> bool {
    let is_plain = |renew: &Renew| renew.block == 0 && renew.floor == 0 && renew.aim == 0;
    batch.iter().all(|operation| matches!(operation, Operation::Renew(renew) if is_plain(renew)))
}

/// Adds the arguments of a call of such a batch, from the number of its keys on.
pub(super) fn add_arguments(call: &mut Commands, batch: &[Operation]) {
    call.number(batch.len() as u64);
    for operation in batch {
        call.text(operation.key().wire());
    }
    call.text("renew");
    for renew in renewals(batch) {
        call.text(&renew.token.reveal()).number(millis(renew.ttl));
    }
}

/// Adds the commands with which the server reports writes of other clients to the keys of a batch whose renewals ask for it. The
/// server reports once for each key, and has to be asked again after each write of our own. (Redis calls it client-side caching.)
/// Returns whether there are any.
pub(super) fn watch(commands: &mut Commands, batch: &[Operation], connection: &Connection) -> bool {
    let is_watched = connection.about.tracks && watched(batch).next().is_some();
    if is_watched {
        commands.add(["CLIENT", "CACHING", "YES"]);
        commands.add(["MGET"]);
        for renew in watched(batch) {
            commands.text(renew.key.wire());
        }
    }
    is_watched
}

/// Records what stood at the keys when the server began to watch them: a lease whose token was no longer there had
/// been taken away since its renewal.
pub(super) fn see(batch: &[Operation], seen: &Value, answer: &mut Answer) {
    let Value::Array(values) = seen else { return };
    if values.len() != watched(batch).count() || answer.outcomes.len() != batch.len() {
        return;
    }
    // A key that is shared holds no string, so that `MGET` shows it as free.
    let renews = batch.iter().map(Operation::as_renew).zip(&mut answer.outcomes);
    let outcomes = renews.filter_map(|(renew, outcome)| Some((renew.filter(|renew| renew.watch)?, outcome)));
    for ((renew, outcome), value) in outcomes.zip(values) {
        let has_token = matches!(value, Value::BulkString(token) if token == renew.token.reveal().as_bytes());
        if matches!(outcome, Ok(Outcome::Renewed { .. })) && !has_token {
            *outcome = Ok(Outcome::Gone);
        }
    }
}

/// Reads the reply to such a batch.
pub(super) fn answer(batch: &[Operation], reply: &Value, address: &str) -> Replied<Answer> {
    let Value::Array(values) = reply else { return Err(misread(address)) };
    if values.len() != batch.len() {
        return Err(misread(address));
    }
    let outcome = |(renew, value): (&Renew, &Value)| match value {
        Value::Int(GONE) => Ok(Outcome::Gone),
        Value::Int(left) => {
            let left = u64::try_from(*left).map_err(|_| misread(address))?;
            let remaining = if left == 0 { renew.ttl } else { Duration::from_millis(left) };
            Ok(Outcome::Renewed { remaining, fence: None, block: 0 })
        }
        message => Err(failed(message, address)),
    };
    Ok(Answer::new(renewals(batch).zip(values).map(outcome)))
}

/// The renewals after which the server is to report writes to their keys.
fn watched(batch: &[Operation]) -> impl Iterator<Item = &Renew> {
    renewals(batch).filter(|renew| renew.watch)
}

fn renewals(batch: &[Operation]) -> impl Iterator<Item = &Renew> {
    batch.iter().filter_map(Operation::as_renew)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{backend::Token, key::LockKey, mode::Mode};

    const TTL: Duration = Duration::from_secs(30);

    fn renew(number: u32) -> Renew {
        let key = LockKey::new(format!("k{number}")).expect("a valid key");
        Renew::new(key, Token::from_random(u128::from(number)), TTL)
    }

    #[test]
    fn only_renewals_that_ask_for_nothing_more_are_plain() {
        let mut with_floor = renew(1);
        with_floor.floor = 1;
        for other in [renew(1).with_block(1), with_floor] {
            assert!(!is_plain(&[Operation::Renew(renew(2)), Operation::Renew(other)]));
        }
        let key = LockKey::new("k1").expect("a valid key");
        assert!(!is_plain(&[Operation::Renew(renew(2)), Operation::Inspect { key }]));
        assert!(is_plain(&[Operation::Renew(renew(1)), Operation::Renew(renew(2))]));
    }

    #[test]
    fn each_renewal_has_the_answer_at_its_place() {
        let batch: Vec<_> = (0..4).map(|number| Operation::Renew(renew(number))).collect();
        let message = Value::BulkString(b"READONLY You can't write against a read only replica. (PEXPIRE)".to_vec());
        let reply = Value::Array(vec![Value::Int(0), Value::Int(90_000), Value::Int(-1), message]);
        let answer = answer(&batch, &reply, "redis:6379").expect("this is what the script says");
        let renewed = |remaining| Outcome::Renewed { remaining, fence: None, block: 0 };
        match &answer.outcomes[..] {
            [Ok(raised), Ok(longer), Ok(Outcome::Gone), Err(error)] => {
                assert_eq!((*raised, *longer), (renewed(TTL), renewed(Duration::from_secs(90))));
                assert!(error.to_string().contains("replica") && !error.may_have_happened(), "{error}");
            }
            outcomes => panic!("{outcomes:?}"),
        }
    }

    #[test]
    fn only_watched_leases_are_lost_by_what_is_seen_at_their_keys() {
        let operation = |number, watch, mode| {
            let Renew { key, token, .. } = renew(number);
            Operation::Renew(Renew { watch, ..Renew::new(key, token.in_mode(mode), TTL) })
        };
        let (exclusive, shared) = (Mode::Exclusive, Mode::Shared);
        let batch = [operation(1, false, shared), operation(2, true, exclusive), operation(3, true, exclusive)];
        let kept = Value::BulkString(renew(2).token.reveal().into_bytes());
        let mut answer = self::answer(&batch, &Value::Array(vec![Value::Int(0); 3]), "redis:6379").expect("as above");
        see(&batch, &Value::Array(vec![kept, Value::Nil]), &mut answer);
        let outcomes = &answer.outcomes[..];
        let is_kept = |outcome: &_| matches!(outcome, Ok(Outcome::Renewed { .. }));
        assert!(is_kept(&outcomes[0]) && is_kept(&outcomes[1]), "{outcomes:?}");
        assert!(matches!(outcomes[2], Ok(Outcome::Gone)), "{outcomes:?}");
    }

    #[test]
    fn what_is_seen_at_a_key_is_read_beside_other_requests() {
        let key = LockKey::new("other").expect("a valid key");
        let watched = |number| Operation::Renew(Renew { watch: true, ..renew(number).with_block(1) });
        let batch = [Operation::Inspect { key }, watched(1), Operation::Renew(renew(2)), watched(3)];
        let renewed = || Ok(Outcome::Renewed { remaining: TTL, fence: None, block: 0 });
        let mut answer = Answer::new((0..4).map(|_| renewed()));
        let kept = Value::BulkString(renew(1).token.reveal().into_bytes());
        see(&batch, &Value::Array(vec![kept, Value::Nil]), &mut answer);
        let are_gone: Vec<_> = answer.outcomes.iter().map(|outcome| matches!(outcome, Ok(Outcome::Gone))).collect();
        assert_eq!(are_gone, [false, false, false, true], "{:?}", answer.outcomes);
    }

    #[test]
    fn replies_of_another_form_are_refused() {
        let batch = [Operation::Renew(renew(1))];
        for values in [vec![], vec![Value::Int(0), Value::Int(0)], vec![Value::Int(-2)], vec![Value::Nil]] {
            let refused = match answer(&batch, &Value::Array(values.clone()), "redis:6379") {
                Ok(answer) => answer.outcomes[0].is_err(),
                Err(_) => true,
            };
            assert!(refused, "{values:?}");
        }
        assert!(answer(&batch, &Value::Okay, "redis:6379").is_err());
    }
}
