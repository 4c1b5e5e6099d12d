//! Each kind of failure, by work that is wrong.

use std::future::pending;

use lock_core::{Error, ErrorKind, LockManager, distributed_lock};
use tokio::sync::oneshot;

use crate::losing::shop::{Shop, round_trip};

#[lock_test::test]
#[should_panic(expected = "lease lost at await 2 of 2 of the work that holds \"order:7\"")]
async fn work_in_two_steps_is_half_done(locks: LockManager) {
    let shop = Shop::default();
    let _ = shop.pay_in_two_steps(&locks).await;
    assert!(shop.is_consistent(), "{:?}", shop.rows());
}

#[distributed_lock(key = "order:<id>", manager = locks)]
async fn pay(locks: &LockManager, shop: &Shop, id: u64) -> Result<(), Error> {
    shop.charge().await;
    shop.ship().await;
    Ok(())
}

#[lock_test::test]
#[should_panic(expected = "lease lost at await 2 of 2 of the work that holds \"order:8\"")]
async fn attribute_in_two_steps_is_half_done(locks: LockManager) {
    let shop = Shop::default();
    let _ = pay(&locks, &shop, 8).await;
    assert!(shop.is_consistent(), "{:?}", shop.rows());
}

#[lock_test::test]
#[should_panic(expected = "answer lost of acquire 1 of 1, for \"order:7\"")]
async fn error_of_an_acquire_leaves_the_order_busy(locks: LockManager) {
    let shop = Shop::default();
    shop.set_busy(true);
    let paid = shop.pay_at_once(&locks).await;
    // Wrong: nothing is held if the backend did not answer, either.
    if paid.is_ok() || paid.is_err_and(|error| matches!(error.kind(), ErrorKind::Lost(_))) {
        shop.set_busy(false);
    }
    assert!(!shop.rows().busy);
}

#[lock_test::test]
#[should_panic(expected = "answer lost of release 2 of 2, for \"stock\"")]
async fn error_of_a_release_is_taken_for_one_of_the_work(locks: LockManager) {
    let shop = Shop::default();
    let pay = async {
        shop.pay_at_once(&locks).await?;
        let stock = locks.lock("stock").await?;
        shop.write(|rows| rows.busy = true).await;
        stock.release().await
    };
    let done = pay.await.is_ok();
    let rows = shop.rows();
    // Wrong: the work is done although the release failed.
    assert!(done || !rows.busy, "{rows:?}");
}

#[lock_test::test]
#[should_panic(expected = "holder paused past its ttl (pause 2 of 2) at await 1 of the work that holds \"order:7\"")]
async fn holder_that_was_paused_writes_late(locks: LockManager) {
    let shop = Shop::default();
    let _ = shop.pay_blindly(&locks).await;
    assert!(!shop.rows().written_late);
}

#[lock_test::test]
#[should_panic(expected = "lease lost at await 1 of 1 of the work that holds \"job\"")]
async fn error_of_a_test_is_its_failure(locks: LockManager) -> Result<(), Error> {
    locks.lock("job").run(async |_| round_trip().await).await
}

#[lock_test::test]
#[should_panic(expected = "the test did not end within a day of virtual time")]
async fn wait_for_work_that_was_dropped_is_found(locks: LockManager) {
    let (done, told) = oneshot::channel();
    tokio::spawn(async move {
        let _ = locks.lock("job").run(async |_| round_trip().await).await.map(|()| done.send(()));
        // Keeps the sender of a run whose work was lost.
        pending::<()>().await;
    });
    if told.await.is_err() {
        pending::<()>().await;
    }
}
