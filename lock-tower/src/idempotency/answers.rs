use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use crate::error::BoxError;

/// A store of answers, which all instances of a service share.
///
/// An answer is bytes in the layer's own form: at most its [`limit`](super::IdempotencyLayer::limit), and the headers. The store keeps the
/// answer that comes first: a later one for the same key must change nothing. Reads come from
/// the primary, since a replica may not have an answer yet.
///
/// What a store loses before its time, because it evicts or restarts, lets a duplicate run again.
///
/// # Examples
///
/// A table of PostgreSQL or SQLite does it with two statements:
///
/// ```sql
/// SELECT answer FROM answers WHERE key = $1 AND until > now();
/// INSERT INTO answers (key, answer, until) VALUES ($1, $2, now() + $3) ON CONFLICT (key) DO NOTHING;
/// ```
pub trait Answers: Clone + Send + Sync + 'static {
    /// Returns the answer of a key, or `None` if there is none.
    ///
    /// # Errors
    /// The store does not answer. The request is refused with 503.
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<Bytes>, BoxError>> + Send;

    /// Stores an answer for as long as `keep` unless the key has one, and returns the answer that the store has then.
    ///
    /// # Errors
    /// The store does not answer, and may have stored it. The layer tries again while it has the lease.
    fn put_if_absent(
        &self,
        key: &str,
        answer: Bytes,
        keep: Duration,
    ) -> impl Future<Output = Result<Bytes, BoxError>> + Send;

    /// Returns the address of the Redis that has the answers, as `host:port`, to be compared with that of the locks. Default: `None`.
    fn address(&self) -> Option<String> {
        None
    }
}

/// Answers in the memory of this process, for tests and for a service of one instance. Clones share them.
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
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    answers: HashMap<Arc<str>, Bytes>,
    /// When each answer is over, and its key.
    ends: BTreeSet<(Instant, Arc<str>)>,
}

impl MemoryAnswers {
    /// Creates an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes what is over, and lets `does` see the rest.
    fn now<R>(&self, does: impl FnOnce(&mut Kept, Instant) -> R) -> R {
        let now = Instant::now();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        while kept.ends.first().is_some_and(|(end, _)| *end <= now) {
            if let Some((_, key)) = kept.ends.pop_first() {
                kept.answers.remove(&key);
            }
        }
        does(&mut kept, now)
    }
}

impl Answers for MemoryAnswers {
    async fn get(&self, key: &str) -> Result<Option<Bytes>, BoxError> {
        Ok(self.now(|kept, _| kept.answers.get(key).cloned()))
    }

    async fn put_if_absent(&self, key: &str, answer: Bytes, keep: Duration) -> Result<Bytes, BoxError> {
        Ok(self.now(|kept, now| {
            if let Some(first) = kept.answers.get(key) {
                return first.clone();
            }
            let key: Arc<str> = key.into();
            kept.ends.insert((now + keep.min(MOST), Arc::clone(&key)));
            kept.answers.insert(key, answer.clone());
            answer
        }))
    }
}

impl fmt::Debug for MemoryAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryAnswers")
    }
}

/// The longest time for which answers are kept: 100 years.
pub(super) const MOST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
