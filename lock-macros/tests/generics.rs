//! Signatures of every kind, and what the future of a locked function is.

use std::{
    fmt::{Debug, Display},
    future::Future,
    rc::Rc,
    sync::Mutex,
    time::Duration,
};

use lock_core::{Error, LockManager, distributed_lock};

mod signatures {
    use super::*;

    #[distributed_lock(key = "<id>", lease = l)]
    async fn generic<T, U>(id: T, other: U) -> Result<(String, U), Error>
    where
        T: Display + Clone,
        U: Debug + Default,
    {
        Ok((format!("{} {}", l.key(), id.clone()), other))
    }

    #[distributed_lock(key = "shard:<N>:<list.len()>", lease = l)]
    async fn const_generic<const N: usize>(list: [u8; N]) -> Result<(String, usize), Error> {
        Ok((l.key().to_owned(), list.len()))
    }

    struct Row<const W: usize>;

    impl<const W: usize> Row<W> {
        #[distributed_lock(key = "row:<W>:<id>", lease = l)]
        async fn of_the_impl(id: u64) -> Result<String, Error> {
            Ok(l.key().to_owned())
        }
    }

    #[tokio::test]
    async fn const_parameter_of_the_impl_is_a_value() -> Result<(), Error> {
        let locks = LockManager::in_memory();
        assert_eq!(locks.scope(Row::<3>::of_the_impl(7)).await?, "row:3:7");
        Ok(())
    }

    #[distributed_lock(key = "<a>:<b>", lease = l)]
    async fn lifetimes<'a, 'b: 'a>(a: &'a str, b: &'b str) -> Result<(String, &'a str), Error> {
        Ok((l.key().to_owned(), if a.len() > b.len() { a } else { b }))
    }

    #[distributed_lock(key = "<text>", lease = l)]
    async fn elided(text: &str) -> Result<(String, &str), Error> {
        Ok((l.key().to_owned(), &text[1..]))
    }

    #[distributed_lock(key = "<id>", lease = l)]
    async fn opaque_argument(id: impl Display, work: impl AsyncFnOnce() -> u8) -> Result<(String, u8), Error> {
        Ok((l.key().to_owned(), work().await))
    }

    #[distributed_lock(key = "<id>")]
    async fn opaque_result(id: u8) -> Result<impl Iterator<Item = u8>, Error> {
        Ok((0..id).map(|i| i * 2))
    }

    struct Path<T>(T);
    struct Order {
        id: u64,
        lines: (u8, u8),
    }

    #[distributed_lock(key = "<id>:<order_id>:<first>:<rest.len()>:<all.0>", lease = l)]
    async fn patterns(
        Path(id): Path<u64>,
        Order { id: order_id, lines: (first, _) }: Order,
        [_, rest @ ..]: [u8; 3],
        ref all @ (_, mut last): (u8, u8),
        _: u8,
    ) -> Result<(String, u8), Error> {
        last += 1;
        Ok((l.key().to_owned(), last + rest[0]))
    }

    #[distributed_lock(key = "<shown>", lease = l)]
    async fn trait_objects(shown: &dyn Display, boxed: Box<dyn Fn(u8) -> u8 + '_>) -> Result<(String, u8), Error> {
        Ok((l.key().to_owned(), boxed(1)))
    }

    #[tokio::test]
    async fn bad_input_55_and_56_arguments_and_results_may_have_any_type() -> Result<(), Error> {
        LockManager::in_memory()
            .scope(async {
                assert_eq!(generic("a", 1_u8).await?, ("a a".into(), 1));
                assert_eq!(const_generic([1, 2, 3]).await?, ("shard:3:3".into(), 3));
                assert_eq!(lifetimes("a", "bc").await?, ("a:bc".into(), "bc"));
                assert_eq!(elided("abc").await?, ("abc".into(), "bc"));
                assert_eq!(opaque_argument(7, async || 8).await?, ("7".into(), 8));
                assert_eq!(opaque_result(3).await?.sum::<u8>(), 6);
                let order = Order { id: 2, lines: (3, 4) };
                assert_eq!(patterns(Path(1), order, [5, 6, 7], (8, 9), 0).await?, ("1:2:3:2:8".into(), 16));
                assert_eq!(trait_objects(&'x', Box::new(|n| n + 1)).await?, ("x".into(), 2));
                Ok(())
            })
            .await
    }
}

mod results {
    use super::*;

    type Reply<T> = Result<T, Failure>;
    type Done = Result<(), Box<dyn std::error::Error + Send + Sync>>;

    #[derive(Debug)]
    enum Failure {
        Lock(Error),
        Empty,
    }

    impl From<Error> for Failure {
        fn from(error: Error) -> Self {
            Self::Lock(error)
        }
    }

    #[distributed_lock(key = "<id>")]
    async fn aliased(id: u8) -> Reply<u8> {
        id.checked_sub(1).ok_or(Failure::Empty)
    }

    #[distributed_lock(key = "<id>")]
    async fn boxed(id: u8) -> Done {
        // Only the declared return type says what `?` makes of these errors.
        let text = String::from_utf8(vec![b'0' + id])?;
        assert_eq!(text.parse::<u8>()?, id);
        Err("inferred")?
    }

    #[distributed_lock(key = "<id>")]
    async fn of_the_caller<E: From<Error>>(id: u8) -> Result<u8, E> {
        Ok(id)
    }

    #[distributed_lock(key = "k")]
    async fn tail_needs_the_type() -> core::result::Result<Vec<u64>, Error> {
        Ok([1_u8, 2].into_iter().map(Into::into).collect())
    }

    #[tokio::test]
    async fn error_is_any_type_that_a_lock_error_converts_into() -> Result<(), Error> {
        let manager = LockManager::in_memory();
        assert_eq!(manager.scope(aliased(1)).await.unwrap(), 0);
        assert!(matches!(manager.scope(aliased(0)).await, Err(Failure::Empty)));
        assert_eq!(manager.scope(boxed(1)).await.unwrap_err().to_string(), "inferred");
        assert_eq!(manager.scope(of_the_caller::<Failure>(4)).await.unwrap(), 4);
        assert_eq!(manager.scope(tail_needs_the_type()).await?, [1, 2]);

        let _guard = manager.lock("5").await?;
        #[distributed_lock(key = "5", wait = "0s")]
        async fn busy() -> Reply<()> {
            Ok(())
        }
        let Err(Failure::Lock(error)) = manager.scope(busy()).await else { panic!("locked twice") };
        assert_eq!(error.kind(), lock_core::ErrorKind::Busy);
        Ok(())
    }
}

mod qualifiers {
    use super::*;

    /// # Safety
    /// Nothing is unsafe about it.
    #[distributed_lock(key = "<id>")]
    pub(crate) async unsafe fn is_unsafe(id: u8) -> Result<u8, Error> {
        Ok(id)
    }

    /// Compiles only if the pointer is to an `unsafe fn`.
    #[test]
    fn bad_input_47_unsafe_stays_unsafe() {
        fn pointer<F: Future>(_: unsafe fn(u8) -> F) {}
        pointer(is_unsafe);
    }
}

mod future {
    use super::*;

    fn assert_send<T: Send>(value: T) -> T {
        value
    }

    struct Shop {
        tenant: String,
        sold: Mutex<u64>,
    }

    impl Shop {
        #[distributed_lock(key = "<self.tenant>:<Rc::new(item)>", lease = lease)]
        async fn sell(&self, item: &str, by: impl Display + Send) -> Result<String, Error> {
            tokio::task::yield_now().await;
            *self.sold.lock().expect("not poisoned") += 1;
            Ok(format!("{} {item} {by}", lease.key()))
        }
    }

    #[tokio::test]
    async fn bad_input_65_future_is_send_when_the_body_is() -> Result<(), Error> {
        let manager = LockManager::in_memory();
        let task = tokio::spawn(manager.scope(async {
            let shop = Shop { tenant: "t".into(), sold: Mutex::new(0) };
            let item = String::from("i");
            assert_send(shop.sell(&item, 3)).await
        }));
        assert_eq!(task.await.unwrap()?, "t:i i 3");
        Ok(())
    }

    #[distributed_lock(key = Rc::new(item.clone()).as_str())]
    async fn key_of_an_rc(item: String) -> Result<String, Error> {
        Ok(item)
    }

    #[test]
    fn what_the_key_is_made_of_does_not_live_on_in_the_future() {
        drop(assert_send(key_of_an_rc("i".into())));
    }

    #[distributed_lock(key = "<id>")]
    async fn is_not_send(id: Rc<u8>) -> Result<u8, Error> {
        tokio::task::yield_now().await;
        Ok(*id)
    }

    #[tokio::test]
    async fn bad_input_65_future_that_is_not_send_runs_where_that_is_allowed() -> Result<(), Error> {
        assert_eq!(LockManager::in_memory().scope(is_not_send(Rc::new(1))).await?, 1);
        Ok(())
    }

    #[distributed_lock(key = "<big.len()>", ttl = "3s")]
    async fn locked<const N: usize>(big: [u8; N]) -> Result<u8, Error> {
        tokio::task::yield_now().await;
        Ok(big[7])
    }

    async fn by_hand<const N: usize>(big: [u8; N]) -> Result<u8, Error> {
        LockManager::current()?
            .lock(format!("{}", big.len()))
            .ttl(Duration::from_secs(3))
            .run(async move |_lease| {
                tokio::task::yield_now().await;
                Ok(big[7])
            })
            .await?
    }

    #[test]
    fn future_is_no_larger_than_the_one_written_by_hand() {
        let small = (size_of_val(&locked([0; 8])), size_of_val(&by_hand([0; 8])));
        let large = (size_of_val(&locked([0; 4096])), size_of_val(&by_hand([0; 4096])));
        for (locked, by_hand) in [small, large] {
            assert!(locked <= by_hand, "{locked} bytes instead of {by_hand}");
        }
    }
}
