//! Four ways to write what a lock protects. Each good is sold in one of them; a row is a good.
//!
//! The statements are SQLite's. PostgreSQL takes them as they are (`BEGIN` in place of `BEGIN IMMEDIATE`). MySQL and MariaDB have no `RETURNING` for an
//! `UPDATE`: there the second statement is `SELECT in_stock FROM goods WHERE id = :id AND fence = :fence`, and no row means too late as well.
//! They count rows that were *changed*: ask the client for rows that were *found* (sqlx does), or a holder that claims twice takes
//! itself for one that is too late. A `BIGINT` takes the token as [`as_i64`](FencingToken::as_i64).

use std::path::Path;

use anyhow::{Context, Result};
use lock_core::FencingToken;
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};

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
    CREATE TABLE goods (id INTEGER PRIMARY KEY, in_stock BIGINT NOT NULL, fence BIGINT NOT NULL DEFAULT 0);
    INSERT INTO goods (id, in_stock) VALUES (0, 2), (1, 2), (2, 2), (3, 2);
";

/// Raises the fence and reads, in one step: after it no earlier holder can write. No row: a later holder has claimed.
///
/// `<=` and not `<`, because one holder may claim twice.
const CLAIM: &str = "UPDATE goods SET fence = ?1 WHERE id = ?2 AND fence <= ?1 RETURNING in_stock";

/// What a seller has read of each good, or that it was too late to claim it.
pub(crate) struct Sale {
    fence: i64,
    claimed: Option<i64>,
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
        let claimed = shop.query_row(CLAIM, (fence, CLAIMED), |row| row.get(0)).optional()?;
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
            Some(seen) => {
                let write = "UPDATE goods SET in_stock = ?1 WHERE id = ?2 AND fence = ?3";
                changed(shop.execute(write, (seen - 1, CLAIMED, fence))?)
            }
            None => false,
        };
        let in_transaction = in_transaction(shop, fence)?;
        // What many pages teach. A late write that comes between the read and the write of the next holder is taken, and then lost.
        let write = "UPDATE goods SET in_stock = ?1, fence = ?3 WHERE id = ?2 AND fence <= ?3";
        let compared = changed(shop.execute(write, (compared - 1, COMPARED, fence))?);
        let write = "UPDATE goods SET in_stock = ?1 WHERE id = ?2";
        let unfenced = changed(shop.execute(write, (unfenced - 1, UNFENCED))?);
        Ok([claimed, in_transaction, compared, unfenced])
    }
}

/// Claims, reads and writes in one transaction, as when the data is in several tables. The claim keeps others out until the commit, so
/// transactions come in the order of their tokens.
fn in_transaction(shop: &mut Connection, fence: i64) -> Result<bool> {
    let transaction = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let Some(seen) = transaction.query_row(CLAIM, (fence, TRANSACTION), |row| row.get::<_, i64>(0)).optional()? else {
        return Ok(false); // dropped, the transaction is rolled back
    };
    transaction.execute("UPDATE goods SET in_stock = ?1 WHERE id = ?2", (seen - 1, TRANSACTION))?;
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
    Ok(shop.query_row("SELECT in_stock FROM goods WHERE id = ?1", [good], |row| row.get(0))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: FencingToken = FencingToken::new(33);
    const SECOND: FencingToken = FencingToken::new(34);

    /// Two sellers, the second of which begins under a later lease, end in an order; hands out what each sold and what is left.
    fn sales(first_ends_before: bool) -> Result<([[bool; 4]; 2], [i64; 4])> {
        let mut shop = Connection::open_in_memory()?;
        shop.execute_batch(SCHEMA)?;
        let (first, second) = (Sale::begin(&shop, FIRST)?, Sale::begin(&shop, SECOND)?);
        let sold = if first_ends_before {
            [first.end(&mut shop)?, second.end(&mut shop)?]
        } else {
            let second = second.end(&mut shop)?;
            [first.end(&mut shop)?, second]
        };
        let left = [0, 1, 2, 3].map(|good| stock(&shop, good).expect("the good is there"));
        Ok((sold, left))
    }

    #[test]
    fn a_late_write_after_that_of_the_next_holder_is_rejected_by_each_form_with_a_token() -> Result<()> {
        let ([first, second], left) = sales(false)?;
        assert_eq!((first, second), ([false, false, false, true], [true; 4]));
        assert_eq!(left, [1, 1, 1, 1], "without the token two were sold, and one is gone");
        Ok(())
    }

    #[test]
    fn a_late_write_between_read_and_write_of_the_next_holder_is_lost_unless_that_one_has_claimed() -> Result<()> {
        let ([first, second], left) = sales(true)?;
        assert_eq!((first, second), ([false, true, true, true], [true; 4]));
        // In the transaction the first one was early enough, and the second has read what it wrote.
        assert_eq!(left, [1, 0, 1, 1], "compared at the write only, two were sold, and one is gone");
        Ok(())
    }

    #[test]
    fn a_holder_that_claims_again_is_not_too_late_and_one_before_it_is() -> Result<()> {
        let mut shop = Connection::open_in_memory()?;
        shop.execute_batch(SCHEMA)?;
        Sale::begin(&shop, SECOND)?;
        assert_eq!(Sale::begin(&shop, FIRST)?.claimed, None);
        assert!(Sale::begin(&shop, SECOND)?.end(&mut shop)?[0]);
        Ok(())
    }

    #[test]
    fn a_claim_that_comes_last_loses_an_update() -> Result<()> {
        // What a transaction must not do: read, and claim with the write.
        let shop = Connection::open_in_memory()?;
        shop.execute_batch(SCHEMA)?;
        let seen = [stock(&shop, TRANSACTION)?, stock(&shop, TRANSACTION)?];
        for (fence, seen) in [FIRST, SECOND].into_iter().zip(seen) {
            shop.query_row(CLAIM, (fence.as_i64(), TRANSACTION), |row| row.get::<_, i64>(0))?;
            shop.execute("UPDATE goods SET in_stock = ?1 WHERE id = ?2", (seen - 1, TRANSACTION))?;
        }
        assert_eq!(stock(&shop, TRANSACTION)?, 1, "two were sold");
        Ok(())
    }
}
