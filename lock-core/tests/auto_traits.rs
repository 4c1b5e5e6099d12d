//! What may be sent to and shared with other threads.

use std::future::Ready;

use lock_core::{
    AlreadyInstalled, Argument, BuildError, End, Error, ErrorKind, FencingToken, Handover, KeyInfo, Lease, Leases,
    LockAllGuard, LockAllRequest, LockGuard, LockManager, LockManagerBuilder, LockRequest, LossReason, OnLost, Silent,
    backend::{Answer, BackendError, Batch, Calls, MemoryBackend, Operation, Outcomes, QuorumBackend, Reply, Token},
    future::{Acquire, AcquireAll, Protected, Release, ReleaseAll},
    key::LockKey,
};

fn send_sync<T: Send + Sync>() {}
fn send<T: Send>() {}
fn unpin<T: Unpin>() {}
fn is_static<T: 'static>() {}

#[test]
fn everything_can_be_sent_and_what_is_shared_is_sync() {
    send_sync::<LockManager>();
    send_sync::<LockManagerBuilder>();
    send_sync::<LockRequest>();
    send_sync::<LockAllRequest>();
    send_sync::<LockGuard>();
    send_sync::<LockAllGuard>();
    send_sync::<Lease>();
    send_sync::<Leases>();
    send_sync::<Handover>();
    send_sync::<Error>();
    send_sync::<BuildError>();
    send_sync::<(AlreadyInstalled, Argument, End, ErrorKind, LossReason, OnLost)>();
    send_sync::<(FencingToken, KeyInfo, Silent, LockKey, Token)>();
    send_sync::<(Answer, BackendError, Batch, Calls, MemoryBackend, Operation, Outcomes, QuorumBackend)>();
    send::<Reply<Answer>>();
    send::<Acquire>();
    send::<AcquireAll>();
    send::<Release>();
    send::<ReleaseAll>();
    send::<Protected<Ready<()>>>();
}

#[test]
fn futures_can_be_named_stored_and_polled_in_place() {
    is_static::<(Acquire, AcquireAll, Release, ReleaseAll)>();
    unpin::<Acquire>();
    unpin::<AcquireAll>();
    unpin::<Release>();
    unpin::<ReleaseAll>();
    unpin::<Reply<Answer>>();
    unpin::<(LockRequest, LockAllRequest, LockGuard, LockAllGuard, Lease, Leases)>();
    unpin::<Protected<Ready<()>>>();
}

#[test]
fn end_of_a_lease_can_be_awaited_anywhere_and_outlives_the_guard() {
    fn is_free<T: Send + Sync + Unpin + 'static>(_: fn(&Lease, &Leases, &LockGuard, &LockAllGuard) -> T) {}
    is_free(|lease, leases, guard, all| (lease.ended(), leases.ended(), guard.ended(), all.ended()));
}

#[tokio::test]
async fn run_can_be_spawned_and_may_borrow() -> Result<(), Error> {
    let manager = LockManager::in_memory();
    let spawned = {
        let manager = manager.clone();
        tokio::spawn(async move {
            let local = String::from("borrowed");
            manager.lock("k").run(async |_| local.len()).await
        })
    };
    assert_eq!(spawned.await.expect("the task does not panic")?, 8);
    Ok(())
}

#[tokio::test]
async fn run_takes_each_form_of_work_and_what_it_makes_can_be_sent() -> Result<(), Error> {
    async fn named(lease: Lease) -> FencingToken {
        lease.fencing_token()
    }

    let manager = LockManager::in_memory();
    let begin = || manager.lock("k");
    let first = tokio::spawn(begin().run(|lease| async move { lease.fencing_token() })).await.expect("no panic")?;
    let second = tokio::spawn(begin().run(async |lease| lease.fencing_token())).await.expect("no panic")?;
    let third = tokio::spawn(begin().try_run(named)).await.expect("no panic")?;
    assert!(first < second && Some(second) < third);
    let mut sold = 0;
    begin().run(async |_| sold += 1).await?;
    let all = manager.lock_all(["a", "b"]).run(|leases| async move { leases.len() }).await?;
    assert_eq!((sold, all), (1, 2));
    Ok(())
}
