//! Shared leases and permits on a real Redis: what only a server shows.

use lock_core::LockManager;
use lock_tests::{RedisServer, ms};
use tokio::time::sleep;

async fn manager(server: &RedisServer) -> LockManager {
    LockManager::connect(&server.url()).await.expect("the server answers")
}

#[tokio::test]
async fn a_shared_lease_is_kept_beside_an_exclusive_one_that_is_watched() {
    let server = RedisServer::start().await;
    let manager = manager(&server).await;
    let ttl = ms(1_500);
    let shared = manager.lock("shared").shared().ttl(ttl).await.unwrap();
    let permit = manager.lock("permit").permits(3).ttl(ttl).await.unwrap();
    let exclusive = manager.lock("exclusive").ttl(ttl).await.unwrap();
    sleep(ttl * 3).await;
    assert!(exclusive.is_held());
    assert!(shared.is_held(), "{:?}", shared.release().await);
    assert!(permit.is_held(), "{:?}", permit.release().await);
}
