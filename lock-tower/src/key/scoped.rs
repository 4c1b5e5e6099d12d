use std::fmt::Write as _;

use lock_core::key::part;

use super::{Choice, IntoChoice, KeyExtractor, text};

/// Joins a scope and one to eight parts with `:`.
///
/// The scope is text of the service, as in `"goods"` or `"shop:goods"`. A `:` or `%` inside a part becomes `%3A` or
/// `%25`, as [`lock_core::key::join`] writes it, so that different parts never make one key and no client can name the
/// key of another scope, unless one scope is the beginning of the other, as `"shop"` is of `"shop:goods"`. In the scope,
/// and in parts that are text, a `%` is written `%25`.
///
/// Several parts are a tuple. The request is refused if one part refuses it, and passes without a lock if one part lets
/// it; the first one decides.
///
/// # Examples
///
/// ```
/// use lock_tower::{Choice, KeyExtractor, key::scoped};
///
/// struct Sale {
///     shop: String,
///     goods: String,
/// }
///
/// let key = scoped("sale", (|sale: &Sale| sale.shop.clone(), |sale: &Sale| sale.goods.clone()));
/// let sale = Sale { shop: "north".to_owned(), goods: "a:b".to_owned() };
/// assert!(matches!(key.extract(&sale), Choice::Lock(key) if key == "sale:north:a%3Ab"));
/// ```
///
/// In an axum service, with a path parameter and a header:
///
/// ```
/// # #[cfg(feature = "axum")]
/// # fn main() {
/// use axum::{Router, routing::post};
/// use lock_core::LockManager;
/// use lock_tower::{LockLayer, key::{header, path_param, scoped}};
///
/// let per_goods = LockLayer::http(LockManager::in_memory(), scoped("goods", (header::<String>("x-shop"), path_param::<u64>("id"))));
/// let service: Router = Router::new().route("/goods/{id}", post(async || "sold")).route_layer(per_goods);
/// # let _ = service;
/// # }
/// # #[cfg(not(feature = "axum"))] fn main() {}
/// ```
#[must_use]
pub fn scoped<P>(scope: &'static str, parts: P) -> Scoped<P> {
    Scoped { scope, parts }
}

/// The extractor of [`scoped`].
#[derive(Clone, Copy, Debug)]
pub struct Scoped<P> {
    scope: &'static str,
    parts: P,
}

impl<Req, P: Parts<Req>> KeyExtractor<Req> for Scoped<P> {
    fn extract(&self, request: &Req) -> Choice {
        let mut key = Writer(self.scope.to_owned());
        match self.parts.write(request, &mut key) {
            Ok(()) => Choice::Lock(key.0),
            Err(other) => other,
        }
    }

    fn check(&self) -> Result<(), String> {
        text::check(self.scope)?;
        self.parts.check()
    }
}

/// What may stand behind the scope of a [`scoped`] key: text, a closure that takes `&Req` and returns what [`IntoChoice`]
/// is made for, a ready-made part, or a tuple of two to eight of them.
///
/// This trait is sealed. A closure is the way to a part of your own.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a part of the key of a `{Req}`",
    label = "not a part of a key",
    note = "a part is text, a ready-made one such as `path_param::<u64>(\"id\")` or `header::<String>(\"x-shop\")`, or a closure such as \
            `|request: &http::Request<_>| …` that returns text, or an `Option` or a `Result` of text",
    note = "several parts are a tuple of two to eight: `scoped(\"goods\", (header::<String>(\"x-shop\"), path_param::<u64>(\"id\")))`"
)]
pub trait Parts<Req> {
    #[doc(hidden)]
    fn write(&self, request: &Req, key: &mut Writer) -> Written;

    #[doc(hidden)]
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Whether a part was written, or the choice that was made instead.
pub(super) type Written = Result<(), Choice>;

/// A key that is being written.
#[derive(Debug)]
#[expect(unnameable_types, reason = "it seals the trait")]
pub struct Writer(String);

impl Writer {
    pub(super) fn text(&mut self, text: &str) {
        self.0.push(':');
        self.0.push_str(text);
    }

    pub(super) fn part(&mut self, value: &str) {
        write!(self.0, ":{}", part(value)).expect("a `String` takes everything");
    }
}

#[diagnostic::do_not_recommend]
impl<F, Req, T> Parts<Req> for F
where
    F: Fn(&Req) -> T,
    T: IntoChoice,
{
    fn write(&self, request: &Req, key: &mut Writer) -> Written {
        match self(request).into_choice() {
            Choice::Lock(value) => {
                key.part(&value);
                Ok(())
            }
            other => Err(other),
        }
    }
}

macro_rules! several {
    ($($part:ident $index:tt),+) => {
        impl<Req, $($part: Parts<Req>),+> Parts<Req> for ($($part,)+) {
            fn write(&self, request: &Req, key: &mut Writer) -> Written {
                $(self.$index.write(request, key)?;)+
                Ok(())
            }

            fn check(&self) -> Result<(), String> {
                $(self.$index.check()?;)+
                Ok(())
            }
        }
    };
}

several!(A 0, B 1);
several!(A 0, B 1, C 2);
several!(A 0, B 1, C 2, D 3);
several!(A 0, B 1, C 2, D 3, E 4);
several!(A 0, B 1, C 2, D 3, E 4, F 5);
several!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
several!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);

#[cfg(test)]
mod tests {
    use super::*;

    fn key(extractor: impl KeyExtractor<&'static str>, request: &'static str) -> String {
        match extractor.extract(&request) {
            Choice::Lock(key) => key,
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn the_parts_are_joined_as_lock_core_joins_them() {
        let value = |request: &&'static str| *request;
        for hostile in ["7", "a:b", "50%", "%3A", "", "a b", "\u{1f980}", "goods:7"] {
            assert_eq!(key(scoped("goods", value), hostile), lock_core::key::join(["goods", hostile]));
            let both = scoped("goods", (value, value));
            assert_eq!(key(both, hostile), lock_core::key::join(["goods", hostile, hostile]));
        }
    }

    #[test]
    fn text_stands_as_it_is() {
        assert_eq!(key(scoped("shop:goods", ("north:till", |_: &&str| "1:2")), ""), "shop:goods:north:till:1%3A2");
        assert_eq!(key(scoped("a", ("b", "c", "d", "e", "f", "g", "h", "i")), ""), "a:b:c:d:e:f:g:h:i");
    }

    #[test]
    fn the_first_part_without_a_value_decides() {
        let passes = |_: &&str| None::<String>;
        let refuses = |_: &&str| Err::<String, _>("no goods");
        assert_eq!(key(scoped("a", (passes, refuses)), ""), "Pass");
        assert!(key(scoped("a", (refuses, passes)), "").contains("no goods"));
    }

    #[test]
    fn a_scope_that_begins_another_one_is_no_fence() {
        let value = |request: &&'static str| *request;
        assert_eq!(key(scoped("shop", (value, "7")), "goods"), key(scoped("shop:goods", "7"), ""));
        assert_eq!(key(scoped("jobs", value), "nightly"), "jobs:nightly", "as the module's documentation says");
    }

    #[test]
    fn scope_and_every_text_are_checked() {
        let check = |extractor: &dyn KeyExtractor<()>| extractor.check();
        assert_eq!(check(&scoped("goods", ("north", |_: &()| ""))), Ok(()));
        assert!(check(&scoped("", "north")).is_err());
        assert!(check(&scoped("50%", "north")).is_err());
        assert!(check(&scoped("goods", ("north", "", "south"))).is_err());
    }
}
