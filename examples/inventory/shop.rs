//! The shop: a table of goods in SQLite, and a sale that reads it, thinks, and writes it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use tokio::time::{Instant, sleep};

use crate::order::{GOODS, Good, Order, STOCK};

/// One service's way to the database; clones share its connections.
#[derive(Clone, Debug)]
pub(crate) struct Shop {
    /// What the shop is called in a key that locks all of it.
    pub(crate) name: &'static str,
    pool: SqlitePool,
    /// How long a sale thinks between reading the stock and writing it.
    pause: Duration,
}

/// What became of one order.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Sale {
    /// Whether the buyer was promised the goods; all of them or none.
    pub(crate) accepted: bool,
    /// From the first look at the stock to the answer, without what came before: lock, retries, network.
    pub(crate) took: Duration,
    /// How often it was begun anew because somebody else had been quicker.
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

/// What was read for an order, and is about to be written.
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
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(Duration::from_secs(30));
        let pool = SqlitePoolOptions::new().max_connections(4).connect_with(options).await;
        let pool = pool.with_context(|| format!("cannot open the database {}", path.display()))?;
        let shop = Self { name: "corner", pool, pause };
        shop.lay_out().await.with_context(|| format!("cannot use the database {}", path.display()))?;
        Ok(shop)
    }

    /// Puts the full stock on the shelves.
    pub(crate) async fn restock(&self) -> Result<()> {
        sqlx::query("UPDATE goods SET in_stock = ?, version = 0").bind(STOCK).execute(&self.pool).await?;
        Ok(())
    }

    /// Reads the stock of all goods, in order.
    pub(crate) async fn stock(&self) -> Result<Vec<Stock>> {
        let rows: Vec<(Good, u32, i64)> =
            sqlx::query_as("SELECT id, in_stock, version FROM goods ORDER BY id").fetch_all(&self.pool).await?;
        Ok(rows.into_iter().map(|(good, left, version)| Stock { good, left, version }).collect())
    }

    /// Sells an order in two steps, reading and writing, with nothing that keeps others out in between.
    ///
    /// Right only as long as nobody else sells the same goods meanwhile: that is what the strategies see to.
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

    /// Closes the connections.
    pub(crate) async fn close(&self) {
        self.pool.close().await;
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

    /// Writes all rows of a plan, or none of them when one fails the check.
    async fn write(&self, plan: &Plan, check: Check) -> Result<bool> {
        let mut transaction = self.pool.begin_with("BEGIN IMMEDIATE").await?;
        for (row, left) in &plan.rows {
            let update = match check {
                Check::Nothing => sqlx::query(WRITE).bind(left).bind(row.good),
                Check::Version => sqlx::query(WRITE_IF_UNCHANGED).bind(left).bind(row.good).bind(row.version),
            };
            if update.execute(&mut *transaction).await?.rows_affected() == 0 {
                transaction.rollback().await?;
                return Ok(false);
            }
        }
        transaction.commit().await?;
        Ok(true)
    }

    async fn lay_out(&self) -> Result<()> {
        let id: i32 = sqlx::query_scalar("PRAGMA application_id").fetch_one(&self.pool).await?;
        if id == APPLICATION_ID {
            return Ok(());
        }
        let tables: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_schema").fetch_one(&self.pool).await?;
        ensure!(
            tables == 0,
            "it holds tables of something else, and the shop would overwrite its own; name a new file"
        );
        sqlx::raw_sql(SCHEMA).execute(&self.pool).await?;
        for good in 1..=GOODS as Good {
            sqlx::query("INSERT INTO goods (id, in_stock, version) VALUES (?, 0, 0)")
                .bind(good)
                .execute(&self.pool)
                .await?;
        }
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

/// What a write looks at before it overwrites a row.
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
