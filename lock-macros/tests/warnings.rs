//! Right use compiles without a warning: whatever the expansion adds is silent under the strictest lints that users turn
//! on, and no attribute of the function is lost. That this crate compiles is the test.

#![deny(
    warnings,
    missing_docs,
    unfulfilled_lint_expectations,
    unreachable_pub,
    unused,
    unused_qualifications,
    rust_2018_idioms,
    rust_2024_compatibility
)]
#![forbid(unsafe_code)]
#![allow(clippy::mixed_attributes_style, reason = "both kinds have to be kept")]

use lock_core::{Error, LockManager, distributed_lock};

mod strict_lints {
    use super::*;

    #[distributed_lock(key = "goods:<id>", ttl = "3s", wait = "1s", renew = false, max_hold = "1m", lease = lease)]
    async fn sell(id: u64, _unused: &LockManager) -> Result<impl Iterator<Item = u64>, Error> {
        Ok(std::iter::once(id + lease.fencing_token().get()))
    }

    #[distributed_lock(keys = ["goods:<id>", id.to_string()], at_least = "1s", on_busy = skip, on_lost = finish, lease = leases)]
    async fn skip(id: u64, _unused: &LockManager) -> Option<bool> {
        Some(leases.is_held())
    }

    fn refused(_: Error) -> bool {
        false
    }

    #[distributed_lock(keys = ids.iter().map(u64::to_string), on_error = refused)]
    async fn call(ids: Vec<u64>) -> bool {
        ids.len() > 1
    }

    #[distributed_lock(key = "goods:<id>", on_busy = skip, on_error = move |error| format!("{id}: {error}"))]
    async fn closure(id: u64) -> Result<Option<u64>, String> {
        Ok(Some(id))
    }

    #[distributed_lock(key = "goods", on_error = |error| assert!(error.is_busy()))]
    async fn nothing() {}

    /// A trait.
    #[async_trait::async_trait]
    trait Shop {
        #[distributed_lock(key = "goods:<id>", on_busy = skip)]
        async fn sell(&self, id: u64, (price, _): (u64, u64)) -> Result<Option<u64>, Error> {
            Ok(Some(price))
        }
    }

    impl Shop for u64 {}

    #[test]
    fn bad_input_60_what_the_expansion_adds_is_silent() {
        drop(skip(1, &LockManager::in_memory()));
        drop(call(Vec::new()));
        drop(closure(1));
        drop(nothing());
        drop(7.sell(1, (2, 3)));
        drop(sell(1, &LockManager::in_memory()));
    }
}

/// Each expectation is fulfilled only if the attribute on the locked function is still there.
mod attributes_are_kept {
    use super::*;

    #[distributed_lock(key = "goods")]
    #[deprecated]
    async fn old() -> Result<(), Error> {
        Ok(())
    }

    #[distributed_lock(key = "goods")]
    #[must_use]
    #[expect(non_snake_case)]
    async fn Loud() -> Result<(), Error> {
        #![expect(unused_mut)]
        let mut done = ();
        Ok(done)
    }

    #[distributed_lock(key = "goods")]
    fn boxed() -> std::pin::Pin<Box<dyn Future<Output = Result<(), Error>>>> {
        Box::pin(
            async move {
                #![expect(unused_mut)]
                let mut done = ();
                Ok(done)
            },
        )
    }

    async fn ignore() {
        #[expect(deprecated)]
        drop(old());
        #[expect(unused_must_use)]
        Loud().await;
        drop(boxed());
    }

    #[test]
    fn bad_input_60_attributes_are_kept() {
        drop(ignore());
    }
}

/// The compiler still sees that an argument is unused.
mod unused_argument_warns {
    use super::*;

    #[distributed_lock(key = "goods")]
    #[expect(unused_variables)]
    async fn sell(id: u64) -> Result<(), Error> {
        Ok(())
    }

    #[test]
    fn unused_argument_warns() {
        drop(sell(1));
    }
}
