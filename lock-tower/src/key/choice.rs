use std::borrow::Cow;

use crate::error::BoxError;

/// The decision of a [`KeyExtractor`](crate::KeyExtractor) about a request.
#[derive(Debug)]
#[non_exhaustive]
pub enum Choice {
    /// The service is called while this key is held. A key that is empty or longer than 1,024 bytes is refused.
    Lock(String),
    /// The service is called while all these keys are held; see [`lock_all`](lock_core::LockManager::lock_all). An empty
    /// list is refused.
    LockAll(Vec<String>),
    /// The service is called **without a lock**.
    Pass,
    /// The service is not called. In HTTP the answer is 400 with the text of this error, which the client sees.
    Refuse(BoxError),
}

/// A type that the closure of a [`LockLayer`](crate::LockLayer) may return.
///
/// | returned | meaning |
/// | --- | --- |
/// | `String`, `&'static str`, `Cow<str>` | lock this key |
/// | a `Vec` or an array of those | lock all these keys, or none |
/// | `Some(…)` | the meaning of the value inside |
/// | `None` | call the service **without a lock** |
/// | `Ok(…)` | the meaning of the value inside |
/// | `Err(…)` | refuse the request; the error is any type that converts into a boxed one, a `String` too |
///
/// So `request.headers().get("x-account")` turned into an `Option` lets requests without the header through, and
/// turned into a `Result` refuses them.
#[diagnostic::on_unimplemented(
    message = "the key of a request cannot be a `{Self}`",
    label = "neither text, nor a list, an `Option` or a `Result` of text",
    note = "return a `String`, a `&'static str`, a `Vec` or an array of several, an `Option` (`None` passes without a lock) or a \
            `Result` of one (`Err` refuses the request)"
)]
pub trait IntoChoice {
    /// Converts it.
    fn into_choice(self) -> Choice;
}

impl IntoChoice for Choice {
    fn into_choice(self) -> Choice {
        self
    }
}

impl IntoChoice for String {
    fn into_choice(self) -> Choice {
        Choice::Lock(self)
    }
}

// For every lifetime, though a closure can hardly return another than `'static`: inside a coroutine the compiler
// forgets which one it was, and would find a service with `&'static str` not to be `Send`.
impl IntoChoice for &str {
    fn into_choice(self) -> Choice {
        Choice::Lock(self.to_owned())
    }
}

impl IntoChoice for Cow<'_, str> {
    fn into_choice(self) -> Choice {
        Choice::Lock(self.into_owned())
    }
}

impl<T: Into<String>> IntoChoice for Vec<T> {
    fn into_choice(self) -> Choice {
        Choice::LockAll(self.into_iter().map(T::into).collect())
    }
}

impl<T: Into<String>, const N: usize> IntoChoice for [T; N] {
    fn into_choice(self) -> Choice {
        Choice::LockAll(self.map(T::into).into())
    }
}

impl<T: IntoChoice> IntoChoice for Option<T> {
    fn into_choice(self) -> Choice {
        self.map_or(Choice::Pass, T::into_choice)
    }
}

impl<T: IntoChoice, E: Into<BoxError>> IntoChoice for Result<T, E> {
    fn into_choice(self) -> Choice {
        self.map_or_else(|error| Choice::Refuse(error.into()), T::into_choice)
    }
}
