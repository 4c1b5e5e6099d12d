//! What all processes say of keys, key by key.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use super::{Answered, Held, Holder, KeyInfo, Party, Processes, Waiter};
use crate::{
    engine::inquiry::{Entry, Heard, Statement, What},
    key::LockKey,
    mode::Mode,
};

/// What all processes have said, key by key.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    of_keys: BTreeMap<String, Parties>,
    /// Whether a process had more to say, about any of the keys.
    is_truncated: bool,
    /// How many processes were asked, and how many have answered.
    processes: Processes,
}

/// What all processes have said of one key.
#[derive(Debug, Default)]
pub(crate) struct Parties {
    pub(crate) holders: Vec<Holder>,
    waiters: Vec<Waiter>,
    /// Whether a process had more to say.
    is_truncated: bool,
    processes: Processes,
}

impl Answers {
    /// Sorts what was said, if anything was, by keys, as the store knows them.
    pub(crate) fn of(heard: Option<Heard>) -> Self {
        let mut answers = Self::default();
        let Some(Heard { statements, is_truncated, reached, answered, .. }) = heard else { return answers };
        answers.is_truncated = is_truncated;
        answers.processes = Processes::new(reached, answered);
        for Statement { manager, entries, .. } in statements {
            for Entry { key, label, since, trace, mode, what } in entries {
                let party = Party { process: manager.process.clone(), label };
                answers.of_keys.entry(key).or_default().add(party, since, trace, mode, what);
            }
        }
        answers
    }

    /// Returns the keys of which something was said and that were not taken.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.of_keys.keys().map(String::as_str)
    }

    /// Takes what was said of a key, which may be nothing.
    pub(crate) fn take(&mut self, key: &str) -> Parties {
        let mut parties = self.of_keys.remove(key).unwrap_or_default();
        parties.is_truncated |= self.is_truncated;
        parties.processes = self.processes;
        parties
    }
}

impl Parties {
    /// Nobody was asked, since the key is free.
    pub(crate) fn of_nobody() -> Self {
        Self { processes: Processes { asked: Some(0), answered: 0 }, ..Self::default() }
    }

    fn add(&mut self, party: Party, since: Duration, trace: String, mode: Mode, what: What) {
        match what {
            What::Holds { ttl, fence: fencing_token } => {
                self.holders.push(Holder { party, mode, held: since, ttl, fencing_token, trace });
            }
            What::Waits { place } => self.waiters.push(Waiter { party, mode, waited: since, place }),
            What::More => self.is_truncated = true,
        }
    }

    /// Describes the key by what the store says and these say. A holder counts only while the store says that a lease of this
    /// library has the key.
    pub(crate) fn describe(self, key: &LockKey, held: Option<Held>) -> KeyInfo {
        let Self { mut holders, mut waiters, is_truncated, processes } = self;
        // A process that has not noticed a loss yet may describe a lease, too: the one with the largest number counts, and those
        // that hold the key together with it.
        let newest =
            holders.iter().max_by_key(|holder| holder.fencing_token).map(|newest| (newest.mode, newest.fencing_token));
        holders.retain(|holder| {
            held.is_some_and(|held| !held.foreign)
                && newest.is_some_and(|(mode, number)| {
                    holder.mode.goes_with(mode) || (holder.mode, holder.fencing_token) == (mode, number)
                })
        });
        if let Some((Mode::Shared, number)) = newest {
            // In a quorum, those who share a key may have numbers of their own. Of more than the store counts, the oldest are over.
            let counted = held.and_then(|held| held.shares).map_or(0, |shares| shares.leases as usize);
            let of_newest = holders.iter().filter(|holder| holder.fencing_token == number).count();
            holders.sort_by_key(|holder| Reverse(holder.fencing_token));
            holders.truncate(counted.max(of_newest));
        }
        let answered = Answered {
            leases: holders.len(),
            permits: holders.iter().map(|holder| holder.mode.permits()).fold(0, u32::saturating_add),
        };
        holders.sort_by_key(|holder| Reverse(holder.held));
        waiters.sort_by_key(|waiter| (waiter.place, Reverse(waiter.waited)));
        KeyInfo { key: key.as_str().to_owned(), held, holders, answered, waiters, is_truncated, processes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{engine::inquiry::Process, fencing::FencingToken, info::Shares};

    #[test]
    fn readers_with_numbers_of_their_own_are_not_said_to_be_silent() {
        let mut parties = Parties::default();
        for fence in [7, 9] {
            let process = Process { service: "shop".into(), host: "web-1".into(), number: 1 };
            let what = What::Holds { ttl: Duration::from_secs(9), fence: FencingToken::from(fence) };
            let party = Party { process, label: String::new() };
            parties.add(party, Duration::ZERO, String::new(), Mode::Shared, what);
        }
        let shares = Some(Shares { leases: 3, permits: 0, first: Duration::from_secs(1) });
        let held = Held { remaining: Some(Duration::from_secs(9)), foreign: false, shares };
        let info = parties.describe(&LockKey::new("k").expect("a valid key"), Some(held));
        assert_eq!(info.silent().map(|silent| silent.leases()), Some(1), "two of three have answered");
        assert_eq!(info.holders().len(), 2);
    }
}
