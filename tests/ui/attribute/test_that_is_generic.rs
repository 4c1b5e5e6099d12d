use lock_core::LockManager;

#[lock_test::test]
async fn order_is_paid_once<T>(locks: LockManager) {
    let _ = locks.lock(std::any::type_name::<T>()).await;
}

fn main() {}
