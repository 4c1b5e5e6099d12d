//! The holder of a key, and the requests that wait for it.

use futures_util::future::join;

use super::{LockManager, answers::Answers};
use crate::{
    backend::{Answer, BackendError, Batch, BusyReason, Operation, Outcome, Replied},
    engine::question::message::Subject,
    error::Error,
    info::{Held, KeyInfo},
    key::LockKey,
};

impl LockManager {
    /// Looks at a key: whether it is held, for how long still, by whom, and who waits for it.
    ///
    /// Holders and waiters are not kept in the store, so that a lease costs nothing for them. They are asked for by a message
    /// to every process that uses the store; each answers for itself, with at most 500 of them ([`KeyInfo::is_truncated`]).
    /// Processes that do not answer are left out: [`KeyInfo::processes`] says how many. See [`KeyInfo::nobody_answered`] and, for a key that several may hold, [`KeyInfo::silent`].
    ///
    /// This takes one round trip if the key is free, and two more if it is held. It takes 250 ms and two round trips if a process does
    /// not answer, for example because it is stopped, and if not all nodes of a cluster or quorum know the same number of processes. Do
    /// not use it in the path of a request; [`is_locked`](Self::is_locked) is one round trip.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a key out of range; [`ErrorKind::Backend`](crate::ErrorKind::Backend),
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType), [`ErrorKind::Denied`](crate::ErrorKind::Denied) and the like as for
    /// an acquire. A process that cannot be asked is not an error: see [`KeyInfo::nobody_answered`]. A user who may not use the
    /// channels is warned of once, in the log.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock("goods:1").label("goods:<id>").await?;
    ///
    /// let key = manager.inspect("goods:1").await?;
    /// let holder = key.holder().expect("this process");
    /// assert_eq!(holder.fencing_token(), guard.fencing_token());
    /// println!("{} holds it for {:?}, {} wait", holder.party(), holder.held(), key.waiters().len());
    /// # Ok(()) }
    /// ```
    pub async fn inspect(&self, key: impl AsRef<str>) -> Result<KeyInfo, Error> {
        let key = self.key(key.as_ref())?;
        let held = self.held(&key).await?;
        if held.is_none() {
            return Ok(Answers::of_nobody().describe(&key, None));
        }
        let heard = self.engine.ask_managers(Subject::Key(key.clone())).await.ok();
        Ok(Answers::of(heard).describe(&key, held))
    }

    /// Returns the keys that begin with `prefix` and are held or waited for, in the order of their bytes, each as
    /// [`inspect`](Self::inspect) returns it. A key that another library holds is included only if a request waits for it.
    ///
    /// The keys are found by `SCAN`, which does not block the server but looks at every key of the database; then their
    /// expiries are asked for in calls of 256, and all processes for their holders and waiters in one message. Each process describes
    /// at most 500 of them, holders first; if one has more, [`KeyInfo::is_truncated`] says so, and [`inspect`](Self::inspect) finds what
    /// is missing. An empty prefix lists all keys of the manager.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let _guards = manager.lock_all(["goods:1", "goods:2", "orders:1"]).await?;
    /// let goods = manager.list("goods:").await?;
    /// assert_eq!(goods.iter().map(|key| key.key()).collect::<Vec<_>>(), ["goods:1", "goods:2"]);
    /// # Ok(()) }
    /// ```
    pub async fn list(&self, prefix: impl AsRef<str>) -> Result<Vec<KeyInfo>, Error> {
        self.engine.admit(LIST)?;
        let prefix = format!("{}{}", self.settings.prefix, prefix.as_ref());
        let asked = self.engine.ask_managers(Subject::Prefix(prefix.clone()));
        let (keys, heard) = join(self.engine.list(prefix), asked).await;
        let mut keys = keys.map_err(|error| Error::backend(LIST, None, error))?;
        let mut answers = Answers::of(heard.ok());
        keys.extend(answers.keys().filter_map(|key| LockKey::new(key).ok()));
        keys.sort_unstable();
        keys.dedup();
        let keys: Vec<_> = keys.into_iter().map(|key| key.behind(&self.settings.prefix)).collect();
        let mut infos = Vec::with_capacity(keys.len());
        for keys in keys.chunks(AT_ONCE) {
            let batch = keys.iter().map(|key| Operation::Inspect { key: key.clone() }).collect::<Batch>();
            let answer = self.engine.call(batch).await.map_err(|error| Error::backend(LIST, None, error))?;
            for (key, outcome) in keys.iter().zip(answer.outcomes) {
                // A key that holds something else by now is not a lock.
                let Ok(held) = outcome.and_then(held) else { continue };
                let info = answers.describe(key, held);
                infos.extend((info.is_locked() || !info.waiters().is_empty()).then_some(info));
            }
        }
        Ok(infos)
    }

    /// Returns whether anybody holds a key, in one round trip.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// assert!(!manager.is_locked("goods:1").await?);
    /// let _guard = manager.lock("goods:1").await?;
    /// assert!(manager.is_locked("goods:1").await?);
    /// # Ok(()) }
    /// ```
    pub async fn is_locked(&self, key: impl AsRef<str>) -> Result<bool, Error> {
        let key = self.key(key.as_ref())?;
        self.held(&key).await.map(|held| held.is_some())
    }

    /// Asks the store whether a key is held.
    async fn held(&self, key: &LockKey) -> Result<Option<Held>, Error> {
        self.engine.admit(INSPECT).map_err(|error| error.on(key))?;
        let answer = self.engine.call(Batch::from([Operation::Inspect { key: key.clone() }])).await;
        answer.and_then(Answer::single).and_then(held).map_err(|error| Error::backend(INSPECT, Some(key), error))
    }
}

fn held(outcome: Outcome) -> Replied<Option<Held>> {
    match outcome {
        Outcome::Busy { remaining, by, .. } => {
            let foreign = by == BusyReason::Foreign;
            Ok(Some(Held { remaining, foreign, leases: 1, permits: 0, first: remaining }))
        }
        Outcome::Shared { leases, permits, first, last } => {
            let (leases, first, remaining) = (leases as usize, Some(first), Some(last));
            Ok(Some(Held { remaining, foreign: false, leases, permits, first }))
        }
        Outcome::Gone => Ok(None),
        outcome => Err(BackendError::unexpected(outcome)),
    }
}

/// How many keys are looked at in one call.
const AT_ONCE: usize = 256;

const INSPECT: &str = "inspect";

const LIST: &str = "list the keys";
