//! Functions that return the `Result`s of the standard library and of anyhow, with and without the attribute.

use std::{io, time::Duration};

use lock_core::{Error, ErrorKind, LockManager, distributed_lock};

async fn by_hand(manager: &LockManager) -> io::Result<u64> {
    Ok(manager.lock("a").wait(Duration::ZERO).await?.fencing_token().get())
}

#[distributed_lock(key = "a", wait = "0s", manager = manager, lease = lease)]
async fn with_io(manager: &LockManager) -> io::Result<u64> {
    Ok(lease.fencing_token().get())
}

#[distributed_lock(key = "a", wait = "0s", manager = manager, lease = lease)]
async fn with_anyhow(manager: &LockManager) -> anyhow::Result<u64> {
    Ok(lease.fencing_token().get())
}

#[tokio::test(start_paused = true)]
async fn the_error_of_the_lock_is_inside_that_of_the_function() {
    let manager = LockManager::in_memory();
    let first = by_hand(&manager).await.unwrap();
    assert!(first < with_io(&manager).await.unwrap());
    assert!(first < with_anyhow(&manager).await.unwrap());
    let _held = manager.lock("a").await.unwrap();
    for error in [by_hand(&manager).await.unwrap_err(), with_io(&manager).await.unwrap_err()] {
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        assert!(error.to_string().starts_with("could not acquire \"a\": held by someone else"), "{error}");
        assert_eq!(error.downcast::<Error>().unwrap().kind(), ErrorKind::Busy);
    }
    let error = with_anyhow(&manager).await.unwrap_err();
    assert_eq!(error.downcast::<Error>().unwrap().kind(), ErrorKind::Busy);
}
