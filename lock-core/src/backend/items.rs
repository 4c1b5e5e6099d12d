use std::{
    fmt,
    iter::FusedIterator,
    ops::{Deref, DerefMut},
};

use smallvec::SmallVec;

/// A list of operations or of what became of them: a single one, as most are, needs no memory of its own.
///
/// It dereferences to a slice, and is made from an array, a `Vec`, or an iterator.
///
/// # Examples
///
/// ```
/// use lock_core::{
///     backend::{Batch, Operation},
///     key::LockKey,
/// };
///
/// # fn main() -> Result<(), lock_core::Error> {
/// let batch = Batch::from([Operation::Inspect { key: LockKey::new("goods:1")? }]);
/// assert_eq!(batch.len(), 1);
/// for operation in batch {
///     println!("{}", operation.key());
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Items<T>(SmallVec<[T; 1]>);

impl<T> Items<T> {
    /// Makes an empty list.
    #[must_use]
    pub fn new() -> Self {
        Self(SmallVec::new())
    }

    /// Makes an empty list with room for `capacity` items.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self(SmallVec::with_capacity(capacity))
    }

    /// Adds an item at the end.
    pub fn push(&mut self, item: T) {
        self.0.push(item);
    }

    /// Takes the last item off, or returns `None` if there is none.
    pub fn pop(&mut self) -> Option<T> {
        self.0.pop()
    }

    /// Takes off what follows the first `at` items.
    pub(crate) fn split_off(&mut self, at: usize) -> Self {
        self.0.drain(at..).collect()
    }
}

impl<T> Default for Items<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Deref for Items<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for Items<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T, const N: usize> From<[T; N]> for Items<T> {
    fn from(items: [T; N]) -> Self {
        items.into_iter().collect()
    }
}

impl<T> From<Vec<T>> for Items<T> {
    fn from(items: Vec<T>) -> Self {
        Self(SmallVec::from_vec(items))
    }
}

impl<T> FromIterator<T> for Items<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Self(items.into_iter().collect())
    }
}

impl<T> Extend<T> for Items<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        self.0.extend(items);
    }
}

impl<T> IntoIterator for Items<T> {
    type Item = T;
    type IntoIter = IntoItems<T>;

    fn into_iter(self) -> IntoItems<T> {
        IntoItems(self.0.into_iter())
    }
}

impl<'a, T> IntoIterator for &'a Items<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T> IntoIterator for &'a mut Items<T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<T: fmt::Debug> fmt::Debug for Items<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

/// The iterator that takes [`Items`] apart.
pub struct IntoItems<T>(smallvec::IntoIter<[T; 1]>);

impl<T> Iterator for IntoItems<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<T> DoubleEndedIterator for IntoItems<T> {
    fn next_back(&mut self) -> Option<T> {
        self.0.next_back()
    }
}

impl<T> ExactSizeIterator for IntoItems<T> {}

impl<T> FusedIterator for IntoItems<T> {}

impl<T: fmt::Debug> fmt::Debug for IntoItems<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.as_slice()).finish()
    }
}
