use lock_core::LockManager;

#[lock_test::test(ttl = "3s")]
async fn order_is_paid_once(locks: LockManager) {
    let _ = locks.lock("order:7").await;
}

fn main() {}
