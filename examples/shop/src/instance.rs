//! One instance of the service, with its own database connections, its own lock manager, and its buyers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::order::{self, Order};
use crate::shop::{Sale, Shop};
use crate::strategies::{Desk, Strategy};

/// The task of an instance; the parent of a process passes it as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) strategy: Strategy,
    /// Which of the instances this is, from 0.
    pub(crate) instance: usize,
    pub(crate) instances: usize,
    /// Buyers of all instances together; each goes to the instance of its number modulo `instances`.
    pub(crate) buyers: usize,
    /// Orders that each buyer places, one after another.
    pub(crate) rounds: usize,
    pub(crate) seed: u64,
    /// Between reading and writing the stock.
    pub(crate) pause: Duration,
    /// The file of the database.
    pub(crate) database: PathBuf,
    /// Where the locks are kept: a Redis, or the store of this name in the process.
    pub(crate) store: String,
}

/// The answer to one order, as its buyer sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) order: Order,
    pub(crate) outcome: Outcome,
    /// When the answer came, from the beginning of the sale.
    pub(crate) at: Duration,
    /// How long the buyer waited on top of the sale itself: for the lock, for sales begun in vain, for the network.
    pub(crate) waited: Duration,
    /// How often the sale was begun again.
    pub(crate) retries: u32,
}

/// How an order ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// All of its goods are promised to the buyer.
    Accepted,
    /// There was not enough of at least one good; none is promised.
    SoldOut,
    /// The lock could not be had in time, or was lost; none is promised.
    TurnedAway,
}

/// An instance that is ready to sell.
#[derive(Debug)]
pub(crate) struct Instance {
    job: Job,
    desk: Desk,
}

impl Instance {
    /// Opens everything that the job names.
    ///
    /// # Errors
    /// When the database or the store of the locks cannot be reached.
    pub(crate) async fn open(job: Job) -> Result<Self> {
        let shop = Shop::open(&job.database, job.pause).await?;
        let desk = Desk::open(job.strategy, shop, &job.store).await?;
        Ok(Self { job, desk })
    }

    /// Lets the buyers of this instance in, the wholesalers a pause before the others, and sends a receipt for each of their orders.
    ///
    /// # Errors
    /// When an order failed for another reason than that it was turned away.
    pub(crate) async fn sell(self, receipts: UnboundedSender<Receipt>) -> Result<()> {
        let Self { job, desk } = self;
        let desk = Arc::new(desk);
        let orders = order::draw(job.seed, job.buyers, job.rounds);
        let begun = Instant::now();
        let mut buyers = JoinSet::new();
        for (buyer, orders) in orders.into_iter().enumerate().skip(job.instance).step_by(job.instances) {
            let (desk, receipts) = (desk.clone(), receipts.clone());
            buyers.spawn(async move {
                if buyer >= order::WHOLESALERS {
                    sleep(job.pause).await;
                }
                for order in orders {
                    let asked = Instant::now();
                    let sale = desk.order(&order).await.with_context(|| format!("the order {order} failed"))?;
                    let receipt = Receipt::new(order, sale, begun, asked);
                    if receipts.send(receipt).is_err() {
                        break;
                    }
                }
                anyhow::Ok(())
            });
        }
        while let Some(buyer) = buyers.join_next().await {
            buyer??;
        }
        Ok(())
    }
}

impl Receipt {
    fn new(order: Order, sale: Option<Sale>, begun: Instant, asked: Instant) -> Self {
        let outcome = match sale {
            Some(sale) if sale.accepted => Outcome::Accepted,
            Some(_) => Outcome::SoldOut,
            None => Outcome::TurnedAway,
        };
        let took = sale.map_or(Duration::ZERO, |sale| sale.took);
        Self {
            order,
            outcome,
            at: begun.elapsed(),
            waited: asked.elapsed().saturating_sub(took),
            retries: sale.map_or(0, |sale| sale.retries),
        }
    }
}
