use std::time::Duration;

use bytes::Bytes;
use redis::{Client, aio::ConnectionLike};

use super::answers::Answers;
use crate::error::BoxError;

/// Answers in a Redis, over a connection of your own (feature `idempotency-redis`).
///
/// **Use another server than that of the locks**, because answers fill a server: 1 KB, 100 times a second, for a day, are 8.6 GB. When
/// a server is full, it refuses locks, too, or evicts them. The layer refuses the server of its locks, as far as the addresses show it, unless
/// [`beside_the_locks`](super::IdempotencyLayer::beside_the_locks) is set. A server that evicts or forgets answers lets duplicates run again: use
/// `noeviction` and persistence if that matters.
///
/// An answer is stored by `SET … NX PX`, as `answer:`, the prefix of the manager, and the key. Any connection of the redis crate will do that is cloned cheaply;
/// `ConnectionManager` reconnects.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use lock_tower::idempotency::RedisAnswers;
///
/// let client = redis::Client::open("redis://answers.internal")?;
/// let connection = client.get_connection_manager().await?; // feature `connection-manager` of redis
/// let answers = RedisAnswers::new(&client, connection);
/// # let _ = answers;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RedisAnswers<C> {
    connection: C,
    address: String,
}

impl<C> RedisAnswers<C> {
    /// Creates the store over a connection of this client, whose address is compared with that of the locks.
    #[must_use]
    pub fn new(client: &Client, connection: C) -> Self {
        Self { connection, address: client.get_connection_info().addr().to_string() }
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Answers for RedisAnswers<C> {
    async fn get(&self, key: &str) -> Result<Option<Bytes>, BoxError> {
        Ok(redis::cmd("GET").arg(format!("answer:{key}")).query_async(&mut self.connection.clone()).await?)
    }

    async fn put_if_absent(&self, key: &str, answer: Bytes, keep: Duration) -> Result<Bytes, BoxError> {
        let ms = u64::try_from(keep.as_millis())?;
        let mut set = redis::cmd("SET");
        set.arg(format!("answer:{key}")).arg(&*answer).arg("NX").arg("PX").arg(ms);
        // `GET` in the same command would need Redis 7.0, and send each answer back.
        let is_first: Option<()> = set.query_async(&mut self.connection.clone()).await?;
        if is_first.is_some() {
            return Ok(answer);
        }
        self.get(key).await?.ok_or_else(|| "an answer was there, and is over".into())
    }

    fn address(&self) -> Option<String> {
        Some(self.address.clone())
    }
}
