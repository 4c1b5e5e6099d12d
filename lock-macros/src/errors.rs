//! The errors of one attribute.

use proc_macro2::TokenStream;
use syn::{Error, Result};

/// The errors of one attribute, reported together.
#[derive(Default)]
pub(crate) struct Errors(Option<Error>);

impl Errors {
    pub(crate) fn push(&mut self, error: Error) {
        match &mut self.0 {
            Some(first) => first.combine(error),
            None => self.0 = Some(error),
        }
    }

    /// Takes the value out of a result, or keeps its error.
    pub(crate) fn keep<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn into_compile_error(self) -> TokenStream {
        self.0.map(Error::into_compile_error).unwrap_or_default()
    }

    pub(crate) fn extend(&mut self, other: Self) {
        if let Some(error) = other.0 {
            self.push(error);
        }
    }
}
