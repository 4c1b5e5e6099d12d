use lock_core::LockManager;

#[lock_test::test]
#[tokio::test]
async fn order_is_paid_once(locks: LockManager) {
    drop(locks);
}

fn main() {}
