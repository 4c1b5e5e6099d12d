use axum::{Router, routing::post};
use lock_core::LockManager;
use lock_tower::LockLayer;

fn main() {
    let layer = LockLayer::http(LockManager::in_memory()).try_only();
    let _: Router = Router::new().route("/", post(async || "sold")).route_layer(layer);
}
