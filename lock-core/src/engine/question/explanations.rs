//! Which waits are to be explained, and who was found to hold their keys; pure.
//!
//! While requests wait, the engine looks at their keys ten times a second. If a request has waited for as long as the manager is set
//! to, the manager asks who holds its key: one question a look, since each reaches every process of the store. The answer is for all
//! requests that waited for the key when it was asked for. So a key is asked about once, and again only for a request that came later
//! and has waited for as long, or if nobody was named. It has one question at a time, and rests after each.

use std::{collections::BTreeMap, time::Duration};

use crate::{clock::Moment, info::Holder, key::LockKey};

/// The keys that this process waits for.
#[derive(Debug)]
pub(crate) struct Explanations {
    /// After which wait to ask; `None` for never.
    after: Option<Duration>,
    of_keys: BTreeMap<LockKey, Explanation>,
    /// When to look at the keys.
    pub(crate) next: Moment,
}

/// The holder of a key, and when it was named.
pub(crate) type Found = (Moment, Box<Holder>);

#[derive(Debug)]
struct Explanation {
    /// When the manager asked last; `None` if that was in vain.
    asked: Option<Moment>,
    /// Whether the question is not answered yet.
    is_open: bool,
    /// No wait is due before this.
    next: Moment,
    /// The last holder that was named, and when it was asked for.
    found: Option<(Moment, Found)>,
    /// Whether the last question named nobody.
    in_vain: bool,
    /// Whether no request waited at the last look.
    is_idle: bool,
}

impl Explanation {
    fn due(next: Moment) -> Self {
        Self { asked: None, is_open: false, next, found: None, in_vain: false, is_idle: false }
    }
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
            self.of_keys.insert(key.clone(), Explanation::due(now + after));
            self.next = self.next.min(now + after);
        }
    }

    /// Looks at the keys, and drops those that no request has waited for since the last look, so that a wait that has just ended
    /// can still be explained. Returns the key whose holder is to be asked for: of several that with the longest wait.
    ///
    /// `first` returns the beginning of the first wait for a key that began after a time, or of any wait if there is no time.
    pub(crate) fn look(
        &mut self,
        first: impl Fn(&LockKey, Option<Moment>) -> Option<Moment>,
        now: Moment,
    ) -> Option<LockKey> {
        let after = self.after?;
        let mut longest = None;
        self.of_keys.retain(|key, explanation| {
            let was_idle = explanation.is_idle;
            explanation.is_idle = first(key, None).is_none();
            if !explanation.is_idle && !explanation.is_open && explanation.next <= now {
                let later = first(key, explanation.asked);
                // A wait that begins after this is due later still.
                explanation.next = later.unwrap_or(now) + after;
                let due = later.filter(|since| *since + after <= now).map(|since| (since, key.clone()));
                longest = longest.take().into_iter().chain(due).min();
            }
            !(was_idle && explanation.is_idle)
        });
        self.next = if self.of_keys.is_empty() { Moment::NEVER } else { now + BETWEEN_LOOKS };
        let (_, key) = longest?;
        let explanation = self.of_keys.get_mut(&key)?;
        (explanation.asked, explanation.is_open, explanation.next) = (Some(now), true, now + BETWEEN_QUESTIONS);
        Some(key)
    }

    /// Records the holder that was named, or that nobody was. Returns when it was asked for if that is news: nobody is named once.
    pub(crate) fn found(&mut self, key: &LockKey, found: Option<Found>, now: Moment) -> Option<Moment> {
        let explanation = self.of_keys.get_mut(key)?;
        explanation.is_open = false;
        let asked = explanation.asked?;
        let was_in_vain = explanation.in_vain;
        explanation.in_vain = found.is_none();
        match found {
            Some(found) => explanation.found = Some((asked, found)),
            // The question may be lost, or the key have been between two holders. A holder that was named before stays.
            None => (explanation.asked, explanation.next) = (None, now + AFTER_NOBODY),
        }
        (!(was_in_vain && explanation.in_vain)).then_some(asked)
    }

    /// Returns the holder that was named to a request which has waited for a key since then.
    pub(crate) fn of(&self, key: &LockKey, since: Moment) -> Option<Found> {
        let (asked, found) = self.of_keys.get(key)?.found.as_ref()?;
        (*asked >= since).then(|| found.clone())
    }

    /// Returns of how many keys something is known.
    pub(crate) fn len(&self) -> usize {
        self.of_keys.len()
    }
}

/// The time between two looks.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// The time between two questions about a key, each of which reaches every process.
const BETWEEN_QUESTIONS: Duration = Duration::from_secs(1);

/// The same after one that named nobody.
const AFTER_NOBODY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::fixture::{at, key},
        fencing::FencingToken,
    };

    fn first(waits: &[u64], after: Option<Moment>) -> Option<Moment> {
        waits.iter().map(|ms| at(*ms)).filter(|since| Some(*since) > after).min()
    }

    /// Looks at the keys, all of which have been waited for since then. Returns whether a holder is asked for.
    fn asks(explanations: &mut Explanations, now: u64, waits: &[u64]) -> bool {
        let asked = explanations.look(|_, after| first(waits, after), at(now));
        if let Some(key) = &asked {
            explanations.found(key, Some((at(now), holder())), at(now));
        }
        asked.is_some()
    }

    fn after(ms: u64) -> Explanations {
        Explanations::new(Some(Duration::from_millis(ms)))
    }

    #[test]
    fn a_key_is_asked_about_once_for_all_who_wait_and_again_for_those_who_come_later() {
        let mut explanations = after(500);
        (0..9).for_each(|ms| explanations.watch(&key(), at(ms)));
        assert_eq!(explanations.next, at(500));
        assert!(asks(&mut explanations, 500, &[0, 8, 100]));
        assert!(!asks(&mut explanations, 600, &[0, 8, 100]));
        assert_eq!(explanations.next, at(700));
        assert!(!asks(&mut explanations, 1_699, &[0, 1_200]));
        assert!(asks(&mut explanations, 1_700, &[0, 1_200]));
    }

    #[test]
    fn a_wait_that_is_over_is_not_asked_about_and_leaves_nothing() {
        let mut explanations = after(500);
        explanations.watch(&key(), at(0));
        assert!(!asks(&mut explanations, 500, &[400]));
        assert!(!asks(&mut explanations, 900, &[]));
        assert_eq!(explanations.len(), 1, "the one that waited may still ask");
        assert!(!asks(&mut explanations, 1_000, &[]));
        assert_eq!((explanations.len(), explanations.next), (0, Moment::NEVER));
    }

    #[test]
    fn keys_are_asked_about_one_after_the_other_the_longest_wait_first() {
        let mut explanations = after(0);
        let keys: Vec<_> = (10..40).map(|number| LockKey::new(number.to_string()).unwrap()).collect();
        keys.iter().for_each(|key| explanations.watch(key, at(0)));
        let waits = |key: &LockKey, after| first(&[99 - key.as_str().parse::<u64>().unwrap()], after);
        let asked: Vec<_> = (1..=31).map_while(|look| explanations.look(waits, at(look * 100))).collect();
        assert!(asked.iter().eq(keys.iter().rev()), "{asked:?}");
    }

    fn holder() -> Box<Holder> {
        Box::new(Holder {
            party: crate::engine::question::this_process("shop"),
            mode: crate::Mode::Exclusive,
            held: Duration::ZERO,
            ttl: Duration::ZERO,
            fencing_token: FencingToken::new(7),
            trace: String::new(),
        })
    }

    /// Looks, without an answer yet.
    fn begins(explanations: &mut Explanations, now: u64, waits: &[u64]) -> bool {
        explanations.look(|_, after| first(waits, after), at(now)).is_some()
    }

    #[test]
    fn a_holder_is_told_to_those_who_waited_when_it_was_asked_for() {
        let mut explanations = after(500);
        explanations.watch(&key(), at(0));
        assert!(begins(&mut explanations, 500, &[0]));
        assert!(explanations.of(&key(), at(0)).is_none(), "nobody has answered");
        assert_eq!(explanations.found(&key(), Some((at(501), holder())), at(501)), Some(at(500)));
        assert!(explanations.of(&key(), at(500)).is_some());
        assert!(explanations.of(&key(), at(501)).is_none(), "it came later");
    }

    #[test]
    fn a_key_has_one_question_at_a_time_and_rests_after_it() {
        let mut explanations = after(100);
        explanations.watch(&key(), at(0));
        assert!(begins(&mut explanations, 100, &[0]));
        assert!(!begins(&mut explanations, 2_000, &[0, 1_000]), "it is not answered yet");
        explanations.found(&key(), Some((at(2_000), holder())), at(2_000));
        assert!(begins(&mut explanations, 2_100, &[0, 1_000]));
        explanations.found(&key(), Some((at(2_101), holder())), at(2_101));
        assert!(!begins(&mut explanations, 3_099, &[2_200]));
        assert!(begins(&mut explanations, 3_100, &[2_200]));
    }

    #[test]
    fn a_question_that_names_nobody_is_repeated_said_once_and_takes_back_no_name() {
        let mut explanations = after(100);
        explanations.watch(&key(), at(0));
        assert!(begins(&mut explanations, 100, &[0]));
        assert_eq!(explanations.found(&key(), None, at(350)), Some(at(100)));
        assert!(!begins(&mut explanations, 5_349, &[0]));
        assert!(begins(&mut explanations, 5_350, &[0]));
        assert_eq!(explanations.found(&key(), None, at(5_600)), None, "it was said");
        assert!(begins(&mut explanations, 10_600, &[0]));
        assert_eq!(explanations.found(&key(), Some((at(10_601), holder())), at(10_601)), Some(at(10_600)));
        assert!(begins(&mut explanations, 11_700, &[0, 10_700]));
        assert_eq!(explanations.found(&key(), None, at(11_950)), Some(at(11_700)));
        assert!(explanations.of(&key(), at(0)).is_some());
    }
}
