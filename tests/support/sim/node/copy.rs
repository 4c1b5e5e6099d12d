//! Copies of all that a node has, which lag behind.

use lock_core::{backend::Token, key::LockKey};

use super::Node;

impl Node {
    /// A copy, which lags behind from now on.
    pub(in crate::sim) fn copy(&self) -> Self {
        let (store, notes, audit) = (self.store.clone(), self.notes.clone(), self.audit.clone());
        Self { store, notes, audit, ..Self::new() }
    }

    /// Puts a copy in its place, as after a failover, and returns the former node. Nobody listens to the new one yet.
    pub(in crate::sim) fn fail_over(&mut self, copied: Self) -> Self {
        let Self { store, mut notes, audit: copy, .. } = copied;
        for ((key, token), note) in &mut notes {
            // What was released since the copy was made is kept for nobody.
            let holders = self.store.keys.get(key);
            let is_there = holders.is_some_and(|holders| holders.shares.iter().any(|share| share.token == *token));
            note.setter = note.setter.filter(|_| is_there && !self.note_of(key, *token).kept);
        }
        let mut next = Self { store, notes, slots: self.slots.clone(), ..Self::new() };
        next.audit = self.audit.clone();
        next.audit.fail_over(copy);
        std::mem::replace(self, next)
    }

    /// A token was released at the former node, which this one does not know of: nobody answers for what it has.
    pub(in crate::sim) fn disown(&mut self, key: &LockKey, token: Token) {
        if let Some(note) = self.notes.get_mut(&(key.clone(), token)) {
            note.setter = None;
        }
    }

    /// The former node is over.
    pub(in crate::sim) fn outlive(&mut self, former: &Self) {
        self.audit.outlive(&former.audit);
    }
}
