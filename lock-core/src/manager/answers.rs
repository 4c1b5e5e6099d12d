//! What all processes say of keys, key by key.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use crate::{
    engine::question::{Heard, message::Report},
    info::{Held, Holder, KeyInfo, Party, Processes, Waiter},
    key::LockKey,
};

/// The answers of all processes.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Holders and waiters, by the key as the store knows it.
    of_keys: BTreeMap<String, (Vec<Holder>, Vec<Waiter>)>,
    /// Whether a process had more to say, about any of the keys.
    is_truncated: bool,
    processes: Processes,
    answered_by: Arc<[Party]>,
}

impl Answers {
    /// Reads the answers, if there are any. One of an unknown form does not count.
    pub(super) fn of(heard: Option<Heard>) -> Self {
        let mut answers = Self::default();
        let Some(Heard { answers: messages, reached }) = heard else { return answers };
        let mut answered_by = Vec::new();
        for Report { party, is_cut, holders, waiters } in messages.values().filter_map(|message| Report::read(message))
        {
            answers.processes.answered += 1;
            answered_by.push(party);
            answers.is_truncated |= is_cut;
            for (key, holder) in holders {
                answers.of_keys.entry(key).or_default().0.push(holder);
            }
            for (key, waiter) in waiters {
                answers.of_keys.entry(key).or_default().1.push(waiter);
            }
        }
        answers.answered_by = answered_by.into();
        // A question that has reached nobody, not even the manager that asks, could not be sent.
        let reached = reached.filter(|reached| *reached > 0);
        answers.processes.asked = reached.map(|reached| reached.max(answers.processes.answered));
        answers
    }

    /// Nobody was asked, since the key is free.
    pub(super) fn of_nobody() -> Self {
        Self { processes: Processes { asked: Some(0), answered: 0 }, ..Self::default() }
    }

    /// Returns the keys of which something was said and that are not described yet.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.of_keys.keys().map(String::as_str)
    }

    /// Describes a key by what the store says and the processes say. A holder counts only while the store says that a lease of this
    /// library has the key.
    pub(super) fn describe(&mut self, key: &LockKey, held: Option<Held>) -> KeyInfo {
        let (mut holders, mut waiters) = self.of_keys.remove(key.wire()).unwrap_or_default();
        // A process that has not noticed a loss yet may describe a lease, too: the one with the largest number counts, and those
        // that hold the key together with it. Of more than the store counts, the oldest are over.
        holders.sort_by_key(|holder| Reverse(holder.fencing_token));
        let newest = holders.first().map(|newest| (newest.mode, newest.fencing_token));
        holders.retain(|holder| {
            let (mode, number) = (holder.mode, holder.fencing_token);
            newest == Some((mode, number)) || newest.is_some_and(|(newest, _)| mode.goes_with(newest))
        });
        holders.truncate(held.filter(|held| !held.foreign).map_or(0, |held| held.leases));
        holders.sort_by_key(|holder| Reverse(holder.held));
        waiters.sort_by_key(|waiter| (waiter.place, Reverse(waiter.waited)));
        let (is_truncated, processes, answered_by) = (self.is_truncated, self.processes, Arc::clone(&self.answered_by));
        KeyInfo { key: key.as_str().to_owned(), held, holders, waiters, is_truncated, processes, answered_by }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{engine::question::this_process, fencing::FencingToken, mode::Mode};

    #[test]
    fn readers_with_numbers_of_their_own_are_not_said_to_be_silent() {
        let holder = |fence: u64| Holder {
            party: this_process("shop"),
            mode: Mode::Shared,
            held: Duration::ZERO,
            ttl: Duration::from_secs(9),
            fencing_token: FencingToken::new(fence),
            trace: String::new(),
        };
        let mut answers = Answers::default();
        answers.of_keys.insert("k".to_owned(), (vec![holder(7), holder(9)], Vec::new()));
        let [first, remaining] = [1, 9].map(|seconds| Some(Duration::from_secs(seconds)));
        let held = Held { remaining, foreign: false, leases: 3, permits: 0, first };
        let info = answers.describe(&LockKey::new("k").expect("a valid key"), Some(held));
        assert_eq!(info.silent().map(|silent| silent.leases()), Some(1), "two of three have answered");
        assert_eq!(info.holders().len(), 2);
    }
}
