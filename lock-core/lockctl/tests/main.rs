//! The program `lockctl`, as a shell or an operator uses it, on a Redis of the test's own.

#![cfg(unix)]

mod completing;
mod doctor;
mod failing;
mod fake;
mod looking;
mod lost;
mod page;
mod releasing;
mod running;
mod signals;
mod support;
#[cfg(target_os = "linux")]
mod suspended;
mod terminal;
mod watching;
