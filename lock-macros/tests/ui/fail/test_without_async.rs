use lock_core::LockManager;

#[lock_core::test]
fn order_is_paid_once(locks: LockManager) {
    drop(locks);
}

fn main() {}
