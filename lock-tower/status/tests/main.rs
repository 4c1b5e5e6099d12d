//! The page for operators, as an axum service answers with it over a socket.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

mod client;
mod finding;
mod releasing;
mod showing;
mod silence;
mod support;
mod traces;
