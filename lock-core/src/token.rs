use std::{fmt, str::FromStr};

/// Random proof of holding: the value of the key in the backend.
///
/// 128 random bits, written as a fixed mark, the version of the format and 32 hexadecimal digits. A value with another
/// mark or version belongs to a foreign holder (another library on the same key). Whoever knows a token can release
/// the lease, so `Debug` hides it and nothing logs it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(u128);

/// What every token of this library begins with: the mark and the version of the format.
pub const TOKEN_MARK: &str = "lock-core:1:";

impl Token {
    /// Makes a token of 128 random bits.
    #[must_use]
    pub const fn from_random(bits: u128) -> Self {
        Self(bits)
    }

    /// Returns the value that goes over the wire.
    #[must_use]
    pub fn reveal(&self) -> String {
        format!("{TOKEN_MARK}{:032x}", self.0)
    }
}

impl FromStr for Token {
    type Err = ForeignToken;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.strip_prefix(TOKEN_MARK)
            .filter(|digits| digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u128::from_str_radix(digits, 16).ok())
            .map(Self)
            .ok_or(ForeignToken)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The text is no token of this library, or one of an unknown version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForeignToken;

impl fmt::Display for ForeignToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a token of this library")
    }
}

impl std::error::Error for ForeignToken {}

/// A number that grows with every new holder of a key.
///
/// Send it along with every write that the lock protects, and let the store refuse a write whose fencing token is
/// smaller than the largest it has seen: then a holder that was stopped, lost its lease and woke up again cannot
/// overwrite its successor. (Martin Kleppmann, *How to do distributed locking*, 2016.) It is
/// `max(last + 1, server time in µs)`, so it keeps rising when the server loses its data, unless its clock is set back
/// at the same time.
///
/// It fits in 63 bits: [`as_i64`](Self::as_i64) gives it to a database. Foreign holders (other libraries on the same key)
/// do not raise it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    pub(crate) const fn new(number: u64) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_its_text_and_debug_hides_it() {
        let token = Token::from_random(0xfeed);
        assert_eq!(token.reveal().parse(), Ok(token));
        assert_eq!(token.reveal().len(), TOKEN_MARK.len() + 32);
        assert!(!format!("{token:?}").contains("feed"));
    }

    #[test]
    fn a_fencing_token_for_sql_is_the_same_number_and_never_negative() {
        for (number, sql) in [(1, 1), (1_763_700_000_000_000, 1_763_700_000_000_000), ((1 << 63) - 1, i64::MAX)] {
            assert_eq!(FencingToken::new(number).as_i64(), sql);
        }
        assert_eq!(FencingToken::new(1 << 63).as_i64(), i64::MAX);
        assert_eq!(FencingToken::new(u64::MAX).as_i64(), i64::MAX);
    }

    #[test]
    fn other_marks_versions_and_lengths_are_foreign() {
        let text = Token::from_random(1).reveal();
        for foreign in
            ["", "2f1b", &text[1..], &text.replace(":1:", ":2:"), &format!("{text}0"), &text.replace('0', "+")]
        {
            assert_eq!(foreign.parse::<Token>(), Err(ForeignToken), "{foreign}");
        }
    }
}
