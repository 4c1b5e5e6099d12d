//! `local-mutex`: right as long as there is one instance of the service.

use anyhow::Result;
use tokio::sync::Mutex;

use crate::order::Order;
use crate::shop::{Sale, Shop};

/// Sells to one buyer at a time, of those that came to this instance.
#[derive(Debug)]
pub(crate) struct LocalMutex {
    pub(crate) shop: Shop,
    pub(crate) counter: Mutex<()>,
}

impl LocalMutex {
    /// The mutex ends where the process ends: the next instance has another one.
    ///
    /// With a single instance this is all that is needed, and much faster than any lock over a network.
    pub(crate) async fn order(&self, order: &Order) -> Result<Sale> {
        let _turn = self.counter.lock().await;
        self.shop.sell(order).await
    }
}
