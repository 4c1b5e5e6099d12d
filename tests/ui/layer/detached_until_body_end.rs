use lock_core::LockManager;
use lock_tower::LockLayer;

fn main() {
    let _ = LockLayer::http(LockManager::in_memory(), "key").detached().until_body_end();
}
