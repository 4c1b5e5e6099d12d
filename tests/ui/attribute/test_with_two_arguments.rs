use lock_core::LockManager;

#[lock_test::test]
async fn order_is_paid_once(locks: LockManager, order: u64) {
    let _ = locks.lock(format!("order:{order}")).await;
}

fn main() {}
