//! One of several that count on the same number: `count URL ADDRESS KEY ROUNDS`.
//!
//! Each round takes the lock of KEY, reads `KEY:number`, and writes one more: an update is lost whenever two were inside
//! at once. The number is kept in the Redis at ADDRESS, behind no lock of its own. Says `counted ROUNDS` at the end.

use std::error::Error;

use lock_core::LockManager;
use lock_tests::{LONG, RawClient};
use tokio::task::yield_now;

pub(crate) async fn count(url: &str, address: &str, key: &str, rounds: &str) -> Result<(), Box<dyn Error>> {
    let manager = crate::connected(LockManager::builder().url(url)).await?;
    let mut redis = RawClient::tcp(address).await?;
    let number_key = format!("{key}:number");
    let rounds: u32 = rounds.parse()?;
    for _ in 0..rounds {
        let guard = manager.lock(key).ttl(LONG).wait(LONG).await?;
        let number = redis.call(&["GET", &number_key]).await?.text();
        let number: u64 = number.as_deref().unwrap_or("0").parse()?;
        yield_now().await;
        redis.call(&["SET", &number_key, &(number + 1).to_string()]).await?;
        guard.release().await?;
    }
    println!("counted {rounds}");
    Ok(())
}
