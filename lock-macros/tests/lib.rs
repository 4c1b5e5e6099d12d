//! The examples in the documentation of the attributes, which are tests of this package as those beside this file are.

/// README.md of `lock-macros`.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}

/// `#[distributed_lock]`.
#[cfg(doctest)]
#[doc = include_str!("../docs/overview.md")]
#[doc = include_str!("../docs/arguments.md")]
#[doc = include_str!("../docs/function.md")]
#[doc = include_str!("../docs/refused.md")]
pub mod distributed_lock {}

/// `#[test]`.
#[cfg(doctest)]
#[doc = include_str!("../docs/test.md")]
pub mod test {}
