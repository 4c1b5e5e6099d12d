//! The only argument of an example: its Redis.

use std::env;

use anyhow::{Result, bail, ensure};
use lock_core::LockManager;

/// Returns the URL of the Redis that the processes share: the only argument, or else the Redis on this machine.
///
/// Connects once, so that one sentence says that Redis cannot be reached, and not one from each process.
///
/// # Errors
/// If there are other arguments, if Redis cannot be reached, or if the URL is `memory://`: one process only can see such
/// a store.
pub async fn redis_url() -> Result<String> {
    let mut arguments = env::args().skip(1);
    let url = match (arguments.next(), arguments.next()) {
        (None, _) => "redis://127.0.0.1:6379".to_owned(),
        (Some(url), None) if !url.starts_with('-') => url,
        _ => bail!("the only argument is the URL of a Redis; the default is redis://127.0.0.1:6379"),
    };
    ensure!(
        !url.starts_with("memory:"),
        "could not share {url}: this example has several processes, and only one can see a store in memory; name a Redis"
    );
    LockManager::connect(&url).await?;
    Ok(url)
}
