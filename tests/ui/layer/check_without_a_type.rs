use lock_core::LockManager;
use lock_tower::LockLayer;

fn main() {
    let layer = LockLayer::new(LockManager::in_memory(), "nightly");
    let _ = layer.check();
}
