use std::time::Duration;

#[cfg(doc)]
use crate::{ErrorKind, LockRequest};
use crate::{error::Argument, ttl::Ttl};

/// How many replicas must have a lease before it counts, and how long an acquire waits for them; see
/// [`LockRequest::durability`].
///
/// Replication is asynchronous: a primary that dies may have granted a lease that no replica has. With
/// `Replicas::new(1, timeout)` an acquire succeeds only when one replica has confirmed the lease (the command `WAIT` of
/// Redis). If that replica is promoted, the lease is still held. If *another* one is promoted, the lease may be gone: name
/// as many replicas as there are to rule that out. Renewals and releases are not waited for.
///
/// It costs one more round trip to the primary and one from there to its replicas. They go over a second connection of the
/// manager, so that slow replicas do not delay requests without durability.
///
/// # Examples
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lock_core::{LockManager, Replicas};
/// use std::time::Duration;
///
/// let manager = LockManager::connect("redis://127.0.0.1").await?;
/// let guard = manager.lock("payout").durability(Replicas::new(1, Duration::from_millis(300))).await?;
/// # guard.release().await?; Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Replicas {
    min: u32,
    timeout: Duration,
}

impl Replicas {
    /// Requires `min` replicas, at least one, within `timeout`: 1 ms to an hour, in whole milliseconds (rounded down), and at
    /// most half of the ttl. The request checks both.
    #[must_use]
    pub const fn new(min: u32, timeout: Duration) -> Self {
        Self { min, timeout }
    }

    /// Returns how many replicas must have the lease.
    #[must_use]
    pub const fn min(self) -> u32 {
        self.min
    }

    /// Returns how long an acquire waits for them.
    #[must_use]
    pub const fn timeout(self) -> Duration {
        self.timeout
    }

    /// The durability that the attribute asks for: with the timeout that it names, else that of the manager's default, else
    /// a second, or half of the ttl if that is shorter.
    #[cfg(feature = "macros")]
    pub(crate) fn asked(min: u32, timeout: Option<Duration>, default: Option<Self>, ttl: Duration) -> Self {
        let usual = default.map_or_else(|| USUAL_TIMEOUT.min(ttl / 2), Self::timeout);
        Self { min, timeout: timeout.unwrap_or(usual) }
    }

    /// Whether both are in their ranges, for a lease with this ttl.
    pub(crate) fn check(self, ttl: Ttl) -> Result<(), (Argument, String)> {
        let Self { min, timeout } = self;
        let most = MAX_TIMEOUT.min(ttl.get() / 2);
        let detail = if min == 0 {
            "a `durability` of zero replicas has no effect; require at least one, or leave it out".to_owned()
        } else if !(MIN_TIMEOUT..=most).contains(&timeout) {
            format!(
                "a `durability` with a timeout of {timeout:?} is not between {MIN_TIMEOUT:?} and {most:?}: at most an hour, \
                 and half of the ttl of {:?}, so that the lease outlasts the wait for the replicas",
                ttl.get()
            )
        } else {
            return Ok(());
        };
        Err((Argument::Durability, detail))
    }
}

/// The longest time that a request waits for the replicas of another one before its own wait begins.
pub(crate) const OTHERS_WAIT: Duration = Duration::from_secs(1);

/// Redis counts in milliseconds, and zero is without end there.
const MIN_TIMEOUT: Duration = Duration::from_millis(1);
const MAX_TIMEOUT: Duration = Duration::from_secs(60 * 60);
/// The attribute's timeout if nothing sets one.
#[cfg(feature = "macros")]
const USUAL_TIMEOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(min: u32, timeout: Duration, ttl: Duration) -> Option<String> {
        let ttl = Ttl::new(ttl).unwrap();
        let checked = Replicas::new(min, timeout).check(ttl);
        checked.err().map(|(argument, detail)| {
            assert_eq!(argument, Argument::Durability);
            detail
        })
    }

    #[test]
    fn no_replicas_and_a_timeout_out_of_range_are_refused() {
        let (ms, hour) = (Duration::from_millis, Duration::from_secs(60 * 60));
        assert!(refusal(0, ms(100), ms(10_000)).is_some_and(|said| said.contains("zero replicas")));
        for timeout in [Duration::ZERO, Duration::from_micros(999), ms(5_001), Duration::MAX] {
            let said = refusal(1, timeout, ms(10_000)).unwrap_or_else(|| panic!("{timeout:?} would do"));
            assert!(said.contains("between 1ms and 5s"), "{said}");
        }
        for timeout in [ms(1), ms(5_000)] {
            assert_eq!(refusal(u32::MAX, timeout, ms(10_000)), None);
        }
        assert_eq!(refusal(1, hour, 3 * hour), None);
        assert!(refusal(1, hour + ms(1), 3 * hour).is_some_and(|said| said.contains("an hour")));
    }

    #[cfg(feature = "macros")]
    #[test]
    fn the_attribute_waits_as_long_as_the_manager_and_never_longer_than_half_of_the_ttl_by_itself() {
        let ms = Duration::from_millis;
        let asked = |timeout, default, ttl| Replicas::asked(2, timeout, default, ttl).timeout();
        assert_eq!(asked(None, None, ms(10_000)), ms(1_000));
        assert_eq!(asked(None, None, ms(600)), ms(300));
        assert_eq!(asked(None, Some(Replicas::new(1, ms(70))), ms(600)), ms(70));
        assert_eq!(asked(Some(ms(50)), Some(Replicas::new(1, ms(70))), ms(600)), ms(50));
    }
}
