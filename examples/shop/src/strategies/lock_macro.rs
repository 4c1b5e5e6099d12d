//! `lock-macro`: an attribute on the function that sells.

use anyhow::Result;
use lock_core::{LockManager, distributed_lock};

use crate::order::Order;
use crate::shop::{Sale, Shop};

/// Sells to everybody at once, except to those who want the same goods.
#[derive(Debug)]
pub(crate) struct LockMacro {
    pub(crate) shop: Shop,
    pub(crate) manager: LockManager,
}

impl LockMacro {
    /// Holds the leases of all goods of the order while the body runs.
    #[distributed_lock(
        keys = order.lines().map(|(good, _)| format!("goods:{good}")),
        ttl = "3s", wait = "30s", manager = self.manager
    )]
    pub(crate) async fn order(&self, order: &Order) -> Result<Sale> {
        self.shop.sell(order).await
    }
}
