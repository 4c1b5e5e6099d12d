//! What all processes say of keys, key by key.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use super::{Held, Holder, KeyInfo, Party, Waiter};
use crate::{
    engine::inquiry::{Entry, Manager, Statement, What},
    key::LockKey,
};

/// What all processes have said of one key.
#[derive(Debug, Default)]
pub(crate) struct Parties {
    pub(crate) holder: Option<Holder>,
    waiters: Vec<Waiter>,
}

impl Parties {
    /// Sorts what was said by keys, as the store knows them.
    pub(crate) fn of(statements: Vec<Statement>) -> BTreeMap<String, Self> {
        let mut parties = BTreeMap::<String, Self>::new();
        for Statement { manager, entries, .. } in statements {
            for Entry { key, label, since, trace, what } in entries {
                parties.entry(key).or_default().add(party(&manager, label), since, trace, what);
            }
        }
        parties
    }

    fn add(&mut self, party: Party, since: Duration, trace: String, what: What) {
        match what {
            What::Holds { ttl, fence: fencing_token } => {
                let holder = Holder { party, held: since, ttl, fencing_token, trace };
                // A process that has not noticed a loss yet may describe a lease, too.
                let is_newer = self.holder.as_ref().is_none_or(|other| other.fencing_token < fencing_token);
                if is_newer {
                    self.holder = Some(holder);
                }
            }
            What::Waits { place } => self.waiters.push(Waiter { party, waited: since, place }),
        }
    }

    pub(crate) fn describe(mut self, key: &LockKey, held: Option<Held>) -> KeyInfo {
        self.waiters.sort_by_key(|waiter| (waiter.place, Reverse(waiter.waited)));
        KeyInfo::new(key.as_str(), held).with(self.holder, self.waiters)
    }
}

fn party(manager: &Manager, label: String) -> Party {
    let Manager { service, host, process, .. } = manager;
    Party { service: (**service).to_owned(), host: (**host).to_owned(), process: *process, label }
}
