//! The way to SQLite, which knows no `await`: one connection, and a thread for as long as a transaction takes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::{Mutex, oneshot};
use tokio::task::spawn_blocking;

/// One connection to a database file; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Database {
    connection: Arc<Mutex<Connection>>,
}

impl Database {
    /// Opens the database at `path`, and creates the file if it is missing.
    ///
    /// # Errors
    /// If the file cannot be opened or is not a database.
    pub(crate) async fn open(path: &Path) -> Result<Self> {
        let path = path.to_owned();
        let open = move || -> rusqlite::Result<_> {
            let connection = Connection::open(path)?;
            connection.busy_timeout(PATIENCE)?;
            connection.pragma_update(None, "journal_mode", "wal")?;
            connection.pragma_update(None, "synchronous", "normal")?;
            Ok(connection)
        };
        Ok(Self { connection: Arc::new(Mutex::new(spawn_blocking(open).await??)) })
    }

    /// Runs `work` in a transaction that may read.
    ///
    /// # Errors
    /// If the database refuses a statement.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let mut connection = self.connection.clone().lock_owned().await;
        let read = move || work(&connection.transaction_with_behavior(TransactionBehavior::Deferred)?);
        Ok(spawn_blocking(read).await??)
    }

    /// Runs `work` in a transaction that may write, and commits if `work` returns `true`.
    ///
    /// # Errors
    /// If the database refuses a statement; then nothing is written.
    ///
    /// # Cancel safety
    /// A dropped future writes nothing, unless the thread has begun to commit. A lock that drops its work because
    /// the lease is lost relies on this.
    pub(crate) async fn write(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<bool> + Send + 'static,
    ) -> Result<bool> {
        let mut connection = self.connection.clone().lock_owned().await;
        let (answer, answered) = oneshot::channel();
        let write = move || -> rusqlite::Result<_> {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = work(&transaction)?;
            // A closed channel means that the future was dropped. The transaction rolls back unless it is committed.
            if done && !answer.is_closed() {
                transaction.commit()?;
            }
            // The answer may be late by now; then there is nobody to read it.
            let _ = answer.send(done);
            Ok(())
        };
        spawn_blocking(write).await??;
        answered.await.context("the database thread ended without an answer")
    }
}

/// For how long a transaction waits for one of another connection.
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    async fn count(database: &Database) -> Result<i64> {
        database.read(|on| on.query_row("SELECT count(*) FROM goods", (), |row| row.get(0))).await
    }

    #[tokio::test]
    async fn a_dropped_write_is_rolled_back() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let database = Database::open(&folder.path().join("shop.db")).await?;
        database.write(|on| on.execute_batch("CREATE TABLE goods (id INTEGER)").map(|()| true)).await?;

        let (begun, wait_for_begin) = oneshot::channel();
        let (go_on, wait_for_drop) = mpsc::channel::<()>();
        let write = database.write(move |on| {
            on.execute("INSERT INTO goods VALUES (1)", ())?;
            let _ = begun.send(());
            let _ = wait_for_drop.recv();
            Ok(true)
        });
        tokio::select! {
            _ = write => unreachable!("it waits until it is dropped"),
            begun = wait_for_begin => begun?,
        }
        go_on.send(())?;

        assert_eq!(count(&database).await?, 0);
        assert!(database.write(|on| on.execute("INSERT INTO goods VALUES (2)", ()).map(|_| true)).await?);
        assert_eq!(count(&database).await?, 1);
        Ok(())
    }
}
