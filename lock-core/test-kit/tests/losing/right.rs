//! Work that is right passes, whatever is lost.

use lock_core::{Error, ErrorKind, LockManager, distributed_lock};

use crate::losing::shop::{Rows, Shop, round_trip};

#[lock_test::test]
async fn work_in_one_transaction_passes(locks: LockManager) {
    let shop = Shop::default();
    let _ = shop.pay_at_once(&locks).await;
    assert!(shop.is_consistent());
}

#[lock_test::test]
async fn work_that_is_not_broken_off_passes(locks: LockManager) {
    let shop = Shop::default();
    let paid = shop.pay_to_the_end(&locks).await;
    assert!(shop.is_consistent());
    if let Err(error) = paid {
        let done = shop.rows() != Rows::default();
        assert_eq!(done, matches!(error.kind(), ErrorKind::Lost(_)), "{error}");
    }
}

#[distributed_lock(key = "job")]
async fn job() -> Result<(), Error> {
    round_trip().await;
    Ok(())
}

#[lock_test::test]
async fn attribute_finds_the_manager_of_the_test() {
    let done = job().await;
    assert!(!done.is_err_and(|error| error.kind() == ErrorKind::NoManager));
}
