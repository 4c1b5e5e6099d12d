use axum::{Router, routing::post};
use lock_core::LockManager;
use lock_tower::{LockLayer, key::path_param};

fn main() {
    let layer = LockLayer::http(LockManager::in_memory(), path_param::<u64>("id"));
    let _: Router = Router::new().route("/goods/{id}", post(async || "sold")).route_layer(layer);
}
