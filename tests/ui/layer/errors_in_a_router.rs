use axum::{Router, routing::post};
use lock_core::LockManager;
use lock_tower::LockLayer;

fn main() {
    let layer = LockLayer::new(LockManager::in_memory(), "key");
    let _: Router = Router::new().route("/", post(async || "sold")).route_layer(layer);
}
