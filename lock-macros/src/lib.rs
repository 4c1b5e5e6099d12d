//! The attributes of `lock-core`, which re-exports [`#[distributed_lock]`](macro@distributed_lock) with its feature `macros`, and of
//! `lock-test`, which re-exports [`#[test]`](macro@test).
//!
//! The code that the attributes generate calls those crates: depend on them, not on this crate.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod errors;

// The steps of a pipeline: no file uses a file of a later step.

// Arguments.
mod args;
mod duration;
mod keys;
mod mode;
mod number;
mod policy;
mod suggest;
mod word;

// Function.
mod body;
mod boxed;
mod function;
mod names;

// Check and code.
mod check;
mod expand;
mod fallback;
mod template;

// The other attribute, which is `test`.
mod trial;

use proc_macro::TokenStream;

use crate::{args::Args, boxed::Boxed, errors::Errors, function::Function, names::Names};

/// Runs the body of an async function or method while it holds a lease.
///
#[doc = include_str!("../docs/overview.md")]
///
#[doc = include_str!("../docs/arguments.md")]
///
#[doc = include_str!("../docs/function.md")]
///
#[doc = include_str!("../docs/refused.md")]
#[proc_macro_attribute]
pub fn distributed_lock(arguments: TokenStream, item: TokenStream) -> TokenStream {
    lock(arguments.into(), item.into()).into()
}

/// Runs an async test once for each place at which its locks can fail, and takes the lease away there.
///
#[doc = include_str!("../docs/test.md")]
#[proc_macro_attribute]
pub fn test(arguments: TokenStream, item: TokenStream) -> TokenStream {
    trial::expand(arguments.into(), item.into()).into()
}

fn lock(arguments: proc_macro2::TokenStream, item: proc_macro2::TokenStream) -> proc_macro2::TokenStream {
    let mut errors = Errors::default();
    let args = Args::parse(arguments, &mut errors);
    let Some(function) = errors.keep(syn::parse2::<Function>(item.clone())) else {
        return fallback::item(item, errors);
    };
    let boxed = match (&function.signature.asyncness, &function.body) {
        (None, Some(body)) => Boxed::of(&function.signature.output, body),
        _ => None,
    };
    let mut names = match &boxed {
        Some(boxed) => Names::inside(&function.signature, boxed),
        None => Names::of(&function.signature),
    };
    errors.keep(function.check(&args, boxed.as_ref()));
    errors.keep(names.add_lease(args.lease.as_ref()));
    let keys = args.keys.as_ref().and_then(|keys| keys.expand(&names, &args.krate, &mut errors));
    match keys {
        Some(keys) if errors.is_empty() => expand::expand(&args, &keys, &names, &function, boxed.as_ref()),
        _ => fallback::function(function, &args, &names, errors),
    }
}

#[cfg(test)]
mod tests {
    // Not all: `test` is the attribute of the standard library here.
    use super::{lock, trial};

    fn tokens(code: &str) -> proc_macro2::TokenStream {
        code.parse().expect(code)
    }

    /// The expansion without its spaces, which depend on how a token came to be.
    fn locked(arguments: &str, item: &str) -> String {
        packed(&lock(tokens(arguments), tokens(item)).to_string())
    }

    fn packed(code: &str) -> String {
        code.split_whitespace().collect()
    }

    #[test]
    fn every_path_goes_through_the_given_crate() {
        let all = "key = \"<id>\", ttl = \"3s\", renew = false, lease = l, manager = m, crate = a::b";
        let code = locked(all, "async fn sell(id: u64, m: M) -> Result<(), E> {}");
        assert!(!code.contains("compile_error"), "{code}");
        assert!(code.contains("a::b::__private") && !code.contains("lock_core"), "{code}");
        for mode in ["mode = shared", "permits = 3, take = 2"] {
            let code = locked(&format!("{all}, {mode}"), "async fn sell(id: u64, m: M) -> Result<(), E> {}");
            assert!(!code.contains("compile_error") && !code.contains("lock_core"), "{code}");
        }
    }

    #[test]
    fn test_keeps_its_function_and_its_attributes_and_goes_through_the_given_crate() {
        let function = "async fn paid(locks: LockManager) -> Result<(), E> { done(locks).await }";
        let code = trial::expand(tokens("crate = a::b"), tokens(&format!("#[ignore] #[should_panic] {function}")));
        let code = packed(&code.to_string());
        assert!(code.starts_with("#[ignore]#[should_panic]#[::core::prelude::v1::test]fnpaid(){"), "{code}");
        assert!(code.contains(&packed(function)) && code.contains("a::b::__private::test("), "{code}");
        assert!(!code.contains("lock_test"), "{code}");
    }

    #[test]
    fn test_with_a_mistake_stays_a_function_beside_the_error() {
        for (arguments, item) in [
            ("", "fn paid(locks: LockManager) {}"),
            ("", "#[tokio::test] async fn paid(locks: LockManager) {}"),
            ("", "async fn paid(locks: LockManager, order: u64) {}"),
            ("", "async fn paid<T>(locks: LockManager) {}"),
            ("ttl = \"3s\"", "async fn paid(locks: LockManager) {}"),
            ("", "struct Paid;"),
        ] {
            let code = packed(&trial::expand(tokens(arguments), tokens(item)).to_string());
            assert_eq!(code.matches("compile_error").count(), 1, "{code}");
            assert!(code.ends_with(&packed(item.trim_start_matches("#[tokio::test] "))), "{code}");
        }
    }

    #[test]
    fn documentation_shows_the_expansion_of_the_quick_start_to_the_letter() {
        let examples = include_str!("../docs/overview.md").split("```rust\n");
        let [quick_start, expansion] = ["#[distributed_lock(key", "    let __lock_refuse"].map(|start| {
            let example = examples.clone().find(|example| example.contains(start)).expect(start);
            let from = example.find("#[distributed").or_else(|| example.find("async fn sell")).expect("the function");
            let to = example[from..].find("\n}\n").expect("its end");
            example[from..][..to + 2].to_owned()
        });
        let (arguments, function) = quick_start.split_once('\n').expect("two lines");
        let arguments = arguments.trim_start_matches("#[distributed_lock(").trim_end_matches(")]");
        assert_eq!(locked(arguments, function), packed(&tokens(&expansion).to_string()));
    }

    #[test]
    fn label_is_the_template_and_never_the_key() {
        let label = |arguments: &str| {
            let code = locked(arguments, "async fn sell(id: u64, m: M) -> Result<(), E> {}");
            let (_, label) = code.split_once("request.label(").expect("a label");
            label.split_once(").options(").expect("the options follow it").0.to_owned()
        };
        assert_eq!(label("key = \"goods:<id>:<<7>>\""), "\"goods:<id>:<<7>>\"");
        assert_eq!(label("keys = [\"a:<id>\", \"b\"]"), "\"a:<id>,b\"");
        for expression in ["key = id.name()", "keys = [\"a:<id>\", id.name()]", "keys = id.names()"] {
            assert_eq!(label(expression), "::core::concat!(::core::module_path!(),\"::sell\")", "{expression}");
        }
    }

    #[test]
    fn attributes_and_signature_stay_as_they_were() {
        let signature = "#[doc = \"Sells.\"] #[cfg(feature = \"shop\")] pub(crate) async unsafe fn \
            sell<'a, T: Clone, const N: usize>(&'a self, mut id: [T; N]) -> Result<(), E> where T: Display";
        let code = locked("key = \"k\"", &format!("{signature} {{ #![allow(unused)] done(id) }}"));
        assert!(code.starts_with(&format!("{}{{#![allow(unused)]let", packed(signature))), "{code}");
        assert!(code.contains("done(id)}"), "{code}");
    }

    #[test]
    fn function_stays_in_place_beside_the_errors() {
        let function = "pub async fn sell(id: u64) -> Result<(), E> { done(id) }";
        let code = locked("key = \"<idd>\", ttl = 3", function);
        assert_eq!(code.matches("compile_error").count(), 2, "{code}");
        assert!(code.ends_with(&packed(function)), "{code}");
    }

    #[test]
    fn what_is_no_function_stays_in_place_beside_the_error() {
        for item in ["struct Goods { id: u64 }", "impl Shop {}", "mod shop {}", "unsafe extern \"C\" {}"] {
            let code = locked("key = \"k\"", item);
            assert_eq!(code.matches("compile_error").count(), 1, "{code}");
            assert!(code.ends_with(&packed(item)), "{code}");
        }
    }
}
