//! Values as the scripts have them, and replies that are errors.

use std::time::Duration;

use redis::Value;

use super::failure;
use crate::backend::BackendError;

/// Whole milliseconds; a ttl is at most 100 years, which fits.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The error of an item. The script does all of an operation, or nothing.
pub(super) fn failed(message: &Value, address: &str) -> BackendError {
    failure::of_message(text(message).unwrap_or("an error without a text"), address).did_not_happen()
}

/// The text in a reply, or `None` if the user may not ask for it.
pub(super) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

pub(super) fn misread(address: &str) -> BackendError {
    BackendError::unavailable(format!(
        "{address} answered the lock script with what the script does not give; check that it is a Redis server"
    ))
}
