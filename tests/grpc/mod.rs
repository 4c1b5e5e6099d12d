//! The layer in front of a generated gRPC service and around its client, over real sockets.
#![expect(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

mod cancel;
mod client;
mod codes;
mod redis;
mod service;
mod streams;
mod unary;

/// What `build.rs` made of `calls.proto`.
#[allow(missing_docs, unnameable_types, unreachable_pub, clippy::missing_errors_doc, reason = "generated")]
mod proto {
    tonic::include_proto!("calls");
}

use std::future::Future;

use lock_core::{LeaseOptions, LockManager};
use lock_tests::{LONG, SOON, eventually, within};
use lock_tower::{Grpc, LockLayer};
use tonic::body::Body;

type Key = fn(&http::Request<Body>) -> Result<String, &'static str>;

/// Finds the whole key in the metadata, so that a test can name any.
fn key(call: &http::Request<Body>) -> Result<String, &'static str> {
    let key = call.headers().get("key").and_then(|key| key.to_str().ok());
    key.map(str::to_owned).ok_or("the metadata key is missing")
}

/// A layer whose keys are in the metadata. Its leases are so long that a release that is missing shows.
fn layer(manager: &LockManager) -> LockLayer<Key, Grpc> {
    LockLayer::grpc(manager.clone(), key as Key).options(LeaseOptions::new().ttl(LONG))
}

/// Waits for what should come soon, and fails instead of hanging.
#[track_caller]
fn soon<F: Future>(future: F) -> impl Future<Output = F::Output> {
    within(SOON, future)
}

/// Waits for a condition, and fails when it does not come about.
#[track_caller]
fn until(what: &str, mut condition: impl FnMut() -> bool) -> impl Future<Output = ()> {
    eventually(SOON, what, async move || condition())
}

/// Waits until nobody holds a key.
#[track_caller]
fn until_free(manager: &LockManager, key: &str) -> impl Future<Output = ()> {
    lock_tests::until_free(key, async move || manager.is_locked(key).await.unwrap())
}
