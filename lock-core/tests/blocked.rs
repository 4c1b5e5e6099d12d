//! A thread that a task blocks while other threads of the runtime are idle: the engine, which the task has just woken, goes on there.
//!
//! Nothing here measures time. A thread stays blocked until what the other threads have to do was counted, or, if they do not do it,
//! until a deadline that ends the test.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Instant,
};

use lock_core::{
    LockGuard, LockManager,
    backend::{Answer, Backend, Batch, MemoryBackend, Operation, Reply},
    clock::Clock,
    key::LockKey,
};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    time::sleep,
};

use crate::support::{ms, secs};

/// A store that answers a moment later, as a server does, so that the engine's task sends requests and takes answers. Counts renewals.
#[derive(Clone, Debug, Default)]
struct Store {
    memory: MemoryBackend,
    renewals: Arc<(Mutex<usize>, Condvar)>,
    /// Whether it answers at once instead, so that the thread of a request sends it, and wakes nobody.
    answers_at_once: bool,
}

impl Store {
    fn manager(&self) -> LockManager {
        LockManager::builder().backend(self.clone()).build().unwrap()
    }

    /// Blocks the thread until there were so many more renewals. Returns whether there were, before the deadline.
    fn block_until_renewed(&self, more: usize) -> bool {
        let (renewals, changed) = &*self.renewals;
        let renewals = renewals.lock().unwrap();
        let enough = *renewals + more;
        !changed.wait_timeout_while(renewals, SOON, |renewals| *renewals < enough).unwrap().1.timed_out()
    }
}

impl Backend for Store {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        let (renewals, changed) = &*self.renewals;
        *renewals.lock().unwrap() += batch.iter().filter(|item| matches!(item, Operation::Renew(_))).count();
        changed.notify_all();
        if self.answers_at_once {
            return self.memory.call(batch);
        }
        let memory = self.memory.clone();
        Reply::new(async move {
            sleep(ms(1)).await;
            memory.call(batch).await
        })
    }

    fn sends_at_once(&self) -> bool {
        self.answers_at_once
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        self.memory.list(prefix)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.memory.clock()
    }
}

fn threads(number: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(number).enable_all().build().unwrap()
}

/// Polls a future once. It is ready if this thread had to wait for its turn meanwhile.
async fn polled_once(mut future: impl Future + Unpin) {
    poll_fn(|cx| {
        let _ = Pin::new(&mut future).poll(cx);
        Poll::Ready(())
    })
    .await;
}

/// The ways in which a task wakes the engine, and does not wait for it.
#[derive(Clone, Copy, Debug)]
enum Wakes {
    ReleasePolledOnce,
    AcquirePolledOnceAndDropped,
    GuardDropped,
    SharedGuardDropped,
}

/// Wakes the engine in a task, and then blocks the thread of the task.
async fn wake_and_block<R: Send + 'static>(
    how: Wakes,
    manager: LockManager,
    block: impl FnOnce() -> R + Send + 'static,
) -> R {
    let mine = match how {
        Wakes::SharedGuardDropped => manager.lock("mine").ttl(LONG).shared().await.unwrap(),
        _ => manager.lock("mine").ttl(LONG).await.unwrap(),
    };
    let task = async move {
        match how {
            // The future is kept: the thread is blocked in the middle of it.
            Wakes::ReleasePolledOnce => {
                let mut release = mine.release();
                polled_once(&mut release).await;
                return block();
            }
            Wakes::AcquirePolledOnceAndDropped => polled_once(manager.lock("another").acquire()).await,
            Wakes::GuardDropped | Wakes::SharedGuardDropped => drop(mine),
        }
        block()
    };
    tokio::spawn(task).await.unwrap()
}

#[test]
fn leases_are_renewed_while_a_thread_is_blocked_that_has_woken_the_engine() {
    use Wakes::{AcquirePolledOnceAndDropped, GuardDropped, ReleasePolledOnce, SharedGuardDropped};
    let runtime = threads(4);
    let renewed = runtime.block_on(async {
        let store = Store::default();
        let manager = store.manager();
        let mut leases = Vec::new();
        for index in 0..LEASES {
            leases.push(manager.lock(format!("lease:{index}")).ttl(LONG).renew_every(ms(100)).await.unwrap());
        }
        for _ in 0..3 {
            for how in [ReleasePolledOnce, AcquirePolledOnceAndDropped, GuardDropped, SharedGuardDropped] {
                let blocked = store.clone();
                if !wake_and_block(how, manager.clone(), move || blocked.block_until_renewed(2 * LEASES)).await {
                    return Err(how);
                }
            }
        }
        assert!(leases.iter().all(LockGuard::is_held));
        Ok(())
    });
    assert_eq!(renewed.map_err(|how| format!("no renewals while a thread was blocked: {how:?}")), Ok(()));
}

/// The timer of renewals is over, and a thread that looks at timers then takes a task from outside before the engine, which the timer has
/// woken.
#[test]
fn leases_are_renewed_while_a_thread_is_blocked_by_a_task_that_goes_before_the_engine() {
    // Each turn of a thread does so here; by default it is one in 2 to 127.
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).event_interval(1).global_queue_interval(1).enable_all().build().unwrap();
    let store = Store::default();
    let (mine, leases) = runtime.block_on(async {
        let manager = store.manager();
        let mut leases = Vec::new();
        for index in 0..LEASES {
            leases.push(manager.lock(format!("lease:{index}")).ttl(LONG).renew_every(ms(100)).await.unwrap());
        }
        (manager.lock("mine").ttl(LONG).await.unwrap(), leases)
    });
    let (begin, has_begun) = mpsc::channel();
    let [one, two] = [(); 2].map(|()| {
        let (begin, (end, is_over)) = (begin.clone(), mpsc::channel::<()>());
        runtime.spawn(async move {
            begin.send(()).unwrap();
            let _ = is_over.recv();
        });
        has_begun.recv_timeout(SOON).unwrap();
        end
    });
    let blocked = store.clone();
    let task = runtime.spawn(async move {
        drop(mine);
        begin.send(()).unwrap();
        blocked.block_until_renewed(2 * LEASES)
    });
    thread::sleep(ms(200));
    drop(one);
    has_begun.recv_timeout(SOON).unwrap();
    drop(two);
    assert!(runtime.block_on(task).unwrap(), "no renewals while a thread was blocked");
    assert!(leases.iter().all(LockGuard::is_held));
}

/// Nothing else happens in the process: the other threads sleep, and the one that waits for timers runs the task.
#[test]
fn leases_are_renewed_in_a_quiet_process_while_a_task_that_a_timer_has_woken_blocks_its_thread() {
    for _ in 0..5 {
        for has_a_guard in [false, true] {
            let runtime = threads(4);
            let store = Store { answers_at_once: true, ..Store::default() };
            let renewed = runtime.block_on(async {
                let manager = store.manager();
                let mut leases = Vec::new();
                for index in 0..LEASES {
                    leases.push(manager.lock(format!("lease:{index}")).ttl(LONG).renew_every(ms(100)).await.unwrap());
                }
                let (mine, blocked) = (manager.clone(), store.clone());
                let task = tokio::spawn(async move {
                    sleep(ms(50)).await;
                    if has_a_guard {
                        drop(mine.lock("mine").ttl(LONG).await.unwrap());
                    }
                    blocked.block_until_renewed(2 * LEASES)
                });
                task.await.unwrap() && leases.iter().all(LockGuard::is_held)
            });
            assert!(renewed, "no renewals while a thread was blocked; it dropped a guard: {has_a_guard}");
        }
    }
}

/// After such an answer the engine lets other tasks run first. If one of them blocks the thread, the engine must not wait behind it.
#[test]
fn leases_are_renewed_while_one_of_the_tasks_blocks_a_thread_that_one_answer_has_woken() {
    let runtime = threads(4);
    let renewed = runtime.block_on(async {
        let store = Store::default();
        let manager = store.manager();
        let mut leases = Vec::new();
        for index in 0..LEASES {
            leases.push(manager.lock(format!("lease:{index}")).ttl(LONG).renew_every(ms(100)).await.unwrap());
        }
        let mut renewed = true;
        for _ in 0..10 {
            let is_blocked = Arc::new(AtomicBool::new(false));
            let tasks = (0..8).map(|index| {
                let (manager, store, is_blocked) = (manager.clone(), store.clone(), Arc::clone(&is_blocked));
                tokio::spawn(async move {
                    let guard = manager.lock(format!("{index}")).ttl(LONG).await.unwrap();
                    let blocks = !is_blocked.swap(true, Ordering::SeqCst);
                    let renewed = !blocks || store.block_until_renewed(2 * LEASES);
                    guard.release().await.unwrap();
                    renewed
                })
            });
            for task in tasks.collect::<Vec<_>>() {
                renewed &= task.await.unwrap();
            }
        }
        renewed && leases.iter().all(LockGuard::is_held)
    });
    assert!(renewed, "no renewals while a thread was blocked");
}

#[test]
fn the_key_of_a_dropped_guard_is_free_for_others_while_the_thread_computes() {
    for how in [Wakes::GuardDropped, Wakes::ReleasePolledOnce] {
        let runtime = threads(2);
        let store = Store::default();
        let manager = runtime.block_on(async { store.manager() });
        let block = move || {
            let (held, is_held) = mpsc::channel();
            // Another process, as it were.
            thread::spawn(move || {
                Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
                    let theirs = LockManager::builder().backend(store.memory).build().unwrap();
                    let _ = held.send(theirs.lock("mine").wait(2 * SOON).await.is_ok());
                });
            });
            is_held.recv_timeout(SOON).unwrap_or(false)
        };
        assert!(runtime.block_on(wake_and_block(how, manager, block)), "{how:?}");
    }
}

/// The engine takes a pause after some answers. If a task that it has woken before blocks the thread, others must find it.
#[test]
fn requests_are_served_while_a_thread_is_blocked_after_any_number_of_answers() {
    let runtime = threads(2);
    let manager = runtime.block_on(async { Store::default().manager() });
    for answers in 1..=20 {
        let (told, is_told) = mpsc::channel();
        let (began, has_begun) = mpsc::channel();
        let mine = manager.clone();
        let blocked = runtime.spawn(async move {
            mine.is_locked("a").await.unwrap();
            began.send(()).unwrap();
            is_told.recv_timeout(SOON).is_ok()
        });
        has_begun.recv_timeout(SOON).unwrap();
        let theirs = manager.clone();
        runtime.spawn(async move {
            theirs.is_locked("b").await.unwrap();
            theirs.is_locked("c").await.unwrap();
            let _ = told.send(());
        });
        assert!(runtime.block_on(blocked).unwrap(), "after {} answers", 3 * answers - 2);
    }
}

struct Unparks(Thread);

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// What `block_on` of other crates does, with a deadline.
fn foreign_block_on<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unparks(thread::current())));
    let deadline = Instant::now() + SOON;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
        thread::park_timeout(deadline.checked_duration_since(Instant::now())?);
    }
}

#[test]
fn foreign_block_on_in_a_task_is_served_by_another_thread() {
    let runtime = threads(2);
    let manager = runtime.block_on(async { Store::default().manager() });
    let mine = manager.clone();
    let served = runtime.block_on(runtime.spawn(async move {
        for _ in 0..20 {
            let guard = foreign_block_on(mine.lock("a").ttl(LONG).acquire())?.unwrap();
            foreign_block_on(guard.release())?.unwrap();
        }
        Some(())
    }));
    assert!(served.unwrap().is_some(), "it hangs");
    let served = runtime.block_on(runtime.spawn_blocking(move || {
        let guard = Handle::current().block_on(manager.lock("a").ttl(LONG).acquire()).unwrap();
        Handle::current().block_on(guard.release()).is_ok()
    }));
    assert!(served.unwrap());
}

const LEASES: usize = 20;

/// The deadline of what happens at once.
const SOON: std::time::Duration = secs(60);

/// A ttl whose end no test waits for.
const LONG: std::time::Duration = secs(600);
