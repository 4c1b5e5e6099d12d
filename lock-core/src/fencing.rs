use std::{fmt, num::ParseIntError, str::FromStr};

/// A number that grows with every new holder of a key.
///
/// Claim what the lock protects with it before the first read, and write only if the claim still stands. Then a holder that was
/// paused and lost its lease cannot overwrite what its successor has read or written. (Martin Kleppmann, *How to do distributed
/// locking*, 2016.) A store that compares at the write only lets a late write pass between the successor's read and its write, and
/// loses it.
///
/// The number is `max(last + 1, server time in ms × 1000)`. So it keeps rising when the server loses its data, unless the
/// server's clock is set back at the same time.
///
/// It converts to and from text, and fits in 63 bits: [`as_i64`](Self::as_i64) is for a database. A service that receives the
/// number can also use this type, made by [`new`](Self::new) and ordered like the numbers. Foreign holders (other libraries on the same key) do
/// not raise it.
///
/// # Examples
///
/// Claim, then read, then write. The column `claim` counts claims and writes, and so tells two claims with the same number apart: of
/// two tasks that share a lease, or of one that tries again. `docs/guarantees.md` of the repository has the statements for several
/// rows and for other databases. [`new`](Self::new) has the side of a service that is sent the number:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
/// use lock_core::LockManager;
///
/// let guard = LockManager::in_memory().lock("goods:1").await?;
/// let fence: i64 = guard.fencing_token().as_i64();
/// // First: UPDATE goods SET fence = :fence, claim = claim + 1 WHERE id = :id AND fence <= :fence RETURNING stock, claim
/// // Last:  UPDATE goods SET stock = :stock, claim = claim + 1 WHERE id = :id AND fence = :fence AND claim = :claim
/// // Each changes one row, or a later claim has come: this one is too late.
/// # assert!(fence > 0); guard.release().await }
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
    /// struct Row {
    ///     stock: u32,
    ///     /// The largest number that has claimed the row.
    ///     fence: FencingToken,
    ///     /// Counts claims and writes.
    ///     claim: u64,
    /// }
    ///
    /// const TOO_LATE: &str = "a later holder has claimed the row";
    ///
    /// impl Row {
    ///     /// What a holder asks for first: nobody before it can write after this. Returns the stock and the number of the claim.
    ///     fn claim_and_read(&mut self, fence: FencingToken) -> Result<(u32, u64), &'static str> {
    ///         if fence < self.fence {
    ///             return Err(TOO_LATE);
    ///         }
    ///         self.fence = fence;
    ///         self.claim += 1;
    ///         Ok((self.stock, self.claim))
    ///     }
    ///
    ///     fn write(&mut self, stock: u32, claim: u64) -> Result<(), &'static str> {
    ///         if claim != self.claim {
    ///             return Err(TOO_LATE);
    ///         }
    ///         self.stock = stock;
    ///         self.claim += 1;
    ///         Ok(())
    ///     }
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut row = Row { stock: 2, fence: FencingToken::new(0), claim: 0 };
    /// let (stock, first) = row.claim_and_read(FencingToken::new(41))?;
    /// let (stock_then, second) = row.claim_and_read("42".parse()?)?;
    /// assert!(row.write(stock - 1, first).is_err(), "it comes between read and write");
    /// row.write(stock_then - 1, second)?;
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
    fn a_fencing_token_comes_back_from_text_as_it_went() {
        for number in [0, 1, 1_763_700_000_000_000, (1 << 63) - 1] {
            let fence = FencingToken::new(number);
            assert_eq!(fence.to_string().parse(), Ok(fence));
        }
        for text in ["", "-1", "1.5", "18446744073709551616", "x"] {
            assert!(text.parse::<FencingToken>().is_err(), "{text}");
        }
    }
}
