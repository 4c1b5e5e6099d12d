use super::{
    choice::Choice,
    extractor::KeyExtractor,
    parts::{Parts, Writer},
    text,
};

/// Joins a scope and one to eight parts with `:`.
///
/// The scope is text of the service, as in `"goods"` or `"shop:goods"`. A `:` or `%` inside a part becomes `%3A` or
/// `%25`, as [`lock_core::key::join`] writes it, so different parts never make one key. No client can name the key of another
/// scope, unless one scope is the beginning of the other, as `"shop"` is of `"shop:goods"`. In the scope, and in parts that are
/// text, a `%` is written `%25`.
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
    pub(crate) scope: &'static str,
    parts: P,
}

impl<Req, P: Parts<Req>> KeyExtractor<Req> for Scoped<P> {
    fn extract(&self, request: &Req) -> Choice {
        let mut key = Writer::new(self.scope);
        match self.parts.write(request, &mut key) {
            Ok(()) => Choice::Lock(key.into_key()),
            Err(other) => other,
        }
    }

    fn check(&self) -> Result<(), String> {
        text::check(self.scope)?;
        self.parts.check()
    }
}

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
    fn a_part_that_is_a_list_is_refused() {
        let list = |_: &&str| ["jobs:nightly".to_owned(), "8".to_owned()];
        assert!(key(scoped("a", list), "").contains("gave a list"));
        assert!(key(scoped("a", ("b", list)), "").contains("gave a list"));
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
