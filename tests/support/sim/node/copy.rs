//! Copies of all that a node has, which lag behind.

use std::collections::BTreeMap;

use lock_core::{backend::Token, key::LockKey};

use super::{Entry, Holder, Node, NodeMutant, group::Group, queue::Queue};
use crate::sim::audit::Audit;

/// What a replica has of a node.
#[derive(Debug)]
pub(in crate::sim) struct Copied {
    keys: BTreeMap<LockKey, Entry>,
    groups: BTreeMap<LockKey, Group>,
    last_fence: u64,
    waiting: u64,
    queues: BTreeMap<LockKey, Queue>,
    audit: Audit,
}

impl Node {
    /// A copy, which lags behind from now on.
    pub(in crate::sim) fn copy(&self) -> Copied {
        let (keys, groups, queues) = (self.keys.clone(), self.groups.clone(), self.queues.clone());
        let (last_fence, waiting) = (self.last_fence, self.waiting);
        Copied { keys, groups, last_fence, waiting, queues, audit: self.audit.clone() }
    }

    /// Puts a copy in its place, as after a failover, and returns the former node. Nobody listens to the new one yet.
    pub(in crate::sim) fn fail_over(&mut self, copied: Copied) -> Self {
        let Copied { mut keys, mut groups, last_fence, waiting, queues, audit: copy } = copied;
        for (key, entry) in &mut keys {
            // What was released since the copy was made is kept for nobody.
            let is_there = self.keys.get(key).is_some_and(|now| now.holder == entry.holder && !now.kept);
            entry.setter = entry.setter.filter(|_| is_there);
        }
        for (key, group) in &mut groups {
            for share in &mut group.shares {
                let now = self.groups.get(key).and_then(|group| group.share_with(share.holder));
                share.setter = share.setter.filter(|_| now.is_some_and(|now| !now.kept));
            }
        }
        if self.has(NodeMutant::CopyLacksKeys) {
            keys.pop_first();
        }
        let mut audit = self.audit.clone();
        audit.fail_over(copy);
        let (mutant, slots) = (self.mutant, self.slots.clone());
        let next =
            Self { keys, groups, last_fence, waiting, queues, audit, mutant, slots, is_copy: true, ..Self::default() };
        std::mem::replace(self, next)
    }

    /// A token was released at the former node, which this one does not know of: nobody answers for what it has.
    pub(in crate::sim) fn disown(&mut self, key: &LockKey, token: Token) {
        if let Some(entry) = self.keys.get_mut(key).filter(|entry| entry.holder == Holder::Ours(token)) {
            entry.setter = None;
        }
        if let Some(share) = self.groups.get_mut(key).and_then(|group| group.share_of(token)) {
            share.setter = None;
        }
    }

    /// The former node is over.
    pub(in crate::sim) fn outlive(&mut self, former: Self) {
        self.audit.outlive(&former.audit);
        if self.has(NodeMutant::FormerWins) {
            (self.keys, self.groups) = (former.keys, former.groups);
        }
    }
}
