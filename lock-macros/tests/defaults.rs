//! What the attribute does not name is as the manager has it; what it names is as it says.

use std::time::Duration;

use lock_core::{Error, ErrorKind, LeaseOptions, LockManager, LossReason, OnLost, distributed_lock};

fn manager() -> LockManager {
    LockManager::builder()
        .url("memory://")
        .defaults(
            LeaseOptions::new()
                .ttl(Duration::from_secs(3))
                .wait(Duration::from_secs(5))
                .fixed()
                .on_lost(OnLost::Ignore),
        )
        .build()
        .expect("sound")
}

/// Outlives a lease that is not renewed.
async fn work() -> Result<bool, Error> {
    tokio::time::sleep(Duration::from_secs(30)).await;
    Ok(true)
}

#[distributed_lock(key = "k")]
async fn names_nothing() -> Result<bool, Error> {
    work().await
}

#[distributed_lock(key = "k", on_lost = cancel)]
async fn cancelled() -> Result<bool, Error> {
    work().await
}

#[distributed_lock(key = "k", renew = true, on_lost = cancel)]
async fn renewed() -> Result<bool, Error> {
    work().await
}

#[distributed_lock(keys = ["k", "l"], renew = true, on_lost = cancel)]
async fn several_renewed() -> Result<bool, Error> {
    work().await
}

#[tokio::test(start_paused = true)]
async fn argument_comes_before_the_default_of_the_manager() -> Result<(), Error> {
    let locks = manager();
    assert!(locks.scope(names_nothing()).await?, "the loss is ignored");
    let lost = locks.scope(cancelled()).await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Lost(LossReason::Expired));
    assert!(locks.scope(renewed()).await?);
    assert!(locks.scope(several_renewed()).await?);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn default_of_the_manager_holds_where_there_is_no_argument() -> Result<(), Error> {
    let locks = manager();
    let guard = locks.lock("k").ttl(Duration::from_secs(60)).await?;
    let began = tokio::time::Instant::now();
    assert!(locks.scope(names_nothing()).await.unwrap_err().is_busy());
    assert_eq!(began.elapsed().as_secs(), 5);
    guard.release().await
}

/// Returns for how long a lease is valid at least, during ten seconds of work.
async fn least_left(left: impl Fn() -> Duration) -> Duration {
    let mut least = Duration::MAX;
    for _ in 0..1_000 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        least = least.min(left());
    }
    least
}

#[distributed_lock(key = "k", ttl = "9s", renew = true, lease = lease)]
async fn one_often() -> Result<Duration, Error> {
    Ok(least_left(|| lease.remaining()).await)
}

#[distributed_lock(keys = ["k", "l"], ttl = "9s", renew = true, lease = leases)]
async fn several_often() -> Result<Duration, Error> {
    Ok(least_left(|| leases.iter().map(|lease| lease.remaining()).min().expect("there are two")).await)
}

#[tokio::test(start_paused = true)]
async fn renewal_that_is_named_leaves_the_interval_of_the_manager() -> Result<(), Error> {
    let builder = || LockManager::builder().url("memory://");
    let (often, third) =
        (builder().defaults(LeaseOptions::new().renew_every(Duration::from_millis(100))).build()?, builder().build()?);
    for (manager, least, most) in [(often, 8_600, 9_000), (third, 5_500, 6_100)] {
        for left in [manager.scope(one_often()).await?, manager.scope(several_often()).await?] {
            assert!((least..most).contains(&left.as_millis()), "{left:?} of 9 s are left before a renewal");
        }
    }
    Ok(())
}
