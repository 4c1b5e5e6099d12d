//! One sale: all instances of one strategy at work, from the same moment on.

use std::path::Path;

use anyhow::Result;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::JoinSet;

use crate::args::Args;
use crate::instance::{Instance, Job, Receipt};
use crate::processes;
use crate::shop::Shop;
use crate::strategies::Strategy;
use crate::tally::Tally;

/// Sells a fresh stock by one strategy; `on_receipt` is called for every order that was answered.
///
/// # Errors
/// When an instance cannot be opened or an order fails; a buyer who is refused is not an error.
pub(crate) async fn hold(
    strategy: Strategy,
    args: &Args,
    database: &Path,
    shop: &Shop,
    mut on_receipt: impl FnMut(),
) -> Result<Tally> {
    shop.restock().await?;
    let jobs = jobs(strategy, args, database);
    let (send, mut answered) = mpsc::unbounded_channel();
    let sale = async {
        match args.redis {
            Some(_) => processes::sell(jobs, send).await,
            None => sell_here(jobs, send).await,
        }
    };
    let collect = async {
        let mut receipts: Vec<Receipt> = Vec::new();
        while let Some(receipt) = answered.recv().await {
            receipts.push(receipt);
            on_receipt();
        }
        Ok(receipts)
    };
    let ((), receipts) = tokio::try_join!(sale, collect)?;
    Ok(Tally::new(strategy, args.instances as usize, receipts, &shop.stock().await?))
}

fn jobs(strategy: Strategy, args: &Args, database: &Path) -> Vec<Job> {
    let instances = args.instances as usize;
    let job = |instance| Job {
        strategy,
        instance,
        instances,
        buyers: args.buyers as usize,
        rounds: args.rounds as usize,
        seed: args.seed,
        pause: args.pause(),
        database: database.to_owned(),
        // A store in memory is shared by all managers of the process that name it.
        store: args.redis.clone().unwrap_or_else(|| format!("memory://shop-{}", strategy.name())),
    };
    (0..instances).map(job).collect()
}

/// Runs all instances in this process; they share nothing but the database and the store of the locks.
async fn sell_here(jobs: Vec<Job>, receipts: UnboundedSender<Receipt>) -> Result<()> {
    let mut instances = Vec::new();
    for job in jobs {
        instances.push(Instance::open(job).await?);
    }
    let mut sales = JoinSet::new();
    for instance in instances {
        sales.spawn(instance.sell(receipts.clone()));
    }
    while let Some(sale) = sales.join_next().await {
        sale??;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    async fn sell(strategy: Strategy, instances: u32) -> Result<Tally> {
        let folder = tempfile::tempdir()?;
        let database = folder.path().join("shop.db");
        let args = Args::parse_from(["shop".to_owned(), format!("--instances={instances}")]);
        let shop = Shop::open(&database, args.pause()).await?;
        let tally = hold(strategy, &args, &database, &shop, || ()).await?;
        Ok(tally)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_between_buyers_oversells() -> Result<()> {
        for instances in [1, 2] {
            let tally = sell(Strategy::None, instances).await?;
            assert_eq!(tally.orders(), 120);
            assert!(tally.oversold() > 0, "{tally:?}");
        }
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_mutex_is_right_in_one_process_and_oversells_across_two() -> Result<()> {
        let one = sell(Strategy::LocalMutex, 1).await?;
        assert!(one.is_right(), "{one:?}");
        let two = sell(Strategy::LocalMutex, 2).await?;
        assert!(two.oversold() > 0, "{two:?}");
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_other_strategy_sells_what_there_is_and_no_more() -> Result<()> {
        for strategy in Strategy::ALL.into_iter().filter(|strategy| strategy.is_safe(2)) {
            let tally = sell(strategy, 2).await?;
            assert_eq!((tally.orders(), tally.turned_away()), (120, 0), "{tally:?}");
            assert!(tally.is_right(), "{tally:?}");
            assert!(tally.sold() > 200, "far more is asked for than there is: {tally:?}");
        }
        Ok(())
    }
}
