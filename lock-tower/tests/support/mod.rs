//! What the tests of this crate share.
#![allow(clippy::unwrap_used, dead_code, reason = "test code, of which each set of features uses its part")]

use std::{
    fmt::Debug,
    future::{Future, Ready, ready},
    net::SocketAddr,
    panic::Location,
    process,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc::{self, RecvTimeoutError, Sender},
    },
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use axum::Router;
use lock_core::{
    ErrorKind, LockManager,
    backend::{Answer, Backend, BackendError, Batch, Reply},
};
use lock_tower::BoxError;
use tokio::net::TcpListener;
use tower::{Service, service_fn};

/// A service that panics when an instance is called that was not made ready, as tower allows. A clone is not ready.
#[derive(Debug, Default)]
pub(crate) struct Strict {
    ready: bool,
    calls: Arc<AtomicUsize>,
}

impl Strict {
    pub(crate) fn calls(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.calls)
    }
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { ready: false, calls: Arc::clone(&self.calls) }
    }
}

impl Service<u64> for Strict {
    type Response = u64;
    type Error = BoxError;
    type Future = Ready<Result<u64, BoxError>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: u64) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without being ready");
        self.calls.fetch_add(1, SeqCst);
        ready(Ok(request))
    }
}

/// Counts who is at work, and how many there were at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Floor {
    inner: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    begun: AtomicUsize,
    inside: AtomicUsize,
    most: AtomicUsize,
    finished: AtomicUsize,
}

impl Floor {
    /// Works for a while, or is dropped in the middle.
    pub(crate) async fn work(&self, time: Duration) {
        let inside = self.enter();
        tokio::time::sleep(time).await;
        self.inner.finished.fetch_add(1, SeqCst);
        drop(inside);
    }

    /// Works until it is dropped.
    pub(crate) async fn work_forever(&self) {
        let _inside = self.enter();
        std::future::pending::<()>().await;
    }

    fn enter(&self) -> Inside {
        self.inner.begun.fetch_add(1, SeqCst);
        let inside = self.inner.inside.fetch_add(1, SeqCst) + 1;
        self.inner.most.fetch_max(inside, SeqCst);
        Inside(self.clone())
    }

    pub(crate) fn begun(&self) -> usize {
        self.inner.begun.load(SeqCst)
    }

    pub(crate) fn inside(&self) -> usize {
        self.inner.inside.load(SeqCst)
    }

    pub(crate) fn most(&self) -> usize {
        self.inner.most.load(SeqCst)
    }

    pub(crate) fn finished(&self) -> usize {
        self.inner.finished.load(SeqCst)
    }
}

struct Inside(Floor);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inner.inside.fetch_sub(1, SeqCst);
    }
}

/// A service of requests; its futures are `Send`.
pub(crate) trait Works:
    Service<u64, Response = u64, Error = BoxError, Future: Send> + Clone + Send + 'static
{
}

impl<S> Works for S where S: Service<u64, Response = u64, Error = BoxError, Future: Send> + Clone + Send + 'static {}

/// Makes a service of requests that work for a second each.
pub(crate) fn works(floor: &Floor) -> impl Works + use<> {
    works_for(floor, Duration::from_secs(1))
}

/// Makes a service of requests that work for a while each.
pub(crate) fn works_for(floor: &Floor, time: Duration) -> impl Works + use<> {
    let floor = floor.clone();
    service_fn(move |request: u64| {
        let floor = floor.clone();
        async move {
            floor.work(time).await;
            Ok(request)
        }
    })
}

/// Makes a service of requests that work until they are dropped.
pub(crate) fn works_forever(floor: &Floor) -> impl Works + use<> {
    let floor = floor.clone();
    service_fn(move |request: u64| {
        let floor = floor.clone();
        async move {
            floor.work_forever().await;
            Ok(request)
        }
    })
}

/// Keeps what is logged, a line each: level, message, fields.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Keeps what this thread logs until the guard is dropped.
    pub(crate) fn watch() -> (Self, tracing::subscriber::DefaultGuard) {
        // With one subscriber alone in the process, the first thread to log an event decides for all of them whether it
        // is of interest, also a thread that has no subscriber.
        static OTHER: OnceLock<tracing::Dispatch> = OnceLock::new();
        OTHER.get_or_init(|| tracing::Dispatch::new(Self::default()));
        let log = Self::default();
        (log.clone(), tracing::subscriber::set_default(log))
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, _metadata: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _span: &tracing::span::Id, _values: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _span: &tracing::span::Id, _follows: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = event.metadata().level().to_string();
        event.record(&mut |field: &tracing::field::Field, value: &dyn Debug| {
            line.push_str(&format!(" {field}={value:?}"));
        });
        self.0.lock().unwrap().push(line);
    }

    fn enter(&self, _span: &tracing::span::Id) {}

    fn exit(&self, _span: &tracing::span::Id) {}
}

/// Ends the process when the test that holds it hangs.
#[must_use = "it is the test's limit for as long as it lives"]
pub(crate) struct Limit {
    _alive: Sender<()>,
}

/// Gives the present test five minutes. A future that is never woken, or a runtime whose paused clock runs on and on, would
/// hang without end.
pub(crate) fn limit() -> Limit {
    let (alive, ended) = mpsc::channel();
    let test = thread::current().name().unwrap_or_default().to_owned();
    thread::spawn(move || {
        if ended.recv_timeout(Duration::from_secs(300)) == Err(RecvTimeoutError::Timeout) {
            eprintln!("the test {test} hangs");
            process::abort();
        }
    });
    Limit { _alive: alive }
}

/// Waits for what should come soon, and fails instead of hanging.
#[track_caller]
pub(crate) fn soon<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let here = Location::caller();
    async move {
        match tokio::time::timeout(Duration::from_secs(60), future).await {
            Ok(output) => output,
            Err(_) => panic!("waited in vain at {here}"),
        }
    }
}

/// How often a condition is looked at, every 5 ms: for a minute at least, on a machine of any speed.
const PATIENCE: u32 = 12_000;

/// Waits for a condition, and fails when it does not come about.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..PATIENCE {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("waited in vain until {what}");
}

/// Waits until nobody holds a key.
pub(crate) async fn until_free(manager: &LockManager, key: &str) {
    for _ in 0..PATIENCE {
        if !manager.is_locked(key).await.unwrap() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("waited in vain until {key:?} was free");
}

/// Waits until somebody waits for a key.
pub(crate) async fn until_waited_for(manager: &LockManager, key: &str) {
    for _ in 0..PATIENCE {
        if !manager.inspect(key).await.unwrap().waiters().is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("waited in vain for somebody to wait for {key:?}");
}

/// Polls a future once.
pub(crate) fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Returns the error of a lock inside a boxed one.
pub(crate) fn lock_error(error: &BoxError) -> &lock_core::Error {
    error.downcast_ref().unwrap_or_else(|| panic!("no error of the lock: {error}"))
}

/// Serves on a free port, to the end of the runtime.
pub(crate) async fn serve(service: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

/// A backend that fails in one way, and says so.
#[derive(Debug)]
pub(crate) struct Failing(pub(crate) ErrorKind, pub(crate) &'static str);

impl Backend for Failing {
    fn call(&self, _batch: Batch) -> Reply<Answer> {
        let error = match self.0 {
            ErrorKind::WrongType => BackendError::wrong_type(self.1),
            ErrorKind::Unsupported => BackendError::unsupported(self.1),
            ErrorKind::Denied => BackendError::denied(self.1),
            _ => BackendError::unavailable(self.1),
        };
        Reply::ready(Err(error))
    }

    fn list(&self, _prefix: String) -> Reply<Vec<lock_core::key::LockKey>> {
        Reply::ready(Ok(Vec::new()))
    }
}
