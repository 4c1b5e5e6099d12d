//! How long a holder may rely on a lease; pure arithmetic.
//!
//! deadline = lease clock before *sending* + ttl − drift, with drift = ttl/100 + 2 ms. The allowance is that of the
//! Redlock description (antirez, *Distributed Locks with Redis*): clock rates that differ, and the millisecond
//! resolution of Redis expiry.

use std::time::Duration;

use crate::clock::Moment;

/// The least ttl. Less could only block others: no answer would arrive with validity left.
pub const MIN_TTL: Duration = Duration::from_millis(10);

/// The longest ttl: 100 years, so that no sum with a clock overflows, here or on the server.
pub const MAX_TTL: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// A ttl within its range, in whole milliseconds, as it is sent to Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ttl {
    milliseconds: u64,
}

impl Ttl {
    /// Rounds down to whole milliseconds, so that validity never exceeds the ttl that the backend gets.
    pub(crate) fn new(ttl: Duration) -> Result<Self, String> {
        if ttl < MIN_TTL {
            Err(format!("a ttl of {ttl:?} is below 10 ms, the least; 10 s is usual"))
        } else if ttl > MAX_TTL {
            Err(format!("a ttl of {} s is above 100 years, the most", ttl.as_secs()))
        } else {
            Ok(Self { milliseconds: ttl.as_secs() * 1_000 + u64::from(ttl.subsec_millis()) })
        }
    }

    /// The least ttl whose validity is at least `validity`.
    pub(crate) fn for_validity(validity: Duration) -> Result<Self, String> {
        let milliseconds = validity.as_nanos().div_ceil(1_000_000).saturating_add(2).saturating_mul(100).div_ceil(99);
        Self::new(Duration::from_millis(u64::try_from(milliseconds).unwrap_or(u64::MAX)))
    }

    pub(crate) fn get(self) -> Duration {
        Duration::from_millis(self.milliseconds)
    }

    /// The allowance taken off for clocks that run at different rates.
    fn drift(self) -> Duration {
        // A hundredth of a millisecond is 10 µs.
        Duration::from_micros(self.milliseconds * 10) + Duration::from_millis(2)
    }

    /// The end of what the holder may rely on, for a request sent at `sent`.
    pub(crate) fn deadline(self, sent: Moment) -> Moment {
        sent + (self.get() - self.drift())
    }

    /// The moment until which a request sent at `sent`, and executed in time, can block others.
    pub(crate) fn end(self, sent: Moment) -> Moment {
        sent + self.get()
    }
}

/// When the engine renews a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// Every third of the ttl.
    ThirdOfTtl,
    /// At an interval of the user's.
    Every(Duration),
    /// Never: the lease ends with its ttl unless the user extends it.
    Never,
}

impl Renewal {
    /// The time from one successful renewal to the next, or none.
    pub(crate) fn interval(self, ttl: Ttl) -> Option<Duration> {
        match self {
            Self::ThirdOfTtl => Some(ttl.get() / 3),
            Self::Every(interval) => Some(interval),
            Self::Never => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ttl(ttl: Duration) -> Result<Ttl, String> {
        Ttl::new(ttl)
    }

    #[test]
    fn bad_input_1_3_5_a_ttl_below_10_ms_is_refused_and_never_rounded_to_zero() {
        for bad in [Duration::ZERO, Duration::from_micros(999), Duration::from_micros(9_999)] {
            assert!(ttl(bad).unwrap_err().contains("below 10 ms"), "{bad:?}");
        }
        assert!(ttl(MIN_TTL).is_ok());
    }

    #[test]
    fn bad_input_4_fractions_of_a_millisecond_are_rounded_down() {
        assert_eq!(ttl(Duration::from_micros(10_900)).unwrap().get(), Duration::from_millis(10));
    }

    #[test]
    fn bad_input_6_and_7_a_ttl_beyond_the_clocks_is_refused() {
        for bad in [MAX_TTL + Duration::from_nanos(1), Duration::from_millis(i64::MAX as u64), Duration::MAX] {
            assert!(ttl(bad).unwrap_err().contains("100 years"));
        }
        let end = ttl(MAX_TTL).unwrap().deadline(Moment::from_origin(Duration::from_secs(1 << 33)));
        assert!(end > Moment::from_origin(Duration::from_secs(1 << 33)));
    }

    #[test]
    fn validity_counts_from_sending_less_one_percent_and_two_milliseconds() {
        let sent = Moment::from_origin(Duration::from_secs(5));
        let deadline = ttl(Duration::from_secs(10)).unwrap().deadline(sent);
        assert_eq!(deadline, sent + Duration::from_millis(10_000 - 100 - 2));
    }

    #[test]
    fn the_ttl_for_a_validity_is_the_least_that_covers_it() {
        let sent = Moment::from_origin(Duration::ZERO);
        for ms in [10, 11, 97, 1_000, 12_345, 10_000_000] {
            let wanted = Duration::from_millis(ms);
            let found = Ttl::for_validity(wanted).unwrap();
            assert!(found.deadline(sent).since(sent) >= wanted, "{ms}");
            let less = Ttl::new(found.get() - Duration::from_millis(1)).unwrap();
            assert!(less.deadline(sent).since(sent) < wanted, "{ms}");
        }
        assert!(Ttl::for_validity(Duration::MAX).is_err());
    }
}
