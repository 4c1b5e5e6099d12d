//! The other locks, called as their documentation says, with their own defaults for the pace of their polling.

use async_redis_lock::{Lock, Locker, Options};
use redis::Client;
use rslock::LockManager;

use crate::support::{
    server::client,
    sides::{Locks, TTL},
};

/// `rslock`: SET NX PX, tried again after a random time of up to 200 ms, and released by script each
/// time that it failed.
#[derive(Clone)]
pub(crate) struct Rslock(LockManager);

impl Rslock {
    pub(crate) async fn over(client: Client) -> Self {
        let rslock = Self(LockManager::from_clients(vec![client]));
        // It connects with the first request.
        Self::release(rslock.acquire("rslock:first").await).await;
        rslock
    }
}

impl Locks for Rslock {
    type Held = rslock::LockGuard;
    const NAME: &'static str = "rslock";

    async fn connect(url: &str) -> Self {
        Self::over(client(url)).await
    }

    async fn acquire(&self, key: &str) -> rslock::LockGuard {
        self.0.acquire(key, TTL).await.expect("it tries again until it has it")
    }

    async fn release(guard: rslock::LockGuard) {
        guard.release().await;
    }
}

/// `async-redis-lock`: a script that looks and sets, tried again every 100 ms; a task for each lock that extends it.
#[derive(Clone)]
pub(crate) struct AsyncRedisLock(Locker);

impl AsyncRedisLock {
    pub(crate) async fn over(client: Client) -> Self {
        Self(Locker::from_client(client).await.expect("the server answers"))
    }
}

impl Locks for AsyncRedisLock {
    type Held = Lock;
    const NAME: &'static str = "async-redis-lock";

    async fn connect(url: &str) -> Self {
        Self::over(client(url)).await
    }

    async fn acquire(&self, key: &str) -> Lock {
        let options = Options::new().ttl(TTL).extend(TTL / 3).timeout(None);
        self.0.acquire_with_options(&options, key).await.expect("it waits as long as it takes")
    }

    async fn release(lock: Lock) {
        lock.release().await.expect("the lock is held");
    }
}
