//! A task that takes its own wake-ups without a detour through the runtime, and that a blocked thread does not hold up.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task::{coop, yield_now},
};

/// Polls `work` again at once if it was woken while it was polled.
///
/// The engine's task polls the connection itself: a command of the driver, or a notice that it passes on, wakes the task that is running.
/// A runtime puts such a task at the end of a queue and wakes another thread that may take it from there, which costs more than the
/// request.
///
/// `runtime` is the one that runs the task, and `turn` is what the work passes.
async fn in_turn(work: impl Future<Output = ()>, turn: Turn, runtime: Handle) {
    let mut work = pin!(work);
    let bell = Arc::new(Bell::default());
    let others = Some(runtime).filter(has_several_threads);
    let rope = |is_driven| Waker::from(Arc::new(Rope { bell: Arc::clone(&bell), others: others.clone(), is_driven }));
    let waker = rope(false);
    // Nobody else sets it.
    let _ = turn.of_runtime.set(rope(true));
    poll_fn(|cx| {
        bell.answer_to(cx.waker());
        for _ in 0..TURNS {
            bell.listening.store(true, Ordering::SeqCst);
            bell.rung.store(false, Ordering::SeqCst);
            let polled = work.as_mut().poll(&mut Context::from_waker(&waker));
            // `listening` is cleared before `rung` is read, and `wake` writes `rung` before it reads `listening`, all sequentially
            // consistent. So a concurrent wake-up either sees `listening == false` and wakes the task, or its `rung` is seen here.
            // In the other order it could fall in between and be lost, and the engine would sleep with work to do.
            bell.listening.store(false, Ordering::SeqCst);
            if turn.is_passed.swap(false, Ordering::SeqCst) && polled.is_pending() {
                break;
            }
            if polled.is_ready() || !bell.rung.load(Ordering::SeqCst) {
                if !coop::has_budget_remaining() {
                    // A socket that found the budget of this poll used up has left its waker with this thread, which wakes it only
                    // when it has no other task: see `pause`. A task that wakes itself goes to the queue that others steal from.
                    cx.waker().wake_by_ref();
                }
                return polled;
            }
        }
        // Other tasks need the thread too: a connection that always has something to read must not starve them. A task that wakes itself
        // goes to the end of the queue, from which other threads steal: if one of the tasks before it blocks this thread, they go on.
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The turn of the work, which it may pass to other tasks.
#[derive(Clone, Debug, Default)]
pub(super) struct Turn {
    is_passed: Arc<AtomicBool>,
    /// The waker for what only the runtime wakes.
    of_runtime: Arc<OnceLock<Waker>>,
}

impl Turn {
    /// Polls a part of the work. If `is_driven`, only sockets and timers of the runtime wake it, or the engine of another manager: the
    /// thread that has looked at these runs the work next, so that no other thread has to be told. A task that waits in the queue of all
    /// threads is an exception, because the thread may take it first.
    pub(super) fn poll_driven<T>(
        &self,
        is_driven: bool,
        cx: &mut Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> T,
    ) -> T {
        match self.of_runtime.get().filter(|_| is_driven) {
            Some(waker) => poll(&mut Context::from_waker(waker)),
            None => poll(cx),
        }
    }

    /// Lets the tasks that are ready run first. Unlike [`pause`], it does not wait for timers and sockets of the runtime.
    pub(super) async fn pass(&self) {
        let mut passed = false;
        poll_fn(|_| {
            if std::mem::replace(&mut passed, true) {
                return Poll::Ready(());
            }
            self.is_passed.store(true, Ordering::SeqCst);
            Poll::Pending
        })
        .await;
    }
}

/// Gives the thread to other tasks once, and to timers and sockets of the runtime.
pub(super) async fn pause() {
    if !has_several_threads(&Handle::current()) {
        return yield_now().await;
    }
    // `yield_now` leaves the waker in a list of the thread, which is looked at when the thread has no other task. If one of its tasks
    // blocks, no other thread finds the engine there. A task that wakes the engine is in the slot of this thread instead, and thereby
    // the next that it runs.
    let mut paused = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut paused, true) {
            return Poll::Ready(());
        }
        let waker = cx.waker().clone();
        drop(tokio::spawn(async move { waker.wake() }));
        Poll::Pending
    })
    .await;
}

/// Starts the task.
pub(super) fn start(runtime: &Handle, turn: Turn, work: impl Future<Output = ()> + Send + 'static) {
    drop(runtime.spawn(in_turn(work, turn, runtime.clone())));
    if has_several_threads(runtime) {
        free_slot(runtime);
    }
}

/// Has the task that was woken or started last run by any thread of the runtime.
///
/// A thread of tokio keeps that task in a slot from which no other thread steals (`lifo_slot` in `schedule_local` of tokio's
/// `scheduler/multi_thread/worker.rs`). If the thread then blocks, for example in a password hash after a dropped guard, nobody renews
/// leases until it is done, however many threads are idle. So another task takes the slot: `schedule_local` then moves the engine's
/// task to the queue that others steal from, and wakes a thread for it. The other task has to be a new one each time. If one were kept
/// and stood in the slot of a blocked thread, to wake it once more would do nothing.
fn free_slot(runtime: &Handle) {
    drop(runtime.spawn(async {}));
}

fn has_several_threads(runtime: &Handle) -> bool {
    runtime.runtime_flavor() != RuntimeFlavor::CurrentThread
}

/// Whether the work was woken.
#[derive(Default)]
struct Bell {
    rung: AtomicBool,
    /// Whether the work is being polled, so that it is enough to ring.
    listening: AtomicBool,
    task: Mutex<Option<Waker>>,
}

/// A waker of the work.
struct Rope {
    bell: Arc<Bell>,
    /// The runtime of the task, if any of its threads may have to run the task.
    others: Option<Handle>,
    /// Whether only the runtime wakes it.
    is_driven: bool,
}

impl Bell {
    fn answer_to(&self, waker: &Waker) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        let unused = match &*task {
            Some(known) if known.will_wake(waker) => None,
            _ => task.replace(waker.clone()),
        };
        // The old waker is dropped outside the lock: it may own a task whose drop wakes this bell again, which would deadlock.
        drop(task);
        drop(unused);
    }
}

impl Wake for Rope {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let Self { bell, others, is_driven } = &**self;
        bell.rung.store(true, Ordering::SeqCst);
        if bell.listening.load(Ordering::SeqCst) {
            return;
        }
        let task = bell.task.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(task) = task {
            task.wake();
            // Now and then a thread takes a task from the queue of all threads before it looks into its slot. That task may block.
            if let Some(runtime) = others
                && (!is_driven || runtime.metrics().global_queue_depth() > 0)
            {
                free_slot(runtime);
            }
        }
    }
}

/// How often work is polled in a row.
const TURNS: usize = 32;

#[cfg(test)]
mod tests {
    use std::{
        sync::{atomic::AtomicUsize, mpsc},
        task::Wake,
        thread,
        time::Duration,
    };

    use tokio::{
        runtime::{Builder, Runtime},
        time::sleep,
    };

    use super::*;

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn one_thread() -> Runtime {
        Builder::new_current_thread().build().unwrap()
    }

    #[test]
    fn work_that_wakes_itself_is_polled_again_without_a_wake_up_of_its_task() {
        let counter = Arc::new(Counter::default());
        let waker = Waker::from(Arc::clone(&counter));
        let mut polls = 0;
        let kept = Arc::new(Mutex::new(None));
        let work = std::future::poll_fn(|cx| {
            polls += 1;
            *kept.lock().unwrap() = Some(cx.waker().clone());
            if polls < 5 {
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        });
        let mut task = Box::pin(in_turn(work, Turn::default(), one_thread().handle().clone()));
        assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(counter.0.load(Ordering::SeqCst), 0);
        kept.lock().unwrap().take().unwrap().wake();
        assert_eq!(counter.0.load(Ordering::SeqCst), 1, "from outside, the task is woken");
        drop(task);
        assert_eq!(polls, 5);
    }

    #[test]
    fn work_that_never_rests_gives_the_thread_back() {
        let counter = Arc::new(Counter::default());
        let waker = Waker::from(Arc::clone(&counter));
        let mut task = Box::pin(in_turn(
            std::future::poll_fn(|cx| {
                cx.waker().wake_by_ref();
                Poll::Pending
            }),
            Turn::default(),
            one_thread().handle().clone(),
        ));
        assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(counter.0.load(Ordering::SeqCst), 1);
    }

    /// Some turns of a thread are such, and all of them here: it looks at timers, and then takes a task from outside before the work that
    /// they have woken.
    #[test]
    fn work_that_a_timer_has_woken_is_not_held_up_by_a_task_that_goes_before_it() {
        let mut runtime = Builder::new_multi_thread();
        let runtime =
            runtime.worker_threads(2).event_interval(1).global_queue_interval(1).enable_all().build().unwrap();
        let (turn, (send, polled)) = (Turn::default(), mpsc::channel());
        let driven = turn.clone();
        start(runtime.handle(), turn, async move {
            let mut timer = pin!(sleep(TICK));
            poll_fn(|cx| driven.poll_driven(true, cx, |cx| timer.as_mut().poll(cx))).await;
            send.send(()).unwrap();
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
        let task = runtime.spawn(async move {
            begin.send(()).unwrap();
            polled.recv_timeout(SOON).is_ok()
        });
        thread::sleep(2 * TICK);
        drop(one);
        has_begun.recv_timeout(SOON).unwrap();
        drop(two);
        assert!(runtime.block_on(task).unwrap(), "it stands behind the task that is blocked");
    }

    const TICK: Duration = Duration::from_secs(1);
    const SOON: Duration = Duration::from_secs(60);
}
