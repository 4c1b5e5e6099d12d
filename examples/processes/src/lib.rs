//! The part that the examples of several processes share: the URL of their Redis, and processes to start, pause and kill.

mod child;
mod url;

pub use child::Child;
pub use url::redis_url;
