use std::{str::FromStr, time::Duration};

use crate::{
    backend::Token,
    error::{Argument, Error},
    key::LockKey,
    mode::Mode,
    ttl::Ttl,
};

/// A lease on its way to another process, from [`LockGuard::hand_over`](crate::LockGuard::hand_over) to
/// [`LockManager::take_up`](crate::LockManager::take_up).
///
/// [`reveal`](Self::reveal) and `FromStr` convert it to and from text, for a queue, a job argument or an environment variable. The
/// text is a secret while the lease lasts, because any process that has the text can take the lease. So there is no `Display`, and
/// `Debug` hides the text. Only the first process that takes it up gets the lease.
///
/// # Examples
///
/// It cannot be logged by accident:
///
/// ```compile_fail,E0277
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
/// let handover = lock_core::LockManager::in_memory().lock("import:7").await?.hand_over()?;
/// println!("handed over {handover}"); // error: `Handover` doesn't implement `Display`
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Handover {
    pub(crate) key: LockKey,
    pub(crate) token: Token,
    pub(crate) ttl: Ttl,
}

impl Handover {
    /// Returns the key, without the manager's prefix: the manager that takes it up needs the same prefix.
    #[must_use]
    pub fn key(&self) -> &str {
        self.key.as_str()
    }

    /// Returns the text that [`FromStr`] reads. It is a secret until the lease has been taken up or has expired.
    #[must_use]
    pub fn reveal(&self) -> String {
        let (mode, exclusive) = (self.token.mode().write(), self.token.in_mode(Mode::Exclusive).reveal());
        format!("{MARK}{}:{mode}:{exclusive}:{}", self.ttl.get().as_millis(), self.key.as_str())
    }
}

/// The beginning of every text: the mark and the version of the format. Then ttl in ms, mode, token, key, joined by colons.
const MARK: &str = "lock-core-handover:1:";

impl FromStr for Handover {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let malformed = || {
            Error::invalid(
                Argument::Handover,
                "take up",
                "the text was not written by `Handover::reveal` (a part may be missing); pass it on unchanged",
            )
        };
        let (ttl, rest) = text.strip_prefix(MARK).and_then(|rest| rest.split_once(':')).ok_or_else(malformed)?;
        let (mode, rest) = rest.split_once(':').ok_or_else(malformed)?;
        let token_length = Token::from_random(0).reveal().len();
        let (token, key) = rest.split_at_checked(token_length).ok_or_else(malformed)?;
        let key = key.strip_prefix(':').ok_or_else(malformed)?;
        let mode = Mode::read(mode).ok_or_else(malformed)?;
        let ttl = Duration::from_millis(ttl.parse().map_err(|_| malformed())?);
        Ok(Self {
            key: LockKey::new(key).map_err(|_| malformed())?,
            token: token.parse::<Token>().map_err(|_| malformed())?.in_mode(mode),
            ttl: Ttl::new(ttl).map_err(|_| malformed())?,
        })
    }
}

shows!(Handover, key);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn handover(key: &str) -> Handover {
        Handover {
            key: LockKey::new(key).unwrap(),
            token: Token::from_random(0xfeed),
            ttl: Ttl::new(Duration::from_secs(3)).unwrap(),
        }
    }

    #[test]
    fn a_handover_survives_its_text_whatever_the_key_holds() {
        for key in ["goods:1", ":", "a b\r\n", "{x}:\u{e9}"] {
            for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { total: 10, take: 2 }] {
                let handover = Handover { token: Token::from_random(1).in_mode(mode), ..handover(key) };
                assert_eq!(handover.reveal().parse::<Handover>().unwrap(), handover);
            }
        }
    }

    #[test]
    fn bad_input_19_a_malformed_handover_is_invalid_and_debug_hides_the_token() {
        let good = handover("goods:1").reveal();
        for cut in 0..good.len() - "goods:1".len() + 1 {
            let error = good[..cut].parse::<Handover>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid(Argument::Handover), "{cut}");
            assert!(!error.to_string().contains("feed"));
        }
        assert!(good.replace(":3000:", ":0:").parse::<Handover>().is_err());
        assert!(!format!("{:?}", handover("goods:1")).contains("feed"));
    }
}
