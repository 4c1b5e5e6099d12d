use axum::{Router, routing::post};
use lock_core::LockManager;
use lock_tower::{LockLayer, key::fixed};

fn main() {
    let layer = LockLayer::new(LockManager::in_memory(), fixed("key"));
    let _: Router = Router::new().route("/", post(async || "sold")).route_layer(layer);
}
