//! Keys, which name what is locked, and the rule by which their parts are joined.
//!
//! A key is any text of 1 to 1,024 bytes. A key of several parts has a `:` between them; a `:` or `%` inside a part
//! becomes `%3A` or `%25`. So different parts never make one key.
//!
//! The same parts make the same key everywhere: by [`join`] and [`part`], by the template of the attribute
//! (`key = "goods:<id>"`), and by `key::scoped` of `lock-tower`.
//!
//! # Examples
//!
//! ```
//! use lock_core::key;
//!
//! let id = "a:b";
//! assert_eq!(key::join(["goods", id]), "goods:a%3Ab");
//! assert_eq!(format!("goods:{}", key::part(id)), "goods:a%3Ab");
//! assert_eq!(key::join(["goods", "7"]), "goods:7");
//! ```

use std::{
    cmp::Ordering,
    fmt::{self, Display, Write},
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState},
    sync::{Arc, OnceLock},
};

use crate::error::{Argument, Error};

/// A checked key, which names what is locked.
///
/// Keys are 1 to 1,024 bytes of UTF-8, the manager's prefix included. They go to the backend unchanged, with braces, spaces
/// and control characters, so that clients in other languages find the same key. Two keys that differ in
/// case or in Unicode normal form are two locks. Keys that begin like a side key of this library
/// (`{…}lock-core:`) are refused.
///
/// `Display` and `Debug` show the key in quotes with control characters escaped.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), lock_core::Error> {
/// use lock_core::key::LockKey;
///
/// let key = LockKey::new("goods:1")?;
/// assert_eq!(key.as_str(), "goods:1");
/// assert!(LockKey::new("").is_err());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LockKey {
    /// Prefix and key, as the backend sees them.
    wire: Arc<str>,
    /// How many bytes of `wire` are the prefix.
    prefix: usize,
    /// Of `wire`, taken once: a key is looked up a dozen times on the way of its lease.
    hash: u64,
}

/// Uses the hash that a key has computed already.
#[doc(hidden)]
pub type HashOfKey = BuildHasherDefault<Brought>;

#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Brought(u64);

impl Hasher for Brought {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        debug_assert!(false, "{bytes:?} are not a key");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// SipHash with keys drawn at random for this process, since keys come from outside.
fn hash(wire: &str) -> u64 {
    static STATE: OnceLock<RandomState> = OnceLock::new();
    STATE.get_or_init(RandomState::new).hash_one(wire)
}

/// Returns whether a key begins like a side key of the backend: `{…}lock-core:`.
fn is_side_key(key: &str) -> bool {
    key.strip_prefix('{')
        .and_then(|rest| rest.split_once('}'))
        .is_some_and(|(_tag, name)| name.starts_with("lock-core:"))
}

/// Joins the parts of a key by `:`, each as [`part`] writes it. No parts make an empty key, which a request refuses.
///
/// The parts are of one type. For text and numbers together there is [`part`]: `format!("goods:{}", part(id))`.
///
/// # Examples
///
/// ```
/// use lock_core::key;
///
/// assert_eq!(key::join(["account", "north", "7"]), "account:north:7");
/// assert_ne!(key::join(["1:2", "3"]), key::join(["1", "2:3"]));
/// ```
#[must_use]
pub fn join<P: Display>(parts: impl IntoIterator<Item = P>) -> String {
    let mut key = String::new();
    for (index, value) in parts.into_iter().enumerate() {
        if index > 0 {
            key.push(':');
        }
        write!(key, "{}", part(value)).expect("a `String` takes everything");
    }
    key
}

/// Writes a value as a part of a key: its `Display`, with `%3A` for each `:` and `%25` for each `%`.
///
/// # Examples
///
/// ```
/// use lock_core::key::part;
///
/// let (shop, goods) = ("north", 7);
/// assert_eq!(format!("sale:{}:{}", part(shop), part(goods)), "sale:north:7");
/// assert_eq!(part("50%").to_string(), "50%25");
/// ```
#[must_use]
pub fn part<T: Display>(value: T) -> Part<T> {
    Part(value)
}

/// A value on its way into a key; made by [`part`].
#[derive(Clone, Copy, Debug)]
pub struct Part<T>(T);

impl<T: Display> Display for Part<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaper(f), "{}", self.0)
    }
}

struct Escaper<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaper<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find([':', '%']) {
            self.0.write_str(&rest[..at])?;
            self.0.write_str(if rest.as_bytes()[at] == b':' { "%3A" } else { "%25" })?;
            rest = &rest[at + 1..];
        }
        self.0.write_str(rest)
    }
}

/// The longest key in bytes, the prefix included.
pub const MAX_KEY_BYTES: usize = 1024;

impl LockKey {
    /// Checks a key without a prefix.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the key is empty, longer than 1,024 bytes, or begins like a side key.
    pub fn new(key: impl AsRef<str>) -> Result<Self, Error> {
        Self::with_prefix("", key.as_ref())
    }

    pub(crate) fn with_prefix(prefix: &str, key: &str) -> Result<Self, Error> {
        let refuse = |detail: String| Err(Error::invalid(Argument::Key, "lock", detail));
        if key.is_empty() {
            return refuse("the key is empty; name one, or every caller would share one lock".to_owned());
        }
        let length = prefix.len() + key.len();
        if length > MAX_KEY_BYTES {
            return refuse(format!("the key has {length} bytes, more than {MAX_KEY_BYTES}; use a hash of it instead"));
        }
        let wire: Arc<str> = if prefix.is_empty() { key.into() } else { format!("{prefix}{key}").into() };
        if is_side_key(&wire) {
            return refuse(format!(
                "{:?} begins like a side key of lock-core; choose another name",
                key.escape_debug().to_string()
            ));
        }
        Ok(Self { hash: hash(&wire), wire, prefix: prefix.len() })
    }

    /// Returns the key with its prefix marked as one, if it begins with `prefix`.
    pub(crate) fn behind(mut self, prefix: &str) -> Self {
        if self.wire.len() > prefix.len() && self.wire.starts_with(prefix) {
            self.prefix = prefix.len();
        }
        self
    }

    /// Returns the key as the backend sees it, and how many bytes of it are the prefix.
    pub(crate) fn parts(&self) -> (Arc<str>, usize) {
        (Arc::clone(&self.wire), self.prefix)
    }
}

// Two keys are equal when they are one key in the backend, however much of it is prefix.
impl PartialEq for LockKey {
    fn eq(&self, other: &Self) -> bool {
        #[cfg(test)]
        COMPARED.set(COMPARED.get() + 1);
        Arc::ptr_eq(&self.wire, &other.wire) || self.wire == other.wire
    }
}

#[cfg(test)]
thread_local! {
    /// How many keys this thread has compared: the cost of a search, independent of the machine.
    pub(crate) static COMPARED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

getters! { key: LockKey =>
    /// Returns the key as the user gave it.
    as_str: &str = &key.wire[key.prefix..];
    /// Returns the key as the backend sees it: the manager's prefix, then the key.
    wire: &str = &key.wire;
}

impl Eq for LockKey {}

impl PartialOrd for LockKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LockKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.wire.cmp(&other.wire)
    }
}

impl Hash for LockKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_str().escape_debug())
    }
}

impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn different_parts_never_make_one_key() {
        let texts = ["", "a", ":", "%", "a:", ":a", "%3A", "%25", "a%3Ab", "a:b", "\u{1f980}", "a b"];
        let mut keys = std::collections::HashMap::new();
        let pairs = texts.iter().flat_map(|first| texts.map(|second| vec![*first, second]));
        for parts in pairs.chain(texts.map(|only| vec![only])) {
            if let Some(other) = keys.insert(join(&parts), parts.clone()) {
                panic!("{other:?} and {parts:?} make one key");
            }
        }
    }

    #[test]
    fn a_part_is_escaped_however_its_display_writes_it() {
        assert_eq!(part(format_args!("{}:{}%", 1, 2)).to_string(), "1%3A2%25");
        assert_eq!(part(':').to_string(), "%3A");
        assert_eq!(part(7).to_string(), "7");
    }

    #[test]
    fn bad_input_13_and_14_length_is_bounded_on_both_sides() {
        let kind = |key: &str| LockKey::new(key).map_err(|error| error.kind());
        assert_eq!(kind("").unwrap_err(), ErrorKind::Invalid(Argument::Key));
        assert_eq!(kind(&"k".repeat(1024)).unwrap().as_str().len(), 1024);
        assert_eq!(kind(&"k".repeat(1025)).unwrap_err(), ErrorKind::Invalid(Argument::Key));
        assert!(LockKey::with_prefix("p", &"k".repeat(1024)).is_err(), "the prefix counts");
    }

    #[test]
    fn bad_input_15_control_characters_pass_and_are_escaped_where_shown() {
        let key = LockKey::new("a\0b\r\nc \"d\"").unwrap();
        assert_eq!(key.wire(), "a\0b\r\nc \"d\"");
        assert_eq!(key.to_string(), r#""a\0b\r\nc \"d\"""#);
    }

    #[test]
    fn bad_input_16_case_and_normal_form_make_different_keys() {
        assert_ne!(LockKey::new("Goods").unwrap(), LockKey::new("goods").unwrap());
        assert_ne!(LockKey::new("\u{e9}").unwrap(), LockKey::new("e\u{301}").unwrap());
    }

    #[test]
    fn side_keys_are_refused_also_behind_a_prefix_and_other_braces_pass() {
        assert!(LockKey::new("{x}lock-core:fence").is_err());
        assert!(LockKey::with_prefix("{x}lock", "-core:fence").is_err());
        assert!(LockKey::new("{user}:1").is_ok());
        assert!(LockKey::new("a{b").is_ok());
        assert!(LockKey::new("{}lock-core").is_ok());
    }
}
