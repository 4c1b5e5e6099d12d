//! Locks and atomics of the engine, which a model checker can replace: see `engine/tests/models.rs`.

#[cfg(all(test, lock_loom))]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
#[cfg(not(all(test, lock_loom)))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
