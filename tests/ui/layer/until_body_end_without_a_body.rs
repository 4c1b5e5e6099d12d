use lock_core::LockManager;
use lock_tower::LockLayer;

fn main() {
    let _ = LockLayer::new(LockManager::in_memory(), "key").until_body_end();
}
