//! The suite that every [`Backend`] passes.
//!
//! [`run`] checks what the engine relies on: exclusion, ownership by token, rising fencing tokens, renewal that never
//! shortens, idempotence, batches in order, taking over, expiry, listing, and the modes: shared leases and permits. If the backend
//! keeps queues, waiters must be granted a key in order, and no request may pass them. The suite uses keys of its own under a random prefix, takes about a second of
//! real or virtual time, and panics with a sentence at the first breach.
//!
//! The verdict does not depend on the speed of the machine: what has to be asked before a short lease ends is asked again with a
//! longer one, if the answer came too late to prove anything.

mod queues;
mod shares;

use std::{sync::Arc, time::Duration};

use lock_core::{
    backend::{Acquire, Backend, Batch, BusyReason, Calls, Notice, Operation, Outcome, Release, Renew, Token},
    clock::Moment,
    key::LockKey,
};
use rand::{RngExt, rngs::StdRng};
use tokio::{sync::mpsc::UnboundedReceiver, time::Instant};

/// Checks a backend, polling its driver meanwhile.
///
/// # Panics
/// When the backend breaks its [contract](Backend#contract), with a sentence that names the broken rule.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// lock_test::conformance::run(lock_core::backend::MemoryBackend::new()).await;
/// # }
/// ```
pub async fn run(backend: impl Backend) {
    let mut random: StdRng = rand::make_rng();
    let prefix = format!("conformance:{:016x}:", random.random::<u64>());
    let (calls, notices) = Calls::new(format!("lock-core:calls:{prefix}").into());
    let mut suite = Suite {
        backend: &backend,
        random,
        prefix,
        keys: 0,
        channel: Arc::clone(calls.channel()),
        notices,
        listens: false,
    };
    tokio::select! {
        () = backend.driver(calls) => panic!("the driver of a backend goes on for as long as it is polled"),
        () = suite.all() => {}
    }
}

struct Suite<'a> {
    backend: &'a dyn Backend,
    random: StdRng,
    prefix: String,
    keys: u32,
    channel: Arc<str>,
    notices: UnboundedReceiver<Notice>,
    /// Whether the backend has said that it notifies waiters.
    listens: bool,
}

/// Long enough not to end within a check.
const LONG: Duration = Duration::from_secs(30);
/// Short enough to wait for its end.
const SHORT: Duration = Duration::from_millis(60);
/// Leases that are short enough to wait for their end, each for a machine that is four times as slow as that of the one before.
const SHORTS: [Duration; 5] =
    [SHORT, SHORT.saturating_mul(4), SHORT.saturating_mul(16), SHORT.saturating_mul(64), SHORT.saturating_mul(256)];
/// How long the suite waits for what must come: longer than any backend takes on a slow machine, and not until a lease ends.
const PATIENCE: Duration = Duration::from_secs(20);
/// When the suite says that its places were asked for.
const SENT: Moment = Moment::from_origin(Duration::from_micros(1_234_567));

/// Begun before leases of a short ttl are asked for: says whether an answer came while they must have been in force.
#[derive(Clone, Copy)]
struct Span {
    begun: Instant,
    short: Duration,
}

impl Span {
    fn begin(short: Duration) -> Self {
        Self { begun: Instant::now(), short }
    }

    /// Whether no lease that was asked for since can be over. A store may round its ttl down to milliseconds.
    fn lasts(self) -> bool {
        self.begun.elapsed() < self.short - self.short / 8
    }
}

/// Makes a check with ever longer leases until its answers came in time. A check returns `None` if one of them came too late to
/// prove anything.
macro_rules! in_time {
    ($suite:ident.$check:ident) => {{
        let mut is_checked = false;
        for short in $crate::conformance::SHORTS {
            is_checked = $suite.$check(short).await.is_some();
            if is_checked {
                break;
            }
        }
        assert!(is_checked, "the backend is too slow for {}", stringify!($check));
    }};
}
use in_time;

impl Suite<'_> {
    async fn all(&mut self) {
        self.answers_an_empty_batch().await;
        self.excludes_others().await;
        self.takes_a_key_that_is_expected_to_be_free().await;
        self.frees_a_key_only_by_its_token().await;
        in_time!(self.leaves_a_released_key_to_expire);
        in_time!(self.leaves_a_released_key_for_longer_than_its_ttl);
        in_time!(self.expires_silent_holders);
        in_time!(self.renews_and_never_shortens);
        self.gives_rising_fencing_tokens().await;
        self.counts_from_a_floor_and_follows_no_far_aim().await;
        self.repeats_without_harm().await;
        self.executes_a_batch_in_order().await;
        self.moves_a_lease_by_its_token_once().await;
        self.tells_who_holds_a_key().await;
        self.releases_by_force().await;
        self.lists_what_is_held().await;
        self.keeps_keys_of_any_bytes_apart().await;
        self.keeps_queues().await;
        self.shares_keys().await;
    }

    async fn answers_an_empty_batch(&self) {
        let answer = self.backend.call(Batch::new()).await.expect("an empty batch asks for a sign of life");
        assert!(answer.outcomes.is_empty(), "an empty batch has no outcomes");
    }

    async fn excludes_others(&mut self) {
        let (key, one, two) = (self.key(), self.token(), self.token());
        assert!(self.acquire(&key, one, LONG).await.is_some(), "a free key is held");
        match self.call(acquire(&key, two, LONG)).await {
            Outcome::Busy { remaining: Some(remaining), by: BusyReason::Holder, .. } => {
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
        let batch = Batch::from_vec(vec![release(&key, one), expecting(two)]);
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

    async fn leaves_a_released_key_to_expire(&mut self, short: Duration) -> Option<()> {
        let (key, one, two) = (self.key(), self.token(), self.token());
        let fence = self.acquire(&key, one, LONG).await;
        let leave = |token| Operation::Release(Release::new(key.clone(), token).after(short));
        assert_eq!(self.call(leave(two)).await, Outcome::Gone, "another token leaves nothing");
        let span = Span::begin(short);
        assert_eq!(self.call(leave(one)).await, Outcome::Released);
        let is_kept_out = self.acquire(&key, two, LONG).await.is_none();
        span.lasts().then_some(())?;
        assert!(is_kept_out, "a key that was left to expire is still busy");
        tokio::time::sleep(short + short / 2).await;
        assert!(
            self.acquire(&key, two, LONG).await > fence,
            "and free when its time is over, with a larger fencing token"
        );
        Some(())
    }

    async fn leaves_a_released_key_for_longer_than_its_ttl(&mut self, short: Duration) -> Option<()> {
        let (key, one, two) = (self.key(), self.token(), self.token());
        let span = Span::begin(short);
        self.acquire(&key, one, short).await;
        let left = self.call(Operation::Release(Release::new(key.clone(), one).after(LONG))).await;
        span.lasts().then_some(())?;
        assert_eq!(left, Outcome::Released);
        tokio::time::sleep(short + short / 2).await;
        assert!(self.acquire(&key, two, LONG).await.is_none(), "a key that was left for longer than its ttl is busy");
        Some(())
    }

    async fn expires_silent_holders(&mut self, short: Duration) -> Option<()> {
        let (key, one, two) = (self.key(), self.token(), self.token());
        let span = Span::begin(short);
        let fence = self.acquire(&key, one, short).await;
        let is_kept_out = self.acquire(&key, two, LONG).await.is_none();
        span.lasts().then_some(())?;
        assert!(is_kept_out, "held until the ttl is over");
        tokio::time::sleep(short + short / 2).await;
        assert_eq!(self.call(renew(&key, one, LONG)).await, Outcome::Gone, "an expired lease is not revived");
        assert!(self.acquire(&key, two, LONG).await > fence, "free when the ttl is over, with a larger fencing token");
        assert_eq!(self.call(release(&key, one)).await, Outcome::Gone, "a late release leaves the successor alone");
        assert!(self.acquire(&key, one, LONG).await.is_none(), "the successor holds the key");
        Some(())
    }

    async fn renews_and_never_shortens(&mut self, short: Duration) -> Option<()> {
        let (key, one, two) = (self.key(), self.token(), self.token());
        assert_eq!(self.call(renew(&key, one, LONG)).await, Outcome::Gone, "a free key is not renewed");
        let span = Span::begin(short);
        self.acquire(&key, one, short).await;
        assert_eq!(self.call(renew(&key, two, LONG)).await, Outcome::Gone, "another token renews nothing");
        for ttl in [LONG, short] {
            let renewed = self.call(renew(&key, one, ttl)).await;
            if ttl == LONG {
                span.lasts().then_some(())?;
            }
            match renewed {
                Outcome::Renewed { remaining, .. } => {
                    assert!(remaining > LONG / 2 && remaining <= LONG, "a renewal with {ttl:?} leaves {remaining:?}");
                }
                outcome => panic!("the holder's token renews, not {outcome:?}"),
            }
        }
        tokio::time::sleep(short + short / 2).await;
        assert!(self.acquire(&key, two, LONG).await.is_none(), "renewed beyond its first ttl");
        Some(())
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
            Outcome::Busy { remaining: Some(remaining), by: BusyReason::Holder, .. } => assert!(remaining <= LONG),
            outcome => panic!("a held key is busy, not {outcome:?}"),
        }
    }

    async fn releases_by_force(&mut self) {
        let (key, one, two) = (self.key(), self.token(), self.token());
        let force = Operation::Force { key: key.clone(), foreign: false };
        assert_eq!(self.call(force.clone()).await, Outcome::Gone);
        let fence = self.acquire(&key, one, LONG).await;
        assert_eq!(self.call(force).await, Outcome::Released, "our own leases are released by force");
        assert_eq!(self.call(renew(&key, one, LONG)).await, Outcome::Gone, "the former holder is told");
        assert!(self.acquire(&key, two, LONG).await > fence, "the next fencing token is larger");
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
        let outcome =
            answer.outcomes.into_iter().next().expect("an item has an outcome").expect("the item does not fail");
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

fn release(key: &LockKey, token: Token) -> Operation {
    Operation::Release(Release::new(key.clone(), token))
}
