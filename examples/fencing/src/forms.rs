//! Four ways to write what a lock protects. Each good is sold in one of them; a row is a good.
//!
//! The statements of the first two are those of `docs/guarantees.md`, which says what is different in other databases. SQLite takes them as
//! they are; PostgreSQL has `$1` in place of `:fence`. A `BIGINT` takes the token as [`as_i64`](FencingToken::as_i64).

use std::path::Path;

use anyhow::{Context, Result};
use lock_core::FencingToken;
use rusqlite::{Connection, OptionalExtension as _, named_params};

pub(crate) const FORMS: [&str; 4] = [
    "claimed, then read, then written",
    "one transaction that begins with the claim",
    "compared at the write only",
    "without the token",
];

const CLAIMED: i64 = 0;
const TRANSACTION: i64 = 1;
const COMPARED: i64 = 2;
const UNFENCED: i64 = 3;

pub(crate) const SCHEMA: &str = "
    CREATE TABLE goods (id INTEGER PRIMARY KEY, stock BIGINT NOT NULL);
    ALTER TABLE goods ADD COLUMN fence BIGINT NOT NULL DEFAULT 0;
    ALTER TABLE goods ADD COLUMN claim BIGINT NOT NULL DEFAULT 0;
    CREATE TABLE fences (name VARCHAR(255) PRIMARY KEY, fence BIGINT NOT NULL);
    INSERT INTO goods (id, stock) VALUES (0, 2), (1, 2), (2, 2), (3, 2);
";

/// Claims a row and reads it, in one step: after it no earlier holder can write. No row: a later holder has claimed.
///
/// `<=` and not `<`, because a holder claims before each write.
const CLAIM: &str =
    "UPDATE goods SET fence = :fence, claim = claim + 1 WHERE id = :id AND fence <= :fence RETURNING stock, claim";

/// Writes if the claim still stands. No row: another claim has come since, perhaps with the same token.
const WRITE: &str =
    "UPDATE goods SET stock = :stock, claim = claim + 1 WHERE id = :id AND fence = :fence AND claim = :claim";

/// Claims a name, which need not be there yet, for a transaction that writes several rows or tables. No row: a later holder has claimed.
const CLAIM_NAME: &str = "INSERT INTO fences (name, fence) VALUES (:name, :fence) ON CONFLICT (name) \
     DO UPDATE SET fence = excluded.fence WHERE fences.fence <= excluded.fence RETURNING fence";

/// What a holder has read of a row that it has claimed.
struct Claim {
    stock: i64,
    /// Its number, which changes with each claim and each write.
    number: i64,
}

fn claim_and_read(shop: &Connection, id: i64, fence: i64) -> Result<Option<Claim>> {
    let parameters = named_params! { ":id": id, ":fence": fence };
    let claim = shop.query_row(CLAIM, parameters, |row| Ok(Claim { stock: row.get(0)?, number: row.get(1)? }));
    Ok(claim.optional()?)
}

/// Returns whether the claim still stood.
fn write(shop: &Connection, id: i64, fence: i64, claim: &Claim, stock: i64) -> Result<bool> {
    let parameters = named_params! { ":id": id, ":fence": fence, ":claim": claim.number, ":stock": stock };
    Ok(shop.execute(WRITE, parameters)? == 1)
}

/// Returns whether this holder was early enough.
fn claim_name(shop: &Connection, name: &str, fence: i64) -> Result<bool> {
    let parameters = named_params! { ":name": name, ":fence": fence };
    Ok(shop.query_row(CLAIM_NAME, parameters, |_| Ok(())).optional()?.is_some())
}

/// What a seller has read of each good, or that it was too late to claim it.
pub(crate) struct Sale {
    fence: i64,
    claimed: Option<Claim>,
    compared: i64,
    unfenced: i64,
}

impl Sale {
    /// Reads what is in stock.
    ///
    /// # Errors
    /// When the database fails.
    pub(crate) fn begin(shop: &Connection, fence: FencingToken) -> Result<Self> {
        let fence = fence.as_i64();
        let claimed = claim_and_read(shop, CLAIMED, fence)?;
        // The transaction begins later: while it is open, nobody else could write.
        Ok(Self { fence, claimed, compared: stock(shop, COMPARED)?, unfenced: stock(shop, UNFENCED)? })
    }

    /// Writes that one unit less is in stock; answers for each good whether it was sold.
    ///
    /// # Errors
    /// When the database fails.
    pub(crate) fn end(self, shop: &mut Connection) -> Result<[bool; 4]> {
        let Self { fence, claimed, compared, unfenced } = self;
        let changed = |count: usize| count == 1;

        let claimed = match claimed {
            Some(claim) => write(shop, CLAIMED, fence, &claim, claim.stock - 1)?,
            None => false,
        };
        let in_transaction = in_transaction(shop, fence)?;
        // What many pages teach. A late write that comes between the read and the write of the next holder is taken, and then lost.
        let write = "UPDATE goods SET stock = ?1, fence = ?3 WHERE id = ?2 AND fence <= ?3";
        let compared = changed(shop.execute(write, (compared - 1, COMPARED, fence))?);
        let write = "UPDATE goods SET stock = ?1 WHERE id = ?2";
        let unfenced = changed(shop.execute(write, (unfenced - 1, UNFENCED))?);
        Ok([claimed, in_transaction, compared, unfenced])
    }
}

/// Claims, reads and writes in one transaction, as when the data is in several tables. The claim keeps others out until the commit, so
/// transactions come in the order of their tokens. It comes first, so SQLite needs no `BEGIN IMMEDIATE`.
fn in_transaction(shop: &mut Connection, fence: i64) -> Result<bool> {
    let transaction = shop.transaction()?;
    if !claim_name(&transaction, &format!("goods:{TRANSACTION}"), fence)? {
        return Ok(false); // dropped, the transaction is rolled back
    }
    let seen = stock(&transaction, TRANSACTION)?;
    transaction.execute("UPDATE goods SET stock = ?1 WHERE id = ?2", (seen - 1, TRANSACTION))?;
    transaction.commit()?;
    Ok(true)
}

/// Opens the database. Its statements run on this thread, which has nothing else to do; the driver of a server would have
/// an `await` at each.
///
/// # Errors
/// When it cannot be opened.
pub(crate) fn open(database: &Path) -> Result<Connection> {
    Connection::open(database).context("could not open the database")
}

/// How many units of a good are in stock.
///
/// # Errors
/// When the database fails.
pub(crate) fn stock(shop: &Connection, good: i64) -> Result<i64> {
    Ok(shop.query_row("SELECT stock FROM goods WHERE id = ?1", [good], |row| row.get(0))?)
}

#[cfg(test)]
mod tests;
