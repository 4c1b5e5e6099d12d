//! The manager of the process. A program of its own, because other tests rely on there being none.

use std::time::Duration;

use lock_core::{Error, LockManager, distributed_lock};

#[distributed_lock(key = "installed")]
async fn installed() -> Result<(), Error> {
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn installed_manager_serves_where_none_is_given_or_scoped() -> Result<(), Box<dyn std::error::Error>> {
    let manager = LockManager::in_memory();
    manager.install()?;
    let guard = manager.lock("installed").await?;
    let waiting = tokio::spawn(installed());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waiting.is_finished(), "the installed manager has the key in use");
    LockManager::in_memory().scope(installed()).await?;
    assert!(!waiting.is_finished(), "the scoped manager has the key free, the installed one has not");
    drop(guard);
    waiting.await??;
    Ok(())
}
