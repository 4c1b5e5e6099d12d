//! `on_error`: what a function returns when it could not acquire the lease, or lost it, whatever its return type.

use std::{
    error, io,
    sync::atomic::{AtomicUsize, Ordering},
};

use axum::http::StatusCode;
use lock_core::{Error, ErrorKind, LockManager, LossReason, distributed_lock};
use tonic::{Code, Status};

/// Loses the lease by force and then goes on until after the engine has told.
async fn lose(manager: &LockManager) {
    manager.force_release("goods:1").await.expect("memory never fails");
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
}

/// Results whose error is a type of another crate, which cannot become `From<lock_core::Error>`.
mod errors_of_others {
    use super::*;

    fn status(error: Error) -> Status {
        if error.is_busy() { Status::aborted(error.public_message()) } else { Status::internal(error.code()) }
    }

    #[distributed_lock(key = "goods:<id>", wait = "0s", manager = locks, on_error = status)]
    async fn grpc(locks: &LockManager, id: u8) -> Result<u8, Status> {
        lose(locks).await;
        Ok(id)
    }

    #[distributed_lock(key = "goods:<id>", wait = "0s", manager = locks, on_error = |error| match error.kind() {
        ErrorKind::Busy => StatusCode::CONFLICT,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    })]
    async fn http(locks: &LockManager, id: u8) -> Result<u8, StatusCode> {
        lose(locks).await;
        Ok(id)
    }

    #[distributed_lock(
        key = "goods:<id>", wait = "0s", manager = locks,
        on_error = |error| (StatusCode::CONFLICT, format!("goods {id}: {}", error.code())),
    )]
    async fn http_with_a_body(locks: &LockManager, id: u8) -> Result<u8, (StatusCode, String)> {
        lose(locks).await;
        Ok(id)
    }

    #[distributed_lock(key = "goods:<id>", wait = "0s", manager = locks, on_error = |error| error.code().to_owned())]
    async fn text(locks: &LockManager, id: u8) -> Result<u8, String> {
        lose(locks).await;
        Ok(id)
    }

    #[distributed_lock(key = "goods:<id>", wait = "0s", manager = locks, on_error = io::Error::other)]
    async fn io(locks: &LockManager, id: u8) -> io::Result<u8> {
        lose(locks).await;
        Ok(id)
    }

    #[distributed_lock(key = "goods:<id>", wait = "0s", manager = locks, on_error = |_| Err(()))]
    async fn whole_result(locks: &LockManager, id: u8) -> Result<u8, ()> {
        lose(locks).await;
        Ok(id)
    }

    #[distributed_lock(key = "goods:<id>", wait = "0s", manager = locks, on_error = E::from)]
    async fn generic<E: From<Error>>(locks: &LockManager, id: u8) -> Result<u8, E> {
        lose(locks).await;
        Ok(id)
    }

    #[tokio::test]
    async fn busy_key_and_loss_become_the_error_type_of_the_result() -> Result<(), Error> {
        let locks = LockManager::in_memory();
        assert_eq!(grpc(&locks, 1).await.map_err(|status| status.code()), Err(Code::Internal));
        assert_eq!(http(&locks, 1).await, Err(StatusCode::SERVICE_UNAVAILABLE));
        assert_eq!(http_with_a_body(&locks, 1).await, Err((StatusCode::CONFLICT, "goods 1: lock_lost".to_owned())));
        assert_eq!(text(&locks, 1).await, Err("lock_lost".to_owned()));
        assert!(io(&locks, 1).await.unwrap_err().to_string().contains("lost"));
        assert_eq!(whole_result(&locks, 1).await, Err(()));
        assert!(generic::<Error>(&locks, 1).await.unwrap_err().is_lost());

        let _guard = locks.lock("goods:1").await?;
        let _other = locks.lock("goods:2").await?;
        let busy = "locked by another request; nothing was done, try again later";
        assert_eq!(grpc(&locks, 1).await.map_err(|status| status.message().to_owned()), Err(busy.to_owned()));
        assert_eq!(http(&locks, 1).await, Err(StatusCode::CONFLICT));
        assert_eq!(http_with_a_body(&locks, 2).await, Err((StatusCode::CONFLICT, "goods 2: lock_busy".to_owned())));
        assert_eq!(text(&locks, 1).await, Err("lock_busy".to_owned()));
        assert!(io(&locks, 1).await.unwrap_err().get_ref().is_some_and(<dyn error::Error + Send + Sync>::is::<Error>));
        assert_eq!(whole_result(&locks, 1).await, Err(()));
        assert!(generic::<Error>(&locks, 1).await.unwrap_err().is_busy());

        assert_eq!(http(&locks, 3).await, Ok(3), "another key");
        Ok(())
    }
}

/// Functions that return no `Result`.
mod any_type {
    use super::*;

    #[derive(Debug, PartialEq)]
    enum Answer {
        Sold(u64),
        Refused(ErrorKind),
    }

    fn refused(error: Error) -> Answer {
        Answer::Refused(error.kind())
    }

    #[distributed_lock(key = "goods:<id>", wait = "0s", manager = locks, on_error = refused)]
    async fn sell(locks: &LockManager, id: u64) -> Answer {
        lose(locks).await;
        Answer::Sold(id)
    }

    #[distributed_lock(key = "goods:<id>", wait = "0s", manager = locks, on_error = refused, on_lost = finish)]
    async fn finish(locks: &LockManager, id: u64, ended: &AtomicUsize) -> Answer {
        lose(locks).await;
        ended.fetch_add(1, Ordering::SeqCst);
        Answer::Sold(id)
    }

    #[distributed_lock(key = "goods:<id>", wait = "0s", manager = locks, on_error = refused, on_lost = ignore)]
    async fn ignore(locks: &LockManager, id: u64) -> Answer {
        lose(locks).await;
        Answer::Sold(id)
    }

    #[distributed_lock(key = "goods:1", wait = "0s", on_error = |_| 0)]
    async fn number() -> u64 {
        1
    }

    #[distributed_lock(key = "goods:1", wait = "0s", on_error = |error| failed.fetch_add(error.code().len(), Ordering::SeqCst))]
    async fn borrowing(failed: &AtomicUsize) -> usize {
        1
    }

    #[distributed_lock(key = "goods:1", wait = "0s", on_error = |error| seen.send(error.kind()).expect("the test listens"))]
    async fn nothing(seen: std::sync::mpsc::Sender<ErrorKind>) {}

    // bad_input_55
    #[distributed_lock(key = "goods:<id>", wait = "0s", on_error = |error| error.code().to_owned())]
    async fn opaque(id: u64) -> impl std::fmt::Display {
        id.to_string()
    }

    struct Shop(&'static str);

    impl Shop {
        fn refused<T: Default>(_: Error) -> (T, bool) {
            (T::default(), false)
        }

        fn name(&self, _: Error) -> &'static str {
            self.0
        }

        #[distributed_lock(key = "goods:1", wait = "0s", on_error = Self::refused::<u8>)]
        async fn sell(&self) -> (u8, bool) {
            (1, true)
        }

        #[distributed_lock(key = "goods:1", wait = "0s", on_error = |error| self.name(error))]
        async fn by_self(&self) -> &'static str {
            "sold"
        }
    }

    #[async_trait::async_trait]
    trait Till {
        async fn pay(&mut self, sum: u64) -> u64;
    }

    #[async_trait::async_trait]
    impl Till for u64 {
        #[distributed_lock(key = "goods:1", wait = "0s", on_error = {
            let before = *self;
            move |_| before
        })]
        async fn pay(&mut self, sum: u64) -> u64 {
            *self += sum;
            *self
        }
    }

    #[tokio::test]
    async fn loss_is_an_answer_of_the_type_that_the_function_returns() {
        let (locks, ended) = (LockManager::in_memory(), AtomicUsize::new(0));
        let lost = Answer::Refused(ErrorKind::Lost(LossReason::Forced));
        assert_eq!(sell(&locks, 1).await, lost);
        assert_eq!(finish(&locks, 1, &ended).await, lost);
        assert_eq!(ended.load(Ordering::SeqCst), 1);
        assert_eq!(ignore(&locks, 1).await, Answer::Sold(1));
    }

    #[tokio::test]
    async fn every_failure_to_acquire_is_an_answer_of_the_type_that_the_function_returns() -> Result<(), Error> {
        let (locks, failed) = (LockManager::in_memory(), AtomicUsize::new(0));
        let (send, seen) = std::sync::mpsc::channel();
        locks
            .scope(async {
                assert_eq!((number().await, borrowing(&failed).await), (1, 1));
                assert_eq!(opaque(1).await.to_string(), "1");
                assert_eq!((Shop("x").sell().await, Shop("x").by_self().await), ((1, true), "sold"));
                assert_eq!(7.pay(3).await, 10);
                nothing(send.clone()).await;
                assert!(seen.try_recv().is_err());

                let _guard = locks.lock("goods:1").await?;
                assert_eq!(sell(&locks, 1).await, Answer::Refused(ErrorKind::Busy));
                assert_eq!((number().await, borrowing(&failed).await), (0, 0));
                assert_eq!(failed.load(Ordering::SeqCst), "lock_busy".len());
                assert_eq!(opaque(1).await.to_string(), "lock_busy");
                assert_eq!((Shop("x").sell().await, Shop("x").by_self().await), ((0, false), "x"));
                assert_eq!(7.pay(3).await, 7);
                nothing(send.clone()).await;
                assert_eq!(seen.try_recv(), Ok(ErrorKind::Busy));
                Ok::<_, lock_core::Error>(())
            })
            .await?;
        nothing(send).await;
        assert_eq!(seen.try_recv(), Ok(ErrorKind::NoManager));
        Ok(())
    }
}

mod skip {
    use super::*;

    #[distributed_lock(key = "goods:1", manager = locks, on_busy = skip, on_error = |error| error.code())]
    async fn job(locks: &LockManager) -> Result<Option<u8>, &'static str> {
        lose(locks).await;
        Ok(Some(1))
    }

    #[distributed_lock(key = "goods:<id>", on_busy = skip, on_error = |_| failed.fetch_add(1, Ordering::SeqCst) > 0)]
    async fn option(id: &str, failed: &AtomicUsize) -> Result<(), bool> {
        Ok(())
    }

    #[tokio::test]
    async fn busy_key_is_skipped_and_everything_else_goes_to_the_function() -> Result<(), Error> {
        let (locks, failed) = (LockManager::in_memory(), AtomicUsize::new(0));
        assert_eq!(job(&locks).await, Err("lock_lost"));
        let _guard = locks.lock("goods:1").await?;
        assert_eq!(job(&locks).await, Ok(None));
        assert_eq!(locks.scope(option("1", &failed)).await, Ok(()));
        assert_eq!(locks.scope(option(&"long".repeat(1000), &failed)).await, Err(false));
        assert_eq!(option("1", &failed).await, Err(true), "no manager");
        Ok(())
    }
}

/// The expression is evaluated before the key and the body.
mod what_it_captures {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Refused {
        id: u64,
        shop: String,
        kind: ErrorKind,
    }

    #[distributed_lock(key = "<shop>:<id>", wait = "0s", on_error = {
        let shop = shop.clone();
        move |error| Refused { id, shop, kind: error.kind() }
    })]
    async fn sell(mut id: u64, shop: String) -> Result<(u64, String), Refused> {
        id += 1;
        Ok((id, shop))
    }

    #[distributed_lock(key = "k", wait = "0s", on_error = { evaluated.fetch_add(1, Ordering::SeqCst); |error| error })]
    async fn once(evaluated: &AtomicUsize) -> Result<usize, Error> {
        Ok(evaluated.load(Ordering::SeqCst))
    }

    #[tokio::test]
    async fn arguments_that_the_body_moves_can_be_kept_for_the_error() -> Result<(), Error> {
        let locks = LockManager::in_memory();
        assert_eq!(locks.scope(sell(1, "north".into())).await, Ok((2, "north".into())));
        let _guard = locks.lock("north:1").await?;
        let refused = Refused { id: 1, shop: "north".into(), kind: ErrorKind::Busy };
        assert_eq!(locks.scope(sell(1, "north".into())).await, Err(refused));
        Ok(())
    }

    #[tokio::test]
    async fn expression_is_evaluated_once_and_before_the_body() -> Result<(), Error> {
        let (locks, evaluated) = (LockManager::in_memory(), AtomicUsize::new(0));
        assert_eq!(locks.scope(once(&evaluated)).await?, 1);
        let _guard = locks.lock("k").await?;
        assert!(locks.scope(once(&evaluated)).await.unwrap_err().is_busy());
        assert_eq!(evaluated.load(Ordering::SeqCst), 2);
        Ok(())
    }

    #[test]
    fn future_is_send_when_the_function_is() {
        fn assert_send<T: Send>(_: T) {}
        assert_send(sell(1, String::new()));
    }
}

/// What else the compiler names where the error type is not `From<lock_core::Error>`.
mod other_remedies {
    use super::*;

    #[distributed_lock(key = "k", wait = "0s")]
    async fn boxed() -> Result<u8, Box<dyn error::Error + Send + Sync>> {
        Err(io::Error::other("its own"))?
    }

    #[derive(Debug)]
    struct Wrapped(io::Error);

    impl From<Error> for Wrapped {
        fn from(error: Error) -> Self {
            Self(io::Error::other(error))
        }
    }

    #[distributed_lock(key = "k", wait = "0s")]
    async fn wrapped() -> Result<u8, Wrapped> {
        Ok(2)
    }

    #[tokio::test]
    async fn bad_input_53_each_remedy_that_the_compiler_names_tells_of_a_busy_key() -> Result<(), Error> {
        let manager = LockManager::in_memory();
        let guard = manager.lock("k").await?;
        let (boxed, wrapped) = manager.scope(async { (boxed().await, wrapped().await) }).await;
        let told = [boxed.unwrap_err().to_string(), wrapped.unwrap_err().0.to_string()];
        assert!(told.iter().all(|told| told.contains("\"k\"")), "{told:?}");
        guard.release().await
    }
}
