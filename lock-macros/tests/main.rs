//! The attribute as it is used. One program, since each is linked with the whole tree.

mod answers;
mod async_trait;
mod axum;
mod basic;
mod defaults;
mod durations;
mod generics;
mod keys;
mod methods;
mod modes;
mod names;
mod on_error;
mod policies;
mod remedies;
mod spans;
mod with_other_macros;
