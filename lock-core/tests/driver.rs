//! What a backend's driver gets of the engine's task while requests fail at once and more of them come without end.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use futures_util::FutureExt;
use lock_core::{
    ErrorKind, LockManager,
    backend::{Answer, Backend, BackendError, Batch, Calls, Reply},
    future::Acquire,
    key::LockKey,
};

/// A server that never answers the first call, and is known to be down from then on. Its driver, which would connect again, waits for
/// timers.
#[derive(Clone, Debug, Default)]
struct Down {
    calls: Arc<AtomicUsize>,
    driver: Arc<AtomicUsize>,
}

impl Backend for Down {
    fn call(&self, _: Batch) -> Reply<Answer> {
        let calls = Arc::clone(&self.calls);
        Reply::new(async move {
            if calls.fetch_add(1, Ordering::SeqCst) == 0 {
                return std::future::pending().await;
            }
            Err(BackendError::unavailable("the server is down").did_not_happen())
        })
    }

    fn list(&self, _: String) -> Reply<Vec<LockKey>> {
        Reply::ready(Ok(Vec::new()))
    }

    fn driver(&self, _: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let driver = Arc::clone(&self.driver);
        Box::pin(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(1)).await;
                driver.fetch_add(1, Ordering::SeqCst);
            }
        })
    }
}

/// Callers that ask again as soon as they are told, wherever that is: an executor that polls them as they are woken.
struct Callers {
    manager: LockManager,
    /// How many requests are left, and how many have failed.
    left: AtomicUsize,
    failed: AtomicUsize,
    under_way: Vec<Mutex<Option<Pin<Box<Acquire>>>>>,
    /// Who was woken; none while nobody polls them.
    woken: Mutex<(bool, VecDeque<usize>)>,
}

struct Caller(Arc<Callers>, usize);

impl Wake for Caller {
    fn wake(self: Arc<Self>) {
        let Self(callers, index) = &*self;
        {
            let mut woken = callers.woken.lock().unwrap();
            woken.1.push_back(*index);
            if std::mem::replace(&mut woken.0, true) {
                return;
            }
        }
        loop {
            let mut woken = callers.woken.lock().unwrap();
            let Some(index) = woken.1.pop_front() else {
                woken.0 = false;
                return;
            };
            drop(woken);
            callers.poll(index);
        }
    }
}

impl Callers {
    fn poll(self: &Arc<Self>, index: usize) {
        let waker = Waker::from(Arc::new(Caller(Arc::clone(self), index)));
        let mut slot = self.under_way[index].lock().unwrap();
        loop {
            if slot.is_none() {
                let one_less = |left: usize| left.checked_sub(1);
                if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_err() {
                    return;
                }
                let request = self.manager.lock(format!("k{index}")).wait_forever();
                *slot = Some(Box::pin(request.acquire()));
            }
            let acquire = slot.as_mut().unwrap();
            let Poll::Ready(result) = acquire.as_mut().poll(&mut Context::from_waker(&waker)) else { return };
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Backend);
            self.failed.fetch_add(1, Ordering::SeqCst);
            *slot = None;
        }
    }
}

#[tokio::test]
async fn driver_goes_on_while_requests_fail_at_once_without_end() {
    const CALLERS: usize = 2_000;
    const REQUESTS: usize = 100_000;
    let backend = Down::default();
    let callers = Arc::new(Callers {
        manager: LockManager::builder().backend(backend.clone()).build().unwrap(),
        left: AtomicUsize::new(REQUESTS),
        failed: AtomicUsize::new(0),
        under_way: (0..CALLERS).map(|_| Mutex::default()).collect(),
        woken: Mutex::default(),
    });
    // While this one is under way, the engine asks for all others.
    let mut first = callers.manager.lock("first").acquire();
    assert!((&mut first).now_or_never().is_none());
    callers.woken.lock().unwrap().1.extend(1..CALLERS);
    Arc::new(Caller(Arc::clone(&callers), 0)).wake();
    while callers.failed.load(Ordering::SeqCst) < REQUESTS {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (calls, driver) = (backend.calls.load(Ordering::SeqCst), backend.driver.load(Ordering::SeqCst));
    assert!(driver >= calls / 32, "{calls} calls were answered, and {driver} timers of the driver went off");
}
