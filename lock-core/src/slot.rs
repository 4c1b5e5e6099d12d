//! Names of side keys.
//!
//! A side key is `{TAG}lock-core:…`. The tag stands first, so that braces in a user's key cannot move a side key to
//! another cluster slot. Without slots there is one tag for all keys, and therefore one fence counter.

/// The counter of fencing tokens of a server without slots.
#[cfg(feature = "redis")]
pub(crate) const FENCE_COUNTER: &str = "{0}lock-core:fence";

/// Until when somebody may be waiting for a key under that counter.
#[cfg(feature = "redis")]
pub(crate) const WAITING: &str = "{0}lock-core:waiting";

/// Returns whether a key begins like a side key: `{…}lock-core:`.
pub(crate) fn is_side_key(key: &str) -> bool {
    key.strip_prefix('{')
        .and_then(|rest| rest.split_once('}'))
        .is_some_and(|(_tag, name)| name.starts_with("lock-core:"))
}

/// The queue of a key.
#[cfg(feature = "redis")]
pub(crate) fn queue(key: &str) -> String {
    format!("{{0}}lock-core:queue:{key}")
}
