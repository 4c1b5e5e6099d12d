use std::{
    fmt,
    num::{ParseIntError, TryFromIntError},
    str::FromStr,
};

/// A number that grows with every new holder of a key.
///
/// Send it with every write that the lock protects, and let the store reject a write whose fencing token is smaller than the
/// largest one that it has seen. Then a holder that was paused and lost its lease cannot overwrite its successor. (Martin
/// Kleppmann, *How to do distributed locking*, 2016.)
///
/// The number is `max(last + 1, server time in ms × 1000)`. So it keeps rising when the server loses its data, unless the
/// server's clock is set back at the same time.
///
/// It converts to and from text and integers, and fits in 63 bits: [`as_i64`](Self::as_i64) is for a database. A service that
/// receives it can also use this type, which is ordered like the numbers. Foreign holders (other libraries on the same key) do
/// not raise it.
///
/// # Examples
///
/// Carried with each write, for the store to compare; [`new`](Self::new) has the other side:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
/// use lock_core::LockManager;
///
/// let guard = LockManager::in_memory().lock("goods:1").await?;
/// let header = ("x-fence", guard.fencing_token().to_string());
/// // or: UPDATE goods SET in_stock = ?, fence = ? WHERE id = ? AND fence <= ?
/// # assert!(!header.1.is_empty()); guard.release().await }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Makes the fencing token of a number that came from [`get`](Self::get), for the service that receives it.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::FencingToken;
    ///
    /// /// The largest number that the store has seen.
    /// struct Row {
    ///     fence: FencingToken,
    /// }
    ///
    /// impl Row {
    ///     fn write(&mut self, fence: FencingToken) -> Result<(), &'static str> {
    ///         if fence < self.fence {
    ///             return Err("a later holder has written already");
    ///         }
    ///         self.fence = fence;
    ///         Ok(())
    ///     }
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut row = Row { fence: FencingToken::new(41) };
    /// row.write("42".parse()?)?;
    /// assert!(row.write(FencingToken::new(41)).is_err());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the number for a signed 64-bit column, such as SQL's `BIGINT`, without changing it or its order.
    ///
    /// Microseconds since 1970 reach 2⁶³ in the year 294,247. A larger number, which only a backend that counts in another
    /// way can give, becomes [`i64::MAX`].
    ///
    /// # Examples
    /// ```
    /// # use lock_core::{Error, LockManager};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// let guard = LockManager::in_memory().lock("goods:1").await?;
    /// // UPDATE goods SET in_stock = ?, fence = ? WHERE id = ? AND fence <= ?
    /// let fence: i64 = guard.fencing_token().as_i64();
    /// assert_eq!(u64::try_from(fence), Ok(guard.fencing_token().get()));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn as_i64(self) -> i64 {
        if self.0 > i64::MAX.unsigned_abs() { i64::MAX } else { self.0.cast_signed() }
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for FencingToken {
    type Err = ParseIntError;

    /// Reads what `Display` writes: the number.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl From<FencingToken> for u64 {
    fn from(fence: FencingToken) -> Self {
        fence.0
    }
}

impl From<u64> for FencingToken {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl TryFrom<FencingToken> for i64 {
    type Error = TryFromIntError;

    /// Gives the number for a signed column; unlike [`as_i64`](FencingToken::as_i64) it refuses one above [`i64::MAX`].
    fn try_from(fence: FencingToken) -> Result<Self, Self::Error> {
        fence.0.try_into()
    }
}

impl TryFrom<i64> for FencingToken {
    type Error = TryFromIntError;

    /// Reads the number of a signed column; a negative one is refused.
    fn try_from(number: i64) -> Result<Self, Self::Error> {
        number.try_into().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fencing_token_for_sql_is_the_same_number_and_never_negative() {
        for (number, sql) in [(1, 1), (1_763_700_000_000_000, 1_763_700_000_000_000), ((1 << 63) - 1, i64::MAX)] {
            assert_eq!(FencingToken::new(number).as_i64(), sql);
        }
        assert_eq!(FencingToken::new(1 << 63).as_i64(), i64::MAX);
        assert_eq!(FencingToken::new(u64::MAX).as_i64(), i64::MAX);
    }

    #[test]
    fn a_fencing_token_comes_back_from_text_and_numbers_as_it_went() {
        for number in [0, 1, 1_763_700_000_000_000, (1 << 63) - 1] {
            let fence = FencingToken::new(number);
            assert_eq!(fence.to_string().parse(), Ok(fence));
            assert_eq!((u64::from(fence), FencingToken::from(number)), (number, fence));
            assert_eq!(i64::try_from(fence).and_then(FencingToken::try_from), Ok(fence));
        }
        for text in ["", "-1", "1.5", "18446744073709551616", "x"] {
            assert!(text.parse::<FencingToken>().is_err(), "{text}");
        }
        assert!(FencingToken::try_from(-1_i64).is_err());
        assert!(i64::try_from(FencingToken::new(1 << 63)).is_err());
    }
}
