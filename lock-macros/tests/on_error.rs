//! Every way out of a locked function gives the lock back, and every failure arrives as the function's error.

use std::{
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use lock_core::{Argument, Error, ErrorKind, LockManager, distributed_lock};

#[derive(Debug)]
enum Failure {
    Lock(Error),
    Mine(&'static str),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

impl Failure {
    fn lock(self) -> Error {
        match self {
            Self::Lock(error) => error,
            Self::Mine(text) => panic!("the body answered {text}"),
        }
    }
}

/// Waits, for less than the ttl, until nobody holds the key.
async fn assert_free(manager: &LockManager, key: &str) {
    let guard = manager.lock(key).wait(Duration::from_secs(5)).await;
    guard.expect("the lock was given back").release().await.expect("released");
}

/// Polls a future once, as a task does that is not woken again.
fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

mod ways_out {
    use super::*;

    #[derive(Clone, Copy)]
    enum Way {
        Value,
        Error,
        QuestionMark,
        EarlyReturn,
        OutOfLoop,
        Panic,
        Never,
    }

    fn fails() -> Result<u8, Failure> {
        Err(Failure::Mine("?"))
    }

    #[distributed_lock(key = "k")]
    async fn leave(way: Way, out: &mut u8) -> Result<u8, Failure> {
        *out += 1;
        tokio::task::yield_now().await;
        match way {
            Way::Value => {}
            Way::Error => Err(Failure::Mine("tail"))?,
            Way::QuestionMark => *out += fails()?,
            Way::EarlyReturn => return Ok(1),
            Way::OutOfLoop => loop {
                tokio::task::yield_now().await;
                if *out > 0 {
                    return Ok(2);
                }
            },
            Way::Panic => panic!("on purpose"),
            Way::Never => std::future::pending().await,
        }
        *out += 10;
        Ok(0)
    }

    #[tokio::test]
    async fn bad_input_64_lock_is_given_back_on_every_way_out() {
        let manager = LockManager::in_memory();
        for (way, expected) in [
            (Way::Value, Ok(0)),
            (Way::Error, Err("tail")),
            (Way::QuestionMark, Err("?")),
            (Way::EarlyReturn, Ok(1)),
            (Way::OutOfLoop, Ok(2)),
        ] {
            let mut out = 0;
            match (manager.scope(leave(way, &mut out)).await, expected) {
                (Ok(value), Ok(expected)) => assert_eq!(value, expected),
                (Err(Failure::Mine(text)), Err(expected)) => assert_eq!(text, expected),
                (other, expected) => panic!("{other:?} instead of {expected:?}"),
            }
            assert_eq!(out, if matches!(way, Way::Value) { 11 } else { 1 });
            assert!(!manager.is_locked("k").await.unwrap(), "released before the function returned");
        }
    }

    #[tokio::test]
    async fn bad_input_64_panic_in_the_body_goes_on_to_the_caller_and_gives_the_lock_back() {
        let manager = LockManager::in_memory();
        let scoped = manager.clone();
        let task =
            tokio::spawn(async move { scoped.scope(AssertUnwindSafe(leave(Way::Panic, &mut 0)).0).await.is_ok() });
        assert!(task.await.unwrap_err().is_panic());
        assert_free(&manager, "k").await;
    }

    #[tokio::test]
    async fn bad_input_64_future_dropped_inside_the_body_gives_the_lock_back() {
        let manager = LockManager::in_memory();
        let mut out = 0;
        {
            let mut stuck = pin!(manager.scope(leave(Way::Never, &mut out)));
            while !manager.is_locked("k").await.unwrap() {
                let _ = tokio::time::timeout(Duration::from_millis(1), &mut stuck).await;
            }
        }
        assert_free(&manager, "k").await;
    }

    #[tokio::test(start_paused = true)]
    async fn future_dropped_while_it_waits_leaves_the_key_to_its_holder_and_its_place_to_nobody() {
        let manager = LockManager::in_memory();
        let guard = manager.lock("k").await.unwrap();
        let waiters = async || manager.inspect("k").await.unwrap().waiters().len();
        let mut out = 0;
        {
            let mut waiting = pin!(manager.scope(leave(Way::Value, &mut out)));
            assert!(poll_once(waiting.as_mut()).is_pending());
            assert_eq!(waiters().await, 1);
        }
        assert_eq!(waiters().await, 0, "the place in the line is left");
        assert_eq!(out, 0, "the body never began");
        assert!(guard.is_held());
        // The next one has the key as soon as its holder is done, and not after a turn that nobody takes.
        let mut next = pin!(manager.lock("k").acquire());
        assert!(poll_once(next.as_mut()).is_pending());
        let before = tokio::time::Instant::now();
        guard.release().await.unwrap();
        next.await.unwrap().release().await.unwrap();
        assert_eq!(before.elapsed(), Duration::ZERO);
        assert_free(&manager, "k").await;
    }
}

mod arguments_and_the_lock {
    use super::*;

    /// Notes whether the key was held when it was dropped.
    struct Witness(Arc<std::sync::Mutex<Vec<bool>>>, LockManager);

    impl Drop for Witness {
        fn drop(&mut self) {
            use std::future::Future;
            let held = pin!(self.1.is_locked("k")).poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
            let std::task::Poll::Ready(held) = held else { panic!("memory answers at once") };
            self.0.lock().expect("not poisoned").push(held.expect("memory never fails"));
        }
    }

    struct Pair {
        witness: Witness,
        number: u8,
    }

    #[distributed_lock(key = "k", manager = locks)]
    async fn uses_half(locks: &LockManager, pair: Pair, _unused: Witness) -> Result<u8, Error> {
        Ok(pair.number)
    }

    #[tokio::test]
    async fn arguments_are_dropped_before_the_lock_is_given_back() -> Result<(), Error> {
        let (seen, locks) = (Arc::default(), LockManager::in_memory());
        let witness = || Witness(Arc::clone(&seen), locks.clone());
        uses_half(&locks, Pair { witness: witness(), number: 1 }, witness()).await?;
        assert_eq!(*seen.lock().unwrap(), [true, true]);
        let last = Pair { witness: witness(), number: 0 };
        drop(last.witness);
        assert_eq!(*seen.lock().unwrap(), [true, true, false], "the witness sees a free key too");
        Ok(())
    }
}

mod failures {
    use super::*;

    #[distributed_lock(key = "k", wait = "0s")]
    async fn locked() -> Result<(), Failure> {
        Ok(())
    }

    #[distributed_lock(key = "<key>")]
    async fn with_key(key: &str) -> Result<(), Failure> {
        Ok(())
    }

    struct Work<'a>(&'a mut Vec<&'static str>);

    impl Drop for Work<'_> {
        fn drop(&mut self) {
            self.0.push("dropped");
        }
    }

    #[distributed_lock(key = "k", ttl = "10ms", max_hold = "1ms")]
    async fn lost(seen: &mut Vec<&'static str>) -> Result<(), Failure> {
        let work = Work(seen);
        work.0.push("begun");
        std::future::pending().await
    }

    #[tokio::test]
    async fn busy_key_is_an_error_and_the_body_does_not_run() {
        let manager = LockManager::in_memory();
        let _guard = manager.lock("k").await.unwrap();
        let error = manager.scope(locked()).await.unwrap_err().lock();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Busy, Some("k")));
    }

    #[tokio::test]
    async fn no_manager_is_an_error() {
        assert_eq!(locked().await.unwrap_err().lock().kind(), ErrorKind::NoManager);
    }

    #[tokio::test]
    async fn key_that_renders_badly_is_an_error() {
        let manager = LockManager::in_memory();
        for key in ["", &"x".repeat(1025)] {
            let error = manager.scope(with_key(key)).await.unwrap_err().lock();
            assert_eq!(error.kind(), ErrorKind::Invalid(Argument::Key));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lost_lease_drops_the_body_and_is_an_error() {
        let mut seen = Vec::new();
        let error = LockManager::in_memory().scope(lost(&mut seen)).await.unwrap_err().lock();
        assert!(matches!(error.kind(), ErrorKind::Lost(_)), "{error}");
        assert_eq!(seen, ["begun", "dropped"]);
    }
}

mod recursion {
    use super::*;

    #[distributed_lock(key = "tree:<id>")]
    async fn descend(id: u8, depth: u8) -> Result<u8, Failure> {
        if depth == 0 { Ok(id) } else { Box::pin(descend(id, depth - 1)).await }
    }

    #[distributed_lock(keys = ["tree:<id>", "forest"])]
    async fn descend_in_a_list(id: u8, depth: u8) -> Result<u8, Failure> {
        if depth == 0 { Ok(id) } else { Box::pin(descend_in_a_list(id, depth - 1)).await }
    }

    #[distributed_lock(keys = [id, id].map(|id| format!("tree:{id}")))]
    async fn descend_in_a_collection(id: u8, depth: u8) -> Result<u8, Failure> {
        if depth == 0 { Ok(id) } else { Box::pin(descend_in_a_collection(id, depth - 1)).await }
    }

    #[distributed_lock(key = "tree:<id>")]
    async fn climb(id: u8) -> Result<u8, Failure> {
        if id == 3 { Ok(id) } else { Box::pin(climb(id + 1)).await }
    }

    #[tokio::test(start_paused = true)]
    async fn bad_input_62_function_that_asks_again_for_its_own_key_is_told_at_once() {
        let manager = LockManager::in_memory();
        type Call = Pin<Box<dyn Future<Output = Result<u8, Failure>>>>;
        let [one, list, collection]: [Call; 3] =
            [Box::pin(descend(1, 1)), Box::pin(descend_in_a_list(1, 1)), Box::pin(descend_in_a_collection(1, 1))];
        for call in [one, list, collection] {
            let began = tokio::time::Instant::now();
            let error = manager.scope(call).await.unwrap_err().lock();
            assert_eq!(began.elapsed(), Duration::ZERO, "answered without waiting");
            assert_eq!(error.kind(), ErrorKind::WouldDeadlock);
            assert!(error.key().is_some_and(|key| key == "tree:1" || key == "forest"), "{error}");
            assert_eq!(error.to_string().matches("on_error.rs").count(), 2, "names both places: {error}");
            assert_free(&manager, "tree:1").await;
        }
    }

    #[tokio::test]
    async fn function_may_call_itself_for_another_key() {
        assert_eq!(LockManager::in_memory().scope(climb(0)).await.unwrap(), 3);
    }
}
