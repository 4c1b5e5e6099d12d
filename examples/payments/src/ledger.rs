//! The charges and the answers, in one SQLite. The statements are written as for PostgreSQL, except for the clock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use lock_tower::{BoxError, idempotency::Answers};
use rusqlite::{Connection, OptionalExtension, params};

/// One connection to the database; clones share it. Its statements run where they are called, and take microseconds; the driver of a
/// server would have an `await` at each.
#[derive(Clone, Debug)]
pub(crate) struct Ledger(Arc<Mutex<Connection>>);

impl Ledger {
    pub(crate) fn open() -> Result<Self> {
        let connection = Connection::open_in_memory()?;
        connection.execute_batch(
            "CREATE TABLE charges (customer TEXT NOT NULL, cents INTEGER NOT NULL);
             CREATE TABLE answers (key TEXT PRIMARY KEY, answer BLOB NOT NULL, until INTEGER NOT NULL);",
        )?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    /// Charges, and returns the number of the receipt.
    pub(crate) fn charge(&self, customer: &str, cents: u32) -> Result<i64> {
        let connection = self.connection();
        connection.execute(CHARGE, params![customer, cents])?;
        Ok(connection.last_insert_rowid())
    }

    /// Charges and stores the answer, and returns the number of the receipt; or does neither, because there is an answer.
    pub(crate) fn charge_once(
        &self,
        customer: &str,
        cents: u32,
        key: &str,
        answer: impl Fn(i64) -> Bytes,
    ) -> Result<Option<i64>> {
        let mut connection = self.connection();
        let transaction = connection.transaction()?;
        transaction.execute(CHARGE, params![customer, cents])?;
        let number = transaction.last_insert_rowid();
        if transaction.execute(STORE, params![key, &*answer(number), seconds(KEEP)])? == 0 {
            return Ok(None); // dropped, the transaction is rolled back
        }
        transaction.commit()?;
        Ok(Some(number))
    }

    /// Returns how often each customer was charged.
    pub(crate) fn charges(&self) -> Result<BTreeMap<String, u32>> {
        let connection = self.connection();
        let mut counts = connection.prepare("SELECT customer, count(*) FROM charges GROUP BY customer")?;
        let counts = counts.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(counts.collect::<Result<_, _>>()?)
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, key: &str) -> Result<Option<Bytes>, BoxError> {
        let row = |row: &rusqlite::Row<'_>| row.get::<_, Vec<u8>>(0);
        Ok(self.connection().query_row(READ, [key], row).optional()?.map(Bytes::from))
    }
}

impl Answers for Ledger {
    async fn get(&self, key: &str) -> Result<Option<Bytes>, BoxError> {
        self.answer(key)
    }

    async fn put_if_absent(&self, key: &str, answer: Bytes, keep: Duration) -> Result<Bytes, BoxError> {
        self.connection().execute(STORE, params![key, &*answer, seconds(keep)])?;
        self.answer(key)?.ok_or_else(|| "an answer was there, and is over".into())
    }
}

/// As SQLite counts.
fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

pub(crate) const KEEP: Duration = Duration::from_secs(24 * 3600);

const CHARGE: &str = "INSERT INTO charges (customer, cents) VALUES (?1, ?2)";
const READ: &str = "SELECT answer FROM answers WHERE key = ?1 AND until > unixepoch()";
/// An answer that is over makes room for the next one.
const STORE: &str = "INSERT INTO answers (key, answer, until) VALUES (?1, ?2, unixepoch() + ?3)
    ON CONFLICT (key) DO UPDATE SET answer = excluded.answer, until = excluded.until WHERE answers.until <= unixepoch()";

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_charge_and_its_answer_are_stored_together_or_not_at_all() -> Result<()> {
        let ledger = Ledger::open()?;
        for number in [Some(1), None] {
            let charged = ledger.charge_once("a", 42, "key", |number| format!("receipt {number}").into())?;
            assert_eq!(charged, number);
        }
        assert_eq!(ledger.charges()?.get("a"), Some(&1));
        assert_eq!(ledger.get("key").await.ok().flatten().as_deref(), Some(&b"receipt 1"[..]));
        let other = ledger.put_if_absent("key", "another".into(), KEEP).await;
        assert_eq!(other.ok().as_deref(), Some(&b"receipt 1"[..]));
        Ok(())
    }

    #[tokio::test]
    async fn an_answer_that_is_over_makes_room() -> Result<()> {
        let ledger = Ledger::open()?;
        for answer in ["first", "second"] {
            let stored = ledger.put_if_absent("key", answer.into(), Duration::ZERO).await;
            assert!(stored.is_err(), "it is over at once");
        }
        let stored = ledger.put_if_absent("key", "third".into(), KEEP).await;
        assert_eq!(stored.ok().as_deref(), Some(&b"third"[..]));
        Ok(())
    }
}
