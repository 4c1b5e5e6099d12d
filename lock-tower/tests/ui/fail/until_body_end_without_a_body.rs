use lock_core::LockManager;
use lock_tower::{LockLayer, key::fixed};

fn main() {
    let _ = LockLayer::new(LockManager::in_memory(), fixed("key")).until_body_end();
}
