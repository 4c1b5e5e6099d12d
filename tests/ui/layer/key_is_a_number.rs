use axum::{Router, extract::Request, routing::post};
use lock_core::LockManager;
use lock_tower::LockLayer;

fn main() {
    let layer = LockLayer::http(LockManager::in_memory(), |request: &Request| request.uri().path().len());
    let _: Router = Router::new().route("/", post(async || "sold")).route_layer(layer);
}
