//! `#[lock_test::test]`: work that leaves something half done without its lease is found, and work that is right passes.

#![allow(clippy::unwrap_used, reason = "test code")]

mod found;
mod messages;
mod places;
mod right;
mod shop;
