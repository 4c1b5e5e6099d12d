//! A shop whose database and bank answer after a while.

use std::{sync::Mutex, time::Duration};

use lock_core::{Error, Lease, LockManager, OnLost};
use tokio::time::sleep;

#[derive(Debug, Default)]
pub(crate) struct Shop {
    rows: Mutex<Rows>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) charged: u32,
    pub(crate) shipped: u32,
    /// Whether something was written by a holder whose lease had ended.
    pub(crate) written_late: bool,
    /// Whether an order is being paid, for those who look.
    pub(crate) busy: bool,
}

impl Shop {
    pub(crate) fn rows(&self) -> Rows {
        *self.rows.lock().unwrap()
    }

    pub(crate) fn is_consistent(&self) -> bool {
        let rows = self.rows();
        rows.charged == rows.shipped
    }

    /// Writes at once, after the way to the database.
    pub(crate) async fn write(&self, change: impl FnOnce(&mut Rows)) {
        round_trip().await;
        change(&mut self.rows.lock().unwrap());
    }

    pub(crate) fn set_busy(&self, busy: bool) {
        self.rows.lock().unwrap().busy = busy;
    }

    pub(crate) async fn charge(&self) {
        self.write(|rows| rows.charged += 1).await;
    }

    pub(crate) async fn ship(&self) {
        self.write(|rows| rows.shipped += 1).await;
    }

    /// Charges, and then ships: wrong, since the lease can be lost between them.
    pub(crate) async fn pay_in_two_steps(&self, locks: &LockManager) -> Result<(), Error> {
        let work = async |_: Lease| {
            self.charge().await;
            self.ship().await;
        };
        locks.lock("order:7").run(work).await
    }

    /// The same two steps by work that is not broken off.
    pub(crate) async fn pay_to_the_end(&self, locks: &LockManager) -> Result<(), Error> {
        let work = async |_: Lease| {
            self.charge().await;
            self.ship().await;
        };
        locks.lock("order:7").on_lost(OnLost::Finish).run(work).await
    }

    /// Does both in one transaction.
    pub(crate) async fn pay_at_once(&self, locks: &LockManager) -> Result<(), Error> {
        let work = async |_: Lease| {
            round_trip().await;
            let both = |rows: &mut Rows| {
                rows.charged += 1;
                rows.shipped += 1;
            };
            self.write(both).await;
        };
        locks.lock("order:7").run(work).await
    }

    /// Writes without a look at the lease, which may have ended while the process stood still.
    pub(crate) async fn pay_blindly(&self, locks: &LockManager) -> Result<(), Error> {
        let work = async |lease: Lease| {
            self.write(|rows| rows.written_late |= !lease.is_held()).await;
        };
        locks.lock("order:7").run(work).await
    }
}

pub(crate) async fn round_trip() {
    sleep(Duration::from_millis(5)).await;
}
