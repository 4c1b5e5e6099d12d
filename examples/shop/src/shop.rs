//! The shop: a table of goods in SQLite, and a sale that reads it, thinks, and writes it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rusqlite::Transaction;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use crate::database::Database;
use crate::order::{GOODS, Good, Order, STOCK};

/// One service's way to the database; clones share its connections.
#[derive(Clone, Debug)]
pub(crate) struct Shop {
    database: Database,
    /// How long a sale thinks between reading the stock and writing it.
    pause: Duration,
}

/// The result of one order.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Sale {
    /// Whether the buyer was promised the goods; all of them or none.
    pub(crate) accepted: bool,
    /// From the first look at the stock to the answer, without what came before: lock, retries, network.
    pub(crate) took: Duration,
    /// How often it was begun again because somebody else had been quicker.
    pub(crate) retries: u32,
}

/// The stock of one good as it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stock {
    pub(crate) good: Good,
    pub(crate) left: u32,
    /// Counts the writes of this row; only the `optimistic` strategy looks at it.
    pub(crate) version: i64,
}

/// The rows that were read for an order and are about to be written.
#[derive(Debug)]
struct Plan {
    begun: Instant,
    /// The goods of the order as they were read, with what will be left of each.
    rows: Vec<(Stock, u32)>,
}

impl Shop {
    /// Opens the database at `path`, a new one when there is none.
    ///
    /// # Errors
    /// When the file cannot be opened, or is a database of something else: its tables stay as they are.
    pub(crate) async fn open(path: &Path, pause: Duration) -> Result<Self> {
        let database = Database::open(path).await;
        let database = database.with_context(|| format!("could not open the database {}", path.display()))?;
        let shop = Self { database, pause };
        shop.lay_out().await.with_context(|| format!("could not use the database {}", path.display()))?;
        Ok(shop)
    }

    /// Puts the full stock on the shelves.
    pub(crate) async fn restock(&self) -> Result<()> {
        let restock = |on: &Transaction<'_>| on.execute("UPDATE goods SET in_stock = ?, version = 0", [STOCK]);
        self.database.write(move |on| restock(on).map(|_| true)).await?;
        Ok(())
    }

    /// Reads the stock of all goods, in order.
    pub(crate) async fn stock(&self) -> Result<Vec<Stock>> {
        let read = |on: &Transaction<'_>| {
            let mut select = on.prepare("SELECT id, in_stock, version FROM goods ORDER BY id")?;
            let row =
                |row: &rusqlite::Row<'_>| Ok(Stock { good: row.get(0)?, left: row.get(1)?, version: row.get(2)? });
            select.query_map((), row)?.collect()
        };
        self.database.read(read).await
    }

    /// Sells an order in two steps, reading and writing, with nothing that keeps others out in between.
    ///
    /// Right only as long as nobody else sells the same goods meanwhile: that is what the strategies see to. A seller that stands still for longer
    /// than the ttl of its lock overwrites what the next one has sold; `example-fencing` has the SQL that refuses it.
    /// The transaction protects the writing, so that an order goes through whole; it begins after the reading,
    /// as it does wherever a service thinks, asks a payment provider, or shows a page in between.
    pub(crate) async fn sell(&self, order: &Order) -> Result<Sale> {
        let plan = self.plan(order).await?;
        let accepted = plan.is_possible() && self.write(&plan, Check::Nothing).await?;
        Ok(plan.sale(accepted))
    }

    /// Sells an order unless one of its goods was written between reading and writing: then `None`.
    pub(crate) async fn sell_if_unchanged(&self, order: &Order) -> Result<Option<Sale>> {
        let plan = self.plan(order).await?;
        if !plan.is_possible() {
            return Ok(Some(plan.sale(false)));
        }
        let written = self.write(&plan, Check::Version).await?;
        Ok(written.then(|| plan.sale(true)))
    }

    /// Reads the stock for an order and thinks about it for a while.
    async fn plan(&self, order: &Order) -> Result<Plan> {
        let begun = Instant::now();
        let stock = self.stock().await?;
        let mut rows = Vec::new();
        for (good, units) in order.lines() {
            let row = stock.iter().find(|row| row.good == good).with_context(|| format!("there is no good {good}"))?;
            match row.left.checked_sub(units) {
                Some(left) => rows.push((*row, left)),
                None => return Ok(Plan { begun, rows: Vec::new() }),
            }
        }
        sleep(self.pause).await;
        Ok(Plan { begun, rows })
    }

    /// Writes all rows of a plan, or none of them if one fails the check.
    async fn write(&self, plan: &Plan, check: Check) -> Result<bool> {
        let rows = plan.rows.clone();
        let write = move |on: &Transaction<'_>| {
            for (row, left) in rows {
                let changed = match check {
                    Check::Nothing => on.execute(WRITE, (left, row.good))?,
                    Check::Version => on.execute(WRITE_IF_UNCHANGED, (left, row.good, row.version))?,
                };
                if changed == 0 {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        self.database.write(write).await
    }

    async fn lay_out(&self) -> Result<()> {
        let look = |on: &Transaction<'_>| {
            let id: i32 = on.query_row("PRAGMA application_id", (), |row| row.get(0))?;
            let tables: i64 = on.query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get(0))?;
            Ok((id, tables))
        };
        let (id, tables) = self.database.read(look).await?;
        if id == APPLICATION_ID {
            return Ok(());
        }
        ensure!(
            tables == 0,
            "it holds tables of something else, and the shop would overwrite its own; name a new file"
        );
        let create = |on: &Transaction<'_>| {
            on.execute_batch(SCHEMA)?;
            for good in 1..=GOODS as Good {
                on.execute("INSERT INTO goods (id, in_stock, version) VALUES (?, 0, 0)", [good])?;
            }
            Ok(true)
        };
        self.database.write(create).await?;
        Ok(())
    }
}

impl Plan {
    /// Whether there was enough of everything.
    fn is_possible(&self) -> bool {
        !self.rows.is_empty()
    }

    fn sale(&self, accepted: bool) -> Sale {
        Sale { accepted, took: self.begun.elapsed(), retries: 0 }
    }
}

/// The check of a row before it is overwritten.
#[derive(Clone, Copy, Debug)]
enum Check {
    Nothing,
    Version,
}

const WRITE: &str = "UPDATE goods SET in_stock = ?, version = version + 1 WHERE id = ?";
const WRITE_IF_UNCHANGED: &str = "UPDATE goods SET in_stock = ?, version = version + 1 WHERE id = ? AND version = ?";

/// Marks a database as one of this example, so that no other is ever written: "shop" in ASCII.
const APPLICATION_ID: i32 = 0x7368_6f70;

const SCHEMA: &str = "
    CREATE TABLE goods (id INTEGER PRIMARY KEY, in_stock INTEGER NOT NULL, version INTEGER NOT NULL);
    PRAGMA application_id = 0x73686f70;
";
