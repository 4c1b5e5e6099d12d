//! A holder that slept through the end of its lease wakes up and writes: the database refuses it.
//!
//! ```text
//! cargo run -p example-fencing
//! cargo run -p example-fencing -- redis://127.0.0.1:6379
//! ```
//!
//! No lock can keep a process from writing that has stood still since it last looked: a suspended laptop, a machine
//! that swaps, a virtual machine that is moved. When it wakes, somebody else holds the key, and its next instruction
//! is the write. Only what is written to can refuse it, and for that the lease has a number that grows with every
//! holder, the fencing token. The row remembers the largest one that wrote it:
//!
//! ```sql
//! ALTER TABLE goods ADD COLUMN fence BIGINT NOT NULL DEFAULT 0;
//!
//! UPDATE goods SET in_stock = :left, fence = :fence WHERE id = :id AND fence <= :fence;
//! ```
//!
//! No row changed: the writer is too late, and rolls back. `<=` and not `<`, because one holder may write twice. The
//! database takes row and condition in one step; a `SELECT fence` before the `UPDATE` would leave the gap open.
//! SQLite, MariaDB, MySQL and PostgreSQL all take this statement. A row that may not exist yet, in SQLite or PostgreSQL:
//!
//! ```sql
//! INSERT INTO goods (id, in_stock, fence) VALUES (:id, :left, :fence)
//! ON CONFLICT (id) DO UPDATE SET in_stock = excluded.in_stock, fence = excluded.fence
//! WHERE goods.fence <= excluded.fence;
//! ```
//!
//! MySQL counts rows that were *changed*: ask the client for rows that were *found* (sqlx does), or a holder that
//! writes the same values twice takes itself for one that is too late. A `BIGINT` takes the token as
//! [`as_i64`](lock_core::FencingToken::as_i64).
//!
//! The example stops a process between reading and writing (SIGSTOP), lets another one sell meanwhile, and wakes the
//! first. Two goods, two units of each: good 1 is written as above, good 2 without the token.
//!
//! Exits with 1 when the late write to good 1 is taken.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use example_processes::{Child, redis_url};
use lock_core::{FencingToken, LockManager};
use rusqlite::Connection;

const TTL: Duration = Duration::from_secs(1);
const FENCED: i64 = 1;
const UNFENCED: i64 = 2;

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, url, database] = &arguments[..]
        && flag == "--seller"
    {
        seller(url, Path::new(database)).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let refused = watch(&redis_url().await?).await?;
    Ok(if refused { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Sells one unit of either good, when the buyer has confirmed.
async fn seller(url: &str, database: &Path) -> Result<()> {
    let manager = LockManager::connect(url).await?;
    let shop = open(database)?;

    let lease = manager.lock("shop").ttl(TTL).await?;
    let (fenced, unfenced) = (stock(&shop, FENCED)?, stock(&shop, UNFENCED)?);
    Child::tell_parent(&format!("read {}", lease.fencing_token()))?;
    Child::hear_parent().await?.context("the buyer went away")?;

    // `run` would drop this work by now. But between its last look at the lease and the write that the database sees,
    // there is always time for a process to stand still: this one has just woken up, and does not look.
    let fenced = write_fenced(&shop, FENCED, fenced - 1, lease.fencing_token())?;
    let unfenced = write(&shop, UNFENCED, unfenced - 1)?;
    // This process ends, and with it what releases a dropped guard. The seller that slept has nothing left to release.
    let _ = lease.release().await;
    Child::tell_parent(&format!("wrote {fenced} {unfenced}"))?;
    Ok(())
}

/// Writes unless somebody with a larger token has; answers whether it did.
fn write_fenced(shop: &Connection, good: i64, left: i64, fence: FencingToken) -> Result<bool> {
    let update = "UPDATE goods SET in_stock = ?1, fence = ?2 WHERE id = ?3 AND fence <= ?2";
    Ok(shop.execute(update, [left, fence.as_i64(), good])? == 1)
}

/// Writes, as most programs do.
fn write(shop: &Connection, good: i64, left: i64) -> Result<bool> {
    Ok(shop.execute("UPDATE goods SET in_stock = ?1 WHERE id = ?2", [left, good])? == 1)
}

/// Stops the first seller, watches the second sell, wakes the first; answers whether good 1 was safe from it.
async fn watch(url: &str) -> Result<bool> {
    let folder = tempfile::tempdir()?;
    let database = folder.path().join("shop.db");
    let shop = open(&database)?;
    shop.execute_batch(SCHEMA)?;
    let database = database.to_str().context("the folder for temporary files has a strange name")?;

    let mut sleeper = Child::start(["--seller", url, database])?;
    println!("the first seller has read the stock, token {}", sleeper.expect("read").await?);
    sleeper.pause()?;
    println!("it stands still; in {TTL:?} its lease is over");

    let mut second = Child::start(["--seller", url, database])?;
    println!("the second seller has read the stock, token {}", second.expect("read").await?);
    second.say("confirmed").await?;
    println!("  it wrote good 1, good 2: {}", second.expect("wrote").await?);

    sleeper.say("confirmed").await?;
    sleeper.resume()?;
    let woken = sleeper.expect("wrote").await?;
    println!("the first seller wakes up and writes what it had in mind");
    println!("  it wrote good 1, good 2: {woken}");

    for (good, how) in [(FENCED, "with the token"), (UNFENCED, "without")] {
        println!("good {good}, {how}: 2 in stock, {} left", stock(&shop, good)?);
    }
    println!("two units of good 2 were promised, and one was taken off");
    Ok(woken == "false true")
}

/// Opens the database. Its statements run on this thread, which has nothing else to do; the driver of a server would have
/// an `await` at each.
fn open(database: &Path) -> Result<Connection> {
    Connection::open(database).context("could not open the database")
}

fn stock(shop: &Connection, good: i64) -> Result<i64> {
    Ok(shop.query_row("SELECT in_stock FROM goods WHERE id = ?1", [good], |row| row.get(0))?)
}

const SCHEMA: &str = "
    CREATE TABLE goods (id INTEGER PRIMARY KEY, in_stock BIGINT NOT NULL, fence BIGINT NOT NULL DEFAULT 0);
    INSERT INTO goods (id, in_stock) VALUES (1, 2), (2, 2);
";
