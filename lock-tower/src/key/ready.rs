use std::{error::Error, fmt};

use lock_core::key::MAX_KEY_BYTES;

use super::{Choice, KeyExtractor};
#[cfg(feature = "http")]
use crate::BoxError;

/// Takes the same key for every request. One that is empty or longer than 1,024 bytes is a mistake of the service: each
/// request is refused with 500, and the log says why.
///
/// # Examples
///
/// ```
/// use lock_core::LockManager;
/// use lock_tower::{LockLayer, key::fixed};
///
/// let one_at_a_time = LockLayer::new(LockManager::in_memory(), fixed("nightly"));
/// # let _ = one_at_a_time;
/// ```
#[must_use]
pub fn fixed(key: &'static str) -> Fixed {
    Fixed { key }
}

/// The extractor of [`fixed`].
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    key: &'static str,
}

impl<Req> KeyExtractor<Req> for Fixed {
    fn extract(&self, _request: &Req) -> Choice {
        if (1..=MAX_KEY_BYTES).contains(&self.key.len()) {
            Choice::Lock(self.key.to_owned())
        } else {
            let length = self.key.len();
            let mistake = format!("the fixed key of {length} bytes is no key; one has 1 to {MAX_KEY_BYTES} bytes");
            Choice::Refuse(Mistake(mistake).into())
        }
    }
}

/// Joins the keys of two to four extractors with `:`. A `:` or `%` in a part becomes `%3A` or `%25`, so that different
/// parts never make one key.
///
/// The request is refused if one part refuses it, and passes without a lock if one part lets it.
///
/// # Examples
///
/// ```
/// use lock_tower::{Choice, KeyExtractor, key::{fixed, joined}};
///
/// struct Sale {
///     shop: String,
///     goods: String,
/// }
///
/// let key = joined((fixed("sale"), |sale: &Sale| sale.shop.clone(), |sale: &Sale| sale.goods.clone()));
/// let sale = Sale { shop: "north".to_owned(), goods: "a:b".to_owned() };
/// assert!(matches!(key.extract(&sale), Choice::Lock(key) if key == "sale:north:a%3Ab"));
/// ```
#[must_use]
pub fn joined<P>(parts: P) -> Joined<P> {
    Joined { parts }
}

/// The extractor of [`joined`].
#[derive(Clone, Copy, Debug)]
pub struct Joined<P> {
    parts: P,
}

macro_rules! joined {
    ($($part:ident $index:tt),+) => {
        impl<Req, $($part: KeyExtractor<Req>),+> KeyExtractor<Req> for Joined<($($part,)+)> {
            fn extract(&self, request: &Req) -> Choice {
                let mut joined = String::new();
                $(
                    match self.parts.$index.extract(request) {
                        Choice::Lock(part) => push(&mut joined, $index, &part),
                        other => return other,
                    }
                )+
                Choice::Lock(joined)
            }
        }
    };
}

joined!(A 0, B 1);
joined!(A 0, B 1, C 2);
joined!(A 0, B 1, C 2, D 3);

fn push(joined: &mut String, index: usize, part: &str) {
    if index > 0 {
        joined.push(':');
    }
    for character in part.chars() {
        match character {
            ':' => joined.push_str("%3A"),
            '%' => joined.push_str("%25"),
            _ => joined.push(character),
        }
    }
}

/// A ready-made extractor that lets a request through **without a lock** when it finds nothing. What it finds and
/// cannot use is refused all the same.
#[cfg(feature = "http")]
#[derive(Clone, Copy, Debug)]
pub struct Optional<E> {
    inner: E,
}

#[cfg(feature = "http")]
impl<E> Optional<E> {
    pub(super) fn new(inner: E) -> Self {
        Self { inner }
    }
}

#[cfg(feature = "http")]
impl<E: Find<Req>, Req> KeyExtractor<Req> for Optional<E> {
    fn extract(&self, request: &Req) -> Choice {
        match self.inner.find(request) {
            Err(Absent::Missing(_)) => Choice::Pass,
            found => choice(found),
        }
    }
}

/// A ready-made extractor that may find nothing.
#[cfg(feature = "http")]
#[expect(unnameable_types, reason = "sealed: `Optional` is for the extractors of this crate")]
pub trait Find<Req> {
    /// Looks for the key.
    fn find(&self, request: &Req) -> Result<String, Absent>;
}

/// Why there is no key.
#[cfg(feature = "http")]
#[derive(Debug)]
#[expect(unnameable_types, reason = "of a sealed trait")]
pub enum Absent {
    /// There is nothing.
    Missing(BoxError),
    /// There is something, and it is no key.
    Unusable(BoxError),
}

#[cfg(feature = "http")]
pub(super) fn choice(found: Result<String, Absent>) -> Choice {
    match found {
        Ok(key) => Choice::Lock(key),
        Err(Absent::Missing(error) | Absent::Unusable(error)) => Choice::Refuse(error),
    }
}

/// The layer was given a key that cannot work where it is: a mistake in the service, not in the request.
#[derive(Debug)]
pub(crate) struct Mistake(pub(crate) String);

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Mistake {}
