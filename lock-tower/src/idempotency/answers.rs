use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use crate::error::BoxError;

/// A store of answers, which all instances of a service share.
///
/// An answer is bytes in the layer's own form: at most its [`limit`](super::IdempotencyLayer::limit), and the headers. The store keeps the
/// answer that comes first: a later one for the same key must change nothing. Keys are compared byte by byte (in MySQL and MariaDB a
/// column of `VARBINARY`): two that differ in case are those of two clients, of which the second would be refused. Reads come from
/// the primary, since a replica may not have an answer yet. A call that takes longer than the
/// [`store_timeout`](super::IdempotencyLayer::store_timeout) is dropped, and counts as failed.
///
/// What a store loses before its time, because it evicts or restarts, lets a duplicate run again.
///
/// # Examples
///
/// A table of PostgreSQL or SQLite does it with two statements:
///
/// ```sql
/// SELECT answer FROM answers WHERE key = $1 AND until > now();
/// INSERT INTO answers (key, answer, until) VALUES ($1, $2, now() + $3) ON CONFLICT (key) DO UPDATE
///     SET answer = excluded.answer, until = excluded.until WHERE answers.until <= now();
/// ```
///
/// An answer that is over makes room for the next one. With `DO NOTHING` it would stay, and no later one could be stored.
pub trait Answers: Clone + Send + Sync + 'static {
    /// Returns the answer of a key, or `None` if there is none.
    ///
    /// # Errors
    /// The store does not answer. The request is refused with 503, unless its handler has run.
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<Bytes>, BoxError>> + Send;

    /// Stores an answer for as long as `keep` unless the key has one, and returns the answer that the store has then.
    ///
    /// # Errors
    /// The store does not answer, and may have stored it. The layer tries again for five minutes, also after its lease was lost. A panic is not tried again.
    fn put_if_absent(
        &self,
        key: &str,
        answer: Bytes,
        keep: Duration,
    ) -> impl Future<Output = Result<Bytes, BoxError>> + Send;

    /// Returns the address of the Redis that has the answers, as `host:port`, to be compared with that of the locks, or
    /// `memory` if they are in the memory of this process. Default: `None`.
    fn address(&self) -> Option<String> {
        None
    }
}

/// Answers in the memory of this process, for tests. Clones share them. **Another instance, and this one after a restart, does not have
/// them, and runs a duplicate again**: the layer warns if its locks are not in memory, too.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_tower::BoxError> {
/// use lock_tower::idempotency::{Answers, MemoryAnswers};
/// use std::time::Duration;
///
/// let (answers, a_day) = (MemoryAnswers::new(), Duration::from_secs(24 * 3600));
/// assert_eq!(answers.put_if_absent("a", "first".into(), a_day).await?, "first");
/// assert_eq!(answers.put_if_absent("a", "second".into(), a_day).await?, "first");
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct MemoryAnswers {
    /// Each answer, and when it is over.
    kept: Arc<Mutex<HashMap<String, (Instant, Bytes)>>>,
}

impl MemoryAnswers {
    /// Creates an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<String, (Instant, Bytes)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answers for MemoryAnswers {
    async fn get(&self, key: &str) -> Result<Option<Bytes>, BoxError> {
        let now = Instant::now();
        Ok(self.kept().get(key).filter(|(end, _)| *end > now).map(|(_, answer)| answer.clone()))
    }

    async fn put_if_absent(&self, key: &str, answer: Bytes, keep: Duration) -> Result<Bytes, BoxError> {
        let (now, mut kept) = (Instant::now(), self.kept());
        if kept.len() == kept.capacity() {
            kept.retain(|_, (end, _)| *end > now);
            let count = kept.len();
            kept.reserve(count + 500); // so that an answer costs the same on average, however many there are
        }
        let first = kept.entry(key.to_owned()).or_insert((now, Bytes::new()));
        if first.0 <= now {
            *first = (now + keep.min(MOST), answer);
        }
        Ok(first.1.clone())
    }

    fn address(&self) -> Option<String> {
        Some(MEMORY.to_owned())
    }
}

impl fmt::Debug for MemoryAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryAnswers")
    }
}

/// The address of locks and answers in the memory of a process.
pub(super) const MEMORY: &str = "memory";
/// The longest time for which answers are kept: 100 years.
pub(super) const MOST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
