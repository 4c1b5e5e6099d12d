//! The futures of requests and guards, for code that keeps them in types of its own.
//!
//! Each can be named, stored and polled in place, and documents what a drop costs.
//!
//! # Examples
//!
//! ```
//! use lock_core::{LockManager, future::Acquire};
//!
//! /// A request that is on its way.
//! struct Admission {
//!     acquire: Acquire,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
//! let admission = Admission { acquire: LockManager::in_memory().lock("goods:1").acquire() };
//! let guard = admission.acquire.await?;
//! # guard.release().await }
//! ```

pub(crate) mod acquire;
mod acquire_all;
mod confirm;
pub(crate) mod protected;
pub(crate) mod reentry;
pub(crate) mod release;
mod take_up;
mod together;
mod wanted;

pub use self::{
    acquire::Acquire,
    acquire_all::AcquireAll,
    protected::Protected,
    release::{Release, ReleaseAll},
};
