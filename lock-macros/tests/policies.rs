//! `on_busy`, `on_lost` and `at_least`, with every return type that they make possible. bad_input_53, bad_input_55

use std::{
    future::{Future, poll_fn},
    sync::atomic::{AtomicUsize, Ordering},
    task::Poll,
    time::Duration,
};

use lock_core::{Error, ErrorKind, LockManager, LossReason, distributed_lock};

/// Counts the events of one level, nothing else.
mod log {
    use std::sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    };

    use tracing::{Level, Metadata, span};

    #[derive(Clone)]
    pub(super) struct Events(pub(super) Level, pub(super) Arc<AtomicUsize>);

    impl Events {
        /// Counts what is logged at `level` by this thread until the guard is dropped.
        pub(super) fn watch(level: Level) -> (Self, tracing::subscriber::DefaultGuard) {
            // With one subscriber alone in the process, the first thread to log an event decides for all of them
            // whether it is of interest, also a thread that has no subscriber.
            static OTHER: OnceLock<tracing::Dispatch> = OnceLock::new();
            OTHER.get_or_init(|| tracing::Dispatch::new(Self(level, Arc::default())));
            let events = Self(level, Arc::default());
            (events.clone(), tracing::subscriber::set_default(events))
        }

        pub(super) fn count(&self) -> usize {
            self.1.load(Ordering::SeqCst)
        }
    }

    impl tracing::Subscriber for Events {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.is_event()
                && *metadata.level() == self.0
                && metadata.target() == "lock_core::macro_support::result"
        }

        fn event(&self, _: &tracing::Event<'_>) {
            self.1.fetch_add(1, Ordering::SeqCst);
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }
}

mod skip {
    use tracing::Level;

    use super::*;

    #[distributed_lock(key = "k", on_busy = skip)]
    async fn unit_result(ran: &AtomicUsize) -> Result<(), Error> {
        ran.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    #[distributed_lock(key = "k", on_busy = skip)]
    async fn option_result() -> Result<Option<u8>, Error> {
        Ok(Some(1))
    }

    #[distributed_lock(key = "k", on_busy = skip, on_lost = cancel)]
    async fn unit(ran: &AtomicUsize) {
        ran.fetch_add(1, Ordering::SeqCst);
    }

    #[distributed_lock(key = "k", on_busy = skip, on_lost = ignore)]
    async fn option() -> Option<u8> {
        Some(1)
    }

    #[tokio::test(start_paused = true)]
    async fn busy_key_skips_the_body_at_once_and_is_no_error() -> Result<(), Error> {
        let (manager, ran) = (LockManager::in_memory(), AtomicUsize::new(0));
        let (errors, _default) = log::Events::watch(Level::ERROR);
        let guard = manager.lock("k").await?;
        let began = tokio::time::Instant::now();
        manager.scope(unit_result(&ran)).await?;
        assert_eq!(manager.scope(option_result()).await?, None);
        manager.scope(unit(&ran)).await;
        assert_eq!(manager.scope(option()).await, None);
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert_eq!((ran.load(Ordering::SeqCst), errors.count()), (0, 0));

        guard.release().await?;
        manager.scope(unit_result(&ran)).await?;
        assert_eq!(manager.scope(option_result()).await?, Some(1));
        manager.scope(unit(&ran)).await;
        assert_eq!(manager.scope(option()).await, Some(1));
        assert_eq!(ran.load(Ordering::SeqCst), 2);
        Ok(())
    }

    #[distributed_lock(key = "k", on_busy = skip, wait = "1s")]
    async fn patient_result() -> Result<Option<u8>, Error> {
        Ok(Some(1))
    }

    #[distributed_lock(key = "k", on_busy = skip, wait = "1s", on_lost = cancel)]
    async fn patient() -> Option<u8> {
        Some(1)
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_that_is_full_is_an_error_and_not_a_busy_key() -> Result<(), Error> {
        let manager = LockManager::builder().url("memory://").max_waiters_per_key(1).build()?;
        let (errors, _default) = log::Events::watch(Level::ERROR);
        let _guard = manager.lock("k").await?;
        let mut waiting = std::pin::pin!(manager.lock("k").wait_forever().acquire());
        assert!(poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await);
        let error = manager.scope(patient_result()).await.unwrap_err();
        assert_eq!((error.kind(), errors.count()), (ErrorKind::Overloaded, 0));
        assert_eq!(manager.scope(patient()).await, None);
        assert_eq!(errors.count(), 1, "nobody would notice that the work is never done");
        Ok(())
    }

    #[tokio::test]
    async fn skip_is_told_to_who_listens_to_details() -> Result<(), Error> {
        let manager = LockManager::in_memory();
        let (details, _default) = log::Events::watch(Level::DEBUG);
        let _guard = manager.lock("k").await?;
        manager.scope(unit(&AtomicUsize::new(0))).await;
        assert_eq!(details.count(), 1);
        Ok(())
    }

    #[tokio::test]
    async fn other_failure_is_an_error_where_there_is_a_result_and_is_logged_where_there_is_none() {
        let (errors, _default) = log::Events::watch(Level::ERROR);
        let (manager, ran) = (LockManager::in_memory(), AtomicUsize::new(0));
        manager.shutdown(Duration::ZERO).await;
        manager
            .scope(async {
                assert_eq!(unit_result(&ran).await.unwrap_err().kind(), ErrorKind::ShutDown);
                assert_eq!(option_result().await.unwrap_err().kind(), ErrorKind::ShutDown);
                assert_eq!(errors.count(), 0, "the caller gets the error and may log it");
                unit(&ran).await;
                assert_eq!(errors.count(), 1);
                assert_eq!(option().await, None);
                assert_eq!((errors.count(), ran.load(Ordering::SeqCst)), (2, 0));
            })
            .await;
    }

    #[tokio::test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "no lock manager is installed or in scope; call `LockManager::install` once at start-up")]
    async fn forgotten_manager_panics_in_a_debug_build_where_there_is_no_result() {
        unit(&AtomicUsize::new(0)).await;
    }

    #[tokio::test]
    #[cfg(not(debug_assertions))]
    async fn forgotten_manager_is_logged_in_a_release_build_where_there_is_no_result() {
        let (errors, _default) = log::Events::watch(Level::ERROR);
        unit(&AtomicUsize::new(0)).await;
        assert_eq!(errors.count(), 1);
    }

    #[tokio::test]
    async fn forgotten_manager_is_an_error_where_there_is_a_result() {
        assert_eq!(unit_result(&AtomicUsize::new(0)).await.unwrap_err().kind(), ErrorKind::NoManager);
    }

    #[distributed_lock(key = "k", on_busy = skip, wait = "5s")]
    async fn waits_and_skips() -> Result<Option<u8>, Error> {
        Ok(Some(1))
    }

    #[tokio::test(start_paused = true)]
    async fn wait_that_is_given_comes_before_the_skip() -> Result<(), Error> {
        let manager = LockManager::in_memory();
        let guard = manager.lock("k").await?;
        let began = tokio::time::Instant::now();
        assert_eq!(manager.scope(waits_and_skips()).await?, None);
        assert!(began.elapsed() >= Duration::from_secs(5), "{:?}", began.elapsed());
        drop(guard);
        assert_eq!(manager.scope(waits_and_skips()).await?, Some(1));
        Ok(())
    }
}

mod on_lost {
    use super::*;

    /// Loses the lease by force and then goes on until after the engine has told.
    async fn lose(manager: &LockManager) {
        manager.force_release("k").await.expect("memory never fails");
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
    }

    #[distributed_lock(key = "k", manager = locks, on_lost = cancel)]
    async fn cancelled(locks: &LockManager, ended: &AtomicUsize) -> Result<u8, Error> {
        lose(locks).await;
        ended.fetch_add(1, Ordering::SeqCst);
        Ok(1)
    }

    #[distributed_lock(key = "k", manager = locks, on_lost = finish)]
    async fn finished(locks: &LockManager, ended: &AtomicUsize) -> Result<u8, Error> {
        lose(locks).await;
        ended.fetch_add(1, Ordering::SeqCst);
        Ok(1)
    }

    #[distributed_lock(key = "k", manager = locks, on_lost = ignore)]
    async fn ignored(locks: &LockManager, ended: &AtomicUsize) -> Result<u8, Error> {
        lose(locks).await;
        ended.fetch_add(1, Ordering::SeqCst);
        Ok(1)
    }

    #[tokio::test]
    async fn lost_lease_cancels_the_body_or_lets_it_finish_or_is_ignored() -> Result<(), Error> {
        let (locks, ended) = (LockManager::in_memory(), AtomicUsize::new(0));
        let forced = ErrorKind::Lost(LossReason::Forced);
        assert_eq!(cancelled(&locks, &ended).await.unwrap_err().kind(), forced);
        assert_eq!(ended.load(Ordering::SeqCst), 0);
        assert_eq!(finished(&locks, &ended).await.unwrap_err().kind(), forced);
        assert_eq!(ended.load(Ordering::SeqCst), 1);
        assert_eq!(ignored(&locks, &ended).await?, 1);
        assert_eq!(ended.load(Ordering::SeqCst), 2);
        Ok(())
    }

    #[distributed_lock(keys = ["k", "l"], manager = locks, on_lost = finish)]
    async fn several(locks: &LockManager, ended: &AtomicUsize) -> Result<u8, Error> {
        lose(locks).await;
        ended.fetch_add(1, Ordering::SeqCst);
        Ok(1)
    }

    #[distributed_lock(key = "k", manager = locks, on_busy = skip, on_lost = cancel)]
    async fn unit(locks: &LockManager, ended: &AtomicUsize) {
        lose(locks).await;
        ended.fetch_add(1, Ordering::SeqCst);
    }

    #[distributed_lock(key = "k", manager = locks, on_busy = skip, on_lost = finish)]
    async fn option(locks: &LockManager, ended: &AtomicUsize) -> Option<u8> {
        lose(locks).await;
        ended.fetch_add(1, Ordering::SeqCst);
        Some(1)
    }

    #[tokio::test]
    async fn policy_is_the_same_for_several_keys() {
        let (locks, ended) = (LockManager::in_memory(), AtomicUsize::new(0));
        let error = several(&locks, &ended).await.unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Lost(LossReason::Forced), Some("k")));
        assert_eq!(ended.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn loss_is_logged_where_the_return_type_cannot_say_so() {
        let (locks, ended) = (LockManager::in_memory(), AtomicUsize::new(0));
        let (errors, _default) = log::Events::watch(tracing::Level::ERROR);
        unit(&locks, &ended).await;
        assert_eq!((errors.count(), ended.load(Ordering::SeqCst)), (1, 0));
        assert_eq!(option(&locks, &ended).await, None);
        assert_eq!((errors.count(), ended.load(Ordering::SeqCst)), (2, 1));
    }
}

mod at_least {
    use super::*;

    #[distributed_lock(key = "nightly", at_least = "60s", on_busy = skip)]
    async fn nightly() -> Result<Option<u8>, Error> {
        Ok(Some(1))
    }

    #[tokio::test(start_paused = true)]
    async fn shorter_run_keeps_the_key_for_that_long() -> Result<(), Error> {
        let manager = LockManager::in_memory();
        assert_eq!(manager.scope(nightly()).await?, Some(1));
        assert_eq!(manager.scope(nightly()).await?, None);
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(manager.scope(nightly()).await?, None);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(manager.scope(nightly()).await?, Some(1));
        Ok(())
    }

    #[distributed_lock(key = "nightly", at_least = "60s", on_busy = skip)]
    async fn stopped(panics: bool) -> Result<Option<u8>, Error> {
        assert!(!panics, "on purpose");
        std::future::pending().await
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_panics_or_is_dropped_keeps_no_key() -> Result<(), Error> {
        let manager = LockManager::in_memory();
        let scoped = manager.clone();
        let panicked = tokio::spawn(async move { scoped.scope(stopped(true)).await });
        assert!(panicked.await.unwrap_err().is_panic());
        assert!(tokio::time::timeout(Duration::from_secs(1), manager.scope(stopped(false))).await.is_err());
        assert_eq!(manager.scope(nightly()).await?, Some(1));
        Ok(())
    }
}

/// The policies add nothing that keeps a future from being sent.
#[tokio::test]
async fn future_is_send_with_every_policy() {
    #[distributed_lock(keys = ["a", "b"], at_least = "1ms", on_busy = skip, on_lost = finish)]
    async fn locked() -> Result<(), Error> {
        poll_fn(|_| Poll::Ready(())).await;
        Ok(())
    }

    fn assert_send<F: Future + Send>(future: F) -> F {
        future
    }
    assert!(LockManager::in_memory().scope(assert_send(locked())).await.is_ok());
}
