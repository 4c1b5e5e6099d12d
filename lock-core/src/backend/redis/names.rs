//! Names of side keys, which no [`LockKey`](crate::key::LockKey) has.
//!
//! A side key is `{TAG}lock-core:…`. The tag stands first, so that braces in a user's key cannot move a side key to
//! another cluster slot. Without slots there is one tag for all keys, and therefore one fence counter.

/// The counter of fencing tokens of a server without slots.
pub(super) const FENCE_COUNTER: &str = "{0}lock-core:fence";

/// Until when somebody may be waiting for a key under that counter.
pub(super) const WAITING: &str = "{0}lock-core:waiting";

/// The queue of a key.
pub(super) fn queue(key: &str) -> String {
    format!("{{0}}lock-core:queue:{key}")
}
