use lock_core::LockManager;
use lock_tower::{BoxError, LockLayer};
use tower::{Layer, Service, service_fn};

fn serve(_service: impl Service<u64>) {}

fn main() {
    let service = service_fn(async |request: u64| Ok::<_, BoxError>(request));
    serve(LockLayer::http(LockManager::in_memory(), "key").layer(service));
}
