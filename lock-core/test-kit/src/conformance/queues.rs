//! Checks for backends that keep queues.

use std::{sync::Arc, time::Duration};

use lock_core::{
    backend::{Acquire, BusyReason, Grant, Notice, Operation, Outcome, Place, Release, Token},
    key::LockKey,
};

use super::{LONG, PATIENCE, SENT, SHORT, Suite, acquire, release};

impl Suite<'_> {
    pub(super) async fn keeps_queues(&mut self) {
        if self.waiters_can_be_told().await {
            self.grants_a_key_to_those_who_wait_in_order().await;
            self.passes_over_places_that_are_over().await;
            self.keeps_a_key_for_a_waiter_that_comes_by_itself().await;
            self.releases_of_what_was_granted_pass_it_on().await;
        }
    }

    pub(super) async fn waiters_can_be_told(&mut self) -> bool {
        let (key, one, two) = (self.key(), self.token(), self.token());
        self.acquire(&key, one, LONG).await;
        let keeps_places = matches!(self.call(self.wait(&key, two)).await, Outcome::Busy { position: Some(1), .. });
        self.call(leave(&key, two)).await;
        self.call(release(&key, one)).await;
        // It says so once, and is asked for each part of the suite.
        while let Ok(notice) = self.notices.try_recv() {
            if let Notice::Listening(listens) = notice {
                self.listens = listens;
            }
        }
        keeps_places && self.listens
    }

    async fn grants_a_key_to_those_who_wait_in_order(&mut self) {
        let (key, one, two, three, four) = (self.key(), self.token(), self.token(), self.token(), self.token());
        let first = self.acquire(&key, one, LONG).await.expect("a free key is held");
        for (token, place) in [(two, 1), (three, 2), (two, 1)] {
            match self.call(self.wait(&key, token)).await {
                Outcome::Busy { position, by: BusyReason::Holder | BusyReason::Waiters, .. } => {
                    assert_eq!(position, Some(place), "places are kept")
                }
                outcome => panic!("a held key is busy, not {outcome:?}"),
            }
        }
        let tried = self.call(acquire(&key, four, LONG)).await;
        assert!(matches!(tried, Outcome::Busy { position: None, .. }), "a try takes no place: {tried:?}");
        assert_eq!(self.call(release(&key, one)).await, Outcome::Released);
        let grant = self.granted(&key).await.expect("a release grants the key to the first who waits");
        assert_eq!((&grant.key, grant.token), (&key, two), "a release grants the key to the first who waits");
        assert_eq!((grant.sent, grant.lasts), (SENT, LONG), "a grant repeats what its place says");
        // One of several nodes does not know how far the others have counted.
        let counts_alone = self.backend.health().len() == 1;
        assert!(grant.block >= 1, "a grant has a fencing token: {grant:?}");
        assert!(grant.fence > first || !counts_alone, "a grant has a larger fencing token: {grant:?}");
        assert_eq!(self.call(release(&key, one)).await, Outcome::Gone, "a repeated release touches no grant");
        let tried = self.call(acquire(&key, four, LONG)).await;
        let passed_nobody = matches!(tried, Outcome::Busy { position: None, .. } | Outcome::Split { .. });
        assert!(passed_nobody, "a try passes nobody: {tried:?}");
        let tried = self.call(self.wait(&key, three)).await;
        let passed_nobody = matches!(tried, Outcome::Busy { position: Some(1), .. } | Outcome::Split { .. });
        assert!(passed_nobody, "nor does the second: {tried:?}");
        let second = self.acquire(&key, two, LONG).await.expect("the key that was granted is held");
        assert!(second > grant.fence || !counts_alone, "an acquire takes a new fencing token");
        // A token that was split has lost its place.
        let again = self.call(self.wait(&key, three)).await;
        assert!(matches!(again, Outcome::Busy { position: Some(1), .. }), "a grant takes its place along: {again:?}");
        assert_eq!(self.call(release(&key, two)).await, Outcome::Released);
        let grant = self.granted(&key).await.expect("then the key is granted to the next");
        assert_eq!((&grant.key, grant.token), (&key, three), "then the key is granted to the next");
        let third = match self.call(self.wait(&key, three)).await {
            Outcome::Held { fence, .. } => fence,
            outcome => panic!("the key that was granted is held, not {outcome:?}"),
        };
        assert!(third > second, "fencing tokens rise from waiter to waiter");
        assert!(grant.fence > second && third > grant.fence || !counts_alone, "and to the grants between them");
        self.call(release(&key, three)).await;
        assert!(self.acquire(&key, four, LONG).await.is_some(), "nobody is left in the queue");
        self.tells_nobody(&key, "and nobody is told").await;
    }

    async fn passes_over_places_that_are_over(&mut self) {
        let (one, two, three) = (self.token(), self.token(), self.token());
        let place = |channel: &Arc<str>, life, lasts| Place::new(Arc::clone(channel), life, lasts, SENT);
        let nobody: Arc<str> = "lock-core:calls:nobody".into();
        let none = Duration::ZERO;
        let over = SHORT + SHORT / 2;
        // Gave up; nobody listens; did not come in time; did not ask again in time.
        for (places, before, after) in [
            (None, none, none),
            (Some(place(&nobody, LONG, LONG)), none, none),
            (Some(place(&self.channel, LONG, SHORT)), none, over),
            (Some(place(&self.channel, SHORT, LONG)), over, none),
        ] {
            let key = self.key();
            self.acquire(&key, one, LONG).await;
            let gave_up = places.is_none();
            let theirs = places.unwrap_or_else(|| place(&self.channel, LONG, LONG));
            self.call(Operation::Acquire(Acquire::new(key.clone(), two, LONG).or_wait(theirs))).await;
            self.call(self.wait(&key, three)).await;
            if gave_up {
                self.call(leave(&key, two)).await;
            }
            tokio::time::sleep(before).await;
            self.call(release(&key, one)).await;
            tokio::time::sleep(after).await;
            let next = self.call(self.wait(&key, three)).await;
            assert!(matches!(next, Outcome::Held { .. }), "a place that is over is passed over, not {next:?}");
        }
    }

    async fn keeps_a_key_for_a_waiter_that_comes_by_itself(&mut self) {
        let (key, one, two, three) = (self.key(), self.token(), self.token(), self.token());
        self.acquire(&key, one, LONG).await;
        let by_itself = Place::new("".into(), LONG, LONG, SENT);
        let wait = || Operation::Acquire(Acquire::new(key.clone(), two, LONG).or_wait(by_itself.clone()));
        self.call(wait()).await;
        self.call(release(&key, one)).await;
        let tried = self.call(self.wait(&key, three)).await;
        assert!(matches!(tried, Outcome::Busy { position: Some(1), .. } | Outcome::Split { .. }), "{tried:?}");
        assert!(matches!(self.call(wait()).await, Outcome::Held { .. }), "a waiter that cannot be told is waited for");
    }

    async fn releases_of_what_was_granted_pass_it_on(&mut self) {
        let (key, one, two, three) = (self.key(), self.token(), self.token(), self.token());
        self.acquire(&key, one, LONG).await;
        for token in [two, three] {
            self.call(self.wait(&key, token)).await;
        }
        let force = Operation::Force { key: key.clone(), foreign: false };
        assert_eq!(self.call(force).await, Outcome::Released);
        assert_eq!(self.granted(&key).await.map(|grant| grant.token), Some(two), "a forced release grants the key");
        self.call(leave(&key, two)).await;
        assert_eq!(
            self.granted(&key).await.map(|grant| grant.token),
            Some(three),
            "a grant that is not wanted passes on"
        );
        assert!(matches!(self.call(self.wait(&key, three)).await, Outcome::Held { .. }));
        self.call(release(&key, three)).await;
    }

    /// Asks for a key, or a place in its queue.
    fn wait(&self, key: &LockKey, token: Token) -> Operation {
        let place = Place::new(Arc::clone(&self.channel), LONG, LONG, SENT);
        Operation::Acquire(Acquire::new(key.clone(), token, LONG).or_wait(place))
    }

    /// The next grant of a key, which has come or is on its way; `None` if there is none.
    pub(super) async fn granted(&mut self, key: &LockKey) -> Option<Grant> {
        self.granted_within(PATIENCE, key).await
    }

    /// Checks that no grant of a key is on its way, by one of another key that was given later and so is told later.
    pub(super) async fn tells_nobody(&mut self, key: &LockKey, why: &str) {
        // The same slot of a cluster, so that one node tells of both.
        self.keys += 1;
        let later = super::key(&format!("{{{}}}:{}", key.wire(), self.keys));
        let (one, two) = (self.token(), self.token());
        self.acquire(&later, one, LONG).await;
        self.call(self.wait(&later, two)).await;
        self.call(release(&later, one)).await;
        let told = self.granted_of(PATIENCE, &[key, &later]).await;
        assert_eq!(told.map(|grant| (grant.key, grant.token)), Some((later.clone(), two)), "{why}");
        // Nodes of a store that has several tell each for itself.
        assert_eq!(self.granted_within(SHORT, key).await, None, "{why}");
        self.call(leave(&later, two)).await;
    }

    async fn granted_within(&mut self, within: Duration, key: &LockKey) -> Option<Grant> {
        self.granted_of(within, &[key]).await
    }

    /// The next grant of one of these keys. Grants of others were given to checks that are over.
    async fn granted_of(&mut self, within: Duration, keys: &[&LockKey]) -> Option<Grant> {
        let next = async {
            loop {
                match self.notices.recv().await? {
                    Notice::Granted(grant) if !grant.out_of_turn && keys.contains(&&grant.key) => return Some(grant),
                    _ => {}
                }
            }
        };
        tokio::time::timeout(within, next).await.ok().flatten()
    }
}

fn leave(key: &LockKey, token: Token) -> Operation {
    Operation::Release(Release::new(key.clone(), token).with_place())
}
