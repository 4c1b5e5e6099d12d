use std::{fmt, str::FromStr};

/// Random proof of holding: the value of the key in the backend.
///
/// 128 random bits, written as a fixed mark, the version of the format and 32 hexadecimal digits. A value with another
/// mark or version belongs to a foreign holder (another library on the same key). Knowing a token is enough to release
/// the lease, so `Debug` hides it and nothing logs it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(u128);

/// The beginning of every token of this library: the mark and the version of the format.
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
        let token = Token::from_random(0xfeed);
        assert_eq!(token.reveal().parse(), Ok(token));
        assert_eq!(token.reveal().len(), TOKEN_MARK.len() + 32);
        assert!(!format!("{token:?}").contains("feed"));
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
