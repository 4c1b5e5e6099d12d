//! Clocks that step: a backend's that is set back, and ours over a suspend; virtual time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lock_core::{
    End, LockManager, LossReason,
    backend::{Answer, Backend, Batch, MemoryBackend, Reply},
    clock::{Clock, Moment, Sleep, TokioClock},
    key::LockKey,
};
use tokio::time::sleep;

use crate::support::{ms, secs};

/// The backend's clock: an hour ahead, and set back as the test says.
#[derive(Clone, Debug)]
struct Stepping {
    clock: TokioClock,
    behind: Arc<AtomicU64>,
}

impl Clock for Stepping {
    fn now(&self) -> Moment {
        let ahead = self.clock.now() + secs(3_600);
        ahead - secs(self.behind.load(Ordering::SeqCst))
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        self.clock.sleep(duration)
    }
}

/// A store by that clock, for an engine by another.
#[derive(Clone, Debug)]
struct Elsewhere {
    store: MemoryBackend,
    clock: Stepping,
}

impl Backend for Elsewhere {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        self.store.call(batch)
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        self.store.list(prefix)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.clock.clock.clone())
    }
}

impl Elsewhere {
    fn manager() -> (LockManager, Self) {
        let clock = Stepping { clock: TokioClock::new(), behind: Arc::new(AtomicU64::new(0)) };
        let this = Self { store: MemoryBackend::with_clock(Arc::new(clock.clone())), clock };
        (LockManager::builder().backend(this.clone()).build().expect("its options are sound"), this)
    }

    fn set_back(&self, seconds: u64) {
        self.clock.behind.fetch_add(seconds, Ordering::SeqCst);
    }
}

/// What the backend says is left of the key.
async fn left(manager: &LockManager) -> Duration {
    manager.inspect("k").await.expect("is answered").remaining().unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_step_back_keeps_the_key_until_it_is_released_and_ends_no_lease() {
    let (manager, backend) = Elsewhere::manager();
    let mut guard = manager.lock("k").ttl(secs(3)).await.unwrap();
    backend.set_back(1_800);
    sleep(secs(30)).await;
    assert!(guard.is_held());
    assert!(left(&manager).await > secs(1_760), "nothing shortens it: {:?}", left(&manager).await);
    guard.extend(secs(60)).await.unwrap();
    assert!(guard.remaining() <= left(&manager).await);
    guard.release().await.unwrap();
    assert!(manager.lock("k").wait(ms(0)).await.is_ok(), "free as soon as it is released");
}

#[tokio::test(start_paused = true)]
async fn a_step_forward_frees_the_key_and_is_a_loss() {
    let (manager, backend) = Elsewhere::manager();
    backend.set_back(60);
    let guard = manager.lock("k").ttl(secs(3)).await.unwrap();
    sleep(ms(1_100)).await;
    backend.clock.behind.store(0, Ordering::SeqCst);
    let before = tokio::time::Instant::now();
    assert_eq!(guard.ended().await, End::Lost(LossReason::Taken));
    assert!(before.elapsed() <= ms(1_100), "told by the next renewal, after {:?}", before.elapsed());
}

/// A clock that counts what the timers slept through.
#[derive(Clone, Debug)]
struct Suspended(Stepping);

impl Clock for Suspended {
    fn now(&self) -> Moment {
        self.0.clock.now() + secs(self.0.behind.load(Ordering::SeqCst))
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        self.0.clock.sleep(duration)
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_lapsed_while_the_machine_was_suspended_is_told_at_the_next_nap() {
    let clock = Stepping { clock: TokioClock::new(), behind: Arc::new(AtomicU64::new(0)) };
    let store = MemoryBackend::with_clock(Arc::new(Suspended(clock.clone())));
    let manager = LockManager::builder().backend(store).build().expect("its options are sound");
    let guard = manager.lock("k").ttl(secs(60)).await.expect("the key is free");
    let told = tokio::spawn(guard.ended()); // nobody else looks
    sleep(secs(1)).await;
    // The machine sleeps for a minute and a half, of which tokio's timers know nothing.
    clock.behind.store(90, Ordering::SeqCst);
    let woken = tokio::time::Instant::now();
    assert_eq!(told.await.expect("no panic"), End::Lost(LossReason::Expired));
    assert!(woken.elapsed() <= ms(251), "{:?}", woken.elapsed());
    assert!(!guard.is_held());
}
