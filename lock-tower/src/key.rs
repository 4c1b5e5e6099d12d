//! What locks exclude: the [`KeyExtractor`] of a layer, and the ready-made parts of a key.
//!
//! | the key of a request | is |
//! | --- | --- |
//! | text, as in `"nightly"` | one key for every request |
//! | [`scoped`]`("goods", …)` | a scope and one to eight parts |
//! | a closure that takes `&Req` | what it returns, as it stands |
//!
//! | a part inside [`scoped`] | is | feature |
//! | --- | --- | --- |
//! | text, as in `"till"` | the text | |
//! | a closure that takes `&Req` | what it returns, escaped | |
//! | `header` | the value of a header | `http` |
//! | `method_and_path` | method and path | `http` |
//! | `extension` | what a layer further out has put into the extensions | `http` |
//! | `path_param` | a parameter of the route, decoded | `axum` |
//!
//! The parts `header`, `extension` and `path_param` **refuse** a request in which they find nothing; `.optional()` lets
//! it through without a lock.
//!
//! # Keys that clients write
//!
//! A header and a path are the client's own words. The ready-made parts are not keys by themselves, because a key that is
//! a header alone would let a client hold any lock of the manager: `x-account: jobs:nightly` would stop the nightly job.
//! Behind a scope, a part cannot become another key: a `:` or `%` inside it is escaped, by the one rule of
//! [`lock_core::key`]. The key of `scoped("goods", path_param::<T>("id"))` is therefore the same as the attribute's
//! `#[distributed_lock(key = "goods:<id>")]` and as `lock_core::key::join(["goods", id])` make of an `id` that is a `T`,
//! whatever is in it.
//!
//! A `:` in a scope begins another part, and parts meet by their place: where `y` is `goods`, `scoped("shop", (y, x))` and
//! `scoped("shop:goods", x)` are one key, and `scoped("jobs", header::<String>("x-job"))` lets a client hold the key
//! `jobs:nightly`. So let no scope be the beginning of another scope, nor of a key that clients must not hold.
//!
//! The closure of a layer is trusted: its key is used as it stands. Let it parse what the client wrote (into a number,
//! say) or escape the text by [`lock_core::key::part`], and let it never use a path as it is: `/goods/1` and
//! `/goods/%31` reach one handler and are two texts.

#[cfg(feature = "axum")]
mod axum;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "http")]
mod ready;
mod scoped;
mod text;

use std::borrow::Cow;

use crate::BoxError;

#[cfg(feature = "axum")]
pub use self::axum::{PathParam, path_param};
#[cfg(feature = "http")]
pub use self::http::{Extension, Header, MethodAndPath, extension, header, method_and_path};
#[cfg(feature = "http")]
pub use self::ready::Optional;
pub use self::scoped::{Parts, Scoped, scoped};
pub(crate) use self::text::Mistake;

/// Finds the key of a request.
///
/// Text is an extractor: one key for every request. So is [`key::scoped`](crate::key::scoped), and so is a closure or
/// function that takes `&Req` and returns what [`IntoChoice`] is made for (a `String`, an `Option`, a `Result`). A closure
/// names the type of its argument, as in `|request: &http::Request<_>| …`. Implement the trait for a type of your own
/// when the extractor needs a name or settings.
///
/// An extractor sees the request before the service does, and cannot wait: what is in the body of an HTTP request is
/// not there yet. It runs once per request, so it should be cheap.
///
/// Build keys so that what must exclude each other has *one* spelling: an HTTP path is as the client wrote it, and
/// `/goods/1` and `/goods/%31` are two keys. Join parts by [`lock_core::key::join`], so that they cannot run into each
/// other. See [keys that clients write](crate::key#keys-that-clients-write).
///
/// # Examples
///
/// ```
/// use lock_core::key::part;
/// use lock_tower::{Choice, IntoChoice, KeyExtractor};
///
/// struct Sale {
///     goods: Option<String>,
/// }
///
/// /// Locks the goods of a sale, in a shop of its own.
/// struct PerGoods {
///     shop: &'static str,
/// }
///
/// impl KeyExtractor<Sale> for PerGoods {
///     fn extract(&self, sale: &Sale) -> Choice {
///         let goods = sale.goods.as_ref().ok_or("a sale without goods");
///         goods.map(|goods| format!("{}:{}", self.shop, part(goods))).into_choice()
///     }
///
///     fn check(&self) -> Result<(), String> {
///         if self.shop.is_empty() { Err("the shop has no name".to_owned()) } else { Ok(()) }
///     }
/// }
///
/// let extractor = PerGoods { shop: "north" };
/// assert!(matches!(extractor.extract(&Sale { goods: Some("a:b".to_owned()) }), Choice::Lock(key) if key == "north:a%3Ab"));
/// assert!(matches!(extractor.extract(&Sale { goods: None }), Choice::Refuse(_)));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not find the key of a `{Req}`",
    label = "not the key of a request",
    note = "give a header, a path parameter or another part a scope: `scoped(\"goods\", path_param::<u64>(\"id\"))`",
    note = "behind the scope is one part or a tuple of two to eight: text, `path_param::<u64>(\"id\")`, `header::<String>(\"x-shop\")` and \
            such, and closures",
    note = "one key for every request is text: `\"nightly\"`",
    note = "a closure names the type of its argument, as in `|request: &http::Request<_>| …`, and returns a `String`, a \
            `&'static str`, or an `Option` (`None` passes without a lock) or a `Result` of one (`Err` refuses the request)"
)]
pub trait KeyExtractor<Req> {
    /// Chooses what to do about a request.
    fn extract(&self, request: &Req) -> Choice;

    /// Says what can never work about the extractor itself, if there is anything. Default: nothing.
    ///
    /// A layer asks before its first request, and in [`LockLayer::check`](crate::LockLayer::check). After an error it
    /// refuses every request.
    ///
    /// # Errors
    /// The problem and its remedy, for the log.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

// What is no closure gets the message of the trait, and not one about `Fn`.
#[diagnostic::do_not_recommend]
impl<F, Req, T> KeyExtractor<Req> for F
where
    F: Fn(&Req) -> T,
    T: IntoChoice,
{
    fn extract(&self, request: &Req) -> Choice {
        self(request).into_choice()
    }
}

/// What a [`KeyExtractor`] decided about a request.
#[derive(Debug)]
#[non_exhaustive]
pub enum Choice {
    /// The service is called while this key is held. A key that is empty or longer than 1,024 bytes is refused.
    Lock(String),
    /// The service is called **without a lock**.
    Pass,
    /// The service is not called. In HTTP the answer is 400 with the text of this error, which the client sees.
    Refuse(BoxError),
}

/// What the closure of a [`LockLayer`](crate::LockLayer) may return.
///
/// | returned | meaning |
/// | --- | --- |
/// | `String`, `&'static str`, `Cow<str>` | lock this key |
/// | `Some(…)` | as what is in it |
/// | `None` | call the service **without a lock** |
/// | `Ok(…)` | as what is in it |
/// | `Err(…)` | refuse the request; the error is whatever becomes a boxed one, a `String` too |
///
/// So `request.headers().get("x-account")` turned into an `Option` lets requests without the header through, and
/// turned into a `Result` refuses them.
#[diagnostic::on_unimplemented(
    message = "the key of a request cannot be a `{Self}`",
    label = "neither text, nor an `Option` or a `Result` of text",
    note = "return a `String`, a `&'static str`, an `Option` (`None` passes without a lock) or a `Result` of one \
            (`Err` refuses the request)"
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

#[cfg(test)]
mod tests {
    use super::*;

    fn show(extractor: impl KeyExtractor<u8>, request: u8) -> String {
        match extractor.extract(&request) {
            Choice::Lock(key) => format!("lock {key}"),
            Choice::Pass => "pass".to_owned(),
            Choice::Refuse(error) => format!("refuse: {error}"),
        }
    }

    #[test]
    fn whatever_holds_text_is_a_key() {
        assert_eq!(show(|request: &u8| request.to_string(), 7), "lock 7");
        assert_eq!(show(|_: &u8| "all", 7), "lock all");
        assert_eq!(show(|_: &u8| Cow::Borrowed("all"), 7), "lock all");
        assert_eq!(show(|_: &u8| Some("all"), 7), "lock all");
        assert_eq!(show(|_: &u8| Ok::<_, String>(Some("all")), 7), "lock all");
    }

    #[test]
    fn only_none_passes_and_only_an_error_refuses() {
        assert_eq!(show(|_: &u8| None::<String>, 7), "pass");
        assert_eq!(show(|_: &u8| Ok::<_, String>(None::<String>), 7), "pass");
        assert_eq!(show(|_: &u8| Err::<String, _>("no account"), 7), "refuse: no account");
        assert_eq!(show(|_: &u8| "", 7), "lock ", "an empty key is for the lock to refuse");
    }

    struct Named;

    impl<T> KeyExtractor<T> for Named {
        fn extract(&self, _request: &T) -> Choice {
            "named".into_choice()
        }
    }

    #[test]
    fn a_type_of_ones_own_is_an_extractor_beside_closures() {
        assert_eq!(show(Named, 7), "lock named");
    }
}
