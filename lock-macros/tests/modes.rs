//! `mode`, `permits` and `take`: functions that hold a key together.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lock_core::{Argument, Error, ErrorKind, LockManager, backend::MemoryBackend, distributed_lock};
use tokio::task::JoinSet;

/// Managers of one store, as in two processes.
fn managers() -> [LockManager; 2] {
    let store = MemoryBackend::new();
    [(); 2].map(|()| LockManager::builder().backend(store.clone()).build().expect("sound"))
}

async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// Counts the functions that run at the same time.
#[derive(Default)]
struct Inside {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Inside {
    /// Adds so many, stays for a while, and returns how many others were there at the start.
    async fn stay(&self, many: usize) -> usize {
        let others = self.now.fetch_add(many, Ordering::SeqCst);
        self.most.fetch_max(others + many, Ordering::SeqCst);
        pause(10).await;
        self.now.fetch_sub(many, Ordering::SeqCst);
        others
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

mod readers_and_writers {
    use super::*;

    #[derive(Default)]
    struct Price {
        readers: Inside,
        writers: Inside,
        order: Mutex<Vec<&'static str>>,
    }

    impl Price {
        fn note(&self, what: &'static str) {
            self.order.lock().expect("not poisoned").push(what);
        }

        #[distributed_lock(key = "price", mode = shared, wait = forever, manager = locks)]
        async fn read(&self, locks: &LockManager, name: &'static str) -> Result<(), Error> {
            self.note(name);
            self.readers.stay(1).await;
            assert_eq!(self.writers.now.load(Ordering::SeqCst), 0);
            Ok(())
        }

        #[distributed_lock(key = "price", mode = exclusive, wait = forever, manager = locks)]
        async fn write(&self, locks: &LockManager, name: &'static str) -> Result<(), Error> {
            self.note(name);
            assert_eq!(self.writers.stay(1).await, 0);
            assert_eq!(self.readers.now.load(Ordering::SeqCst), 0);
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn readers_are_inside_together_and_a_writer_is_alone() -> Result<(), Error> {
        let [one, two] = managers();
        let price = Price::default();
        for _ in 0..3 {
            tokio::try_join!(
                price.read(&one, "reader"),
                price.read(&two, "reader"),
                price.write(&one, "writer"),
                price.write(&two, "writer"),
                price.read(&one, "reader"),
                price.read(&two, "reader"),
            )?;
        }
        assert!(price.readers.most() >= 2, "the first two came in before there was a writer");
        assert_eq!(price.writers.most(), 1);
        assert_eq!(price.order.lock().expect("not poisoned").len(), 18);
        assert!(!one.is_locked("price").await?);
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn reader_that_comes_after_a_waiting_writer_waits_behind_it() -> Result<(), Error> {
        let [one, two] = managers();
        for (writers, readers) in [(&one, &one), (&one, &two), (&two, &one)] {
            let price = Price::default();
            let writer = async {
                pause(2).await;
                price.write(writers, "writer").await
            };
            let reader = async {
                pause(4).await;
                price.read(readers, "second reader").await
            };
            tokio::try_join!(price.read(&one, "first reader"), writer, reader)?;
            assert_eq!(*price.order.lock().expect("not poisoned"), ["first reader", "writer", "second reader"]);
            assert_eq!(price.readers.most(), 1);
        }
        Ok(())
    }

    #[distributed_lock(key = "price", mode = shared, on_busy = skip, lease = lease)]
    async fn try_read() -> Result<Option<String>, Error> {
        Ok(Some(lease.mode().to_string()))
    }

    #[tokio::test]
    async fn only_a_writer_keeps_a_reader_out_that_skips() -> Result<(), Error> {
        let manager = LockManager::in_memory();
        let reader = manager.lock("price").shared().await?;
        assert_eq!(manager.scope(try_read()).await?.as_deref(), Some("shared"));
        reader.release().await?;
        let writer = manager.lock("price").await?;
        assert_eq!(manager.scope(try_read()).await?, None);
        writer.release().await
    }
}

mod permits {
    use super::*;

    const TOTAL: u32 = 3;

    #[distributed_lock(key = "tenant", permits = 3, wait = forever, manager = locks)]
    async fn one_of_three(locks: LockManager, inside: Arc<Inside>) -> Result<(), Error> {
        inside.stay(1).await;
        Ok(())
    }

    #[distributed_lock(key = "tenant", permits = 5, take = 2, wait = forever, manager = locks)]
    async fn two_of_five(locks: LockManager, inside: Arc<Inside>) -> Result<(), Error> {
        inside.stay(2).await;
        Ok(())
    }

    #[distributed_lock(key = "tenant", permits = TOTAL + 2, take = take, wait = forever, manager = locks)]
    async fn some_of_five(locks: LockManager, inside: Arc<Inside>, take: u32) -> Result<(), Error> {
        inside.stay(take as usize).await;
        Ok(())
    }

    /// Makes 40 calls at the same time in two managers, and returns how many permits were held at most.
    async fn most<F>(call: impl Fn(usize, LockManager, Arc<Inside>) -> F) -> Result<usize, Error>
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let managers = managers();
        let inside = Arc::new(Inside::default());
        let calls = (0..40).map(|number| call(number, managers[number % 2].clone(), Arc::clone(&inside)));
        let results = calls.collect::<JoinSet<_>>().join_all().await;
        assert!(!managers[0].is_locked("tenant").await?, "nothing is left");
        results.into_iter().collect::<Result<(), Error>>().map(|()| inside.most())
    }

    #[tokio::test(start_paused = true)]
    async fn all_permits_are_used_and_never_more() -> Result<(), Error> {
        assert_eq!(most(|_, locks, inside| one_of_three(locks, inside)).await?, 3);
        assert_eq!(most(|_, locks, inside| two_of_five(locks, inside)).await?, 4, "the fifth is too few for a call");
        let of_all_sizes = |number: usize, locks, inside| some_of_five(locks, inside, [1, 5, 2, 3][number % 4]);
        assert_eq!(most(of_all_sizes).await?, 5);
        Ok(())
    }

    struct Tenant {
        limit: u32,
        locks: LockManager,
    }

    #[async_trait::async_trait]
    trait Imports {
        async fn import(&self) -> Result<String, Error>;
    }

    impl Tenant {
        fn half(&self) -> u32 {
            self.limit / 2
        }

        #[distributed_lock(key = "k", permits = self.limit, take = self.half(), manager = self.locks, lease = lease)]
        async fn of_a_field_and_a_call(&mut self) -> Result<String, Error> {
            Ok(lease.mode().to_string())
        }
    }

    #[async_trait::async_trait]
    impl Imports for Tenant {
        #[distributed_lock(key = "k", permits = self.limit, manager = self.locks, lease = lease)]
        async fn import(&self) -> Result<String, Error> {
            Ok(lease.mode().to_string())
        }
    }

    #[distributed_lock(key = "k", permits = N, take = given?, lease = lease)]
    async fn of_a_parameter<const N: u32>(given: Result<u32, Error>) -> Result<String, Error> {
        Ok(lease.mode().to_string())
    }

    #[distributed_lock(key = "k", permits = total, take = take)]
    async fn any(total: u32, take: u32) -> Result<(), Error> {
        Ok(())
    }

    #[tokio::test]
    async fn permits_and_take_are_any_expression() -> Result<(), Error> {
        let locks = LockManager::in_memory();
        let mut tenant = Tenant { limit: 6, locks: locks.clone() };
        assert_eq!(tenant.of_a_field_and_a_call().await?, "3 of 6 permits");
        assert_eq!(tenant.import().await?, "1 of 6 permits");
        assert_eq!(locks.scope(of_a_parameter::<8>(Ok(2))).await?, "2 of 8 permits");
        Ok(())
    }

    #[tokio::test]
    async fn number_out_of_range_is_an_error_before_the_body() -> Result<(), Error> {
        let locks = LockManager::in_memory();
        for (total, take) in [(0, 1), (1_000_001, 1), (3, 0), (3, 4)] {
            let error = locks.scope(any(total, take)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid(Argument::Permits), "{take} of {total}");
        }
        locks.scope(any(1_000_000, 1_000_000)).await
    }

    #[tokio::test(start_paused = true)]
    async fn another_total_than_that_of_the_holders_is_busy() -> Result<(), Error> {
        let locks = LockManager::in_memory();
        let held = locks.lock("k").permits(3).await?;
        assert_eq!(locks.scope(any(4, 1)).await.unwrap_err().kind(), ErrorKind::Busy);
        locks.scope(any(3, 2)).await?;
        held.release().await
    }
}

mod several_keys {
    use super::*;

    #[distributed_lock(keys = ["b", "a:<id>", "b"], mode = shared, wait = "0s", lease = leases)]
    async fn shared(id: u64) -> Result<Vec<(String, String)>, Error> {
        Ok(leases.iter().map(|lease| (lease.key().to_owned(), lease.mode().to_string())).collect())
    }

    #[distributed_lock(keys = keys, permits = total, take = 2, wait = "0s", lease = leases)]
    async fn permits(keys: &[&str], total: u32) -> Result<Vec<String>, Error> {
        Ok(leases.iter().map(|lease| lease.mode().to_string()).collect())
    }

    #[distributed_lock(keys = ["a", "b"], mode = exclusive, wait = "0s")]
    async fn exclusive() -> Result<(), Error> {
        Ok(())
    }

    fn pair(key: &str, mode: &str) -> (String, String) {
        (key.to_owned(), mode.to_owned())
    }

    #[tokio::test]
    async fn one_mode_is_that_of_all_keys() -> Result<(), Error> {
        let locks = LockManager::in_memory();
        let reader = locks.lock("b").shared().await?;
        assert_eq!(locks.scope(shared(1)).await?, [pair("a:1", "shared"), pair("b", "shared")]);
        let busy = locks.scope(exclusive()).await.unwrap_err();
        assert_eq!((busy.kind(), busy.key()), (ErrorKind::Busy, Some("b")));
        reader.release().await?;
        locks.scope(exclusive()).await?;

        let held = locks.lock("b").permits(3).await?;
        assert_eq!(locks.scope(permits(&["a", "b"], 3)).await?, ["2 of 3 permits"; 2]);
        let full = locks.lock("b").permits(3).await?;
        assert!(locks.scope(permits(&["a", "b"], 3)).await.unwrap_err().is_busy());
        assert!(!locks.is_locked("a").await?, "all or none");
        full.release().await?;
        held.release().await?;

        for keys in [&["a", "b"][..], &["a"]] {
            let invalid = locks.scope(permits(keys, 1)).await.unwrap_err();
            assert_eq!(invalid.kind(), ErrorKind::Invalid(Argument::Permits), "two of one");
        }
        Ok(())
    }
}
