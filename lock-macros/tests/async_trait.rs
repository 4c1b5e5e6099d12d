//! Methods of `#[async_trait]` impls, which arrive as a `fn` that returns a boxed future.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use async_trait::async_trait;
use lock_core::{Error, ErrorKind, LockManager, distributed_lock};
use tracing::instrument;

struct Shop {
    tenant: String,
    sold: u64,
    locks: LockManager,
}

struct Order<T>(T, u8);

/// A path that begins with `self` is none of the method's.
fn of(locks: &LockManager) -> &LockManager {
    locks
}

#[async_trait]
trait Trade {
    async fn by_reference(&self, id: u64) -> Result<String, Error>;
    async fn by_mutable_reference(&mut self, mut by: u64, _unused: String) -> Result<String, Error>;
    async fn by_value(self: Box<Self>, text: &str) -> Result<(String, String), Error>;
    async fn patterns(&self, order: Order<u64>, pair: &(u8, u8), _: u8) -> Result<String, Error>;
    async fn without_self(locks: &LockManager, id: u8) -> Result<String, Error>;
    async fn generic<T: Send + Sync + std::fmt::Display>(&self, ids: Vec<T>) -> Result<(String, Vec<T>), Error>;
    async fn unit(&self, id: u8) -> ();
    async fn instrumented_above(&self, id: u8) -> Result<String, Error>;
    async fn instrumented_below(&self, id: u8) -> Result<String, Error>;
    async fn partly(&self, id: u8, #[cfg(not(test))] out: NoSuchType) -> Result<u8, Error>;
    async fn owning(&self, pair: (Witness, u8), _unused: Witness) -> Result<u8, Error>;

    #[distributed_lock(key = "default:<id>", manager = self.locks(), lease = l)]
    async fn of_the_trait(&self, id: u8) -> Result<String, Error>
    where
        Self: Sync,
    {
        Ok(l.key().to_owned())
    }

    fn locks(&self) -> &LockManager;
}

#[async_trait]
impl Trade for Shop {
    /// Documented.
    #[distributed_lock(key = "<self.tenant>:<id>", manager = self::of(&self.locks), lease = l)]
    async fn by_reference(&self, id: u64) -> Result<String, Error> {
        tokio::task::yield_now().await;
        if id == 0 {
            return Ok("early".into());
        }
        assert!(self.locks.is_locked(l.key()).await?);
        Ok(format!("{} {}", l.key(), self.sold))
    }

    #[distributed_lock(key = "<self.tenant>:<by>", manager = self.locks, lease = l)]
    async fn by_mutable_reference(&mut self, mut by: u64, _unused: String) -> Result<String, Error> {
        by += 1;
        self.sold += by;
        Ok(format!("{} {}", l.key(), self.sold))
    }

    #[distributed_lock(key = "<self.tenant>:<text>", manager = self.locks, lease = l)]
    async fn by_value(self: Box<Self>, text: &str) -> Result<(String, String), Error> {
        Ok((l.key().to_owned(), self.tenant))
    }

    #[distributed_lock(keys = ["<id>:<line>", "<pair.0>"], manager = self.locks, lease = leases)]
    async fn patterns(&self, Order(id, line): Order<u64>, pair: &(u8, u8), _: u8) -> Result<String, Error> {
        let keys: Vec<_> = leases.iter().map(|lease| lease.key()).collect();
        Ok(format!("{} {id} {line}", keys.join(" ")))
    }

    #[distributed_lock(key = "<id>", manager = locks, lease = l)]
    async fn without_self(locks: &LockManager, id: u8) -> Result<String, Error> {
        Ok(l.key().to_owned())
    }

    #[distributed_lock(keys = ids.iter().map(|id| format!("{}:{id}", self.tenant)), manager = self.locks, lease = leases)]
    async fn generic<T: Send + Sync + std::fmt::Display>(&self, ids: Vec<T>) -> Result<(String, Vec<T>), Error> {
        Ok((leases.iter().map(|lease| lease.key()).collect::<Vec<_>>().join(" "), ids))
    }

    #[distributed_lock(key = "<id>", manager = self.locks, on_busy = skip, on_lost = ignore)]
    async fn unit(&self, id: u8) {
        assert!(self.locks.is_locked(id.to_string()).await.expect("memory never fails"));
    }

    #[instrument(skip_all)]
    #[distributed_lock(key = "<self.tenant>:<id>", manager = self.locks, lease = l)]
    async fn instrumented_above(&self, id: u8) -> Result<String, Error> {
        Ok(format!("{} {id}", l.key()))
    }

    #[distributed_lock(key = "<self.tenant>:<id>", manager = self.locks, lease = l)]
    #[instrument(skip_all)]
    async fn instrumented_below(&self, id: u8) -> Result<String, Error> {
        Ok(l.key().to_owned())
    }

    #[distributed_lock(key = "<id>", manager = self.locks)]
    async fn partly(&self, id: u8, #[cfg(not(test))] out: NoSuchType) -> Result<u8, Error> {
        #[cfg(not(test))]
        drop(out);
        Ok(id)
    }

    #[distributed_lock(key = "k", manager = self.locks)]
    async fn owning(&self, pair: (Witness, u8), _unused: Witness) -> Result<u8, Error> {
        Ok(pair.1)
    }

    fn locks(&self) -> &LockManager {
        &self.locks
    }
}

/// Notes whether `k` was held when it was dropped.
struct Witness(Arc<Mutex<Vec<bool>>>, LockManager);

impl Drop for Witness {
    fn drop(&mut self) {
        let held = pin!(self.1.is_locked("k")).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(held) = held else { panic!("memory answers at once") };
        self.0.lock().expect("not poisoned").push(held.expect("memory never fails"));
    }
}

fn shop() -> Shop {
    Shop { tenant: "t".into(), sold: 1, locks: LockManager::in_memory() }
}

#[tokio::test]
async fn bad_input_46_and_60_methods_of_async_trait_impls_are_locked() -> Result<(), Error> {
    let mut shop = shop();
    let locks = shop.locks.clone();
    assert_eq!(shop.by_reference(4).await?, "t:4 1");
    assert_eq!(shop.by_reference(0).await?, "early");
    assert_eq!(shop.by_mutable_reference(2, String::new()).await?, "t:2 4");
    assert_eq!(shop.patterns(Order(5, 6), &(7, 8), 9).await?, "5:6 7 5 6");
    assert_eq!(Shop::without_self(&locks, 3).await?, "3");
    assert_eq!(shop.generic(vec![1, 2]).await?, ("t:1 t:2".into(), vec![1, 2]));
    shop.unit(1).await;
    assert_eq!(shop.partly(1).await?, 1);
    assert_eq!(shop.of_the_trait(1).await?, "default:1");
    assert_eq!(shop.instrumented_above(1).await?, "t:1 1");
    assert_eq!(shop.instrumented_below(2).await?, "t:2");
    assert_eq!(Box::new(shop).by_value("x").await?, ("t:x".into(), "t".into()));
    for key in ["t:4", "t:2", "5:6", "3", "t:1", "1", "t:x"] {
        assert!(!locks.is_locked(key).await?, "{key} was given back");
    }
    Ok(())
}

#[tokio::test]
async fn arguments_are_dropped_before_the_lock_is_given_back() -> Result<(), Error> {
    let (shop, seen) = (shop(), Arc::default());
    let witness = || Witness(Arc::clone(&seen), shop.locks.clone());
    shop.owning((witness(), 1), witness()).await?;
    assert_eq!(*seen.lock().expect("not poisoned"), [true, true]);
    Ok(())
}

#[tokio::test]
async fn boxed_future_can_be_spawned_and_waits_for_its_turn() -> Result<(), Error> {
    let shop = shop();
    let locks = shop.locks.clone();
    let guard = locks.lock("t:4").await?;
    let task = tokio::spawn(async move { shop.by_reference(4).await });
    tokio::task::yield_now().await;
    assert!(!task.is_finished());
    guard.release().await?;
    assert_eq!(task.await.expect("no panic")?, "t:4 1");
    Ok(())
}

mod written_by_hand {
    use std::pin::Pin;

    use super::*;

    #[distributed_lock(key = "tree:<id>:<depth>", wait = "0s")]
    fn descend(id: u8, depth: u8) -> Pin<Box<dyn Future<Output = Result<u8, Error>> + Send>> {
        Box::pin(async move {
            if depth == 0 {
                return Ok(id);
            }
            Ok(descend(id, depth - 1).await? + 1)
        })
    }

    #[tokio::test]
    async fn bad_input_46_boxed_block_is_locked_as_an_async_fn_is() -> Result<(), Error> {
        let manager = LockManager::in_memory();
        assert_eq!(manager.scope(descend(1, 3)).await?, 4);
        let _guard = manager.lock("tree:1:0").await?;
        assert_eq!(manager.scope(descend(1, 3)).await.unwrap_err().kind(), ErrorKind::Busy);
        Ok(())
    }

    /// What `#[async_trait]` would put first is written by somebody here.
    #[distributed_lock(key = "<key>")]
    fn step_by_step(
        key: &'static str,
        manager: LockManager,
    ) -> Pin<Box<dyn Future<Output = Result<u8, Error>> + Send>> {
        Box::pin(async move {
            let first = { u8::from(manager.is_locked(key).await?) };
            let last: Result<u8, Error> = { Ok(first + 10 * u8::from(manager.is_locked(key).await?)) };
            assert!(manager.is_locked(key).await?);
            last.map(|all| all + 100)
        })
    }

    #[distributed_lock(key = "<key>")]
    fn asks_first(key: &'static str, manager: LockManager) -> Pin<Box<dyn Future<Output = Result<u8, Error>> + Send>> {
        Box::pin(async move {
            if manager.is_locked(key).await? {
                return Ok(1);
            }
            let left: Result<u8, Error> = { Ok(2) };
            left
        })
    }

    /// It ends as `#[async_trait]` has functions end that return nothing.
    #[distributed_lock(key = "<key>", on_busy = skip, on_lost = ignore)]
    fn looks_first(key: &'static str, manager: LockManager) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let first = { manager.is_locked(key).await.expect("memory never fails") };
            let _: () = { assert!(first, "it runs under the lock") };
        })
    }

    /// A statement with an attribute, and one with another type.
    #[distributed_lock(key = "<key>", on_busy = skip, on_lost = ignore)]
    fn leaves_out(key: &'static str) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            #[cfg(any())]
            let _: () = { panic!("{key}: it is left out") };
        })
    }

    #[distributed_lock(key = "<key>", on_busy = skip, on_lost = ignore)]
    fn counts(key: &'static str, manager: LockManager) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let _: u8 = { u8::from(manager.is_locked(key).await.expect("memory never fails")) };
        })
    }

    /// What looks like the hint at the type, but does something.
    #[distributed_lock(key = "<key>")]
    fn looks_in_a_hint(
        key: &'static str,
        manager: LockManager,
    ) -> Pin<Box<dyn Future<Output = Result<u8, Error>> + Send>> {
        Box::pin(async move {
            if let Some(__ret) = manager.is_locked(key).await?.then(|| Ok(3)) {
                return __ret;
            }
            let __ret: Result<u8, Error> = { Ok(4) };
            __ret
        })
    }

    #[tokio::test]
    async fn every_statement_runs_and_none_before_the_lock() -> Result<(), Error> {
        let manager = LockManager::in_memory();
        manager.scope(leaves_out("k")).await;
        manager.scope(counts("k", manager.clone())).await;
        assert_eq!(manager.scope(looks_in_a_hint("k", manager.clone())).await?, 3);
        manager.scope(looks_first("k", manager.clone())).await;
        assert_eq!(manager.scope(step_by_step("k", manager.clone())).await?, 111);
        assert_eq!(manager.scope(asks_first("k", manager.clone())).await?, 1);
        Ok(())
    }
}
