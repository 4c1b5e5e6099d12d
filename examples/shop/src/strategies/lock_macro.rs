//! `lock-macro`: an attribute on the function that sells.

use anyhow::Result;
use lock_core::{LockManager, distributed_lock};

use crate::order::Order;
use crate::shop::{Sale, Shop};

/// Sells to one buyer at a time, at whichever instance.
#[derive(Debug)]
pub(crate) struct LockMacro {
    pub(crate) shop: Shop,
    pub(crate) manager: LockManager,
}

impl LockMacro {
    /// Locks the shop: one key from the arguments, however many goods are in the order.
    ///
    /// An attribute has one key, and an order has several goods. Locking them one by one would mean a
    /// function that calls itself for the rest of the goods while it holds the first; who wants that finds
    /// [`LockManager::lock_all`] shorter. What people do with an attribute is what this does: they lock the
    /// thing that all orders share, and accept that buyers of different goods wait for each other too.
    #[distributed_lock(key = "shop:<self.shop.name>", ttl = "3s", wait = "30s", manager = self.manager)]
    pub(crate) async fn order(&self, order: &Order) -> Result<Sale> {
        self.shop.sell(order).await
    }
}
