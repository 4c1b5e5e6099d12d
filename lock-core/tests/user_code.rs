//! Code of the user's that the engine runs (wakers, log writers, recorders of metrics) may ask the engine for something:
//! no lock of the engine's is held then. Memory backend.

use std::{
    future::{Future, poll_fn},
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use futures_util::FutureExt;
use lock_core::{LockManager, backend::MemoryBackend};
use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tokio::runtime;
use tracing::subscriber::with_default;

use crate::support::{log::not_alone, ms, secs};

/// Does something in a thread, and fails if that has not ended in time: it waits for itself.
fn in_time<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    is_done.recv_timeout(secs(60)).unwrap_or_else(|_| panic!("{what}: it has not ended"))
}

/// A task that lives only as long as its wakers, as of a simple executor.
struct Task(Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>);

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn waker_that_owns_a_guard_is_dropped_without_a_lock() {
    let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let builder = LockManager::builder().backend(MemoryBackend::new()).runtime(runtime.handle().clone());
    let manager = builder.build().unwrap();
    let (busy, other) =
        runtime.block_on(async { (manager.lock("busy").await.unwrap(), manager.lock("other").await.unwrap()) });
    for of_a_lease in [false, true] {
        let mut lease = busy.lease().clone();
        let mut acquire = manager.lock("busy").wait_forever().acquire();
        let mut poll: Box<dyn FnMut(&mut Context<'_>) -> bool + Send> = match of_a_lease {
            true => Box::new(move |cx| lease.poll_ended(cx).is_pending()),
            false => Box::new(move |cx| Pin::new(&mut acquire).poll(cx).is_pending()),
        };
        let shared = Arc::new(Mutex::new(move |cx: &mut Context<'_>| poll(cx)));
        let theirs = Arc::clone(&shared);
        let guard = runtime.block_on(async { manager.lock("mine").await.unwrap() });
        let task = Arc::new(Task(Mutex::new(Some(Box::pin(async move {
            let _guard = guard;
            poll_fn(|cx| if theirs.lock().unwrap()(cx) { Poll::Pending } else { Poll::Ready(()) }).await;
        })))));
        let waker = Waker::from(Arc::clone(&task));
        let future = &task.0;
        assert!(future.lock().unwrap().as_mut().unwrap().as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        // Only the engine has the waker now, and with it the task and its guard.
        drop((waker, task));
        let moved = Arc::clone(&shared);
        assert!(in_time("moving the future", move || moved.lock().unwrap()(&mut Context::from_waker(Waker::noop()))));
        let manager = manager.clone();
        in_time("the guard in the task", move || {
            runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
                drop(manager.lock("mine").wait(secs(5)).await.expect("it was dropped with its task"));
            });
        });
    }
    drop((busy, other));
}

static MANAGER: OnceLock<LockManager> = OnceLock::new();
static LOST: AtomicUsize = AtomicUsize::new(0);

/// Asks the engine for something, as code that is called under its lock could not.
fn ask() {
    if let Some(manager) = MANAGER.get() {
        drop(manager.lock("mine").wait(Duration::ZERO).acquire().now_or_never());
    }
}

struct Writer;

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if String::from_utf8_lossy(bytes).contains(" WARN ") {
            LOST.fetch_add(1, Ordering::Relaxed);
            ask();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Metrics;

impl HistogramFn for Metrics {
    fn record(&self, _: f64) {
        ask();
    }
}

impl metrics::CounterFn for Metrics {
    fn increment(&self, _: u64) {
        ask();
    }

    fn absolute(&self, _: u64) {}
}

impl Recorder for Metrics {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        // What `ask` counts itself would go on for ever.
        if key.name() == "lock_lost_total" { Counter::from_arc(Arc::new(Self)) } else { Counter::noop() }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let asks = key.name() == "lock_renewal_slack_seconds";
        if asks { Histogram::from_arc(Arc::new(Self)) } else { Histogram::noop() }
    }
}

#[test]
fn losses_are_logged_and_counted_without_a_lock_and_a_mass_of_them_in_a_few_lines() {
    let lines = in_time("a mass of losses", || {
        not_alone();
        let subscriber = tracing_subscriber::fmt().with_writer(|| Writer).with_ansi(false).finish();
        let runtime = runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        metrics::with_local_recorder(&Metrics, || {
            with_default(subscriber, || {
                runtime.block_on(async {
                    let manager = MANAGER.get_or_init(LockManager::in_memory);
                    let renewed = manager.lock("renewed").ttl(secs(1)).await.unwrap();
                    let mut guards = Vec::new();
                    for index in 0..1_000 {
                        guards.push(manager.lock(format!("k{index}")).fixed().ttl(secs(3)).await.unwrap());
                    }
                    tokio::time::sleep(ms(4_500)).await;
                    assert!(renewed.is_held() && guards.iter().all(|guard| !guard.is_held()));
                });
            });
        });
        LOST.load(Ordering::Relaxed)
    });
    assert!((2..=6).contains(&lines), "{lines} lines");
}

/// Asks the manager that logs for a lease.
struct WritesAndAsks;

static WAITS: OnceLock<LockManager> = OnceLock::new();
static EXPLAINED: AtomicUsize = AtomicUsize::new(0);

impl io::Write for WritesAndAsks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if String::from_utf8_lossy(bytes).contains("still waiting for the lock")
            && let Some(manager) = WAITS.get()
        {
            EXPLAINED.fetch_add(1, Ordering::Relaxed);
            drop(manager.lock("mine").wait(Duration::ZERO).acquire().now_or_never());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_wait_is_explained_without_a_lock() {
    in_time("a writer of the log that asks", || {
        not_alone();
        let subscriber = tracing_subscriber::fmt().with_writer(|| WritesAndAsks).with_ansi(false).finish();
        let runtime = runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        with_default(subscriber, || {
            runtime.block_on(async {
                let builder = LockManager::builder().backend(MemoryBackend::new()).explain_waits_after(ms(100));
                let manager = WAITS.get_or_init(|| builder.build().unwrap());
                let _held = manager.lock("k").await.unwrap();
                manager.lock("k").wait(ms(200)).await.unwrap_err();
            });
        });
    });
    assert_eq!(EXPLAINED.load(Ordering::Relaxed), 1);
}
