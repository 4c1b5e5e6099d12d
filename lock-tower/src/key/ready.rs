use std::{borrow::Cow, fmt::Display, str::FromStr};

use super::{
    choice::Choice,
    parts::{Parts, Writer, Written},
};
use crate::error::BoxError;

/// A part of a key that lets a request through **without a lock** when it finds nothing. A request whose value cannot be
/// used is refused all the same.
#[derive(Clone, Copy, Debug)]
pub struct Optional<E> {
    inner: E,
}

impl<E> Optional<E> {
    pub(super) fn new(inner: E) -> Self {
        Self { inner }
    }
}

impl<E: Find<Req>, Req> Parts<Req> for Optional<E> {
    fn write(&self, request: &Req, key: &mut Writer) -> Written {
        match self.inner.find(request) {
            Err(Absent::Missing(_)) => Err(Choice::Pass),
            found => write(found, key),
        }
    }

    fn check(&self) -> Result<(), String> {
        self.inner.check()
    }
}

/// A part of a key that may find nothing.
#[expect(unnameable_types, reason = "sealed: `Optional` is for the parts of this crate")]
pub trait Find<Req>: Parts<Req> {
    /// Looks for the value.
    fn find<'a>(&self, request: &'a Req) -> Result<Cow<'a, str>, Absent>;
}

/// Why there is no value.
#[derive(Debug)]
#[expect(unnameable_types, reason = "of a sealed trait")]
pub enum Absent {
    /// There is nothing.
    Missing(BoxError),
    /// There is something, and it cannot be used.
    Unusable(BoxError),
}

/// Reads a value as the service does, which may take several texts for one value, and writes it in one way.
pub(super) fn read<'a, T: FromStr + Display>(
    text: &str,
    problem: impl FnOnce() -> String,
) -> Result<Cow<'a, str>, Absent> {
    let value: Result<T, _> = text.parse();
    value.map(|value| Cow::Owned(value.to_string())).map_err(|_| Absent::Unusable(problem().into()))
}

pub(super) fn write(found: Result<Cow<'_, str>, Absent>, key: &mut Writer) -> Written {
    match found {
        Ok(value) => {
            key.part(&value);
            Ok(())
        }
        Err(Absent::Missing(error) | Absent::Unusable(error)) => Err(Choice::Refuse(error)),
    }
}
