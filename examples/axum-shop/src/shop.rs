//! The database of the shop: SQLite, MySQL or MariaDB, PostgreSQL, whichever the URL names.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use sqlx::any::{AnyPoolOptions, install_default_drivers};
use sqlx::{Any, AnyConnection, AnyPool, AssertSqlSafe, Connection as _, Transaction};
use tokio::time::sleep;

/// The number of a good, from 1.
pub(crate) type Good = i64;

/// Units by good: `{"2": 3, "3": 1}` in JSON.
pub(crate) type Order = BTreeMap<Good, u32>;

/// One row, as it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stock {
    pub(crate) good: Good,
    pub(crate) left: i64,
    /// How often the row was written.
    pub(crate) version: i64,
}

/// Connections to one database; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Shop {
    pool: AnyPool,
    numbered: bool,
    begin: &'static str,
}

impl Shop {
    /// Connects to the database at `url`.
    ///
    /// # Errors
    /// If the database cannot be reached, or the URL names none of the three kinds, or one that is not built in.
    pub(crate) async fn open(url: &str) -> Result<Self> {
        for (scheme, feature, is_built_in) in DRIVERS {
            if url.starts_with(scheme) && !is_built_in {
                bail!("the driver for DATABASE_URL is not built in; add `-F {feature}` to `cargo run`");
            }
        }
        install_default_drivers();
        let sqlite = url.starts_with("sqlite:");
        // SQLite in memory belongs to its connection: there is one, and it stays.
        let connections = if sqlite { 1 } else { 8 };
        let options = AnyPoolOptions::new().max_connections(connections).idle_timeout(None).max_lifetime(None);
        // The URL may hold a password and is not repeated.
        let what = "cannot open the database of DATABASE_URL";
        // The pool tries again and again, and would say in the end that its time was over.
        AnyConnection::connect(url).await.context(what)?.close().await.context(what)?;
        let pool = options.connect(url).await.context(what)?;
        let begin = if sqlite { "BEGIN IMMEDIATE" } else { "BEGIN" };
        Ok(Self { pool, numbered: url.starts_with("postgres"), begin })
    }

    /// Creates the tables and puts ten of each good on the shelves, unless that was done before.
    pub(crate) async fn lay_out(&self) -> Result<()> {
        for table in TABLES {
            sqlx::query(table).execute(&self.pool).await?;
        }
        let there: Vec<Good> = self.stock().await?.iter().map(|row| row.good).collect();
        for good in (1..=4).filter(|good| !there.contains(good)) {
            let insert = self.sql("INSERT INTO shop_goods (id, in_stock, version) VALUES (?, 10, 0)");
            sqlx::query(insert).bind(good).execute(&self.pool).await?;
        }
        Ok(())
    }

    /// Sells all of an order or nothing. The caller holds the locks of its goods, and the transaction begins and ends
    /// while it does. When the caller drops this future, since its lease is lost, the transaction is rolled back.
    pub(crate) async fn sell(&self, order: &Order) -> Result<(), Problem> {
        let mut transaction = self.begin().await?;
        for (good, units) in order {
            let row = self.read(&mut transaction, *good).await?.ok_or(Problem::NoSuchGood)?;
            let left = row.left - i64::from(*units);
            if left < 0 {
                return Err(Problem::SoldOut);
            }
            sleep(THOUGHT).await;
            if !self.write(&mut transaction, row, left).await? {
                return Err(Problem::Overtaken);
            }
        }
        Ok(transaction.commit().await?)
    }

    /// Notes that an order is paid; `false` when it was paid before.
    pub(crate) async fn pay(&self, order: i64) -> Result<bool, Problem> {
        let mut transaction = self.begin().await?;
        let paid = self.sql("SELECT COUNT(*) FROM shop_payments WHERE order_id = ?");
        let paid: i64 = sqlx::query_scalar(paid).bind(order).fetch_one(&mut *transaction).await?;
        sleep(THOUGHT * 100).await;
        if paid == 0 {
            let insert = self.sql("INSERT INTO shop_payments (order_id) VALUES (?)");
            sqlx::query(insert).bind(order).execute(&mut *transaction).await?;
        }
        transaction.commit().await?;
        Ok(paid == 0)
    }

    /// Reads one good and what a real shop keeps elsewhere, such as its price. The caller holds the lock of the good,
    /// shared with other readers, so that nobody writes between the two.
    pub(crate) async fn good(&self, good: Good) -> Result<Stock, Problem> {
        let mut transaction = self.begin().await?;
        let row = self.read(&mut transaction, good).await?.ok_or(Problem::NoSuchGood)?;
        transaction.commit().await?;
        sleep(THOUGHT).await;
        Ok(row)
    }

    /// Writes how many units of a good were counted. The caller has the lock of the good alone.
    pub(crate) async fn count(&self, good: Good, units: u32) -> Result<(), Problem> {
        let mut transaction = self.begin().await?;
        let row = self.read(&mut transaction, good).await?.ok_or(Problem::NoSuchGood)?;
        if !self.write(&mut transaction, row, units.into()).await? {
            return Err(Problem::Overtaken);
        }
        Ok(transaction.commit().await?)
    }

    /// Reads the stock of all goods, in order.
    pub(crate) async fn stock(&self) -> Result<Vec<Stock>, Problem> {
        let rows: Vec<(i64, i64, i64)> =
            sqlx::query_as("SELECT id, in_stock, version FROM shop_goods ORDER BY id").fetch_all(&self.pool).await?;
        Ok(rows.into_iter().map(|(good, left, version)| Stock { good, left, version }).collect())
    }

    /// Closes the connections.
    pub(crate) async fn close(&self) {
        self.pool.close().await;
    }

    /// Begins a transaction; rolled back when it is dropped.
    pub(crate) async fn begin(&self) -> Result<Transaction<'static, Any>, sqlx::Error> {
        self.pool.begin_with(self.begin).await
    }

    /// Reads one row.
    pub(crate) async fn read(&self, on: &mut Transaction<'_, Any>, good: Good) -> Result<Option<Stock>, sqlx::Error> {
        let query = self.sql("SELECT in_stock, version FROM shop_goods WHERE id = ?");
        let row: Option<(i64, i64)> = sqlx::query_as(query).bind(good).fetch_optional(&mut **on).await?;
        Ok(row.map(|(left, version)| Stock { good, left, version }))
    }

    /// Writes one row if it is still the row that was read. Returns whether it did.
    pub(crate) async fn write(
        &self,
        on: &mut Transaction<'_, Any>,
        was: Stock,
        left: i64,
    ) -> Result<bool, sqlx::Error> {
        let update = "UPDATE shop_goods SET in_stock = ?, version = version + 1 WHERE id = ? AND version = ?";
        let update = sqlx::query(self.sql(update)).bind(left).bind(was.good).bind(was.version);
        Ok(update.execute(&mut **on).await?.rows_affected() == 1)
    }

    /// The statement in the words of this database: PostgreSQL numbers its parameters, `$1`.
    fn sql(&self, statement: &'static str) -> AssertSqlSafe<String> {
        if !self.numbered {
            return AssertSqlSafe(statement.to_owned());
        }
        let mut parts = statement.split('?');
        let first = parts.next().unwrap_or_default().to_owned();
        AssertSqlSafe((1..).zip(parts).fold(first, |sql, (number, part)| format!("{sql}${number}{part}")))
    }
}

/// Why the shop refused.
#[derive(Debug)]
pub(crate) enum Problem {
    NothingOrdered,
    NoSuchGood,
    SoldOut,
    /// The row had another version: somebody wrote it without the lock.
    Overtaken,
    Database(sqlx::Error),
    Lock(lock_core::Error),
}

impl Problem {
    /// One word for the metrics.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::NothingOrdered => "nothing_ordered",
            Self::NoSuchGood => "no_such_good",
            Self::SoldOut => "sold_out",
            Self::Overtaken => "overtaken",
            Self::Database(_) => "database",
            Self::Lock(_) => "lock",
        }
    }
}

impl From<sqlx::Error> for Problem {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

/// Makes a problem of the error with which `#[distributed_lock]` says that it could not acquire the lock.
impl From<lock_core::Error> for Problem {
    fn from(error: lock_core::Error) -> Self {
        Self::Lock(error)
    }
}

impl std::error::Error for Problem {}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingOrdered => {
                f.write_str("an order names at least one good and how many of it, as in {\"2\": 3}")
            }
            Self::NoSuchGood => f.write_str("there is no such good"),
            Self::SoldOut => f.write_str("sold out"),
            Self::Overtaken => f.write_str("somebody else was quicker, please try again"),
            Self::Database(error) => write!(f, "the database: {error}"),
            Self::Lock(error) => error.fmt(f),
        }
    }
}

/// Between reading and writing: where a real shop asks a payment provider.
const THOUGHT: Duration = Duration::from_millis(5);

/// The databases that are features, because their drivers take long to build.
const DRIVERS: [(&str, &str, bool); 3] = [
    ("mysql:", "mariadb", cfg!(feature = "mariadb")),
    ("mariadb:", "mariadb", cfg!(feature = "mariadb")),
    ("postgres", "postgres", cfg!(feature = "postgres")),
];

const TABLES: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS shop_goods (id BIGINT PRIMARY KEY, in_stock BIGINT NOT NULL, version BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS shop_payments (order_id BIGINT PRIMARY KEY)",
];
