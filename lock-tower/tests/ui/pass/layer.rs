use axum::{Router, extract::Request, routing::post};
use lock_core::LockManager;
use lock_tower::{LockLayer, key::header};

fn main() {
    let manager = LockManager::in_memory();
    let by_path = LockLayer::http(manager.clone(), |request: &Request| request.uri().path().to_owned());
    let by_account = LockLayer::http(manager, header("x-account")).until_body_end();
    let _: Router = Router::new().route("/", post(async || "sold")).route_layer(by_path).layer(by_account);
}
