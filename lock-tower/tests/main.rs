//! The layer and its parts, over managers in memory. One program, since each is linked with the whole tree.

mod support;

#[cfg(feature = "http")]
mod body;
mod contention;
#[cfg(feature = "http")]
mod failure;
#[cfg(feature = "grpc")]
mod grpc;
#[cfg(feature = "http")]
mod http;
#[cfg(all(feature = "axum", feature = "idempotency"))]
mod idempotency;
#[cfg(feature = "axum")]
mod keys;
#[cfg(feature = "axum")]
mod losing;
#[cfg(all(feature = "grpc", feature = "metrics"))]
mod metrics;
#[cfg(feature = "axum")]
mod modes;
#[cfg(feature = "http")]
mod panics;
#[cfg(feature = "http")]
mod policies;
mod readiness;
#[cfg(feature = "axum")]
mod remedies;
mod several;
#[cfg(feature = "http")]
mod spans;
#[cfg(feature = "http")]
mod stream;
#[cfg(feature = "http")]
mod table;
#[cfg(feature = "axum")]
mod window;
#[cfg(feature = "axum")]
mod wire;
