use axum::{Router, routing::post};
use lock_core::LockManager;
use lock_tower::{LockLayer, key::scoped};

fn main() {
    let parts = ("a", "b", "c", "d", "e", "f", "g", "h", "i");
    let layer = LockLayer::http(LockManager::in_memory(), scoped("goods", parts));
    let _: Router = Router::new().route("/", post(async || "sold")).route_layer(layer);
}
