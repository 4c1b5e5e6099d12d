use axum::{Router, routing::post};
use lock_core::LockManager;
use lock_tower::{LockLayer, key::{header, scoped}};

fn main() {
    let layer = LockLayer::http(LockManager::in_memory(), scoped("goods", [header::<String>("x-shop"), header::<String>("x-goods")]));
    let _: Router = Router::new().route("/", post(async || "sold")).route_layer(layer);
}
