//! The suite that every [`Backend`] passes.
//!
//! [`run`] checks what the engine relies on: exclusion, ownership by token, rising fencing tokens, renewal that never
//! shortens, idempotence, batches in order, taking over, expiry, listing; and, where the backend keeps queues, that
//! waiters are granted a key in order and nobody passes them. It uses keys of its own under a random
//! prefix, takes about a second of real or virtual time, and panics with a sentence at the first breach.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! lock_core::conformance::run(lock_core::backend::MemoryBackend::new()).await;
//! # }
//! ```

use std::{sync::Arc, time::Duration};

use rand::{RngExt, rngs::StdRng};
use tokio::sync::mpsc;

use crate::{
    backend::{Acquire, Backend, Batch, Calls, Grant, Notice, Operation, Outcome, Place, Release, Renew, Token},
    clock::Moment,
    key::LockKey,
};

/// Checks a backend, polling its upkeep meanwhile.
///
/// # Panics
/// When the backend breaks its contract, with a sentence that says which part of it.
pub async fn run(backend: impl Backend) {
    let mut random: StdRng = rand::make_rng();
    let prefix = format!("conformance:{:016x}:", random.random::<u64>());
    let (calls, told) = Calls::new(format!("lock-core:calls:{prefix}").into());
    let mut suite = Suite { backend: &backend, random, prefix, keys: 0, channel: Arc::clone(calls.channel()), told };
    tokio::select! {
        () = backend.upkeep(calls) => panic!("the upkeep of a backend goes on for as long as it is polled"),
        () = suite.all() => {}
    }
}

struct Suite<'a> {
    backend: &'a dyn Backend,
    random: StdRng,
    prefix: String,
    keys: u32,
    channel: Arc<str>,
    told: mpsc::UnboundedReceiver<Notice>,
}

/// Long enough not to end within a check.
const LONG: Duration = Duration::from_secs(30);
/// Short enough to wait for its end.
const SHORT: Duration = Duration::from_millis(60);
/// When the suite says that its places were asked for.
const SENT: Moment = Moment::from_origin(Duration::from_micros(1_234_567));

impl Suite<'_> {
    async fn all(&mut self) {
        self.answers_an_empty_batch().await;
        self.excludes_others().await;
        self.takes_a_key_that_is_expected_to_be_free().await;
        self.frees_a_key_only_by_its_token().await;
        self.leaves_a_released_key_to_expire().await;
        self.expires_silent_holders().await;
        self.renews_and_never_shortens().await;
        self.mends_an_expiry_that_was_found_too_far_ahead().await;
        self.gives_rising_fencing_tokens().await;
        self.counts_from_a_floor_and_follows_no_far_aim().await;
        self.repeats_without_harm().await;
        self.executes_a_batch_in_order().await;
        self.moves_a_lease_by_its_token_once().await;
        self.tells_who_holds_a_key().await;
        self.releases_by_force().await;
        self.lists_what_is_held().await;
        self.keeps_keys_of_any_bytes_apart().await;
        if self.waiters_can_be_told().await {
            self.grants_a_key_to_those_who_wait_in_order().await;
            self.passes_over_places_that_are_over().await;
            self.keeps_a_key_for_a_waiter_that_comes_by_itself().await;
            self.releases_of_what_was_granted_pass_it_on().await;
        }
    }

    async fn answers_an_empty_batch(&self) {
        let answer = self.backend.call(Batch::new()).await.expect("an empty batch asks for a sign of life");
        assert!(answer.outcomes.is_empty(), "an empty batch has no outcomes");
    }

    async fn excludes_others(&mut self) {
        let (key, one, two) = (self.key(), self.token(), self.token());
        assert!(self.acquire(&key, one, LONG).await.is_some(), "a free key is held");
        match self.call(acquire(&key, two, LONG)).await {
            Outcome::Busy { remaining: Some(remaining), foreign: false, .. } => {
                assert!(remaining <= LONG && remaining > LONG / 2, "busy tells what the holder's ttl has left");
            }
            // See `acquire`.
            Outcome::Split { .. } => {}
            outcome => panic!("a held key is busy for another token, not {outcome:?}"),
        }
    }

    async fn takes_a_key_that_is_expected_to_be_free(&mut self) {
        let (key, one, two) = (self.key(), self.token(), self.token());
        let expecting = |token| Operation::Acquire(Acquire::new(key.clone(), token, LONG).expecting_free());
        let held = |outcome| match outcome {
            Outcome::Held { fence, .. } => Some(fence),
            Outcome::NotFree | Outcome::Busy { .. } | Outcome::Split { .. } => None,
            outcome => panic!("an acquire is not answered by {outcome:?}"),
        };
        let first = held(self.call(expecting(one)).await).expect("a free key is held");
        assert_eq!(held(self.call(expecting(two)).await), None, "the key is held by another token");
        if let Some(again) = held(self.call(expecting(one)).await) {
            assert!(again > first, "a repeated request has a number of its own");
        }
        let again =
            self.acquire(&key, one, LONG).await.expect("the same request without the expectation finds its own token");
        assert!(again > first, "{again} follows {first}");
        self.call(release(&key, one)).await;
        // Releases in the same batch come first.
        self.acquire(&key, one, LONG).await;
        let batch = Batch::from([release(&key, one), expecting(two)]);
        let answer = self.backend.call(batch).await.expect("a backend that works answers");
        let last = answer.outcomes.last().and_then(|outcome| outcome.clone().ok()).expect("an outcome for each item");
        assert!(held(last).expect("a key that was released is held") > again, "in the order of the batch");
    }

    async fn frees_a_key_only_by_its_token(&mut self) {
        let (key, one, two) = (self.key(), self.token(), self.token());
        self.acquire(&key, one, LONG).await;
        assert_eq!(self.call(release(&key, two)).await, Outcome::Gone, "another token releases nothing");
        assert!(self.acquire(&key, two, LONG).await.is_none(), "the key is still held");
        assert_eq!(self.call(release(&key, one)).await, Outcome::Released);
        assert_eq!(self.call(release(&key, one)).await, Outcome::Gone, "a second release finds nothing");
        assert!(self.acquire(&key, two, LONG).await.is_some(), "a released key is free");
    }

    async fn leaves_a_released_key_to_expire(&mut self) {
        let (key, one, two) = (self.key(), self.token(), self.token());
        self.acquire(&key, one, LONG).await;
        let leave = |token| Operation::Release(Release::new(key.clone(), token).after(SHORT));
        assert_eq!(self.call(leave(two)).await, Outcome::Gone, "another token leaves nothing");
        assert_eq!(self.call(leave(one)).await, Outcome::Released);
        assert!(self.acquire(&key, two, LONG).await.is_none(), "a key that was left to expire is still busy");
        tokio::time::sleep(SHORT + SHORT / 2).await;
        assert!(self.acquire(&key, two, LONG).await.is_some(), "and free when its time is over");
    }

    async fn expires_silent_holders(&mut self) {
        let (key, one, two) = (self.key(), self.token(), self.token());
        self.acquire(&key, one, SHORT).await;
        assert!(self.acquire(&key, two, LONG).await.is_none(), "held until the ttl is over");
        tokio::time::sleep(SHORT + SHORT / 2).await;
        assert_eq!(self.call(renew(&key, one, LONG)).await, Outcome::Gone, "an expired lease is not revived");
        assert!(self.acquire(&key, two, LONG).await.is_some(), "free when the ttl is over");
        assert_eq!(self.call(release(&key, one)).await, Outcome::Gone, "a late release leaves the successor alone");
        assert!(self.acquire(&key, one, LONG).await.is_none(), "the successor holds the key");
    }

    async fn renews_and_never_shortens(&mut self) {
        let (key, one, two) = (self.key(), self.token(), self.token());
        assert_eq!(self.call(renew(&key, one, LONG)).await, Outcome::Gone, "a free key is not renewed");
        self.acquire(&key, one, SHORT).await;
        assert_eq!(self.call(renew(&key, two, LONG)).await, Outcome::Gone, "another token renews nothing");
        for ttl in [LONG, SHORT] {
            match self.call(renew(&key, one, ttl)).await {
                Outcome::Renewed { remaining, .. } => {
                    assert!(remaining > LONG / 2 && remaining <= LONG, "a renewal with {ttl:?} leaves {remaining:?}");
                }
                outcome => panic!("the holder's token renews, not {outcome:?}"),
            }
        }
        tokio::time::sleep(SHORT + SHORT / 2).await;
        assert!(self.acquire(&key, two, LONG).await.is_none(), "renewed beyond its first ttl");
    }

    async fn mends_an_expiry_that_was_found_too_far_ahead(&mut self) {
        let (key, one, two) = (self.key(), self.token(), self.token());
        self.acquire(&key, one, LONG).await;
        let mend = |token, found| Operation::Renew(Renew::new(key.clone(), token, LONG / 3).mending(found));
        assert_eq!(self.call(mend(two, LONG)).await, Outcome::Gone, "another token mends nothing");
        for (found, mends) in [(LONG * 2, false), (LONG / 2, false), (LONG, true), (LONG, false)] {
            match self.call(mend(one, found)).await {
                Outcome::Renewed { remaining, .. } if mends => {
                    assert!(remaining <= LONG / 3, "an expiry that is too far ahead is set anew, not {remaining:?}");
                    assert!(remaining > LONG / 6, "{remaining:?} is left of {:?}", LONG / 3);
                    let longer = self.call(renew(&key, one, LONG * 4)).await;
                    assert!(matches!(longer, Outcome::Renewed { .. }), "{longer:?}");
                }
                Outcome::Renewed { remaining, .. } => {
                    assert!(remaining > LONG / 2, "{found:?} is not what is left: {remaining:?} stays");
                }
                outcome => panic!("the holder's token renews, not {outcome:?}"),
            }
        }
    }

    async fn gives_rising_fencing_tokens(&mut self) {
        let (key, one, two) = (self.key(), self.token(), self.token());
        let mut last = 0;
        for round in 0..20 {
            let token = if round % 2 == 0 { one } else { two };
            let mut request = Acquire::new(key.clone(), token, LONG);
            request.block = 1 + round % 3;
            let Outcome::Held { fence, block, .. } = self.call(Operation::Acquire(request)).await else {
                panic!("a free key is held")
            };
            assert!(fence > last, "fencing tokens rise: {fence} after {last}");
            assert!(block >= 1 && block <= 1 + round % 3, "a block has at least one number and no more than asked for");
            last = fence + u64::from(block) - 1;
            assert!(i64::try_from(last).is_ok(), "fencing tokens fit a signed 64-bit column");
            self.call(release(&key, token)).await;
        }
    }

    async fn counts_from_a_floor_and_follows_no_far_aim(&mut self) {
        let (key, one, two) = (self.key(), self.token(), self.token());
        let first = self.acquire(&key, one, LONG).await.expect("a free key is held");
        self.call(release(&key, one)).await;
        let mut request = Acquire::new(key.clone(), two, LONG);
        (request.floor, request.block) = (first + 2_000_000, 3);
        let floor = request.floor;
        let Outcome::Held { fence: second, .. } = self.call(Operation::Acquire(request)).await else {
            panic!("a free key is held")
        };
        assert!(second >= floor, "fencing tokens begin at the floor: {second} below {floor}");
        let mut request = Acquire::new(key.clone(), two, LONG);
        request.aim = second + 3_600_000_000;
        let aim = request.aim;
        let Outcome::Held { fence: third, .. } = self.call(Operation::Acquire(request)).await else {
            panic!("a repeated acquire holds again")
        };
        assert!(third > second && third < aim, "an aim an hour ahead is not followed: {third} after {second}");
    }

    async fn repeats_without_harm(&mut self) {
        let (key, one, two) = (self.key(), self.token(), self.token());
        let first = self.acquire(&key, one, SHORT).await.expect("a free key is held");
        let again = self.acquire(&key, one, LONG).await.expect("a repeated acquire holds again");
        assert!(again > first, "a repeated acquire takes a new fencing token");
        tokio::time::sleep(SHORT + SHORT / 2).await;
        assert!(self.acquire(&key, two, LONG).await.is_none(), "a repeated acquire has the full ttl");
        let third = self.call(acquire(&key, one, SHORT)).await;
        assert!(!matches!(third, Outcome::Held { was_free: true, .. }), "the key was held, and not free: {third:?}");
        tokio::time::sleep(SHORT + SHORT / 2).await;
        assert!(self.acquire(&key, two, LONG).await.is_none(), "a repeated acquire shortens nothing");
    }

    async fn executes_a_batch_in_order(&mut self) {
        let (key, other, one, two, three) = (self.key(), self.key(), self.token(), self.token(), self.token());
        let batch = vec![
            acquire(&key, one, LONG),
            acquire(&key, two, LONG),
            release(&key, one),
            acquire(&key, two, LONG),
            renew(&other, three, LONG),
            acquire(&other, three, LONG),
        ];
        let answer = self.backend.call(batch.into()).await.expect("a batch is answered");
        let outcomes: Vec<_> = answer.outcomes.into_iter().map(|outcome| outcome.expect("no item fails")).collect();
        let (first, second, third) = match outcomes[..] {
            [
                Outcome::Held { fence: first, .. },
                Outcome::Busy { .. },
                Outcome::Released,
                Outcome::Held { fence: second, .. },
                Outcome::Gone,
                Outcome::Held { fence: third, .. },
            ] => (first, second, third),
            _ => panic!("the items of a batch are executed and answered in order, not as {outcomes:?}"),
        };
        assert!(first < second, "every acquisition of a key in a batch has its own fencing token");
        assert!(third > 0, "and so has that of another key, though perhaps the same one");
    }

    async fn moves_a_lease_by_its_token_once(&mut self) {
        let (key, one, two, three) = (self.key(), self.token(), self.token(), self.token());
        let take = |token, from| Operation::Acquire(Acquire::new(key.clone(), token, LONG).from(from));
        // A store of several nodes, one of which is slow, may not know.
        let refused = |outcome| matches!(outcome, Outcome::Gone | Outcome::Split { .. });
        assert!(refused(self.call(take(two, one)).await), "a free key cannot be taken from anybody");
        let first = self.acquire(&key, one, LONG).await.expect("a free key is held");
        match self.call(take(two, one)).await {
            Outcome::Held { fence, .. } => assert!(fence > first, "a taker has a larger fencing token"),
            outcome => panic!("the token of the holder lets another take the lease, not {outcome:?}"),
        }
        assert!(refused(self.call(take(three, one)).await), "the second taker gets nothing");
        assert_eq!(self.call(release(&key, one)).await, Outcome::Gone, "the old token is over");
        assert_eq!(self.call(release(&key, two)).await, Outcome::Released);
    }

    async fn tells_who_holds_a_key(&mut self) {
        let (key, one) = (self.key(), self.token());
        let inspect = Operation::Inspect { key: key.clone() };
        assert_eq!(self.call(inspect.clone()).await, Outcome::Gone, "nobody holds a free key");
        self.acquire(&key, one, LONG).await;
        match self.call(inspect).await {
            Outcome::Busy { remaining: Some(remaining), foreign: false, .. } => assert!(remaining <= LONG),
            outcome => panic!("a held key is busy, not {outcome:?}"),
        }
    }

    async fn releases_by_force(&mut self) {
        let (key, one) = (self.key(), self.token());
        let force = Operation::Force { key: key.clone(), foreign: false };
        assert_eq!(self.call(force.clone()).await, Outcome::Gone);
        self.acquire(&key, one, LONG).await;
        assert_eq!(self.call(force).await, Outcome::Released, "our own leases are released by force");
        assert_eq!(self.call(renew(&key, one, LONG)).await, Outcome::Gone, "the former holder is told");
    }

    async fn lists_what_is_held(&mut self) {
        let prefix = format!("{}list*[x]:", self.prefix);
        let keys: Vec<_> = (0..25).map(|index| key(&format!("{prefix}{index:02}"))).collect();
        let mut tokens = Vec::new();
        for key in &keys {
            let token = self.token();
            self.acquire(key, token, LONG).await;
            tokens.push(token);
        }
        self.call(release(&keys[7], tokens[7])).await;
        let mut held = self.backend.list(prefix).await.expect("the keys are listed");
        held.sort_unstable();
        let expected: Vec<_> =
            keys.into_iter().enumerate().filter(|(index, _)| *index != 7).map(|(_, key)| key).collect();
        assert_eq!(held, expected, "all keys under the prefix that are held, and no others");
    }

    async fn keeps_keys_of_any_bytes_apart(&mut self) {
        for name in ["a b", "a\0b", "a\r\nb", "{a}b", "a}b{", "\u{e9}", "e\u{301}", "A B"] {
            let (key, token) = (key(&format!("{}{name}", self.prefix)), self.token());
            assert!(self.acquire(&key, token, LONG).await.is_some(), "{key:?} is a key of its own");
        }
    }

    /// Whether the backend keeps queues; one that does not is polled.
    async fn waiters_can_be_told(&mut self) -> bool {
        let (key, one, two) = (self.key(), self.token(), self.token());
        self.acquire(&key, one, SHORT).await;
        let keeps_places = matches!(self.call(self.wait(&key, two)).await, Outcome::Busy { position: Some(1), .. });
        self.call(leave(&key, two)).await;
        while let Ok(notice) = self.told.try_recv() {
            if matches!(notice, Notice::Listening(true)) {
                return keeps_places;
            }
        }
        false
    }

    async fn grants_a_key_to_those_who_wait_in_order(&mut self) {
        let (key, one, two, three, four) = (self.key(), self.token(), self.token(), self.token(), self.token());
        let first = self.acquire(&key, one, LONG).await.expect("a free key is held");
        for (token, place) in [(two, 1), (three, 2), (two, 1)] {
            match self.call(self.wait(&key, token)).await {
                Outcome::Busy { position, foreign: false, .. } => assert_eq!(position, Some(place), "places are kept"),
                outcome => panic!("a held key is busy, not {outcome:?}"),
            }
        }
        let tried = self.call(acquire(&key, four, LONG)).await;
        assert!(matches!(tried, Outcome::Busy { position: None, .. }), "a try takes no place: {tried:?}");
        assert_eq!(self.call(release(&key, one)).await, Outcome::Released);
        let grant = self.granted().await.expect("a release grants the key to the first who waits");
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
        let grant = self.granted().await.expect("then the key is granted to the next");
        assert_eq!((&grant.key, grant.token), (&key, three), "then the key is granted to the next");
        let third = match self.call(self.wait(&key, three)).await {
            Outcome::Held { fence, .. } => fence,
            outcome => panic!("the key that was granted is held, not {outcome:?}"),
        };
        assert!(third > second, "fencing tokens rise from waiter to waiter");
        assert!(grant.fence > second && third > grant.fence || !counts_alone, "and to the grants between them");
        self.call(release(&key, three)).await;
        assert!(self.acquire(&key, four, LONG).await.is_some(), "nobody is left in the queue");
        assert_eq!(self.granted().await, None, "and nobody is told");
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
            while self.granted().await.is_some() {}
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
        assert_eq!(self.granted().await.map(|grant| grant.token), Some(two), "a forced release grants the key");
        self.call(leave(&key, two)).await;
        assert_eq!(self.granted().await.map(|grant| grant.token), Some(three), "a grant that is not wanted passes on");
        assert!(matches!(self.call(self.wait(&key, three)).await, Outcome::Held { .. }));
        self.call(release(&key, three)).await;
    }

    /// Asks for a key, or a place in its queue.
    fn wait(&self, key: &LockKey, token: Token) -> Operation {
        let place = Place::new(Arc::clone(&self.channel), LONG, LONG, SENT);
        Operation::Acquire(Acquire::new(key.clone(), token, LONG).or_wait(place))
    }

    /// The next grant that has come or is on its way.
    async fn granted(&mut self) -> Option<Grant> {
        loop {
            match tokio::time::timeout(SHORT, self.told.recv()).await {
                Ok(Some(Notice::Granted(grant))) => return Some(grant),
                Ok(Some(Notice::Listening(_))) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }

    async fn acquire(&self, key: &LockKey, token: Token, ttl: Duration) -> Option<u64> {
        match self.call(acquire(key, token, ttl)).await {
            Outcome::Held { fence, .. } => Some(fence),
            // A store of several nodes may not know, if one of them is slow to say that the key is busy.
            Outcome::Busy { .. } | Outcome::Split { .. } => None,
            outcome => panic!("an acquire answers held or busy, not {outcome:?}"),
        }
    }

    async fn call(&self, operation: Operation) -> Outcome {
        let answer = self.backend.call(Batch::from([operation.clone()])).await.expect("the backend answers");
        let outcome = answer.single().expect("the item does not fail");
        if let (Operation::Acquire(acquire), Outcome::Split { .. }) = (operation, outcome) {
            // A token that is over.
            let over = Batch::from([release(&acquire.key, acquire.token)]);
            self.backend.call(over).await.expect("the backend answers");
        }
        outcome
    }

    fn key(&mut self) -> LockKey {
        self.keys += 1;
        key(&format!("{}{}", self.prefix, self.keys))
    }

    fn token(&mut self) -> Token {
        Token::from_random(self.random.random())
    }
}

fn key(text: &str) -> LockKey {
    LockKey::new(text).expect("the suite uses valid keys")
}

fn acquire(key: &LockKey, token: Token, ttl: Duration) -> Operation {
    Operation::Acquire(Acquire::new(key.clone(), token, ttl))
}

fn renew(key: &LockKey, token: Token, ttl: Duration) -> Operation {
    Operation::Renew(Renew::new(key.clone(), token, ttl))
}

fn leave(key: &LockKey, token: Token) -> Operation {
    Operation::Release(Release::new(key.clone(), token).with_place())
}

fn release(key: &LockKey, token: Token) -> Operation {
    Operation::Release(Release::new(key.clone(), token))
}
