use lock_core::LockManager;
use lock_tower::{LockLayer, key::fixed};

fn main() {
    let _ = LockLayer::http(LockManager::in_memory(), fixed("key")).detached().until_body_end();
}
