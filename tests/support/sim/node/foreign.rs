//! What other libraries do, and somebody who should not.

use lock_core::key::LockKey;

use super::{Entry, Holder, Node};

impl Node {
    /// SET NX PX of another library; whether it was set.
    pub fn set_foreign(&mut self, key: &LockKey, value: u64, ttl: u64, micros: u64) -> bool {
        let now = micros / 1_000;
        let free = !self.is_there(key, now) && self.refuses.more().is_ok();
        if free {
            let entry = Entry {
                holder: Holder::Foreign(value),
                expires: now + ttl,
                setter: None,
                kept: false,
                reserved: false,
                renewed: false,
            };
            self.put(key, entry);
        }
        free
    }

    /// Compare-and-delete of another library; whether it was deleted.
    pub(in crate::sim) fn delete_foreign(&mut self, key: &LockKey, value: u64, micros: u64) -> bool {
        let found = self.held(key, micros / 1_000).is_some_and(|entry| entry.holder == Holder::Foreign(value));
        let mine = found && self.refuses.less().is_ok();
        if mine && let Some(entry) = self.keys.get_mut(key) {
            // As if it had expired: nobody is granted the key, and whoever comes first takes it.
            entry.expires = (micros / 1_000).saturating_sub(1);
        }
        mine
    }

    /// DEL by somebody who should not; whether it was there.
    pub(in crate::sim) fn delete(&mut self, key: &LockKey) -> bool {
        self.audit.deleted(key);
        let is_group = self.groups.remove(key).is_some();
        self.keys.remove(key).is_some() || is_group
    }
}
