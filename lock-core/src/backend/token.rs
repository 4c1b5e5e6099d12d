use std::{fmt, str::FromStr};

use crate::mode::Mode;

/// Random proof of holding: the value of the key in the backend, or one of the values there if the lease is not exclusive.
///
/// 128 random bits, written as a fixed mark, the version of the format and 32 hexadecimal digits, and then the mode: nothing
/// if it is exclusive, `:shared`, or `:2/10` for two of ten permits. A value with another mark or version belongs to a foreign
/// holder (another library on the same key). Knowing a token is enough to release the lease, so `Debug` hides it and nothing
/// logs it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    high: u64,
    low: u64,
    /// How many permits it takes of how many; zeros for an exclusive one, and one of none for a shared one.
    take: u32,
    total: u32,
}

/// The beginning of every token of this library: the mark and the version of the format.
pub const TOKEN_MARK: &str = "lock-core:1:";

const DIGITS: usize = 32;

impl Token {
    /// Makes an exclusive token of 128 random bits.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "in two halves")]
    pub const fn from_random(bits: u128) -> Self {
        Self { high: (bits >> 64) as u64, low: bits as u64, take: 0, total: 0 }
    }

    /// Makes it a token of a mode.
    #[must_use]
    pub const fn in_mode(mut self, mode: Mode) -> Self {
        (self.take, self.total) = match mode {
            Mode::Exclusive => (0, 0),
            Mode::Shared => (1, 0),
            Mode::Permits { total, take } => (take, total),
        };
        self
    }

    /// Whether it is one of sixteen, at random.
    pub(crate) const fn is_one_of_sixteen(&self) -> bool {
        self.low.is_multiple_of(16)
    }

    /// Returns the mode of the lease.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        match (self.take, self.total) {
            (0, _) => Mode::Exclusive,
            (_, 0) => Mode::Shared,
            (take, total) => Mode::Permits { total, take },
        }
    }

    /// Returns the value that goes over the wire.
    #[must_use]
    pub fn reveal(&self) -> String {
        let mut text = String::with_capacity(TOKEN_MARK.len() + DIGITS);
        text.push_str(TOKEN_MARK);
        for half in [self.high, self.low] {
            let digits = (0..u64::BITS).step_by(4).rev().map(|shift| half >> shift & 0xf);
            text.extend(digits.map(|digit| char::from(b"0123456789abcdef"[digit as usize])));
        }
        if !self.mode().is_exclusive() {
            text.push(':');
            text.push_str(&self.mode().write());
        }
        text
    }
}

impl FromStr for Token {
    type Err = ForeignToken;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix(TOKEN_MARK).ok_or(ForeignToken)?;
        let (digits, mode) = digits.split_at_checked(DIGITS).ok_or(ForeignToken)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(ForeignToken);
        }
        let bits = u128::from_str_radix(digits, 16).map_err(|_| ForeignToken)?;
        let mode = match mode.strip_prefix(':') {
            None if mode.is_empty() => Mode::Exclusive,
            None => return Err(ForeignToken),
            Some(mode) => Mode::read(mode).filter(|mode| !mode.is_exclusive()).ok_or(ForeignToken)?,
        };
        Ok(Self::from_random(bits).in_mode(mode))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The text is not a token of this library, or it is a token of an unknown version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForeignToken;

impl fmt::Display for ForeignToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a token of this library")
    }
}

impl std::error::Error for ForeignToken {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_its_text_and_debug_hides_it() {
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { total: u32::MAX, take: 1 }] {
            let token = Token::from_random(0xfeed << 64).in_mode(mode);
            assert_eq!(token.reveal().parse(), Ok(token));
            assert_eq!(token.mode(), mode);
            assert!(!format!("{token:?}").contains("feed"));
        }
        assert_eq!(Token::from_random(1).reveal().len(), TOKEN_MARK.len() + DIGITS);
        let shared = Token::from_random(1).in_mode(Mode::Shared);
        assert_eq!(shared.reveal(), "lock-core:1:00000000000000000000000000000001:shared");
        let permits = shared.in_mode(Mode::Permits { total: 10, take: 2 });
        assert_eq!(permits.reveal(), "lock-core:1:00000000000000000000000000000001:2/10");
        assert_eq!(permits.in_mode(Mode::Exclusive), Token::from_random(1));
    }

    #[test]
    fn other_marks_versions_lengths_and_modes_are_foreign() {
        let text = Token::from_random(1).reveal();
        let with = |mode: &str| format!("{text}{mode}");
        let modes = [
            "0",
            ":exclusive",
            ":",
            ":Shared",
            ":shared ",
            ":1",
            ":0/1",
            ":2/1",
            ":1/",
            ":+1/2",
            ":01/2",
            ":1/4294967296",
        ];
        let modes: Vec<_> = modes.into_iter().map(with).collect();
        let others = ["", "2f1b", &text[1..], &text.replace(":1:", ":2:"), &text.replace('0', "+")];
        for foreign in others.into_iter().chain(modes.iter().map(String::as_str)) {
            assert_eq!(foreign.parse::<Token>(), Err(ForeignToken), "{foreign}");
        }
    }
}
