//! `ttl`, `wait`, `max_hold` and `at_least` as expressions. bad_input_48

use std::time::Duration;

use lock_core::{Argument, Error, ErrorKind, LockManager, LossReason, distributed_lock};

const TTL: Duration = Duration::from_secs(40);

struct Config {
    ttl: Duration,
    wait: Duration,
    locks: LockManager,
}

impl Config {
    fn limit(&self) -> Duration {
        self.wait * 2
    }

    #[distributed_lock(key = "k", ttl = self.ttl, wait = self.wait, manager = self.locks, lease = lease)]
    async fn of_fields(&self) -> Result<Duration, Error> {
        Ok(lease.remaining())
    }

    #[distributed_lock(key = "k", max_hold = self.limit(), manager = self.locks)]
    async fn of_a_call(&mut self) -> Result<(), Error> {
        std::future::pending().await
    }
}

#[async_trait::async_trait]
trait Job {
    async fn run(&self) -> Result<Duration, Error>;
}

#[async_trait::async_trait]
impl Job for Config {
    #[distributed_lock(key = "k", ttl = self.ttl, manager = self.locks, lease = lease)]
    async fn run(&self) -> Result<Duration, Error> {
        Ok(lease.remaining())
    }
}

#[distributed_lock(keys = ["a", "b"], ttl = TTL, lease = leases)]
async fn of_a_constant() -> Result<Duration, Error> {
    Ok(leases.remaining())
}

#[distributed_lock(key = "k", ttl = given?, wait = std::future::ready(Duration::ZERO).await)]
async fn of_an_argument(given: Result<Duration, Error>) -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "k", wait = forever)]
async fn waits_forever() -> Result<u8, Error> {
    Ok(1)
}

#[distributed_lock(key = "nightly", at_least = Duration::from_secs(60), wait = Duration::from_secs(5), on_busy = skip)]
async fn nightly() -> Result<Option<u8>, Error> {
    Ok(Some(1))
}

#[distributed_lock(key = "k", ttl = *ttl, wait = Duration::from_secs(1) - Duration::from_millis(500))]
async fn of_a_reference(ttl: &Duration) -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "k", ttl = ttl, max_hold = max_hold, at_least = at_least)]
async fn any(ttl: Duration, max_hold: Duration, at_least: Duration) -> Result<(), Error> {
    Ok(())
}

/// Whether the lease lasts for about `ttl`: less what the clocks may drift.
fn is_about(remaining: Duration, ttl: Duration) -> bool {
    (ttl * 9 / 10..=ttl).contains(&remaining)
}

#[tokio::test(start_paused = true)]
async fn ttl_is_any_expression() -> Result<(), Error> {
    let locks = LockManager::in_memory();
    let config = Config { ttl: Duration::from_secs(70), wait: Duration::from_secs(1), locks: locks.clone() };
    assert!(is_about(config.of_fields().await?, config.ttl));
    assert!(is_about(config.run().await?, config.ttl));
    assert!(is_about(locks.scope(of_a_constant()).await?, TTL));
    locks.scope(of_a_reference(&TTL)).await?;
    locks.scope(of_an_argument(Ok(TTL))).await
}

#[tokio::test(start_paused = true)]
async fn wait_and_max_hold_are_any_expression() -> Result<(), Error> {
    let locks = LockManager::in_memory();
    let mut config = Config { ttl: TTL, wait: Duration::from_secs(3), locks: locks.clone() };
    let guard = locks.lock("k").await?;
    let began = tokio::time::Instant::now();
    assert!(config.of_fields().await.unwrap_err().is_busy());
    assert_eq!(began.elapsed().as_secs(), 3);
    assert!(locks.scope(of_an_argument(Ok(TTL))).await.unwrap_err().is_busy());
    assert_eq!(began.elapsed().as_secs(), 3);
    guard.release().await?;
    assert_eq!(config.of_a_call().await.unwrap_err().kind(), ErrorKind::Lost(LossReason::MaxHold));
    assert_eq!(began.elapsed().as_secs(), 9);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn wait_may_have_no_end() -> Result<(), Error> {
    let locks = LockManager::in_memory();
    let guard = locks.lock("k").await?;
    let release = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        guard.release().await
    };
    let (value, released) = tokio::join!(locks.scope(waits_forever()), release);
    assert_eq!(value?, 1);
    released
}

#[tokio::test(start_paused = true)]
async fn at_least_is_any_expression() -> Result<(), Error> {
    let locks = LockManager::in_memory();
    assert_eq!(locks.scope(nightly()).await?, Some(1));
    let began = tokio::time::Instant::now();
    assert_eq!(locks.scope(nightly()).await?, None);
    assert_eq!(began.elapsed().as_secs(), 5);
    tokio::time::advance(Duration::from_secs(56)).await;
    assert_eq!(locks.scope(nightly()).await?, Some(1));
    Ok(())
}

#[tokio::test]
async fn value_out_of_range_is_an_error_before_the_body() {
    let locks = LockManager::in_memory();
    let second = Duration::from_secs(1);
    for (ttl, max_hold, at_least, argument) in [
        (Duration::from_millis(9), second, second, Argument::Ttl),
        (Duration::MAX, second, second, Argument::Ttl),
        (second, Duration::ZERO, second, Argument::MaxHold),
        (second, second, Duration::MAX, Argument::AtLeast),
    ] {
        let error = locks.scope(any(ttl, max_hold, at_least)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid(argument));
    }
}
