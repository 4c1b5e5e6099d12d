//! The only place that reads the time.
//!
//! A manager has one [`Clock`], its only source of time and of timers, so that virtual time can drive every decision of the
//! engine. (Sockets keep tokio's own timers for their limits, which decide nothing about a lease.)

use std::{
    fmt,
    ops::{Add, Sub},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// A future that is done when its time has come.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A source of time and of timers.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the present moment. It never goes back, and it counts suspended time if the platform can tell. Threads of any kind ask, with
    /// and without a runtime; it must not block.
    fn now(&self) -> Moment;

    /// Returns a future that is done once about `duration` has passed. It may be late, and does not count the time
    /// that the machine was suspended.
    fn sleep(&self, duration: Duration) -> Sleep;
}

/// A point on a [`Clock`]: the time since an arbitrary but fixed origin of the clock, to the nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment {
    nanoseconds: u64,
}

impl Moment {
    /// A moment that never comes: 584 years after the origin.
    pub const NEVER: Self = Self { nanoseconds: u64::MAX };

    /// Makes the moment that lies `elapsed` after the clock's origin, at most [`NEVER`](Self::NEVER).
    #[must_use]
    pub const fn from_origin(elapsed: Duration) -> Self {
        Self { nanoseconds: nanoseconds(elapsed) }
    }

    pub(crate) const fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self { nanoseconds }
    }

    pub(crate) const fn nanoseconds(self) -> u64 {
        self.nanoseconds
    }

    /// Returns the time since the clock's origin.
    #[must_use]
    pub const fn since_origin(self) -> Duration {
        Duration::from_nanos(self.nanoseconds)
    }

    /// Returns the time from `earlier` to this moment, or zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanoseconds.saturating_sub(earlier.nanoseconds))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    /// Adds a duration; a sum beyond the range is [`Moment::NEVER`].
    fn add(self, duration: Duration) -> Self {
        Self { nanoseconds: self.nanoseconds.saturating_add(nanoseconds(duration)) }
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;

    /// Subtracts a duration; a difference before the origin is the origin.
    fn sub(self, duration: Duration) -> Self {
        Self { nanoseconds: self.nanoseconds.saturating_sub(nanoseconds(duration)) }
    }
}

const fn nanoseconds(duration: Duration) -> u64 {
    let nanoseconds = duration.as_nanos();
    if nanoseconds > u64::MAX as u128 { u64::MAX } else { nanoseconds as u64 }
}

/// The clock of a manager that talks to a server: it counts the time that the machine was suspended
/// (`CLOCK_BOOTTIME`), as the server does; inside a VM, not the time for which the hypervisor stops it.
///
/// On platforms without such a clock it is [`std::time::Instant`]. There, a lease may count as held for longer than on the server
/// after the machine was suspended; see the guarantees.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn now(&self) -> Moment {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or(0);
        Moment::from_origin(Duration::new(seconds, nanoseconds))
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn now(&self) -> Moment {
        use std::{sync::OnceLock, time::Instant};
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        Moment::from_origin(ORIGIN.get_or_init(Instant::now).elapsed())
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// The clock of tokio, which tests pause and advance: the clock of in-memory managers.
///
/// With `#[tokio::test(start_paused = true)]` leases of an in-memory manager live in that virtual time. Give each test a
/// manager of its own: the times of runtimes with paused clocks differ. A clock that several runtimes share shows the
/// latest of their times, and stands still for the others.
#[derive(Clone, Debug)]
pub struct TokioClock {
    origin: tokio::time::Instant,
    /// The latest time that it has shown, in nanoseconds.
    shown: Arc<AtomicU64>,
}

impl TokioClock {
    /// Makes a clock whose origin is now.
    #[must_use]
    pub fn new() -> Self {
        Self { origin: tokio::time::Instant::now(), shown: Arc::default() }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Moment {
        let now = nanoseconds(tokio::time::Instant::now().saturating_duration_since(self.origin));
        Moment::from_nanoseconds(self.shown.fetch_max(now, Ordering::Relaxed).max(now))
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paused() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
    }

    #[test]
    fn clock_of_tokio_does_not_go_back_from_one_paused_runtime_to_the_next() {
        let (clock, first) = paused().block_on(async {
            let clock = TokioClock::new();
            tokio::time::advance(Duration::from_secs(3_600)).await;
            (clock.clone(), clock.now())
        });
        assert_eq!(first.since_origin(), Duration::from_secs(3_600));
        assert!(paused().block_on(async { clock.now() }) >= first);
    }
}
