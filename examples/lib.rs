//! What the examples share. Each of them is a program of its own, see `README.md`.

mod child;

pub use child::{Child, redis_url};
