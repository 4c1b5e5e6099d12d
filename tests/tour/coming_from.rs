//! The code of `docs/coming-from.md`: every block of it stands in here too, line by line.

use std::time::Duration;

use lock_core::{FencingToken, LockManager};
use lock_tests::text::compiled_blocks;

use crate::Result;

mod attribute {
    use lock_core::distributed_lock;

    // The same for a function.
    #[distributed_lock(key = "goods:<id>", ttl = "3s", wait = "2s")]
    async fn sell(id: u64) -> Result<u64, lock_core::Error> {
        Ok(id)
    }

    #[tokio::test]
    async fn functions() -> Result<(), lock_core::Error> {
        assert_eq!(lock_core::LockManager::in_memory().scope(sell(7)).await?, 7);
        Ok(())
    }
}

async fn sell(fence: FencingToken) -> Result {
    crate::sell(fence.get()).await
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

#[test]
fn every_block_of_the_page_is_compiled_here() {
    let page = include_str!("../../docs/coming-from.md");
    let blocks = compiled_blocks(page, &[include_str!("coming_from.rs")]);
    assert_eq!(blocks, page.matches("```rust").count(), "no block is left out");
}
