//! `optimistic`: no lock; the write looks whether the row is still what was read.

use anyhow::Result;

use crate::order::Order;
use crate::shop::{Sale, Shop};

/// Sells to everybody at once, and lets all except the quickest begin again.
#[derive(Debug)]
pub(crate) struct Optimistic {
    pub(crate) shop: Shop,
}

impl Optimistic {
    /// Right across instances, without any server besides the database.
    ///
    /// The price is the work that is thrown away: the more buyers want the same goods, and the longer a sale
    /// thinks, the more often it thinks in vain. And it only ever protects rows that have a version.
    pub(crate) async fn order(&self, order: &Order) -> Result<Sale> {
        let mut retries = 0;
        loop {
            if let Some(sale) = self.shop.sell_if_unchanged(order).await? {
                return Ok(Sale { retries, ..sale });
            }
            retries += 1;
        }
    }
}
