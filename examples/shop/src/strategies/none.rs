//! `none`: nothing keeps buyers apart, and the shop oversells.

use anyhow::Result;

use crate::order::Order;
use crate::shop::{Sale, Shop};

/// Sells to everybody at once.
#[derive(Debug)]
pub(crate) struct NoLock {
    pub(crate) shop: Shop,
}

impl NoLock {
    /// Two buyers read 100, both are told yes, and the second write hides the first.
    pub(crate) async fn order(&self, order: &Order) -> Result<Sale> {
        self.shop.sell(order).await
    }
}
