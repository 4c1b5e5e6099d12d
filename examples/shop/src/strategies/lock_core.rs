//! `lock-core`: one lease for each good of the order, taken together.

use std::time::Duration;

use anyhow::Result;
use lock_core::LockManager;

use crate::order::Order;
use crate::shop::{Sale, Shop};

/// Sells to everybody at once, except to those who want the same goods.
#[derive(Debug)]
pub(crate) struct LockCore {
    pub(crate) shop: Shop,
    pub(crate) manager: LockManager,
}

impl LockCore {
    /// Takes the leases of all goods, sells, and gives them back.
    ///
    /// `lock_all` takes the keys in one order whatever the order of the question, so that two buyers who want
    /// the same two goods never hold one each and wait for the other. Buyers of other goods do not wait at all.
    pub(crate) async fn order(&self, order: &Order) -> Result<Sale> {
        let keys = order.lines().map(|(good, _)| format!("goods:{good}"));
        let leases = self.manager.lock_all(keys).ttl(Duration::from_secs(3)).wait(Duration::from_secs(30));
        leases.run(async |_| self.shop.sell(order).await).await?
    }
}
