//! The code of `docs/coming-from.md`: every block of it stands in here too, line by line.

use std::time::Duration;

use lock_core::{ErrorKind, FencingToken, LockManager, Mode, exclusive, shared};
use lock_tests::text::compiled_blocks;

use crate::tour::Result;

mod attribute {
    use lock_core::distributed_lock;

    // The same for a function.
    #[distributed_lock(key = "goods:<id>", ttl = "3s", wait = "2s")]
    async fn sell(id: u64) -> Result<u64, lock_core::Error> {
        Ok(id)
    }

    #[distributed_lock(key = "price:<id>", mode = shared)]
    async fn offer(id: u64) -> Result<u64, lock_core::Error> {
        Ok(id) // any number of offers at a time
    }

    #[distributed_lock(key = "tenant:<tenant>", permits = 3)]
    async fn import(tenant: u64) -> Result<u64, lock_core::Error> {
        Ok(tenant) // three imports at a time
    }

    #[tokio::test]
    async fn functions() -> Result<(), lock_core::Error> {
        let manager = lock_core::LockManager::in_memory();
        assert_eq!(manager.scope(sell(7)).await?, 7);

        let _other = (manager.lock("price:7").shared().await?, manager.lock("tenant:7").permits(3).take(2).await?);
        assert_eq!(manager.scope(offer(7)).await?, 7);
        assert_eq!(manager.scope(import(7)).await?, 7);
        Ok(())
    }
}

async fn sell(fence: FencingToken) -> Result {
    crate::tour::sell(fence.get()).await
}

#[tokio::test]
async fn guards_and_scoped_work() -> Result {
    let manager = LockManager::in_memory();

    // Held until the guard is released or dropped, and renewed until then.
    let guard = manager.lock("goods:1").ttl(Duration::from_secs(3)).wait(Duration::from_secs(2)).await?;
    sell(guard.fencing_token()).await?;
    guard.release().await?;

    // The work is dropped when the lease is lost.
    manager.lock("goods:1").run(async |lease| sell(lease.fencing_token()).await).await??;
    Ok(())
}

#[tokio::test]
async fn readers_and_permits() -> Result {
    let manager = LockManager::in_memory();

    // A writer has the key alone. It becomes a reader with nobody in between, and other readers come in.
    let writer = manager.lock("price:1").await?;
    let reader = writer.downgrade().await?;
    let other = manager.lock("price:1").shared().await?;

    // Two of three permits.
    let permits = manager.lock("tenant:7").permits(3).take(2).await?;

    // Each key of several in its own mode.
    let order = manager.lock_all([shared("price:1"), exclusive("goods:1")]).await?;

    assert!(manager.lock("price:1").try_acquire().await?.is_none(), "three read it");
    assert!(manager.lock("goods:1").shared().try_acquire().await?.is_none(), "it is held alone");
    assert!(manager.lock("tenant:7").permits(3).take(2).try_acquire().await?.is_none(), "one permit is left");
    order.release().await?;
    for guard in [reader, other, permits] {
        guard.release().await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_limit_of_readers_and_of_permits() -> Result {
    let manager = LockManager::in_memory();
    let readers = [manager.lock("k").permits(2).await?, manager.lock("k").permits(2).await?];
    assert!(manager.lock("k").permits(2).try_acquire().await?.is_none(), "two readers at most");
    assert!(manager.lock("k").permits(2).take(2).try_acquire().await?.is_none(), "a writer takes all");
    assert!(manager.lock("k").permits(3).try_acquire().await?.is_none(), "another total waits for these");
    for reader in readers {
        reader.release().await?;
    }
    let writer = manager.lock("k").permits(2).take(2).await?;
    assert_ne!(writer.lease().mode(), Mode::Exclusive);
    writer.release().await?;
    Ok(())
}

#[tokio::test]
async fn a_reader_that_waits_to_read_again_or_to_write_would_wait_for_itself() -> Result {
    let manager = LockManager::in_memory();
    let inner = async |_: lock_core::Lease| {
        let again = manager.lock("k").shared().await.unwrap_err();
        let write = manager.lock("k").await.unwrap_err();
        let tried = manager.lock("k").shared().try_acquire().await.is_ok_and(|guard| guard.is_some());
        (again.kind(), write.kind(), tried)
    };
    let seen = manager.lock("k").shared().run(inner).await?;
    assert_eq!(seen, (ErrorKind::WouldDeadlock, ErrorKind::WouldDeadlock, true));
    Ok(())
}

#[test]
fn every_block_of_the_page_is_compiled_here() {
    let page = include_str!("../../docs/coming-from.md");
    let blocks = compiled_blocks(page, &[include_str!("coming_from.rs")]);
    assert_eq!(blocks, page.matches("```rust").count(), "no block is left out");
}
