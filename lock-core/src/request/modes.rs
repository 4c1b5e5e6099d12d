//! The modes of a request: exclusive, shared, permits.

use super::LockRequest;
use crate::{key::LockKey, mode::Mode};

impl LockRequest<LockKey> {
    /// Asks for a shared lease: any number of them hold the key at the same time, and no exclusive one does. Default: exclusive.
    ///
    /// Requests of all modes wait in one queue. A shared request that comes after an exclusive one waits behind it, even while
    /// others share the key, so that a stream of readers does not keep a writer waiting. Each shared lease is renewed, lost and
    /// released by itself: one whose holder died ends with its own ttl.
    ///
    /// The fencing token of a shared lease is larger than that of every exclusive lease before it, and smaller than that of every
    /// later one. Compare it with the number that a store keeps of its last writer, and do not write it there.
    ///
    /// A shared lease cannot become an exclusive one: two holders who both wanted that would wait for each other. Release it, acquire
    /// the key exclusively, and read again what was read under it. The other way works: [`LockGuard::downgrade`](crate::LockGuard::downgrade).
    ///
    /// Inside a scoped form, a task that shares a key and waits to share it once more would wait for a writer between the two, which
    /// waits for the first: that is [`ErrorKind::WouldDeadlock`](crate::ErrorKind::WouldDeadlock). A request that tries once may
    /// share it.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let one = manager.lock("goods:1").shared().await?;
    /// let other = manager.lock("goods:1").shared().await?;
    /// assert!(manager.lock("goods:1").try_acquire().await?.is_none()); // a writer waits for both
    /// # one.release().await?; other.release().await }
    /// ```
    pub fn shared(mut self) -> Self {
        self.clashes |= matches!(self.mode, Mode::Permits { .. });
        self.mode = Mode::Shared;
        self
    }

    /// Takes one of `total` permits: at most that many leases hold the key at once, over all processes. 1 to 1,000,000. Default:
    /// exclusive.
    ///
    /// The total is part of the request. While permits of another total are held, the request waits until the last of them is given
    /// back, as requests of different modes wait for one another; the log names both totals once. Requests wait in the order in which they came: one that
    /// [takes](Self::take) several permits is not passed by those that take fewer.
    ///
    /// Each permit has a fencing token of its own, larger than all before it. Since several are held at a time, a store that
    /// rejects smaller numbers would reject holders that are in order: use the number only to tell leases apart.
    ///
    /// A quorum refuses permits ([`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported)): each holder would need a majority of the
    /// nodes, and three nodes of `total` permits each have room for half as many holders again.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let one = manager.lock("tenant:7").permits(2).await?;
    /// let other = manager.lock("tenant:7").permits(2).await?;
    /// assert!(manager.lock("tenant:7").permits(2).try_acquire().await?.is_none());
    ///
    /// assert!(manager.lock("tenant:7").permits(3).try_acquire().await?.is_none()); // the key has 2 permits
    /// # one.release().await?; other.release().await }
    /// ```
    pub fn permits(mut self, total: u32) -> Self {
        self.clashes |= self.mode == Mode::Shared;
        self.mode = Mode::Permits { total, take: 1 };
        self
    }

    /// Takes so many of the [permits](Self::permits) with one lease: at least one, and at most their total. Default: 1.
    ///
    /// As long as one holder takes more than one, the server adds up those of all holders for each acquire: about 1 ms for each
    /// thousand holders.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let large = manager.lock("tenant:7").permits(3).take(2).await?;
    /// assert!(manager.lock("tenant:7").permits(3).take(2).try_acquire().await?.is_none());
    /// assert!(manager.lock("tenant:7").permits(3).try_acquire().await?.is_some());
    /// # large.release().await }
    /// ```
    pub fn take(mut self, permits: u32) -> Self {
        self.take = Some(permits);
        self
    }
}
