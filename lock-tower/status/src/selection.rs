//! Which of all keys a page shows, and in which order; pure.

use std::{cmp::Reverse, time::Duration};

use lock_core::{KeyInfo, Party};

use super::question::{Only, Order, Question};

/// The keys of one page, and what is counted of all that match.
#[derive(Debug)]
pub(super) struct Selection<'a> {
    pub(super) rows: Vec<&'a KeyInfo>,
    /// How many keys match.
    pub(super) matching: usize,
    /// How many requests wait for these.
    pub(super) waiting: usize,
    pub(super) longest_wait: Option<Duration>,
    pub(super) longest_hold: Option<Duration>,
    /// How many keys would match if all of these were shown.
    pub(super) of: Choices,
    /// How many keys of the prefix may have a holder that is asked for, and does not answer.
    pub(super) unknown: usize,
    /// The key behind which the next page begins, if the keys are in their order and there are more.
    pub(super) next: Option<&'a str>,
}

/// How many keys each choice of [`Only`] shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Choices {
    pub(super) all: usize,
    pub(super) waiting: usize,
    pub(super) silent: usize,
}

impl<'a> Selection<'a> {
    /// Selects of `keys`, which are in the order of their bytes.
    pub(super) fn of(keys: &'a [KeyInfo], question: &Question) -> Self {
        let begin = keys.partition_point(|info| info.key() < question.prefix.as_str());
        let length = keys[begin..].partition_point(|info| info.key().starts_with(&question.prefix));
        let of_prefix = &keys[begin..][..length];
        let silent = of_prefix.iter().filter(|info| is_silent(info)).count();
        let mut matching: Vec<_> = of_prefix.iter().filter(|info| has_holder(info, question)).collect();
        let of = Choices {
            all: matching.len(),
            waiting: matching.iter().filter(|info| !info.waiters().is_empty()).count(),
            silent: matching.iter().filter(|info| is_silent(info)).count(),
        };
        matching.retain(|info| match question.only {
            Only::All => true,
            Only::Waiting => !info.waiters().is_empty(),
            Only::Silent => is_silent(info),
        });
        let mut selection = Self {
            rows: Vec::new(),
            matching: matching.len(),
            waiting: matching.iter().map(|info| info.waiters().len()).sum(),
            longest_wait: matching.iter().filter_map(|info| waited(info)).max(),
            longest_hold: matching.iter().filter_map(|info| held(info)).max(),
            of,
            unknown: silent - of.silent,
            next: None,
        };
        match question.order {
            Order::Age => {
                matching.sort_by_key(|info| urgency(info));
                matching.truncate(PAGE);
                selection.rows = matching;
            }
            Order::Key => {
                let rest = matching.split_off(matching.partition_point(|info| info.key() <= question.after.as_str()));
                let is_more = rest.len() > PAGE;
                selection.rows = rest.into_iter().take(PAGE).collect();
                selection.next = selection.rows.last().filter(|_| is_more).map(|info| info.key());
            }
        }
        selection
    }
}

/// Whether a key has a holder such as the question asks for, if it does.
fn has_holder(info: &KeyInfo, question: &Question) -> bool {
    let Question { by, host, .. } = question;
    let is_asked_for = |party: &Party| {
        let is_by = party.service().contains(by) || party.label().contains(by);
        is_by && party.host().contains(host)
    };
    !question.names_holder() || info.holders().iter().any(|holder| is_asked_for(holder.party()))
}

/// Whether no process answered for the key, or for one of its leases.
pub(super) fn is_silent(info: &KeyInfo) -> bool {
    info.silent().is_some()
}

/// Whether a key may keep others out for as long as it likes unless somebody releases it: they wait for a holder that does not answer, or
/// it belongs to another library and does not end by itself.
///
/// A holder that answers ends its own leases at their `max_hold`, so it is never past it. One that does not answer may have left the key to
/// `at_least`, so that its work is not done again.
pub(super) fn needs_release(info: &KeyInfo) -> bool {
    is_silent(info) && waited(info).is_some() || info.is_foreign() && info.remaining().is_none()
}

/// For how long the first waiter of a key has waited.
pub(super) fn waited(info: &KeyInfo) -> Option<Duration> {
    info.waiters().iter().map(|waiter| waiter.waited()).max()
}

fn held(info: &KeyInfo) -> Option<Duration> {
    info.holder().map(|holder| holder.held())
}

/// What an operator has to look at first is least: keys that are waited for, by the longest wait; keys of which a holder does not
/// answer; all others by how long they were held.
fn urgency(info: &KeyInfo) -> (u8, Reverse<Duration>, Reverse<Duration>, &str) {
    let (waited, held) = (waited(info), held(info));
    let group = match (waited, held) {
        (Some(_), _) => 0,
        (None, _) if is_silent(info) => 1,
        (None, Some(_)) => 2,
        (None, None) => 3,
    };
    (group, Reverse(waited.unwrap_or_default()), Reverse(held.unwrap_or_default()), info.key())
}

/// How many keys a page shows.
pub(super) const PAGE: usize = 200;

#[cfg(test)]
mod tests {
    use lock_core::LockManager;

    use super::*;

    fn question(prefix: &str, order: Order, after: &str) -> Question {
        Question { prefix: prefix.to_owned(), order, after: after.to_owned(), ..Question::default() }
    }

    fn keys<'a>(selection: &Selection<'a>) -> Vec<&'a str> {
        selection.rows.iter().map(|info| info.key()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn longest_waits_come_first_and_then_longest_holds() {
        let manager = LockManager::in_memory();
        let mut guards = Vec::new();
        for key in ["goods:1", "goods:3", "goods:2", "other"] {
            guards.push(manager.lock(key).await.unwrap());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        for key in ["other", "goods:2", "other"] {
            tokio::spawn(manager.lock(key).wait_forever().acquire());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let listed = manager.list("").await.unwrap();
        let all = Selection::of(&listed, &Question::default());
        assert_eq!(keys(&all), ["other", "goods:2", "goods:1", "goods:3"]);
        assert_eq!((all.matching, all.waiting), (4, 3));
        assert_eq!((all.longest_wait, all.longest_hold), (Some(Duration::from_secs(3)), Some(Duration::from_secs(7))));
        let goods = Selection::of(&listed, &question("goods:", Order::Age, ""));
        assert_eq!(keys(&goods), ["goods:2", "goods:1", "goods:3"]);
        assert_eq!((goods.matching, goods.waiting), (3, 1));
        let behind = Selection::of(&listed, &question("goods:", Order::Key, "goods:1"));
        assert_eq!(keys(&behind), ["goods:2", "goods:3"]);
        assert_eq!((behind.matching, behind.next), (3, None));
        assert_eq!(keys(&Selection::of(&listed, &question("x", Order::Age, ""))), Vec::<&str>::new());
    }

    #[tokio::test(start_paused = true)]
    async fn pages_in_the_order_of_keys_have_each_key_once() {
        let manager = LockManager::in_memory();
        let mut guards = Vec::new();
        for number in 0..PAGE * 2 + 1 {
            guards.push(manager.lock(format!("k{number:04}")).await.unwrap());
        }
        let listed = manager.list("").await.unwrap();
        assert_eq!(keys(&Selection::of(&listed, &Question::default())).len(), PAGE);
        let (mut after, mut seen, mut pages) = (String::new(), Vec::new(), 0);
        loop {
            let page = Selection::of(&listed, &question("k", Order::Key, &after));
            seen.extend(keys(&page));
            pages += 1;
            match page.next {
                Some(next) => after = next.to_owned(),
                None => break,
            }
        }
        assert_eq!((pages, seen.len()), (3, PAGE * 2 + 1));
        assert!(seen.is_sorted() && seen.windows(2).all(|pair| pair[0] != pair[1]));
        // A page that is exactly full is the last one.
        let last = Selection::of(&listed, &question("k", Order::Key, "k0200"));
        assert_eq!((last.rows.len(), last.next), (PAGE, None));
    }
}
