//! The table of runs, which makes a job happen exactly once.
//!
//! The statements are SQLite's, and PostgreSQL takes them, too. MySQL and MariaDB have no `ON CONFLICT`: there a duplicate is an error of the
//! `INSERT`.

use std::path::Path;

use anyhow::{Context, Result};
use rusqlite::{Connection, TransactionBehavior};

pub(crate) const SCHEMA: &str = "
    CREATE TABLE runs (job TEXT NOT NULL, run BIGINT NOT NULL, PRIMARY KEY (job, run));
    CREATE TABLE reports (run BIGINT NOT NULL, report TEXT NOT NULL);
";

/// Writes the report of a run, unless that was done before; returns whether it was written now.
///
/// The run is entered in the transaction in which the report is written: either both are there or none is. A second machine waits in its
/// `INSERT` for the end of the first one's transaction. If that was committed, the row is there; if not, the second one writes.
///
/// # Errors
/// When the database fails. The run is then not entered, unless only the answer of the commit was lost.
pub(crate) fn write(database: &mut Connection, run: i64, report: &str) -> Result<bool> {
    let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let entered = "INSERT INTO runs (job, run) VALUES ('report', ?1) ON CONFLICT DO NOTHING";
    if transaction.execute(entered, [run])? == 0 {
        return Ok(false); // dropped, the transaction is rolled back
    }
    transaction.execute("INSERT INTO reports (run, report) VALUES (?1, ?2)", (run, report))?;
    transaction.commit()?;
    Ok(true)
}

/// Returns the run of each report.
///
/// # Errors
/// When the database fails.
pub(crate) fn written(database: &Connection) -> Result<Vec<i64>> {
    let mut reports = database.prepare("SELECT run FROM reports")?;
    let runs = reports.query_map([], |row| row.get(0))?;
    Ok(runs.collect::<Result<_, _>>()?)
}

/// Opens the database. Its statements run on this thread, which has nothing else to do; the driver of a server would have
/// an `await` at each.
///
/// # Errors
/// When it cannot be opened.
pub(crate) fn open(database: &Path) -> Result<Connection> {
    Connection::open(database).context("could not open the database")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_written_once_and_one_that_failed_is_not_entered() -> Result<()> {
        let mut database = Connection::open_in_memory()?;
        database.execute_batch(SCHEMA)?;
        database.execute_batch("ALTER TABLE reports RENAME TO elsewhere")?;
        assert!(write(&mut database, 1, "by the first").is_err());
        database.execute_batch("ALTER TABLE elsewhere RENAME TO reports")?;
        assert!(write(&mut database, 1, "by the second")?);
        assert!(!write(&mut database, 1, "by the third")?);
        assert!(write(&mut database, 2, "by the third")?);
        assert_eq!(written(&database)?, [1, 2]);
        Ok(())
    }
}
