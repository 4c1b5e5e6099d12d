//! The attribute [`#[distributed_lock]`](macro@distributed_lock) of `lock-core`, which re-exports it with its feature
//! `macros`; nothing else is here to use.
//!
//! What the attribute writes calls `lock_core`, so a crate that uses it depends on `lock-core`.

mod args;
mod duration;
mod expand;
mod fallback;
mod function;
mod template;

use proc_macro::TokenStream;
use quote::quote_spanned;
use syn::spanned::Spanned;

use crate::{
    args::{Args, Errors, Key},
    function::{Function, Names},
    template::Template,
};

/// Runs the body of an async function or method while it holds a lease.
///
/// The function waits for its turn, runs its body, and releases the lease before it returns: on every way out, which
/// are the end of the body, `return`, `?`, a panic, and the caller dropping the future. The lease is renewed while the
/// body runs. When it is lost all the same, the body is dropped where it stands and the function returns an error, so
/// that nobody works on without the lock.
///
/// # Quick start
///
/// ```
/// use lock_core::{Error, LockManager, distributed_lock};
///
/// #[distributed_lock(key = "goods:<id>", ttl = "3s")]
/// async fn sell(id: u64) -> Result<String, Error> {
///     // Nobody else sells these goods now, in no process of any machine.
///     Ok(format!("sold {id}"))
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     // In production: LockManager::connect("redis://127.0.0.1").await?
///     LockManager::in_memory().install()?;
///     assert_eq!(sell(7).await?, "sold 7");
///     Ok(())
/// }
/// ```
///
/// The attribute writes what could be written by hand:
///
/// ```
/// # use lock_core::{Error, LockManager};
/// # use std::time::Duration;
/// async fn sell(id: u64) -> Result<String, Error> {
///     LockManager::current()?
///         .lock(format!("goods:{id}"))
///         .ttl(Duration::from_secs(3))
///         .run(async move |_lease| Ok(format!("sold {id}")))
///         .await?
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # LockManager::in_memory().scope(sell(7)).await.map(drop) }
/// ```
///
/// # Arguments
///
/// | argument | value | without it |
/// | --- | --- | --- |
/// | [`key`](#key) | a template, or an expression | a compile error |
/// | [`ttl`](#ttl) | a duration from `"10ms"` to 100 years | that of the manager (10 s) |
/// | [`wait`](#wait) | a duration, also `"0s"` | that of the manager (10 s) |
/// | [`renew`](#renew) | `true` or `false` | `true` |
/// | [`max_hold`](#max_hold) | a duration above `"0s"` | no bound |
/// | [`manager`](#manager) | an expression | the scoped manager, else the installed one |
/// | [`lease`](#lease) | a name | the body does not see its lease |
/// | [`crate`](#crate) | a path | `::lock_core` |
///
/// A duration is a string: a whole number and one of the units `ms`, `s`, `m`, `h`. It is checked when compiling.
///
/// ## `key`
///
/// What is locked, at run time 1 to 1,024 bytes. In a string, `<` and `>` stand around an expression, which is replaced
/// by its `Display`: an argument, a field, a call, whatever the function could compute in its first line. Of several
/// ways to read it, the shortest text that parses as one expression counts, so `<self.map.get::<u8>(&1)>` is one value
/// and a comparison wants brackets, `<(a > b)>`. For the characters themselves write `<<` and `>>`.
///
/// The key is made before the body begins, so the body may move or change the arguments. Values go in as they are, so
/// that clients in other languages can make the same key. Take care that two different things cannot make one key:
/// `"<a>:<b>"` is the same for `"1:2"`, `"3"` and for `"1"`, `"2:3"`.
///
/// ```
/// # use lock_core::{Error, LockManager, distributed_lock};
/// struct Order { id: u64, tenant: String }
///
/// #[distributed_lock(key = "<order.tenant>:order:<order.id>:line:<line + 1>")]
/// async fn change(order: Order, line: usize) -> Result<Order, Error> {
///     Ok(order)
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # LockManager::in_memory().scope(change(Order { id: 1, tenant: "t".into() }, 2)).await.map(drop) }
/// ```
///
/// Braces are text: in Redis they are hash tags, as in `"{cart:<user>}:total"`. As other macros mean a value by them,
/// the name of an argument between braces does not compile. A single word between `<` and `>` has to be an argument,
/// a const parameter or `self`; a constant is written with its path, `<self::REGION>`.
///
/// A `key` that is not a string literal is any expression of a type that is `AsRef<str>`; it is borrowed, not moved:
///
/// ```
/// # use lock_core::{Error, LockManager, distributed_lock};
/// const NIGHTLY: &str = "jobs:nightly";
///
/// #[distributed_lock(key = NIGHTLY)]
/// async fn nightly() -> Result<(), Error> {
///     Ok(())
/// }
///
/// #[distributed_lock(key = name)]
/// async fn by_name(name: String) -> Result<String, Error> {
///     Ok(name)
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # LockManager::in_memory().scope(async { nightly().await?; by_name("n".into()).await }).await.map(drop) }
/// ```
///
/// ## `ttl`
///
/// How long a holder that fell silent (its process died, its network is cut) still blocks the others: 10 ms to 100
/// years. It does not bound the body, for the lease is renewed every third of it.
///
/// ```
/// # use lock_core::{Error, LockManager, distributed_lock};
/// #[distributed_lock(key = "report", ttl = "500ms")]
/// async fn report() -> Result<(), Error> {
///     Ok(())
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # LockManager::in_memory().scope(report()).await }
/// ```
///
/// ## `wait`
///
/// How long to wait in line while another holder has the key. When it is over the function returns the error
/// `ErrorKind::Busy` without having run. `"0s"` tries once.
///
/// ```
/// # use lock_core::{Error, ErrorKind, LockManager, distributed_lock};
/// #[distributed_lock(key = "report", wait = "0s")]
/// async fn report() -> Result<(), Error> {
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// let manager = LockManager::in_memory();
/// let guard = manager.lock("report").await?;
/// let error = manager.scope(report()).await.expect_err("the guard holds the key");
/// assert_eq!(error.kind(), ErrorKind::Busy);
/// # drop(guard); Ok(()) }
/// ```
///
/// ## `renew`
///
/// With `renew = false` the lease ends with its ttl, and the body with it.
///
/// ```
/// # use lock_core::{Error, LockManager, distributed_lock};
/// #[distributed_lock(key = "report", ttl = "30s", renew = false)]
/// async fn at_most_thirty_seconds() -> Result<(), Error> {
///     Ok(())
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # LockManager::in_memory().scope(at_most_thirty_seconds()).await }
/// ```
///
/// ## `max_hold`
///
/// The longest that the body may hold the key, renewals included: it ends a body that is stuck, with
/// `ErrorKind::Lost(LossReason::MaxHold)`.
///
/// ```
/// # use lock_core::{Error, ErrorKind, LockManager, LossReason, distributed_lock};
/// #[distributed_lock(key = "report", max_hold = "20ms")]
/// async fn stuck() -> Result<(), Error> {
///     std::future::pending().await
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let error = LockManager::in_memory().scope(stuck()).await.expect_err("the body was dropped");
/// assert_eq!(error.kind(), ErrorKind::Lost(LossReason::MaxHold));
/// # }
/// ```
///
/// ## `manager`
///
/// An expression for the `LockManager`, or for anything that points to one, such as `Arc<LockManager>`; it is borrowed,
/// not moved. Without it the function uses the manager of the `LockManager::scope` that it runs in, which is for tests,
/// else the one that `LockManager::install` put in place; where there is neither it returns `ErrorKind::NoManager`.
///
/// ```
/// # use lock_core::{Error, LockManager, distributed_lock};
/// struct Shop { tenant: String, locks: LockManager }
///
/// impl Shop {
///     #[distributed_lock(key = "<self.tenant>:goods:<id>", manager = self.locks)]
///     async fn sell(&mut self, id: u64) -> Result<(), Error> {
///         Ok(())
///     }
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # Shop { tenant: "t".into(), locks: LockManager::in_memory() }.sell(1).await }
/// ```
///
/// ## `lease`
///
/// A name for the `Lease` in the body, for its fencing token, or to see how much of it remains.
///
/// ```
/// # use lock_core::{Error, LockManager, distributed_lock};
/// #[distributed_lock(key = "goods:<id>", lease = lease)]
/// async fn sell(id: u64) -> Result<u64, Error> {
///     // The database refuses a write that carries a smaller token than it has seen.
///     Ok(lease.fencing_token().get())
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # LockManager::in_memory().scope(sell(1)).await.map(drop) }
/// ```
///
/// ## `crate`
///
/// Where to find `lock-core`, for a crate that depends on it by another name, or that re-exports it.
///
/// ```
/// # use lock_core::{LockManager, distributed_lock};
/// mod platform {
///     pub use lock_core as locks;
/// }
///
/// #[distributed_lock(key = "report", crate = crate::platform::locks)]
/// async fn report() -> Result<(), platform::locks::Error> {
///     Ok(())
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
/// # LockManager::in_memory().scope(report()).await }
/// ```
///
/// # The function
///
/// It is an `async fn` that returns a `Result` whose error is `From<lock_core::Error>`: `lock_core::Error` itself, an
/// error of your own, `Box<dyn Error + Send + Sync>`. An alias of such a `Result` will do. Free functions and methods
/// work, with every form of `self`, in traits and their implementations, with generics, lifetimes, `impl Trait` and
/// patterns as arguments, and `unsafe`. Visibility, documentation and other attributes stay. The future is `Send` when
/// the body is.
///
/// The arguments are dropped with the body, before the lease is released: a transaction that is passed in ends under
/// the lock.
///
/// The same task asking again for the key that it holds, as in a recursion, is refused at once with
/// `ErrorKind::WouldDeadlock`. A task that the body spawns is not covered: it waits.
///
/// # Errors
/// Everything that `LockRequest::acquire` can return, before the body has run; and `ErrorKind::Lost` when the lease was
/// lost and the body dropped. A body that ends as the lease is lost has its result returned. A release that fails does
/// not hide the result either.
///
/// # Cancel safety
/// Dropping the future while it waits gives up the place in line. Dropping it later drops the body at its `.await`
/// and releases the lease in the background.
///
/// # Beside other attributes
///
/// `#[tracing::instrument]` may stand above or below. An attribute that takes the `async` away, such as `#[tokio::test]`,
/// has to stand below. Two `#[distributed_lock]` take two locks, that of the lower one first; take care that all
/// functions agree on the order, or use `LockManager::lock_all`.
///
/// # What does not compile
///
/// A call without `key`, or with an argument that does not exist or is given twice:
///
/// ```compile_fail
/// # use lock_core::{Error, distributed_lock};
/// #[distributed_lock(key = "goods:<id>", tll = "3s")] // did you mean `ttl`?
/// async fn sell(id: u64) -> Result<(), Error> { Ok(()) }
/// ```
///
/// A duration that is not a string, has no unit, or is out of range:
///
/// ```compile_fail
/// # use lock_core::{Error, distributed_lock};
/// #[distributed_lock(key = "goods:<id>", ttl = 3)] // `"3s"`
/// async fn sell(id: u64) -> Result<(), Error> { Ok(()) }
/// ```
///
/// ```compile_fail
/// # use lock_core::{Error, distributed_lock};
/// #[distributed_lock(key = "goods:<id>", ttl = "5ms")] // the least ttl is 10 ms
/// async fn sell(id: u64) -> Result<(), Error> { Ok(()) }
/// ```
///
/// A key that is empty, or names what the function does not have:
///
/// ```compile_fail
/// # use lock_core::{Error, distributed_lock};
/// #[distributed_lock(key = "goods:<idd>")] // the function has `id`
/// async fn sell(id: u64) -> Result<(), Error> { Ok(()) }
/// ```
///
/// ```compile_fail
/// # use lock_core::{Error, distributed_lock};
/// #[distributed_lock(key = "goods:{id}")] // `<id>`
/// async fn sell(id: u64) -> Result<(), Error> { Ok(()) }
/// ```
///
/// A value without `Display`:
///
/// ```compile_fail,E0277
/// # use lock_core::{Error, distributed_lock};
/// #[distributed_lock(key = "goods:<ids>")]
/// async fn sell(ids: Vec<u64>) -> Result<(), Error> { Ok(()) }
/// ```
///
/// A return type that could not say that the lock was not acquired:
///
/// ```compile_fail
/// # use lock_core::distributed_lock;
/// #[distributed_lock(key = "goods:<id>")]
/// async fn sell(id: u64) {}
/// ```
///
/// ```compile_fail,E0277
/// # use lock_core::distributed_lock;
/// #[distributed_lock(key = "goods:<id>")]
/// async fn sell(id: u64) -> Result<(), String> { Ok(()) } // `String` is not `From<lock_core::Error>`
/// ```
///
/// A function that is not `async`, or is `const` or `extern`; a method without a body; anything that is no function:
///
/// ```compile_fail
/// # use lock_core::{Error, distributed_lock};
/// #[distributed_lock(key = "goods:<id>")]
/// fn sell(id: u64) -> Result<(), Error> { Ok(()) }
/// ```
///
/// ```compile_fail
/// # use lock_core::{Error, distributed_lock};
/// trait Shop {
///     #[distributed_lock(key = "goods:<id>")]
///     async fn sell(&self, id: u64) -> Result<(), Error>;
/// }
/// ```
///
/// ```compile_fail
/// # use lock_core::distributed_lock;
/// #[distributed_lock(key = "goods")]
/// struct Goods;
/// ```
#[proc_macro_attribute]
pub fn distributed_lock(arguments: TokenStream, item: TokenStream) -> TokenStream {
    lock(arguments.into(), item.into()).into()
}

fn lock(arguments: proc_macro2::TokenStream, item: proc_macro2::TokenStream) -> proc_macro2::TokenStream {
    let mut errors = Errors::default();
    let args = Args::parse(arguments, &mut errors);
    let Some(function) = errors.keep(syn::parse2::<Function>(item.clone())) else {
        return fallback::item(item, errors);
    };
    let names = Names::of(&function.signature);
    errors.keep(function.check());
    errors.keep(names.check_lease(args.lease.as_ref()));
    let key = match &args.key {
        None => None,
        Some(Key::Template(literal)) => {
            errors.keep(Template::parse(literal, &names)).map(|template| template.expand(&args.krate))
        }
        Some(Key::Expression(key)) => Some(quote_spanned!(key.span()=> &(#key))),
    };
    match key {
        Some(key) if errors.is_empty() => expand::expand(&args, &key, &names, &function),
        _ => fallback::function(function, &args, &names, errors),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
