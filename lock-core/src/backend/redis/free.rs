//! Acquires of keys that are thought to be free. They need no script, which costs the server three times as much.
//!
//! A call is `MULTI`, then `SET` for each key, then one number for all of them, then `EXEC`. It must be one transaction: if a
//! key were deleted or forced free before the number is drawn, the next holder could get a smaller number than the former.

use redis::Value;

use super::{commands::Commands, names, reply::millis, slot::Tag};
use crate::backend::{Acquire, Answer, Operation, Outcome};

/// Returns where in a batch the acquires begin that may go this way: after them comes nothing else, so that the order of a
/// batch is kept if they are a call of their own behind the rest.
pub(super) fn begin(batch: &[Operation]) -> usize {
    let others = batch.iter().rposition(|operation| !matches!(operation, Operation::Acquire(acquire) if fits(acquire)));
    others.map_or(0, |last| last + 1)
}

/// The numbers of a block, a floor, a taking over and a share are the script's.
fn fits(acquire: &Acquire) -> bool {
    let Acquire { token, expects_free, all_or_none, block, from, floor, aim, .. } = acquire;
    *expects_free
        && !all_or_none
        && token.mode().is_exclusive()
        && *block == 1
        && from.is_none()
        && *floor == 0
        && *aim == 0
}

/// The commands; the counter has the tag.
pub(super) fn transaction(tag: Tag, batch: &[Operation]) -> Commands {
    let mut commands = Commands::with_capacity(256 + 192 * batch.len());
    commands.add(["MULTI"]);
    for acquire in batch.iter().filter_map(Operation::as_acquire) {
        let set = commands.add(["SET", acquire.key.wire(), &acquire.token.reveal(), "PX"]);
        set.number(millis(acquire.ttl)).text("NX");
    }
    commands.add(["XADD", &names::fence_counter(tag), "MAXLEN", "0", "*", "", ""]);
    commands.add(["EXEC"]);
    commands
}

/// The result of a transaction.
pub(super) enum Taken {
    /// Each key was taken, or was not free.
    Whole(Answer),
    /// Nothing of it, as the server has no memory, is a replica, or does not let this user at one of the keys.
    Nothing,
    /// Perhaps a part of it, one command by one: the server has refused to begin it, or to draw a number.
    Part,
    /// Nothing yet: the server has refused to execute it, and goes on to queue what it is sent.
    Open,
}

/// Reads the replies.
pub(super) fn read(batch: &[Operation], replies: &[Value]) -> Taken {
    let [begun, .., executed] = replies else { return Taken::Part };
    match (begun, executed) {
        (Value::Okay, Value::ServerError(error)) if error.code() == "EXECABORT" => {
            // Or this user may not execute any transaction: then no other is begun.
            let refused = error.details().is_some_and(|details| details.contains("because of: "));
            if refused { Taken::Part } else { Taken::Nothing }
        }
        // A slot that has moved since they were queued: the node drops them.
        (Value::Okay, Value::ServerError(error)) if REDIRECTED.contains(&error.code()) => Taken::Nothing,
        (Value::Okay, Value::ServerError(_)) => Taken::Open,
        (Value::Okay, executed) => answer(batch, executed).map_or(Taken::Part, Taken::Whole),
        _ => Taken::Part,
    }
}

/// Reads the reply to `EXEC`; `None` if it is not what the transaction gives.
fn answer(batch: &[Operation], reply: &Value) -> Option<Answer> {
    let Value::Array(replies) = reply else { return None };
    let (drawn, sets) = replies.split_last()?;
    if sets.len() != batch.len() {
        return None;
    }
    let fence = fence(drawn)?;
    let outcome = |set: &Value| match (set, fence) {
        (Value::Okay, Some(fence)) => Some(Ok(Outcome::Held { fence, block: 1, was_free: true })),
        // Held without a number, which the script gives.
        (Value::Okay, None) | (Value::Nil, _) => Some(Ok(Outcome::NotFree)),
        _ => None,
    };
    let outcomes: Option<Vec<_>> = sets.iter().map(outcome).collect();
    Some(Answer::new(outcomes?))
}

/// Reads the id of the counter's new entry. The inner `None`: the script has to give the number, as when the millisecond has
/// none left (the clock was set back, or a million were drawn in a second).
fn fence(drawn: &Value) -> Option<Option<u64>> {
    let Value::BulkString(id) = drawn else { return None };
    let (ms, number) = std::str::from_utf8(id).ok()?.split_once('-')?;
    let (ms, number): (u64, u64) = (ms.parse().ok()?, number.parse().ok()?);
    let fence = ms.checked_mul(OF_A_MILLISECOND).and_then(|fence| fence.checked_add(number));
    Some(fence.filter(|fence| number < OF_A_MILLISECOND && *fence < MOST))
}

/// The errors of a cluster's node that cannot execute commands of a slot.
const REDIRECTED: [&str; 4] = ["ASK", "CLUSTERDOWN", "MOVED", "TRYAGAIN"];
/// How many fencing tokens a millisecond of the counter has.
const OF_A_MILLISECOND: u64 = 1_000;
/// The script counts no further.
const MOST: u64 = 1 << 53;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{backend::Token, key::LockKey};

    fn acquire(number: u32) -> Acquire {
        let key = LockKey::new(format!("k{number}")).expect("a valid key");
        Acquire::new(key, Token::from_random(u128::from(number)), Duration::from_secs(3))
    }

    fn id(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn only_acquires_at_the_end_go_without_the_script() {
        let free = |number| Operation::Acquire(acquire(number).expecting_free());
        let plain = Operation::Acquire(acquire(7));
        assert_eq!(begin(&[free(1), free(2)]), 0);
        assert_eq!(begin(&[plain.clone(), free(1)]), 1);
        assert_eq!(begin(&[free(1), plain.clone()]), 2);
        assert_eq!(begin(&[free(1), plain, free(2)]), 2);
        let with = |change: fn(&mut Acquire)| {
            let mut acquire = acquire(3).expecting_free();
            change(&mut acquire);
            begin(&[Operation::Acquire(acquire)])
        };
        assert_eq!(with(|acquire| acquire.block = 2), 1);
        assert_eq!(with(|acquire| acquire.floor = 1), 1);
        assert_eq!(with(|acquire| acquire.aim = 1), 1);
        assert_eq!(with(|acquire| acquire.from = Some(acquire.token)), 1);
    }

    #[test]
    fn keys_of_one_call_share_a_number() {
        let batch = [1, 2, 3].map(|number| Operation::Acquire(acquire(number).expecting_free()));
        let reply = Value::Array(vec![Value::Okay, Value::Nil, Value::Okay, id("1700000000123-45")]);
        let held = Outcome::Held { fence: 1_700_000_000_123_045, block: 1, was_free: true };
        let outcomes = answer(&batch, &reply).expect("this is what the transaction gives").outcomes;
        assert!(matches!(outcomes[..], [Ok(one), Ok(Outcome::NotFree), Ok(three)] if one == held && three == held));
    }

    #[test]
    fn a_millisecond_without_numbers_left_gives_none() {
        let batch = [Operation::Acquire(acquire(1).expecting_free())];
        let outcome = |of: &str| answer(&batch, &Value::Array(vec![Value::Okay, id(of)])).map(|answer| answer.single());
        assert!(matches!(outcome("5-999"), Some(Ok(Outcome::Held { fence: 5_999, .. }))));
        assert!(matches!(outcome("5-1000"), Some(Ok(Outcome::NotFree))));
        assert!(matches!(outcome("18446744073709551615-1"), Some(Ok(Outcome::NotFree))));
        for id in ["", "5", "5-", "-5", "x-1", "5-1-1"] {
            assert!(outcome(id).is_none(), "{id}");
        }
    }

    #[test]
    fn what_a_refusal_leaves_is_told_apart() {
        let batch = [Operation::Acquire(acquire(1).expecting_free())];
        let error =
            |text: &str| redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).expect("an error is a value");
        let queued = || Value::SimpleString("QUEUED".to_owned());
        let read = |begun, executed| read(&batch, &[begun, queued(), queued(), executed]);
        let aborted = || error("EXECABORT Transaction discarded because of previous errors.");
        let refused = error("EXECABORT Transaction discarded because of: NOPERM no permissions to run 'exec'");
        assert!(matches!(read(Value::Okay, refused), Taken::Part), "each would be");
        assert!(matches!(read(Value::Okay, aborted()), Taken::Nothing));
        assert!(
            matches!(read(error("NOPERM no MULTI"), aborted()), Taken::Part),
            "each command was executed by itself"
        );
        assert!(matches!(read(error("NOPERM no MULTI"), error("ERR EXEC without MULTI")), Taken::Part));
        assert!(matches!(read(Value::Okay, error("ERR unknown command 'EXEC'")), Taken::Open));
        assert!(matches!(read(Value::Okay, error("MOVED 3999 127.0.0.1:6381")), Taken::Nothing));
        let drawn = Value::Array(vec![Value::Okay, error("WRONGTYPE no stream")]);
        assert!(matches!(read(Value::Okay, drawn), Taken::Part), "it is held without a number");
        let whole = Value::Array(vec![Value::Okay, id("5-1")]);
        assert!(matches!(read(Value::Okay, whole), Taken::Whole(_)));
    }

    #[test]
    fn replies_of_another_form_are_refused() {
        let batch = [Operation::Acquire(acquire(1).expecting_free())];
        for replies in [vec![], vec![id("5-1")], vec![Value::Okay; 2], vec![Value::Int(1), id("5-1")]] {
            assert!(answer(&batch, &Value::Array(replies.clone())).is_none(), "{replies:?}");
        }
        assert!(answer(&batch, &Value::Nil).is_none());
    }
}
