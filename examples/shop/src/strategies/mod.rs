//! The ways to keep buyers out of each other's way, one per file.

mod local_mutex;
mod lock_core;
mod lock_layer;
mod lock_macro;
mod none;
mod optimistic;

use ::lock_core::{Error, ErrorKind, LockManager};
use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use self::local_mutex::LocalMutex;
use self::lock_core::LockCore;
use self::lock_layer::LockLayered;
use self::lock_macro::LockMacro;
use self::none::NoLock;
use self::optimistic::Optimistic;
use crate::order::Order;
use crate::shop::{Sale, Shop};

/// A way to keep buyers apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Strategy {
    /// Nothing: oversells
    None,
    /// A mutex in each instance: correct with one instance, oversells with two
    LocalMutex,
    /// A version column: correct, begins again when somebody was quicker
    Optimistic,
    /// A lock on every good of the order, `manager.lock_all(keys)`: correct while no holder stands still for longer than its ttl
    LockCore,
    /// A lock on every good of the order, `#[distributed_lock]` on a function: correct as with `lock-core`
    LockMacro,
    /// A lock on the shop, `LockLayer` in front of an HTTP handler: correct as with `lock-core`
    LockLayer,
}

impl Strategy {
    /// All of them, from the worst to the best protected.
    pub(crate) const ALL: [Self; 6] =
        [Self::None, Self::LocalMutex, Self::Optimistic, Self::LockCore, Self::LockMacro, Self::LockLayer];

    /// The name on the command line, in the table and in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::LocalMutex => "local-mutex",
            Self::Optimistic => "optimistic",
            Self::LockCore => "lock-core",
            Self::LockMacro => "lock-macro",
            Self::LockLayer => "lock-layer",
        }
    }

    /// Whether this strategy promises never to oversell with so many instances. A lock does while none of its holders stands still for longer
    /// than its ttl: a write without a fencing token cannot be refused then, see `example-fencing`.
    pub(crate) fn is_safe(self, instances: usize) -> bool {
        match self {
            Self::None => false,
            Self::LocalMutex => instances == 1,
            Self::Optimistic | Self::LockCore | Self::LockMacro | Self::LockLayer => true,
        }
    }
}

/// Where the buyers of one instance place their orders.
#[derive(Debug)]
pub(crate) enum Desk {
    None(NoLock),
    LocalMutex(LocalMutex),
    Optimistic(Optimistic),
    LockCore(LockCore),
    LockMacro(LockMacro),
    LockLayer(Box<LockLayered>),
}

impl Desk {
    /// Opens the desk of one instance; `store` is where its locks are kept, such as `redis://localhost`.
    ///
    /// # Errors
    /// When the store of the locks cannot be reached, or no port is free for the service.
    pub(crate) async fn open(strategy: Strategy, shop: Shop, store: &str) -> Result<Self> {
        let manager = async || LockManager::connect(store).await.context("cannot reach the store of the locks");
        Ok(match strategy {
            Strategy::None => Self::None(NoLock { shop }),
            Strategy::LocalMutex => Self::LocalMutex(LocalMutex { shop, counter: Default::default() }),
            Strategy::Optimistic => Self::Optimistic(Optimistic { shop }),
            Strategy::LockCore => Self::LockCore(LockCore { shop, manager: manager().await? }),
            Strategy::LockMacro => Self::LockMacro(LockMacro { shop, manager: manager().await? }),
            Strategy::LockLayer => Self::LockLayer(Box::new(LockLayered::serve(shop, manager().await?).await?)),
        })
    }

    /// Places an order; `None` when the buyer was turned away because the lock could not be had, or was lost.
    pub(crate) async fn order(&self, order: &Order) -> Result<Option<Sale>> {
        let sale = match self {
            Self::None(desk) => desk.order(order).await,
            Self::LocalMutex(desk) => desk.order(order).await,
            Self::Optimistic(desk) => desk.order(order).await,
            Self::LockCore(desk) => desk.order(order).await,
            Self::LockMacro(desk) => desk.order(order).await,
            Self::LockLayer(desk) => return desk.order(order).await,
        };
        match sale {
            Ok(sale) => Ok(Some(sale)),
            Err(error) if is_turned_away(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn is_turned_away(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<Error>().map(Error::kind);
    matches!(kind, Some(ErrorKind::Busy | ErrorKind::Lost(_)))
}
