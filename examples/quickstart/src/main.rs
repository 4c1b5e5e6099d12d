//! The first lock: take it, see others kept out, do the work, give it back.
//!
//! ```text
//! cargo run -p example-quickstart
//! cargo run -p example-quickstart -- redis://127.0.0.1:6379
//! cargo run -p example-quickstart -- redis+cluster://127.0.0.1:7000
//! ```

use std::time::Duration;

use lock_core::LockManager;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // In memory unless the argument names a server.
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://".into());
    let manager = LockManager::connect(&url).await?;

    let guard = manager.lock("goods:1").ttl(Duration::from_secs(3)).await?;
    println!("holding {}, fencing token {}", guard.key(), guard.fencing_token());
    let second = manager.lock("goods:1").try_acquire().await?;
    println!("a second request gets it: {}", second.is_some());
    // Dropping the guard gives the lease back in the background, for which `main` does not wait: at its end release the
    // guard, use `run`, or call `manager.shutdown`. Otherwise the key may stay busy until its ttl is over.
    guard.release().await?;

    // The short form: the work is dropped when the lease is lost, and the lease is given back at the end.
    let left = manager.lock("goods:1").run(async |lease| lease.remaining()).await?;
    println!("held again, for {left:.1?} unless renewed");
    Ok(())
}
