//! What a server does not have: threads that come in another order than they have read the clock, and memory that nobody asks for again.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use futures_util::FutureExt;

use super::*;
use crate::{
    backend::{Acquire, Operation, Outcome, Place, Release, Token},
    clock::{Moment, Sleep},
};

/// A clock that is set by hand, in ms.
#[derive(Clone, Debug, Default)]
struct Hand(Arc<AtomicU64>);

impl Clock for Hand {
    fn now(&self) -> Moment {
        Moment::from_origin(ms(self.0.load(Relaxed)))
    }

    fn sleep(&self, _: Duration) -> Sleep {
        Box::pin(pending())
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn store() -> (Hand, MemoryBackend) {
    let clock = Hand::default();
    (clock.clone(), MemoryBackend::with_clock(Arc::new(clock)))
}

fn acquire(key: &str, token: u128, ttl: u64) -> Acquire {
    Acquire::new(LockKey::new(key).unwrap(), Token::from_random(token), ms(ttl))
}

/// The same, or a place that lasts for `life`, and is not told.
fn or_wait(acquire: Acquire, life: u64) -> Acquire {
    acquire.or_wait(Place::new("".into(), ms(life), ms(life), Moment::from_origin(Duration::ZERO)))
}

fn ask(store: &MemoryBackend, operation: Operation) -> Outcome {
    let answer = store.call(Batch::from([operation])).now_or_never().unwrap().unwrap();
    answer.outcomes.into_iter().next().unwrap().unwrap()
}

fn ask_for(store: &MemoryBackend, acquire: Acquire) -> Outcome {
    ask(store, Operation::Acquire(acquire))
}

#[test]
fn a_thread_that_has_read_the_clock_before_another_drops_no_place() {
    let (clock, store) = store();
    clock.0.store(100, Relaxed);
    assert!(matches!(ask_for(&store, acquire("k", 1, 60_000)), Outcome::Held { .. }));
    clock.0.store(101, Relaxed);
    assert!(matches!(ask_for(&store, or_wait(acquire("k", 2, 60_000), 1_000)), Outcome::Busy { .. }));
    clock.0.store(100, Relaxed);
    let Acquire { key, token, .. } = acquire("k", 1, 60_000);
    assert_eq!(ask(&store, Operation::Release(Release::new(key, token))), Outcome::Released);
    assert!(
        matches!(ask_for(&store, acquire("k", 3, 60_000)), Outcome::Busy { .. }),
        "the key is granted to the place"
    );
    assert!(matches!(ask_for(&store, or_wait(acquire("k", 2, 60_000), 1_000)), Outcome::Held { .. }));
}

#[test]
fn a_block_of_fencing_tokens_is_whole_whenever_it_is_drawn() {
    for _ in 0..20 {
        let (_, store) = store();
        let whole = Acquire { block: 512, ..acquire("k", 1, 1_000) };
        assert!(matches!(ask_for(&store, whole), Outcome::Held { block: 512, .. }));
        std::thread::yield_now();
    }
}

#[test]
fn a_block_of_none_is_one_fencing_token() {
    let (_, store) = store();
    let none = Acquire { block: 0, ..acquire("k", 1, 1_000) };
    assert!(matches!(ask_for(&store, none), Outcome::Held { block: 1, .. }));
}

#[test]
fn queues_of_keys_that_nobody_asks_for_again_are_forgotten() {
    let (clock, store) = store();
    for number in 0..1_000 {
        clock.0.store(number * 10_000, Relaxed);
        let key = format!("k{number}");
        assert!(matches!(ask_for(&store, acquire(&key, 1, 1_000)), Outcome::Held { .. }));
        assert!(matches!(ask_for(&store, or_wait(acquire(&key, 2, 1_000), 10)), Outcome::Busy { .. }));
        // The mark that somebody may be waiting is over, so the release does not look at the queue.
        clock.0.store(number * 10_000 + 900, Relaxed);
        let Acquire { key, token, .. } = acquire(&key, 1, 1_000);
        assert_eq!(ask(&store, Operation::Release(Release::new(key, token))), Outcome::Released);
    }
    let queues = store.store.state().store.queues.len();
    assert!(queues < 200, "{queues}");
}
