//! Which waits are to be explained, and who was found to hold their keys; pure.
//!
//! While requests wait, the engine looks at their keys ten times a second. If a request has waited for as long as the manager is set
//! to, the manager asks who holds its key: one question a look, since each reaches every process of the store. The answer is for all
//! requests that waited for the key when it was asked for. So a key is asked about once, and again only for a request that came later
//! and has waited for as long.

use std::{collections::BTreeMap, time::Duration};

use crate::{clock::Moment, info::Holder, key::LockKey};

/// The keys that this process waits for.
#[derive(Debug)]
pub(crate) struct Explanations {
    /// After which wait to ask; `None` for never.
    after: Option<Duration>,
    of_keys: BTreeMap<LockKey, Explanation>,
    /// When to look at the keys.
    next: Moment,
}

/// The holder of a key, and when it was named.
pub(crate) type Found = (Moment, Box<Holder>);

#[derive(Debug, Default)]
struct Explanation {
    /// When the manager asked last.
    asked: Option<Moment>,
    found: Option<Found>,
}

impl Explanations {
    pub(crate) fn new(after: Option<Duration>) -> Self {
        Self { after, of_keys: BTreeMap::new(), next: Moment::NEVER }
    }

    /// Records that a request waits for a key.
    pub(crate) fn watch(&mut self, key: &LockKey, now: Moment) {
        if let Some(after) = self.after
            && !self.of_keys.contains_key(key)
        {
            self.of_keys.insert(key.clone(), Explanation::default());
            self.next = self.next.min(now + after);
        }
    }

    /// When to [look](Self::look) at the keys.
    pub(crate) fn next(&self) -> Moment {
        self.next
    }

    /// Looks at the keys, and drops those that no request waits for; `waits` gives the beginnings of the waits for a key. Returns the
    /// key whose holder is to be asked for: of several that with the longest wait.
    pub(crate) fn look(&mut self, waits: impl Fn(&LockKey) -> Vec<Moment>, now: Moment) -> Option<LockKey> {
        let after = self.after?;
        let mut longest = None;
        self.of_keys.retain(|key, explanation| {
            let waits = waits(key);
            let due = waits.iter().filter(|since| Some(**since) > explanation.asked && **since + after <= now);
            let due = due.min().map(|since| (*since, key.clone()));
            longest = longest.take().into_iter().chain(due).min();
            !waits.is_empty()
        });
        self.next = if self.of_keys.is_empty() { Moment::NEVER } else { now + BETWEEN_LOOKS };
        let (_, key) = longest?;
        self.of_keys.insert(key.clone(), Explanation { asked: Some(now), found: None });
        Some(key)
    }

    /// Records the holder that was named.
    pub(crate) fn found(&mut self, key: &LockKey, found: Option<Found>) {
        if let Some(explanation) = self.of_keys.get_mut(key) {
            explanation.found = found;
        }
    }

    /// Returns the holder that was named to a request which has waited for a key since then.
    pub(crate) fn of(&self, key: &LockKey, since: Moment) -> Option<Found> {
        self.of_keys.get(key).filter(|explanation| explanation.asked >= Some(since))?.found.clone()
    }

    /// Returns of how many keys something is known.
    pub(crate) fn len(&self) -> usize {
        self.of_keys.len()
    }
}

/// The time between two looks.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::fixture::{at, key};

    /// Looks at the keys, all of which have been waited for since then. Returns whether a holder is asked for.
    fn asks(explanations: &mut Explanations, now: u64, waits: &[u64]) -> bool {
        explanations.look(|_| waits.iter().map(|ms| at(*ms)).collect(), at(now)).is_some()
    }

    fn after(ms: u64) -> Explanations {
        Explanations::new(Some(Duration::from_millis(ms)))
    }

    #[test]
    fn a_key_is_asked_about_once_for_all_who_wait_and_again_for_those_who_come_later() {
        let mut explanations = after(500);
        (0..9).for_each(|ms| explanations.watch(&key(), at(ms)));
        assert_eq!(explanations.next(), at(500));
        assert!(asks(&mut explanations, 500, &[0, 8, 100]));
        assert!(!asks(&mut explanations, 600, &[0, 8, 100]));
        assert_eq!(explanations.next(), at(700));
        assert!(!asks(&mut explanations, 1_699, &[0, 1_200]));
        assert!(asks(&mut explanations, 1_700, &[0, 1_200]));
    }

    #[test]
    fn a_wait_that_is_over_is_not_asked_about_and_leaves_nothing() {
        let mut explanations = after(500);
        explanations.watch(&key(), at(0));
        assert!(!asks(&mut explanations, 500, &[400]));
        assert!(!asks(&mut explanations, 900, &[]));
        assert_eq!((explanations.len(), explanations.next()), (0, Moment::NEVER));
    }

    #[test]
    fn keys_are_asked_about_one_after_the_other_the_longest_wait_first() {
        let mut explanations = after(0);
        let keys: Vec<_> = (10..40).map(|number| LockKey::new(number.to_string()).unwrap()).collect();
        keys.iter().for_each(|key| explanations.watch(key, at(0)));
        let waits = |key: &LockKey| vec![at(99 - key.as_str().parse::<u64>().unwrap())];
        let asked: Vec<_> = (1..=31).map_while(|look| explanations.look(waits, at(look * 100))).collect();
        assert!(asked.iter().eq(keys.iter().rev()), "{asked:?}");
    }

    #[test]
    fn a_holder_is_told_to_those_who_waited_when_it_was_asked_for() {
        let mut explanations = after(500);
        explanations.watch(&key(), at(0));
        assert!(asks(&mut explanations, 500, &[0]));
        assert!(explanations.of(&key(), at(0)).is_none(), "nobody has answered");
        let holder = Holder {
            party: crate::engine::inquiry::this_process("shop"),
            mode: crate::Mode::Exclusive,
            held: Duration::ZERO,
            ttl: Duration::ZERO,
            fencing_token: 7.into(),
            trace: String::new(),
        };
        explanations.found(&key(), Some((at(501), Box::new(holder))));
        assert!(explanations.of(&key(), at(500)).is_some());
        assert!(explanations.of(&key(), at(501)).is_none(), "it came later");
    }
}
