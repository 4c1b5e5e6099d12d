//! `#[lock_core::test]`: work that is half done without its lease is found, at its line, and work that is right passes.

#![cfg(feature = "test-util")]

use std::{sync::Mutex, time::Duration};

use lock_core::{Error, LockManager};
use tokio::time::sleep;

#[derive(Default)]
struct Shop {
    paid: Mutex<u32>,
    shipped: Mutex<u32>,
}

impl Shop {
    async fn charge(&self) {
        sleep(Duration::from_millis(5)).await;
        *self.paid.lock().unwrap() += 1;
    }

    async fn ship(&self) {
        sleep(Duration::from_millis(5)).await;
        *self.shipped.lock().unwrap() += 1;
    }

    async fn pay(&self, locks: &LockManager, order: u64) -> Result<(), Error> {
        let work = async |_| {
            self.charge().await;
            self.ship().await;
        };
        locks.lock(format!("order:{order}")).run(work).await
    }
}

#[lock_core::test]
#[should_panic(expected = "lease lost at await 2 of 2")]
async fn half(locks: LockManager) {
    let shop = Shop::default();
    let _ = shop.pay(&locks, 7).await;
    assert_eq!(*shop.paid.lock().unwrap(), *shop.shipped.lock().unwrap());
}
