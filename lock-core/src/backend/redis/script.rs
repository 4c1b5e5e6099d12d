//! The script: how a batch becomes a command, and how the reply is read.

use std::{sync::OnceLock, time::Duration};

use redis::{Script, Value};

use super::{
    commands::Commands,
    names, renewals,
    reply::{failed, millis, misread},
    slot::Tag,
    source::SOURCE,
};
use crate::backend::{Answer, BusyReason, Operation, Outcome, Outcomes, Place, Replied, store::micros};

/// The mark of an item of the reply that failed.
const ERROR: i64 = 0;

/// Runs a script that changes nothing, by source and by hash: whether that is allowed, and whether it may do what only renewals and
/// releases do. Acquires would be granted without these rights, and each lease be lost.
pub(super) fn trial() -> Commands {
    let mut trial = Commands::one(["EVAL", TRIAL, "0"]);
    trial.add(["EVALSHA", Script::new(TRIAL).get_hash(), "0"]);
    trial
}

/// Nothing stands at its key, which belongs to one node of a cluster. The others refuse the key, but look at the rights first.
const TRIAL: &str = "\
local key = '{0}lock-core:trial'
for _, command in ipairs({{'PEXPIRE', key, 1}, {'PEXPIREAT', key, 1}, {'PTTL', key}, {'DEL', key}, {'ZSCORE', key, 1}, {'ZADD', key, 'XX', 1, 1},
  {'ZREVRANGEBYSCORE', key, 1, 1}, {'ZREM', key, 1}}) do
  local reply = redis.pcall(unpack(command))
  local problem = type(reply) == 'table' and reply.err and string.lower(reply.err) or ''
  if string.find(problem, 'permissions to run', 1, true) or string.find(problem, 'run this command', 1, true) then
    return redis.error_reply(\"NOPERM this user has no permissions to run the '\" .. command[1] .. \"' command\")
  elseif string.find(problem, 'unknown', 1, true) then
    return redis.error_reply(\"ERR unknown command '\" .. command[1] .. \"'\")
  end
end
return 1";

/// How the server is told which script to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Hash,
    /// For a server that does not have it.
    Source,
}

/// Adds the call of a batch; its side keys have the tag.
pub(super) fn add_call(call: &mut Commands, by: By, tag: Tag, batch: &[Operation]) {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    match by {
        By::Hash => call.add(["EVALSHA", SCRIPT.get_or_init(|| Script::new(SOURCE)).get_hash()]),
        By::Source => call.add(["EVAL", SOURCE]),
    };
    if renewals::is_plain(batch) {
        return renewals::add_arguments(call, batch);
    }
    let queues = batch.iter().filter(|operation| !matches!(operation, Operation::Renew(_)));
    call.number((2 + batch.len() + queues.clone().count()) as u64);
    call.text(&names::fence_counter(tag)).text(&names::waiting(tag));
    for operation in batch {
        call.text(operation.key().wire());
    }
    let queue = names::queue(tag);
    for operation in queues {
        call.joined([&*queue, operation.key().wire()].map(str::as_bytes));
    }
    if batch.iter().all(is_plain_release) {
        return add_tokens(call, batch);
    }
    let (floor, aim) = Operation::numbers(batch);
    let places = batch.iter().filter_map(|operation| operation.as_acquire()?.place.as_ref());
    // One manager has one channel. An older time is the safer one.
    let place = places.min_by_key(|place| place.sent);
    let place = place.map(|Place { channel, life, sent, .. }| {
        format!("{} {} {channel}", millis(*life), micros(sent.since_origin()))
    });
    let mark = if batch.iter().any(Operation::is_all_or_none) { "*" } else { "" };
    call.text(&format!("{}{mark}", batch.len()));
    if floor == 0 && aim == 0 {
        call.text("");
    } else {
        call.text(&format!("{floor} {aim}"));
    }
    call.text(&place.unwrap_or_default());
    batch.iter().for_each(|operation| _ = add(call, operation));
}

/// Adds one operation and its arguments to a call.
fn add<'a>(call: &'a mut Commands, operation: &Operation) -> &'a mut Commands {
    match operation {
        Operation::Acquire(acquire) => {
            let name = match (acquire.from, &acquire.place) {
                (Some(_), _) => "take",
                (None, Some(_)) => "acquire",
                (None, None) => "try",
            };
            call.text(name).text(&acquire.token.reveal()).number(millis(acquire.ttl)).number(acquire.block);
            match (acquire.from, &acquire.place) {
                (Some(from), _) => call.text(&from.reveal()),
                (None, Some(place)) => call.number(millis(place.lasts)),
                (None, None) => call,
            }
        }
        Operation::Renew(renew) => {
            call.text("renew").text(&renew.token.reveal()).number(millis(renew.ttl)).number(renew.block)
        }
        Operation::Release(release) if is_plain_release(operation) => {
            call.text("release").text(&release.token.reveal())
        }
        Operation::Release(release) => {
            call.text("part").text(&release.token.reveal()).number(millis(release.after)).number(release.quiet)
        }
        Operation::Inspect { .. } => call.text("inspect"),
        Operation::Force { foreign, .. } => call.text("force").number(*foreign),
    }
}

/// Whether an operation releases and no more, so that a call of nothing else needs only the tokens.
fn is_plain_release(operation: &Operation) -> bool {
    matches!(operation, Operation::Release(release) if release.after.is_zero() && !release.quiet)
}

fn add_tokens(call: &mut Commands, batch: &[Operation]) {
    call.text("release");
    for operation in batch {
        if let Operation::Release(release) = operation {
            call.text(&release.token.reveal());
        }
    }
}

/// Reads the reply to a batch.
pub(super) fn answer_to(batch: &[Operation], reply: Value, address: &str) -> Replied<Answer> {
    match renewals::is_plain(batch) {
        true => renewals::answer(batch, &reply, address),
        false => answer(reply, batch.len(), Operation::numbers(batch) != (0, 0), address),
    }
}

/// Reads the reply to a batch of `expected` items; `timed` says that the server's time follows them.
pub(super) fn answer(reply: Value, expected: usize, timed: bool, address: &str) -> Replied<Answer> {
    let Value::Array(values) = reply else { return Err(misread(address)) };
    let mut values = values.as_slice();
    let mut outcomes = Outcomes::with_capacity(expected);
    for _ in 0..expected {
        let (outcome, rest) = outcome(values, address).ok_or_else(|| misread(address))?;
        outcomes.push(outcome);
        values = rest;
    }
    let (refused, time) = match *values {
        [Value::Int(refused)] if !timed => (refused, None),
        [Value::Int(refused), Value::Int(time)] if timed => (refused, u64::try_from(time).ok()),
        _ => return Err(misread(address)),
    };
    let mut answer = Answer::new(outcomes);
    answer.calls_refused = refused != 0;
    answer.time = time;
    Ok(answer)
}

/// Reads the first outcome; returns what follows it too. None if it is not what the script gives.
fn outcome<'a>(values: &'a [Value], address: &str) -> Option<(Replied<Outcome>, &'a [Value])> {
    let (Value::Int(code), values) = values.split_first()? else { return None };
    if *code == ERROR {
        let (message, rest) = values.split_first()?;
        return Some((Err(failed(message, address)), rest));
    }
    let mut values = values.iter();
    let mut next = || match values.next()? {
        Value::Int(number) => Some(*number),
        _ => None,
    };
    let count = |number: i64| u32::try_from(number).ok();
    let position = |number: i64| count(number).map(|position| (position > 0).then_some(position));
    let outcome = match *code {
        1 => {
            let (fence, block) = (u64::try_from(next()?).ok()?, count(next()?)?);
            Outcome::Held { fence, block, was_free: next()? == 1 }
        }
        2 | 6 => {
            // PTTL is negative for a key without a ttl.
            let remaining = u64::try_from(next()?).ok().map(Duration::from_millis);
            let by = match (*code, next()?) {
                (6, total) => BusyReason::OtherTotal { total: count(total)? },
                (_, 0) => BusyReason::Holder,
                (_, 1) => BusyReason::Foreign,
                (_, 2) => BusyReason::Waiters,
                (_, 3) => BusyReason::Permits,
                _ => return None,
            };
            Outcome::Busy { remaining, by, position: position(next()?)? }
        }
        3 => Outcome::Renewed {
            remaining: Duration::from_millis(u64::try_from(next()?).ok()?),
            fence: u64::try_from(next()?).ok().filter(|fence| *fence > 0),
            block: count(next()?)?,
        },
        4 => Outcome::Released,
        5 => Outcome::Gone,
        7 => {
            let (leases, permits) = (count(next()?)?, count(next()?)?);
            let mut ms = || u64::try_from(next()?).ok().map(Duration::from_millis);
            Outcome::Shared { leases, permits, first: ms()?, last: ms()? }
        }
        _ => return None,
    };
    Some((Ok(outcome), values.as_slice()))
}
