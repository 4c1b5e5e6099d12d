//! The sides of a comparison: our lock, raw commands through the same client, and a mutex that knows no other process.

use std::{future::Future, sync::Arc, time::Duration};

use lock_core::{LockGuard, LockManager};
use redis::{Client, Script, aio::MultiplexedConnection, io::tcp::TcpSettings};
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    time::sleep,
};

use super::server::client;

/// A lock under measurement; a clone shares the connection.
pub(crate) trait Locks: Clone + Send + Sync + 'static {
    /// A lease that is held.
    type Held: Send;
    /// As told to a child process, and as shown.
    const NAME: &'static str;

    fn connect(url: &str) -> impl Future<Output = Self> + Send;
    /// Waits as long as it takes.
    fn acquire(&self, key: &str) -> impl Future<Output = Self::Held> + Send;
    fn release(held: Self::Held) -> impl Future<Output = ()> + Send;
    /// Releases without an interest in the answer, as a guard does that goes out of scope.
    fn give_back(held: Self::Held) -> impl Future<Output = ()> + Send {
        Self::release(held)
    }
}

/// The ttl on every side.
pub(crate) const TTL: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(crate) struct Ours(pub(crate) LockManager);

impl Locks for Ours {
    type Held = LockGuard;
    const NAME: &'static str = "lock-core";

    async fn connect(url: &str) -> Self {
        Self(LockManager::connect(url).await.expect("the server answers"))
    }

    async fn acquire(&self, key: &str) -> LockGuard {
        self.0.lock(key).ttl(TTL).wait_forever().await.expect("it waits as long as it takes")
    }

    async fn release(guard: LockGuard) {
        guard.release().await.expect("the lease is held");
    }

    async fn give_back(guard: LockGuard) {
        drop(guard);
    }
}

/// Ours, with a release that is awaited instead of a guard that goes out of scope.
#[derive(Clone)]
pub(crate) struct OursAwaited(Ours);

impl Locks for OursAwaited {
    type Held = LockGuard;
    const NAME: &'static str = "lock-core-awaited";

    async fn connect(url: &str) -> Self {
        Self(Ours::connect(url).await)
    }

    async fn acquire(&self, key: &str) -> LockGuard {
        self.0.acquire(key).await
    }

    async fn release(guard: LockGuard) {
        Ours::release(guard).await;
    }
}

/// Ours, for shared leases.
#[derive(Clone)]
pub(crate) struct Readers(Ours);

impl Locks for Readers {
    type Held = LockGuard;
    const NAME: &'static str = "lock-core-shared";

    async fn connect(url: &str) -> Self {
        Self(Ours::connect(url).await)
    }

    async fn acquire(&self, key: &str) -> LockGuard {
        let request = self.0.0.lock(key).shared().ttl(TTL);
        request.wait_forever().await.expect("it waits as long as it takes")
    }

    async fn release(guard: LockGuard) {
        Ours::release(guard).await;
    }
}

/// Ours, for one of a hundred permits.
#[derive(Clone)]
pub(crate) struct Permits(Ours);

impl Locks for Permits {
    type Held = LockGuard;
    const NAME: &'static str = "lock-core-permits";

    async fn connect(url: &str) -> Self {
        Self(Ours::connect(url).await)
    }

    async fn acquire(&self, key: &str) -> LockGuard {
        let request = self.0.0.lock(key).permits(100).ttl(TTL);
        request.wait_forever().await.expect("it waits as long as it takes")
    }

    async fn release(guard: LockGuard) {
        Ours::release(guard).await;
    }
}

/// A mutex of tokio, whatever the key: what tasks of one process pay for their turns alone.
#[derive(Clone)]
pub(crate) struct InProcess(Arc<Mutex<()>>);

impl Locks for InProcess {
    type Held = OwnedMutexGuard<()>;
    const NAME: &'static str = "tokio-mutex";

    async fn connect(_url: &str) -> Self {
        Self(Arc::default())
    }

    async fn acquire(&self, _key: &str) -> OwnedMutexGuard<()> {
        Arc::clone(&self.0).lock_owned().await
    }

    async fn release(held: OwnedMutexGuard<()>) {
        drop(held);
    }
}

/// What a lock without fencing, renewal, queue and clean-up costs: SET NX PX, then compare-and-delete.
#[derive(Clone)]
pub(crate) struct Raw {
    pub(crate) connection: MultiplexedConnection,
    script: Arc<Script>,
}

/// A key that is held by raw commands.
pub(crate) struct RawHeld {
    raw: Raw,
    key: String,
}

impl Raw {
    pub(crate) fn new(connection: MultiplexedConnection) -> Self {
        let source =
            "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
        Self { connection, script: Arc::new(Script::new(source)) }
    }

    /// Over a connection with `TCP_NODELAY`, which the `redis` crate does not set by itself.
    pub(crate) async fn without_delay(url: &str) -> Self {
        Self::over(&client_without_delay(url)).await
    }

    /// Over a connection of a client.
    pub(crate) async fn over(client: &Client) -> Self {
        Self::new(client.get_multiplexed_async_connection().await.expect("the server answers"))
    }

    /// Whether the key was free.
    pub(crate) async fn try_acquire(&mut self, key: &str) -> bool {
        let mut set = redis::cmd("SET");
        set.arg(key).arg(TOKEN).arg("NX").arg("PX").arg(TTL.as_millis() as u64);
        let set: Option<String> = set.query_async(&mut self.connection).await.expect("SET");
        set.is_some()
    }
}

impl Locks for Raw {
    type Held = RawHeld;
    const NAME: &'static str = "raw";

    async fn connect(url: &str) -> Self {
        Self::over(&client(url)).await
    }

    /// Tries a busy key again every few milliseconds: raw commands know nothing of waiting.
    async fn acquire(&self, key: &str) -> RawHeld {
        let mut raw = self.clone();
        while !raw.try_acquire(key).await {
            sleep(RAW_PAUSE).await;
        }
        RawHeld { raw, key: key.to_owned() }
    }

    async fn release(held: RawHeld) {
        let RawHeld { mut raw, key } = held;
        let mut release = raw.script.prepare_invoke();
        release.key(key).arg(TOKEN);
        let deleted: u32 = release.invoke_async(&mut raw.connection).await.expect("EVALSHA");
        assert_eq!(deleted, 1);
    }
}

/// A client whose connections have `TCP_NODELAY`.
pub(crate) fn client_without_delay(url: &str) -> Client {
    let client = client(url);
    let tcp = TcpSettings::default().set_nodelay(true);
    let info = client.get_connection_info().clone().set_tcp_settings(tcp);
    Client::open(info).expect("it was valid")
}

const RAW_PAUSE: Duration = Duration::from_millis(5);
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
