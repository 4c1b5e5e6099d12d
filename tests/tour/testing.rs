//! The code of `docs/testing.md` compiles and runs: every block of it stands in here too, line by line.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::{collections::BTreeSet, sync::Mutex, time::Duration};

use lock_core::{Error, LockManager};
use lock_tests::text::compiled_blocks;
use tokio::time::sleep;

#[test]
fn every_block_of_the_page_is_compiled_here() {
    let blocks = compiled_blocks(include_str!("../../docs/testing.md"), &[include_str!("testing.rs")]);
    assert!(blocks >= 4, "only {blocks} blocks of code were found");
}

#[derive(Default)]
struct Shop {
    charged: Mutex<BTreeSet<u64>>,
    shipped: Mutex<BTreeSet<u64>>,
}

impl Shop {
    async fn pay(&self, locks: &LockManager, order: u64) -> Result<(), Error> {
        let work = async |_| {
            self.charge(order).await;
            self.ship(order).await;
        };
        locks.lock(format!("order:{order}")).run(work).await
    }

    async fn charge(&self, order: u64) {
        sleep(Duration::from_millis(5)).await;
        self.charged.lock().unwrap().insert(order);
    }

    async fn ship(&self, order: u64) {
        sleep(Duration::from_millis(5)).await;
        self.shipped.lock().unwrap().insert(order);
    }

    fn is_consistent(&self) -> bool {
        *self.charged.lock().unwrap() == *self.shipped.lock().unwrap()
    }
}

// The page does not show this attribute, but the message.
#[should_panic(expected = "lease lost at await 2 of 2 of the work that holds \"order:7\"")]
#[lock_test::test]
async fn order_is_paid_once_or_not_at_all(locks: LockManager) {
    let shop = Shop::default();
    let _ = shop.pay(&locks, 7).await;
    assert!(shop.is_consistent(), "charged but not shipped");
}

#[lock_test::test]
async fn order_is_completed_by_the_next_holder(locks: LockManager) -> Result<(), Error> {
    let shop = Shop::default();
    if shop.pay(&locks, 7).await.is_err() {
        shop.pay(&locks, 7).await?;
    }
    assert!(shop.is_consistent());
    Ok(())
}
