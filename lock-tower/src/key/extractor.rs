use super::choice::{Choice, IntoChoice};

/// Finds the key of a request.
///
/// Text is an extractor: one key for every request. So is [`key::scoped`](crate::key::scoped), and so is a closure or
/// function that takes `&Req` and returns what [`IntoChoice`] is made for (a `String`, a list, an `Option`, a `Result`). A closure
/// names the type of its argument, as in `|request: &http::Request<_>| …`. An array of extractors gives the keys of all of them,
/// which are locked together: see [several keys](crate::key#several-keys). Implement the trait for a type of your own
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
            `&'static str`, a `Vec` of several, or an `Option` (`None` passes without a lock) or a `Result` of one (`Err` refuses the request)"
)]
pub trait KeyExtractor<Req> {
    /// Chooses what to do about a request.
    fn extract(&self, request: &Req) -> Choice;

    /// Says what can never work about the extractor itself, if there is anything. Default: nothing.
    ///
    /// A layer asks before its first request, and in [`LockLayer::check_for`](crate::LockLayer::check_for). After an error it
    /// refuses every request.
    ///
    /// # Errors
    /// The problem and its remedy, for the log.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

// A type that is not a closure gets the message of the trait, and not one about `Fn`.
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

// All keys of a request, which passes without a lock only if none of them has a key for it.
#[diagnostic::do_not_recommend]
impl<K: KeyExtractor<Req>, Req, const N: usize> KeyExtractor<Req> for [K; N] {
    fn extract(&self, request: &Req) -> Choice {
        let mut keys = Vec::with_capacity(N);
        let mut passes = false;
        for extractor in self {
            match extractor.extract(request) {
                Choice::Lock(key) => keys.push(key),
                Choice::LockAll(more) => keys.extend(more),
                Choice::Pass => passes = true,
                refused @ Choice::Refuse(_) => return refused,
            }
        }
        if keys.is_empty() && passes { Choice::Pass } else { Choice::LockAll(keys) }
    }

    fn check(&self) -> Result<(), String> {
        if N == 0 {
            return Err("an array without a key locks nothing; name the keys, or leave the layer out".to_owned());
        }
        self.iter().try_for_each(K::check)
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    fn show(extractor: impl KeyExtractor<u8>, request: u8) -> String {
        match extractor.extract(&request) {
            Choice::Lock(key) => format!("lock {key}"),
            Choice::LockAll(keys) => format!("lock all of {}", keys.join(" ")),
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

    #[test]
    fn a_list_of_texts_is_several_keys() {
        assert_eq!(show(|request: &u8| ["a".to_owned(), request.to_string()], 7), "lock all of a 7");
        assert_eq!(show(|_: &u8| vec!["a", "b"], 7), "lock all of a b");
        assert_eq!(show(|_: &u8| Ok::<_, String>(Some(["a"])), 7), "lock all of a");
        assert_eq!(show(|_: &u8| Vec::<String>::new(), 7), "lock all of ", "no key is for the lock to refuse");
    }

    #[test]
    fn an_array_of_extractors_is_all_their_keys() {
        assert_eq!(show(["a", "b"], 7), "lock all of a b");
        let odd = |request: &u8| (request % 2 == 1).then(|| request.to_string());
        let small = |request: &u8| if *request < 8 { Ok(odd(request)) } else { Err("too large") };
        assert_eq!(show([small, small], 7), "lock all of 7 7");
        assert_eq!(show([small, small], 6), "pass");
        assert_eq!(show([small, small], 9), "refuse: too large");
        assert!(KeyExtractor::<u8>::check(&["a", ""]).is_err());
        assert!(KeyExtractor::<u8>::check(&[""; 0]).is_err());
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
