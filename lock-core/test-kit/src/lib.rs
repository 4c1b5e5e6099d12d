//! Tests for code that holds the locks of [`lock_core`]. A dev-dependency, so that no build for production has any of it.
//!
//! * [`#[lock_test::test]`](macro@test) runs a test once for each await under a lock and loses the lease there.
//! * [`conformance::run`] checks a [`Backend`](lock_core::backend::Backend) of your own.
//! * [`seeded`] makes what a manager draws at random repeatable.

pub mod conformance;
mod trial;

use lock_core::LockManagerBuilder;
pub use lock_macros::test;

/// Makes the tokens and the jitter of a manager repeatable. Two managers with one seed draw equal tokens, and so take the leases of each
/// other for their own: give each manager of a store another one.
///
/// # Examples
///
/// ```
/// use lock_core::LockManager;
///
/// let manager = lock_test::seeded(LockManager::builder().url("memory://"), 1).build();
/// assert!(manager.is_ok());
/// ```
pub fn seeded(builder: LockManagerBuilder, seed: u64) -> LockManagerBuilder {
    builder.__seed(seed)
}

/// The functions that the expansion of `#[test]` calls.
#[doc(hidden)]
pub mod __private {
    pub use crate::trial::{Verdict, test};
}
