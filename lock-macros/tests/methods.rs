//! Methods: every form of `self`, traits, and the manager in a field.

use std::{
    pin::Pin,
    rc::Rc,
    sync::{Arc, LazyLock},
};

use lock_core::{Error, LockManager, distributed_lock};

#[derive(Debug)]
struct Shop {
    tenant: String,
    sold: u64,
    locks: LockManager,
}

fn shop() -> Shop {
    Shop { tenant: "t1".into(), sold: 1, locks: LockManager::in_memory() }
}

mod every_self {
    use super::*;

    impl Shop {
        #[distributed_lock(key = "<self.tenant>:<id>", manager = self.locks, lease = l)]
        async fn by_reference(&self, id: u64) -> Result<String, Error> {
            Ok(format!("{} {}", l.key(), self.sold))
        }

        #[distributed_lock(key = "<self.tenant>:<self.sold>", manager = self.locks, lease = l)]
        async fn by_mutable_reference(&mut self, by: u64) -> Result<String, Error> {
            self.sold += by;
            Ok(format!("{} {}", l.key(), self.sold))
        }

        #[distributed_lock(key = "<self.tenant>", manager = self.locks, lease = l)]
        async fn by_value(self) -> Result<(String, Self), Error> {
            Ok((l.key().to_owned(), self))
        }

        #[distributed_lock(key = "<self.tenant>", manager = self.locks, lease = l)]
        async fn by_mutable_value(mut self) -> Result<(String, u64), Error> {
            self.sold += 1;
            Ok((l.key().to_owned(), self.sold))
        }

        #[distributed_lock(key = "<self.tenant>", manager = self.locks, lease = l)]
        async fn by_arc(self: Arc<Self>) -> Result<String, Error> {
            Ok(format!("{} {}", l.key(), Arc::strong_count(&self)))
        }

        #[distributed_lock(key = "<self.tenant>", manager = self.locks, lease = l)]
        async fn by_pinned_box(self: Pin<Box<Self>>) -> Result<String, Error> {
            Ok(format!("{} {}", l.key(), self.sold))
        }

        #[distributed_lock(key = "<self.tenant>", manager = self.locks, lease = l)]
        #[allow(clippy::needless_arbitrary_self_type, reason = "it is the form under test")]
        async fn by_typed_reference<'a>(self: &'a mut Self) -> Result<(String, &'a mut u64), Error> {
            Ok((l.key().to_owned(), &mut self.sold))
        }

        #[distributed_lock(key = "<shop.tenant>", manager = shop.locks, lease = l)]
        async fn without_self(shop: &Self) -> Result<String, Error> {
            Ok(l.key().to_owned())
        }
    }

    #[tokio::test]
    async fn bad_input_57_methods_of_every_form_are_locked() -> Result<(), Error> {
        assert_eq!(shop().by_reference(4).await?, "t1:4 1");
        assert_eq!(shop().by_mutable_reference(2).await?, "t1:1 3");
        assert_eq!(shop().by_value().await?.1.sold, 1);
        assert_eq!(shop().by_mutable_value().await?, ("t1".into(), 2));
        assert_eq!(Arc::new(shop()).by_arc().await?, "t1 1");
        assert_eq!(Box::pin(shop()).by_pinned_box().await?, "t1 1");
        assert_eq!(Shop::without_self(&shop()).await?, "t1");
        Ok(())
    }

    #[tokio::test]
    async fn result_may_borrow_from_self() -> Result<(), Error> {
        let mut shop = shop();
        let (key, sold) = shop.by_typed_reference().await?;
        *sold += 10;
        assert_eq!((key.as_str(), shop.sold), ("t1", 11));
        Ok(())
    }

    #[tokio::test]
    async fn two_methods_with_one_key_exclude_each_other() -> Result<(), Error> {
        let shop = shop();
        let guard = shop.locks.lock("t1:4").await?;
        let mut waiting = Box::pin(shop.by_reference(4));
        tokio::select! {
            biased;
            early = &mut waiting => panic!("ran without the lock: {early:?}"),
            other = shop.by_reference(5) => assert_eq!(other?, "t1:5 1"),
        }
        guard.release().await?;
        assert_eq!(waiting.await?, "t1:4 1");
        Ok(())
    }
}

mod traits {
    use super::*;

    trait Till {
        fn name(&self) -> String;

        async fn open(&self, locks: &LockManager) -> Result<String, Error>;

        #[distributed_lock(key = "<self.name()>:close", manager = locks, lease = l)]
        async fn close(&self, locks: &LockManager) -> Result<String, Error> {
            Ok(format!("{} of {}", l.key(), self.name()))
        }
    }

    impl Till for u8 {
        fn name(&self) -> String {
            format!("till{self}")
        }

        #[distributed_lock(key = "<self>:open", manager = locks, lease = l)]
        async fn open(&self, locks: &LockManager) -> Result<String, Error> {
            Ok(l.key().to_owned())
        }
    }

    #[tokio::test]
    async fn methods_of_traits_and_their_defaults_are_locked() -> Result<(), Error> {
        let locks = LockManager::in_memory();
        assert_eq!(3_u8.open(&locks).await?, "3:open");
        assert_eq!(3_u8.close(&locks).await?, "till3:close of till3");
        Ok(())
    }
}

mod manager {
    use super::*;

    static LOCKS: LazyLock<LockManager> = LazyLock::new(LockManager::in_memory);

    fn locks() -> LockManager {
        LOCKS.clone()
    }

    #[distributed_lock(key = "k", manager = LOCKS)]
    async fn of_a_static() -> Result<bool, Error> {
        LOCKS.is_locked("k").await
    }

    #[distributed_lock(key = "k", manager = locks())]
    async fn of_a_call() -> Result<bool, Error> {
        LOCKS.is_locked("k").await
    }

    #[distributed_lock(key = "k", manager = locks)]
    async fn of_an_arc(locks: Arc<LockManager>) -> Result<bool, Error> {
        locks.is_locked("k").await
    }

    #[distributed_lock(key = "k", manager = &locks)]
    async fn of_a_reference_to_an_rc(locks: &Rc<LockManager>) -> Result<bool, Error> {
        locks.is_locked("k").await
    }

    #[distributed_lock(key = "k", manager = locks)]
    async fn of_a_value(locks: LockManager) -> Result<bool, Error> {
        locks.is_locked("k").await
    }

    #[distributed_lock(key = "k", manager = if first { &pair.0 } else { &pair.1 })]
    async fn of_a_choice(first: bool, pair: &(LockManager, LockManager)) -> Result<bool, Error> {
        (if first { &pair.0 } else { &pair.1 }).is_locked("k").await
    }

    #[tokio::test]
    async fn manager_is_anything_that_points_to_one() -> Result<(), Error> {
        let locks = LockManager::in_memory();
        assert!(of_a_static().await?);
        assert!(of_a_call().await?);
        assert!(of_an_arc(Arc::new(locks.clone())).await?);
        assert!(of_a_reference_to_an_rc(&Rc::new(locks.clone())).await?);
        assert!(of_a_value(locks.clone()).await?);
        assert!(of_a_choice(false, &(locks, LockManager::in_memory())).await?);
        Ok(())
    }

    #[tokio::test]
    async fn given_manager_comes_before_the_scoped_one() -> Result<(), Error> {
        let scoped = LockManager::in_memory();
        let guard = scoped.lock("k").await?;
        assert!(scoped.scope(of_a_value(LockManager::in_memory())).await?);
        drop(guard);
        Ok(())
    }
}
