//! The keys that `key = …` and `keys = …` give.

use std::fmt::{Display, Write};

use crate::{LockAllRequest, LockManager, exclusive, key};

/// Borrows one key of a list, so that all of them have one type.
pub fn key<K: AsKey + ?Sized>(key: &K) -> &str {
    key.as_key()
}

/// A template with its values put in.
#[derive(Debug)]
pub struct Key(String);

impl Key {
    /// Begins with text, which goes in as it stands.
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Adds text, which goes in as it stands.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        self.0.push_str(text);
        self
    }

    /// Adds a value as a part of the key.
    #[must_use]
    pub fn value<T: AsPart + ?Sized>(mut self, value: &T) -> Self {
        value.add_to(&mut self.0);
        self
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// The type of an expression between `<` and `>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a part of a key: it has no `Display`",
    label = "a value of type `{Self}`, which has no `Display`",
    note = "write a field or a call whose value has one, as in `<order.id>` or `<path.display()>`; for `Debug` or format \
            options write an expression, as in `key = format!(\"goods:{{id:?}}\")`"
)]
pub trait AsPart {
    /// Adds the value to the key as a part.
    fn add_to(&self, key: &mut String);
}

#[diagnostic::do_not_recommend]
impl<T: Display + ?Sized> AsPart for T {
    fn add_to(&self, key: &mut String) {
        write!(key, "{}", key::part(self)).expect("a `String` takes everything");
    }
}

/// The type of a key.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be used as a key",
    label = "not a string",
    note = "a key is a string: write a template such as `\"goods:<id>\"`, or an expression whose type is `AsRef<str>`"
)]
pub trait AsKey {
    /// Borrows the key.
    fn as_key(&self) -> &str;
}

#[diagnostic::do_not_recommend]
impl<K: AsRef<str> + ?Sized> AsKey for K {
    fn as_key(&self) -> &str {
        self.as_ref()
    }
}

/// The type of `keys = …`.
///
/// It has no associated type: the compiler would look into that first, and say in its own words what it misses.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be used as a collection of keys",
    label = "not a collection of strings",
    note = "`keys` takes a list such as `[\"goods:<from>\", \"goods:<to>\"]`, or whatever a `for` loop takes and gives \
            strings, such as `ids.iter().map(|id| format!(\"goods:{{id}}\"))`",
    note = "for one key write `key` in place of `keys`"
)]
pub trait AsKeys {
    /// Begins a request for all of them.
    fn request(self, manager: &LockManager) -> LockAllRequest;
}

#[diagnostic::do_not_recommend]
impl<C: IntoIterator<Item: AsKey>> AsKeys for C {
    #[track_caller]
    fn request(self, manager: &LockManager) -> LockAllRequest {
        manager.lock_all(self.into_iter().map(|key| exclusive(key.as_key())))
    }
}
