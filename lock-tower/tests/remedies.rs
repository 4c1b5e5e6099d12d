//! What the messages of the mistakes in `tests/ui/layer` say to write.
//!
//! This file is not one of the files that trybuild compiles: a single one that passes makes trybuild build every dependency.

use axum::{Router, extract::Request, routing::post};
use lock_core::LockManager;
use lock_tower::{
    KeyExtractor, LockLayer,
    key::{header, path_param, scoped},
};

fn layer(key: impl KeyExtractor<Request> + Clone + Send + Sync + 'static) {
    let layer = LockLayer::http(LockManager::in_memory(), key);
    layer.check().expect("the key is one");
    let _: Router = Router::new().route("/goods/{id}", post(async || "sold")).route_layer(layer);
}

#[test]
fn what_the_messages_say_to_write_compiles() {
    layer("nightly");
    layer(scoped("goods", path_param::<u64>("id")));
    layer(scoped("goods", (header::<String>("x-shop"), path_param::<u64>("id"))));
    layer(scoped("goods", ("7", path_param::<u64>("id"))));
    layer(scoped("goods", |request: &axum::http::Request<_>| request.uri().path().len().to_string()));
    layer(scoped("goods", ("a", "b", "c", "d", "e", "f", "g", "h")));
    layer(|request: &axum::http::Request<_>| Some(request.uri().path().len().to_string()));
    layer(|request: &Request| request.uri().host().map(str::to_owned).ok_or("no host"));

    let closure = LockLayer::http(LockManager::in_memory(), |_: &Request| "nightly");
    closure.check().expect("the key is one");
    LockLayer::new(LockManager::in_memory(), |_: &u64| "nightly").check_for().expect("the type is that of the closure");
    LockLayer::new(LockManager::in_memory(), "nightly").check_for::<u64>().expect("the key is one");
}
