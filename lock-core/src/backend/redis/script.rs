//! The script: how a batch becomes a command, and how the reply is read.

use std::{sync::OnceLock, time::Duration};

use redis::{Cmd, Script, Value, cmd};

use super::failure;
use crate::{
    backend::{BackendError, Operation, Outcome},
    error::ErrorKind,
    slot::FENCE_COUNTER,
    token::TOKEN_MARK,
};

const SOURCE: &str = include_str!("scripts/lock.lua");

/// The call of a batch by the hash of the script.
pub(super) fn evalsha(batch: &[Operation]) -> Cmd {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    let script = SCRIPT.get_or_init(|| Script::new(SOURCE));
    call("EVALSHA", script.get_hash(), batch)
}

/// The same call with the source, for a server that does not have the script.
pub(super) fn eval(batch: &[Operation]) -> Cmd {
    call("EVAL", SOURCE, batch)
}

fn call(command: &str, script: &str, batch: &[Operation]) -> Cmd {
    let mut call = cmd(command);
    call.arg(script).arg(1 + batch.len()).arg(FENCE_COUNTER);
    for operation in batch {
        call.arg(key(operation));
    }
    call.arg(TOKEN_MARK);
    for operation in batch {
        match operation {
            Operation::Acquire(acquire) => {
                let from = acquire.from.map(|token| token.reveal()).unwrap_or_default();
                call.arg("acquire").arg(acquire.token.reveal()).arg(millis(acquire.ttl)).arg(acquire.block).arg(from)
            }
            Operation::Renew(renew) => {
                call.arg("renew").arg(renew.token.reveal()).arg(millis(renew.ttl)).arg(0).arg("")
            }
            Operation::Release(release) => {
                call.arg("release").arg(release.token.reveal()).arg(millis(release.after)).arg(0).arg("")
            }
            Operation::Inspect { .. } => call.arg("inspect").arg("").arg(0).arg(0).arg(""),
            Operation::Force { foreign, .. } => call.arg("force").arg("").arg(0).arg(u8::from(*foreign)).arg(""),
        };
    }
    call
}

fn key(operation: &Operation) -> &str {
    match operation {
        Operation::Acquire(acquire) => acquire.key.wire(),
        Operation::Renew(renew) => renew.key.wire(),
        Operation::Release(release) => release.key.wire(),
        Operation::Inspect { key } | Operation::Force { key, .. } => key.wire(),
    }
}

/// Whole milliseconds; a ttl is at most 100 years, which fits.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Reads the reply to a batch of `expected` items.
pub(super) fn outcomes(reply: Value, expected: usize) -> Result<Vec<Result<Outcome, BackendError>>, BackendError> {
    match reply {
        Value::Array(items) if items.len() == expected => Ok(items.into_iter().map(outcome).collect()),
        _ => Err(misread()),
    }
}

fn outcome(item: Value) -> Result<Outcome, BackendError> {
    let Value::Array(parts) = item else { return Err(misread()) };
    let number = |index: usize| match parts.get(index) {
        Some(Value::Int(number)) => Ok(*number),
        _ => Err(misread()),
    };
    let natural = |index: usize| number(index).and_then(|number| u64::try_from(number).map_err(|_| misread()));
    match parts.first().and_then(text) {
        Some("held") => {
            let block = u32::try_from(natural(2)?).map_err(|_| misread())?;
            Ok(Outcome::Held { fence: natural(1)?, block })
        }
        // PTTL is negative for a key without a ttl.
        Some("busy") => Ok(Outcome::Busy {
            remaining: u64::try_from(number(1)?).ok().map(Duration::from_millis),
            foreign: number(2)? != 0,
        }),
        Some("renewed") => Ok(Outcome::Renewed { remaining: Duration::from_millis(natural(1)?) }),
        Some("released") => Ok(Outcome::Released),
        Some("gone") => Ok(Outcome::Gone),
        Some("error") => Err(failure::of_message(parts.get(1).and_then(text).unwrap_or("an error without a text"))),
        _ => Err(misread()),
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

fn misread() -> BackendError {
    BackendError::new(
        ErrorKind::Backend,
        "the server's reply to the lock script is not what the script gives; check that it is a Redis server",
    )
}
