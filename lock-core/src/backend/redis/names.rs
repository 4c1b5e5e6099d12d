//! Names of side keys, which no [`LockKey`](crate::key::LockKey) has, and of channels of slots.
//!
//! A side key is `{TAG}lock-core:…`. The tag stands first, so that braces in a user's key cannot move a side key to
//! another cluster slot.

use std::borrow::Cow;

use super::slot::Tag;
use crate::backend::EVERYONE;

/// The counter of fencing tokens of all keys with a tag.
pub(super) fn fence_counter(tag: Tag) -> String {
    format!("{{{tag}}}lock-core:fence")
}

/// The key that says until when a client may be waiting for a key under that counter.
pub(super) fn waiting(tag: Tag) -> String {
    format!("{{{tag}}}lock-core:waiting")
}

/// The beginning of the name of a queue, which ends with its key.
pub(super) fn queue(tag: Tag) -> String {
    format!("{{{tag}}}lock-core:queue:")
}

/// The channel of a manager for the keys with a tag.
pub(super) fn channel(tag: Tag, channel: &str) -> String {
    format!("{{{tag}}}{channel}")
}

/// The channel of the manager whose channel for the keys with a tag this is.
pub(super) fn channel_of(of_tag: &[u8]) -> Option<&str> {
    Some(std::str::from_utf8(of_tag).ok()?.split_once('}')?.1)
}

/// The channel of all managers of a database, for [`EVERYONE`]: channels belong to no database. Every other one as it is.
pub(super) fn of_database(channel: &str, database: i64) -> Cow<'_, str> {
    if channel == EVERYONE { Cow::Owned(format!("{EVERYONE}:{database}")) } else { Cow::Borrowed(channel) }
}
