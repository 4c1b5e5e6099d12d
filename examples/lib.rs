//! What the examples share. Each of them is a program of its own, see `README.md`.

mod child;
mod url;

pub use child::Child;
pub use url::{locks_url, redis_url};
