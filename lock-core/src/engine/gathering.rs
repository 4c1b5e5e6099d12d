//! Which requests share a call: those of tasks that have been woken together.
//!
//! An answer wakes many tasks, and each is about to make its next request. The requests wait for one another, because each write costs more
//! than what is in it, until all are there or each task has had its turn. The backend has nothing to do meanwhile, and afterwards the tasks
//! have nothing to do. So if there are many, and no other call is in flight, the first half leaves by itself: the backend executes it while
//! the tasks make the other half, and from then on each half is on its way while the other is here.

/// How many requests gather at least for half of them to be worth a call.
const MANY: usize = 16;

/// The requests that gather.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// Whether requests wait for others.
    is_on: bool,
    /// How many wait or are about to be made. Others may come instead, or none.
    expected: usize,
    /// How many leave without the rest.
    enough: usize,
    /// Whether those that are there leave now.
    leaves: bool,
}

impl Gathering {
    /// Expects the requests of so many `woken` tasks, beside those that are `waiting`. `takes_two` says whether the backend is idle, and
    /// takes two calls.
    pub(super) fn expect(&mut self, woken: usize, waiting: usize, takes_two: bool) {
        let expected = woken + if self.is_on { self.expected.max(waiting) } else { waiting };
        let enough = if takes_two && expected >= MANY { expected.div_ceil(2) } else { expected };
        *self = Self { is_on: true, expected, enough, leaves: false };
    }

    /// Holds requests back until the [end](Self::end).
    pub(super) fn go_on(&mut self) {
        self.is_on = true;
    }

    /// Ends: nothing waits.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether requests are held back.
    pub(super) fn holds(&self) -> bool {
        self.is_on && !self.leaves
    }

    /// Looks at how many are `waiting`, and lets them leave if they are enough.
    pub(super) fn look(&mut self, waiting: usize) {
        self.leaves |= self.expected > 0 && waiting >= self.enough;
    }

    /// Records that those have left that were `waiting`. The rest goes on to gather.
    pub(super) fn left(&mut self, waiting: usize) {
        self.expected = self.expected.saturating_sub(waiting);
        (self.enough, self.leaves) = (self.expected, false);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        sync::{
            Arc, Mutex,
            atomic::{AtomicBool, Ordering},
        },
        task::Poll,
    };

    use smallvec::SmallVec;
    use tokio::{sync::Notify, task::JoinSet, time::Duration};

    use super::{super::task::ANSWERS, *};
    use crate::{
        LockManager,
        backend::{Answer, Backend, Batch, Calls, MemoryBackend, Operation, Reply},
        clock::{Clock, Moment, Sleep, TokioClock},
        key::LockKey,
    };

    /// A store that has each call when it returns, and whose answers are held back until it lets go.
    #[derive(Clone, Debug, Default)]
    struct Held {
        store: MemoryBackend,
        /// How many operations each call had.
        calls: Arc<Mutex<Vec<usize>>>,
        lets_go: Arc<Notify>,
        /// Whether answers are held back no longer.
        is_open: Arc<AtomicBool>,
        /// Holds back the answer for the key [`LATE`].
        lets_late_go: Arc<Notify>,
        /// The keys that were renewed.
        renewed: Arc<Mutex<Vec<String>>>,
        renews: Arc<Notify>,
        notices: Arc<Mutex<Option<Calls>>>,
    }

    impl Backend for Held {
        fn call(&self, batch: Batch) -> Reply<Answer> {
            self.calls.lock().expect("no panic").push(batch.len());
            let mut lets_go = Arc::clone(&self.lets_go);
            for operation in batch.iter() {
                match operation {
                    Operation::Renew(renew) => {
                        self.renewed.lock().expect("no panic").push(renew.key.as_str().to_owned());
                        self.renews.notify_one();
                    }
                    Operation::Acquire(acquire) if acquire.key.as_str() == LATE => {
                        lets_go = Arc::clone(&self.lets_late_go);
                    }
                    _ => {}
                }
            }
            let (answer, is_open) = (self.store.call(batch), Arc::clone(&self.is_open));
            let answer = async move {
                if !is_open.load(Ordering::SeqCst) {
                    lets_go.notified().await;
                }
                answer.await
            };
            Reply::put(Box::pin(answer), Some(SmallVec::new()))
        }

        fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
            self.store.list(prefix)
        }

        fn sends_at_once(&self) -> bool {
            true
        }

        fn driver(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
            *self.notices.lock().expect("no panic") = Some(calls);
            Box::pin(std::future::pending())
        }

        fn time_limit(&self) -> Duration {
            LIMIT
        }
    }

    /// The key whose answer is held back for longer.
    const LATE: &str = "late";
    const LIMIT: Duration = Duration::from_secs(1);

    /// A clock that goes on while a task blocks the thread.
    #[derive(Debug, Default)]
    struct Blocked {
        clock: TokioClock,
        is_over: AtomicBool,
    }

    impl Clock for Blocked {
        fn now(&self) -> Moment {
            self.clock.now() + if self.is_over.load(Ordering::SeqCst) { 2 * LIMIT } else { Duration::ZERO }
        }

        fn sleep(&self, duration: Duration) -> Sleep {
            self.clock.sleep(duration)
        }
    }

    /// A manager whose time goes on only while nothing else is to be done.
    fn manager(backend: &Held) -> LockManager {
        manager_with(backend, Arc::new(TokioClock::new()))
    }

    fn manager_with(backend: &Held, clock: Arc<impl Clock>) -> LockManager {
        LockManager::builder().backend(backend.clone()).clock(clock).build().expect("a sound backend")
    }

    /// How many operations the calls have in which `tasks` that one call has woken acquire and release again. Beside them, a task makes two
    /// requests after so many `turns`.
    async fn calls_of(tasks: usize, turns: Option<usize>) -> Vec<usize> {
        let backend = Held::default();
        let manager = manager(&backend);
        let asked = || backend.calls.lock().expect("no panic").len();
        let first = tokio::spawn(manager.lock("first").acquire());
        let second = tokio::spawn(manager.lock("second").acquire());
        tokio::time::sleep(SOON).await;
        // As many calls are in flight as may be: the others wait, and share one when they are over.
        let mut woken = JoinSet::new();
        for number in 0..tasks {
            let acquire = manager.lock(format!("k:{number}")).acquire();
            woken.spawn(async move { acquire.await.expect("free").release().await.expect("held") });
        }
        tokio::time::sleep(SOON).await;
        assert_eq!(asked(), 2);
        backend.lets_go.notify_waiters();
        let guards = [first.await, second.await].map(|guard| guard.expect("no panic").expect("free"));
        tokio::time::sleep(SOON).await;
        assert_eq!(asked(), 3);
        backend.lets_go.notify_waiters();
        if let Some(turns) = turns {
            let beside = [manager.lock("third").acquire(), manager.lock("fourth").acquire()];
            woken.spawn(async move {
                for _ in 0..turns {
                    turn().await;
                }
                drop(futures_util::future::join_all(beside).await);
            });
        }
        tokio::time::sleep(SOON).await;
        while !woken.is_empty() {
            backend.lets_go.notify_waiters();
            tokio::time::sleep(SOON).await;
            while let Some(done) = woken.try_join_next() {
                done.expect("no panic");
            }
        }
        let calls = backend.calls.lock().expect("no panic")[2..].to_vec();
        guards.into_iter().for_each(std::mem::forget);
        calls
    }

    /// Goes to the end of the queue of tasks. (`yield_now` waits until the queue is empty.)
    async fn turn() {
        let mut passed = false;
        std::future::poll_fn(|cx| {
            if std::mem::replace(&mut passed, true) {
                return std::task::Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            std::task::Poll::Pending
        })
        .await;
    }

    const SOON: Duration = Duration::from_millis(1);
    /// The engine's task has looked again by then.
    const KNOWN: Duration = Duration::from_millis(300);

    #[tokio::test(start_paused = true)]
    async fn the_next_requests_of_few_tasks_share_a_call_and_those_of_many_share_two() {
        assert_eq!(calls_of(15, None).await, [15, 15]);
        assert_eq!(calls_of(17, None).await, [17, 9, 8]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_gathering_leaves_no_wake_up_behind() {
        assert_eq!(calls_of(15, Some(0)).await, [15, 15, 2, 2], "before the end of the turn");
        for turns in 1..8 {
            let calls = calls_of(15, Some(turns)).await;
            assert_eq!(calls[..3], [15, 15, 1], "each leaves at once");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_come_while_a_task_blocks_the_turn_count_though_their_limit_has_passed() {
        let (backend, clock) = (Held::default(), Arc::new(Blocked::default()));
        let manager = manager_with(&backend, Arc::clone(&clock));
        let mut woken = JoinSet::new();
        // The first two have calls of their own, and the others are woken by one answer.
        for number in 0..20 {
            let acquire = manager.lock(format!("k:{number}")).ttl(100 * LIMIT).acquire();
            let (backend, clock) = (backend.clone(), Arc::clone(&clock));
            woken.spawn(async move {
                let mut release = Box::pin(acquire.await.expect("free").release());
                let mut released = futures_util::poll!(&mut release);
                if number == 11 {
                    assert_eq!(backend.calls.lock().expect("no panic").last(), Some(&10), "a half has left");
                    // It is answered while this blocks the thread.
                    backend.is_open.store(true, Ordering::SeqCst);
                    clock.is_over.store(true, Ordering::SeqCst);
                }
                if released.is_pending() {
                    released = Poll::Ready(release.await);
                }
                assert!(matches!(released, Poll::Ready(Ok(()))), "{released:?}");
            });
        }
        for _ in 0..2 {
            tokio::time::sleep(SOON).await;
            backend.lets_go.notify_waiters();
        }
        woken.join_all().await;
        assert!(backend.is_open.load(Ordering::SeqCst));
    }

    /// Has so many leases extended, in calls of their own that are not answered yet.
    async fn extending(
        backend: &Held,
        manager: &LockManager,
        leases: usize,
    ) -> JoinSet<Result<Duration, crate::Error>> {
        backend.is_open.store(true, Ordering::SeqCst);
        let acquires = (0..leases).map(|number| manager.lock(format!("k:{number}")).ttl(100 * LIMIT).acquire());
        let guards = futures_util::future::join_all(acquires).await;
        backend.is_open.store(false, Ordering::SeqCst);
        let before = backend.calls.lock().expect("no panic").len();
        let mut extending = JoinSet::new();
        for guard in guards {
            let mut guard = guard.expect("free");
            extending.spawn(async move {
                let extended = guard.extend(200 * LIMIT).await;
                std::mem::forget(guard);
                extended
            });
        }
        tokio::time::sleep(KNOWN).await;
        assert_eq!(backend.calls.lock().expect("no panic").len() - before, leases);
        extending
    }

    #[tokio::test(start_paused = true)]
    async fn all_answers_that_have_come_count_however_many_they_are() {
        let (backend, clock) = (Held::default(), Arc::new(Blocked::default()));
        let manager = manager_with(&backend, Arc::clone(&clock));
        let extending = extending(&backend, &manager, 40).await;
        // As if this task had blocked the thread until the limits have passed.
        clock.is_over.store(true, Ordering::SeqCst);
        backend.lets_go.notify_waiters();
        for extended in extending.join_all().await {
            extended.expect("it was answered");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_counts_that_comes_in_the_turn_that_tasks_have_after_many() {
        let (backend, clock) = (Held::default(), Arc::new(Blocked::default()));
        let manager = manager_with(&backend, Arc::clone(&clock));
        let mut extending = extending(&backend, &manager, ANSWERS).await;
        let late = tokio::spawn(manager.lock(LATE).ttl(100 * LIMIT).acquire());
        tokio::time::sleep(KNOWN).await;
        backend.lets_go.notify_waiters();
        // The first that is woken blocks the thread.
        extending.join_next().await.expect("many").expect("no panic").expect("it was answered");
        clock.is_over.store(true, Ordering::SeqCst);
        backend.lets_late_go.notify_one();
        std::mem::forget(late.await.expect("no panic").expect("it was answered"));
        drop(extending.join_all().await);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_gather_do_not_wait_for_the_answers_to_all_renewals() {
        const LEASES: usize = 32_768;
        let backend = Held::default();
        let manager = manager(&backend);
        backend.is_open.store(true, Ordering::SeqCst);
        let keys: Vec<_> = (0..LEASES).map(|number| format!("k:{number}")).collect();
        let acquires = keys.iter().map(|key| manager.lock(key.as_str()).ttl(100 * LIMIT).acquire());
        let guards = futures_util::future::join_all(acquires).await;
        backend.renews.notified().await;
        std::mem::forget(manager.lock("x").ttl(100 * LIMIT).await.expect("free"));
        let renewed = backend.renewed.lock().expect("no panic").len();
        assert!(renewed < LEASES, "it was asked for when all were renewed");
        guards.into_iter().for_each(|guard| std::mem::forget(guard.expect("free")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_renewed_over_a_connection_that_is_told_with_the_answer_that_grants_it() {
        let backend = Held::default();
        let manager = manager(&backend);
        let lock = |key: &str| tokio::spawn(manager.lock(key).ttl(600 * LIMIT).acquire());
        let first = [lock("first"), lock("second")];
        tokio::time::sleep(SOON).await;
        // These two share a call. In the turn that its answer gives them, one tells of a connection, and of the answer that grants the last
        // lease.
        let (third, tells) = (manager.lock("third").ttl(600 * LIMIT).acquire(), backend.clone());
        let third = tokio::spawn(async move {
            let guard = third.await;
            tells.notices.lock().expect("no panic").as_ref().expect("it runs").connected();
            tells.lets_late_go.notify_one();
            guard
        });
        let fourth = lock("fourth");
        tokio::time::sleep(SOON).await;
        backend.lets_go.notify_waiters();
        tokio::time::sleep(SOON).await;
        let late = lock(LATE);
        tokio::time::sleep(SOON).await;
        assert_eq!(backend.calls.lock().expect("no panic")[..], [1, 1, 2, 1]);
        backend.lets_go.notify_waiters();
        let mut guards = Vec::new();
        for guard in first.into_iter().chain([third, fourth, late]) {
            guards.push(guard.await.expect("no panic").expect("free"));
        }
        backend.is_open.store(true, Ordering::SeqCst);
        tokio::time::sleep(10 * LIMIT).await;
        let renewed = backend.renewed.lock().expect("no panic").clone();
        assert!(renewed.iter().any(|key| key == LATE), "{renewed:?}");
        guards.into_iter().for_each(std::mem::forget);
    }

    fn begun(expected: usize, takes_two: bool) -> Gathering {
        let mut gathering = Gathering::default();
        gathering.expect(expected, 0, takes_two);
        gathering
    }

    /// Whether so many leave.
    fn leave(gathering: &mut Gathering, waiting: usize) -> bool {
        gathering.look(waiting);
        let leaves = !gathering.holds();
        if leaves {
            gathering.left(waiting);
        }
        leaves
    }

    #[test]
    fn few_leave_when_all_are_there() {
        let mut gathering = begun(3, true);
        assert_eq!([1, 2, 3].map(|waiting| leave(&mut gathering, waiting)), [false, false, true]);
        assert!(!leave(&mut gathering, 9), "what comes behind them waits for the end");
    }

    #[test]
    fn half_of_many_leave_when_they_are_there_and_then_the_rest() {
        let mut gathering = begun(17, true);
        assert_eq!([8, 9, 7, 8].map(|waiting| leave(&mut gathering, waiting)), [false, true, false, true]);
    }

    #[test]
    fn all_leave_together_if_the_backend_is_busy() {
        let mut gathering = begun(40, false);
        assert_eq!([39, 40].map(|waiting| leave(&mut gathering, waiting)), [false, true]);
    }

    #[test]
    fn those_who_wait_and_those_whom_a_later_answer_wakes_are_expected_too() {
        let mut gathering = Gathering::default();
        gathering.expect(2, 3, true);
        gathering.expect(4, 3, true);
        assert_eq!([8, 9].map(|waiting| leave(&mut gathering, waiting)), [false, true]);
    }

    #[test]
    fn requests_that_nobody_foresaw_wait_for_the_end() {
        let mut gathering = Gathering::default();
        assert!(!gathering.holds());
        gathering.go_on();
        assert!(!leave(&mut gathering, 100));
        gathering.end();
        assert!(!gathering.holds());
    }
}
