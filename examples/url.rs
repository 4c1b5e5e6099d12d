//! The only argument of an example: where its locks are.

use std::env;

use anyhow::{Result, bail, ensure};
use lock_core::LockManager;

/// Where the locks of an example are: its only argument, or else in memory.
///
/// # Errors
/// When there are other arguments.
pub fn locks_url() -> Result<String> {
    argument("memory://", "the locks are in memory")
}

/// The Redis of an example that consists of several processes: its only argument, or else the one on this machine. It
/// can be reached, or each process would say that it cannot.
///
/// # Errors
/// When there are other arguments, when Redis cannot be reached, and when it is `memory://`: a store in memory is seen by
/// one process only.
pub async fn redis_url() -> Result<String> {
    let url = argument("redis://127.0.0.1:6379", "it is the Redis on this machine")?;
    ensure!(
        !url.starts_with("memory:"),
        "{url} is seen by one process only, and this example has several: name a Redis"
    );
    LockManager::connect(&url).await?;
    Ok(url)
}

fn argument(default: &str, without: &str) -> Result<String> {
    let mut arguments = env::args().skip(1);
    match (arguments.next(), arguments.next()) {
        (None, _) => Ok(default.to_owned()),
        (Some(url), None) if !url.starts_with('-') => Ok(url),
        _ => bail!(
            "the only argument is the URL of a Redis, as in `cargo run --example NAME -- redis://127.0.0.1:6379`; \
             without it {without}"
        ),
    }
}
