//! Code of the application that panics while the engine runs it: once, or each time. The panic ends no lease and does not abort the
//! process, which would end this program.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::{
    future::Future,
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Wake, Waker},
    time::Duration,
};

use lock_core::{
    LockManager,
    backend::{Answer, Backend, Batch, Calls, MemoryBackend, Reply},
    clock::{Clock, Moment, Sleep},
    key::LockKey,
};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use tokio::{runtime, time::sleep};
use tracing::{Subscriber, span, subscriber::with_default};

use crate::support::{log::not_alone, ms, secs};

/// Panics as often as it is loaded for.
#[derive(Clone, Debug, Default)]
struct Trap {
    left: Arc<AtomicUsize>,
    /// How many calls pass before, once it is loaded.
    passes: Arc<AtomicUsize>,
    sprung: Arc<AtomicUsize>,
}

impl Trap {
    fn load(&self, times: usize) {
        self.left.store(times, Ordering::SeqCst);
    }

    fn sprung(&self) -> usize {
        self.sprung.load(Ordering::SeqCst)
    }

    fn step_on(&self) {
        let is_loaded = self.left.load(Ordering::SeqCst) > 0;
        let passed = self
            .passes
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(u8::from(is_loaded).into()));
        if !is_loaded || passed.is_ok() {
            return;
        }
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left.is_ok() {
            self.sprung.fetch_add(1, Ordering::SeqCst);
            panic!("a bug of the application's");
        }
    }

    /// Panics only in the engine's task: the tests run outside of tasks.
    fn step_on_in_task(&self) {
        if tokio::task::try_id().is_some() {
            self.step_on();
        }
    }
}

/// A store that answers a moment later, so that the engine's task does all the work; each part of it may panic.
#[derive(Clone, Debug, Default)]
struct Store {
    memory: MemoryBackend,
    lists: Trap,
    driver: Trap,
    epoch: Trap,
    now: Trap,
    timer: Trap,
    drivers: Arc<AtomicUsize>,
}

impl Backend for Store {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        let memory = self.memory.clone();
        Reply::new(async move {
            sleep(ms(1)).await;
            memory.call(batch).await
        })
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        self.lists.step_on();
        self.memory.list(prefix)
    }

    fn epoch(&self) -> u64 {
        self.epoch.step_on_in_task();
        0
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(Ticking { clock: self.memory.clock(), trap: self.now.clone(), timer: self.timer.clone() })
    }

    fn driver(&self, _: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.drivers.fetch_add(1, Ordering::SeqCst);
        let trap = self.driver.clone();
        Box::pin(async move {
            loop {
                sleep(ms(10)).await;
                trap.step_on();
            }
        })
    }
}

#[derive(Debug)]
struct Ticking {
    clock: Arc<dyn Clock>,
    trap: Trap,
    timer: Trap,
}

impl Clock for Ticking {
    fn now(&self) -> Moment {
        self.trap.step_on_in_task();
        self.clock.now()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let (timer, sleep) = (self.timer.clone(), self.clock.sleep(duration));
        Box::pin(async move {
            timer.step_on_in_task();
            sleep.await;
        })
    }
}

/// Loads a trap, has a lease lost and others acquired and released, and shows that one which has nothing to do with it is renewed on.
async fn lease_survives(store: Store, trap: &Trap, times: usize) {
    let manager = LockManager::builder().backend(store).build().unwrap();
    let held = manager.lock("held").ttl(secs(1)).await.unwrap();
    trap.load(times);
    let lost = manager.lock("lost").ttl(ms(100)).fixed().await.unwrap();
    sleep(secs(2)).await;
    assert!(!lost.is_held());
    for key in ["a", "b"] {
        manager.lock(key).await.unwrap().release().await.unwrap();
        drop(manager.lock(key).await.unwrap());
        let _ = manager.force_release_all("x").await;
    }
    let two = manager.lock("permits").permits(2).await.unwrap();
    manager.lock("permits").permits(3).wait(ms(100)).await.unwrap_err();
    two.release().await.unwrap();
    sleep(secs(2)).await;
    assert!(held.is_held(), "it was renewed");
    held.release().await.unwrap();
    assert!(trap.sprung() > 0, "nothing has panicked");
    // The drop of the manager and of the engine, inside of this runtime.
    drop(manager);
    sleep(secs(2)).await;
}

fn in_virtual_time(work: impl Future<Output = ()>) {
    runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(work);
}

#[derive(Clone)]
struct Metrics(Trap);

impl CounterFn for Metrics {
    fn increment(&self, _: u64) {
        self.0.step_on();
    }

    fn absolute(&self, _: u64) {}
}

impl GaugeFn for Metrics {
    fn increment(&self, _: f64) {
        self.0.step_on();
    }

    fn decrement(&self, _: f64) {
        self.0.step_on();
    }

    fn set(&self, _: f64) {
        self.0.step_on();
    }
}

impl HistogramFn for Metrics {
    fn record(&self, _: f64) {
        self.0.step_on();
    }
}

impl Recorder for Metrics {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::new(self.clone()))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Arc::new(self.clone()))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(self.clone()))
    }
}

#[cfg(feature = "metrics")]
#[test]
fn recorder_that_panics_once_or_each_time_ends_no_lease() {
    for times in TIMES {
        let trap = Trap::default();
        metrics::with_local_recorder(&Metrics(trap.clone()), || {
            in_virtual_time(lease_survives(Store::default(), &trap, times));
        });
    }
}

struct Writer(Trap);

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.step_on();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn subscriber_that_panics_once_or_each_time_ends_no_lease() {
    for times in TIMES {
        not_alone();
        let trap = Trap::default();
        let writes = trap.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(move || Writer(writes.clone()))
            .finish();
        with_default(subscriber, || in_virtual_time(lease_survives(Store::default(), &trap, times)));
    }
}

/// A subscriber of which one part panics.
struct Spans {
    new: Trap,
    exit: Trap,
}

impl Subscriber for Spans {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        self.new.step_on();
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {
        self.exit.step_on();
    }
}

/// Whoever asked has the panic, and no lease that nobody can release.
#[test]
fn span_that_panics_when_a_lease_begins_leaves_no_lease() {
    not_alone();
    let (new, exit) = (Trap::default(), Trap::default());
    let subscriber = Spans { new: new.clone(), exit: exit.clone() };
    with_default(subscriber, || {
        in_virtual_time(async {
            let manager = LockManager::in_memory();
            for (trap, passes, keys) in [(&exit, 0, 1), (&new, 0, 2), (&new, 1, 2)] {
                trap.passes.store(passes, Ordering::SeqCst);
                trap.load(1);
                let asks = manager.clone();
                let asked = tokio::spawn(async move {
                    match keys {
                        1 => drop(asks.lock("a").await),
                        _ => drop(asks.lock_all(["a", "b"]).await),
                    }
                });
                assert!(asked.await.is_err_and(|ended| ended.is_panic()));
                trap.load(0);
                sleep(ms(1)).await;
                for key in ["a", "b"] {
                    assert!(!manager.is_locked(key).await.unwrap(), "{key} is held by nobody");
                }
            }
        });
    });
}

#[test]
fn parts_of_a_backend_that_panic_once_end_no_lease() {
    let part: [fn(&Store) -> &Trap; 5] =
        [|store| &store.lists, |store| &store.driver, |store| &store.epoch, |store| &store.now, |store| &store.timer];
    for part in part {
        for times in [1, 3] {
            let store = Store::default();
            let trap = part(&store).clone();
            in_virtual_time(lease_survives(store, &trap, times));
        }
    }
}

/// Wherever in a step of the engine the clock panics.
#[test]
fn clock_that_panics_at_any_reading_ends_no_lease() {
    for passes in 0..60 {
        let store = Store::default();
        let trap = store.now.clone();
        trap.passes.store(passes, Ordering::SeqCst);
        in_virtual_time(lease_survives(store, &trap, 1));
    }
}

/// As on a runtime without timers.
#[test]
fn driver_whose_rest_panics_too_does_not_keep_the_runtime_busy() {
    in_virtual_time(async {
        let store = Store::default();
        let timer = store.timer.clone();
        store.driver.load(usize::MAX);
        timer.load(usize::MAX);
        let manager = LockManager::builder().backend(store).build().unwrap();
        assert!(manager.health().is_up());
        for _ in 0..1_000 {
            tokio::time::advance(ms(1)).await;
        }
        assert!((1..10).contains(&timer.sprung()), "{} panics", timer.sprung());
    });
}

#[test]
fn driver_that_panics_each_time_ends_no_lease_and_begins_again_after_a_rest() {
    let store = Store::default();
    let (trap, drivers) = (store.driver.clone(), Arc::clone(&store.drivers));
    in_virtual_time(lease_survives(store, &trap, usize::MAX));
    let drivers = drivers.load(Ordering::SeqCst);
    assert!((2..100).contains(&drivers), "{drivers} times in about six seconds");
}

/// Without a clock there are no deadlines: the leases end, and a later request starts the engine again.
#[test]
fn clock_that_panics_each_time_ends_the_task_and_not_the_process() {
    in_virtual_time(async {
        for ttl in [1, 60] {
            let store = Store::default();
            let trap = store.now.clone();
            let manager = LockManager::builder().backend(store).build().unwrap();
            let held = manager.lock("held").ttl(secs(ttl)).await.unwrap();
            trap.load(usize::MAX);
            sleep(secs(2)).await;
            trap.load(0);
            assert!(!held.is_held() && trap.sprung() > 1, "{ttl}");
            manager.lock("again").await.unwrap().release().await.unwrap();
        }
    });
}

struct Panics(Trap);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.step_on();
    }
}

#[test]
fn waker_that_panics_each_time_ends_no_lease() {
    in_virtual_time(async {
        let manager = LockManager::builder().backend(Store::default()).build().unwrap();
        let held = manager.lock("held").ttl(secs(1)).await.unwrap();
        let mut other = manager.lock("lost").ttl(secs(1)).fixed().await.unwrap();
        let trap = Trap::default();
        trap.load(usize::MAX);
        let waker = Waker::from(Arc::new(Panics(trap.clone())));
        let mut cx = Context::from_waker(&waker);
        let mut acquire = pin!(manager.lock("free").acquire());
        assert!(acquire.as_mut().poll(&mut cx).is_pending());
        let mut asks = pin!(manager.is_locked("held"));
        assert!(asks.as_mut().poll(&mut cx).is_pending());
        assert!(other.poll_ended(&mut cx).is_pending());
        sleep(secs(3)).await;
        assert!(held.is_held() && trap.sprung() >= 3, "{}", trap.sprung());
        assert!(acquire.await.is_ok() && asks.await.unwrap());
    });
}

const TIMES: [usize; 3] = [1, 3, usize::MAX];
