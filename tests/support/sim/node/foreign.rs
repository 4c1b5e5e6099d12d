//! What other libraries do, and somebody who should not.

use lock_core::{
    backend::{
        Operation, Token,
        store::{Holders, Share},
    },
    key::LockKey,
};

use super::{Holder, Node, Note};
use crate::sim::audit::What;

impl Node {
    /// Whether another library has the key that an operation is about.
    pub(super) fn is_foreign(&self, operation: &Operation, now: u64) -> bool {
        self.alone(operation.key(), now).is_some_and(|(_, note)| note.foreign.is_some())
    }

    /// Has one token hold a key until a time in ms, of which the journal takes note.
    pub(super) fn put(&mut self, key: &LockKey, token: Token, expires: u64, note: Note) {
        let holder = note.foreign.map_or(Holder::Ours(token), Holder::Foreign);
        self.audit.does(key, holder, What::Set(expires));
        self.store.keys.insert(key.clone(), Holders::new(Share { token, ends: expires * 1_000 }, 0));
        self.note(key, token, note);
    }

    /// SET NX PX of another library; whether it was set.
    pub fn set_foreign(&mut self, key: &LockKey, value: u64, ttl: u64, micros: u64) -> bool {
        let now = micros / 1_000;
        let free = !self.is_there(key, now) && self.refuses.more();
        if free {
            // A token that no client of ours draws.
            let token = Token::from_random(u128::MAX - u128::from(value));
            self.put(key, token, now + ttl, Note { foreign: Some(value), ..Note::default() });
        }
        free
    }

    /// Compare-and-delete of another library; whether it was deleted.
    pub(in crate::sim) fn delete_foreign(&mut self, key: &LockKey, value: u64, micros: u64) -> bool {
        let found = self.alone(key, micros / 1_000).is_some_and(|(_, note)| note.foreign == Some(value));
        let mine = found && self.refuses != super::Refuses::Writes;
        if mine {
            // As if it had expired: nobody is granted the key, and whoever comes first takes it.
            self.store.keys.remove(key);
            self.lapsed.insert(key.clone());
        }
        mine
    }

    /// DEL by somebody who should not; whether it was there.
    pub(in crate::sim) fn delete(&mut self, key: &LockKey) -> bool {
        self.audit.deleted(key);
        self.store.keys.remove(key).is_some()
    }
}
