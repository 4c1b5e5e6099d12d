use lock_core::LockManager;
use lock_tower::{BoxError, LockLayer, key::fixed};
use tower::{Layer, Service, service_fn};

fn main() {
    let service = service_fn(async |request: u64| Ok::<_, BoxError>(request));
    let layer = LockLayer::new(LockManager::in_memory(), fixed("key")).until_body_end();
    let _ = layer.layer(service).call(1);
}
