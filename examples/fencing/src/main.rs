//! A seller that slept through the end of its lease wakes up and writes: the database rejects it, if it was asked in the right way.
//!
//! ```text
//! cargo run -p example-fencing
//! cargo run -p example-fencing -- redis://127.0.0.1:6379
//! ```
//!
//! No lock can keep a process from writing that has stood still since it last looked: a suspended laptop, a machine
//! that swaps, a virtual machine that is moved. When it wakes, another process holds the key, and its next instruction
//! is the write. Only the database can reject that write, and for that the lease has a number that grows with every
//! holder, the fencing token.
//!
//! The example stops a process between reading and writing (SIGSTOP) and lets another one sell. The first one wakes at two moments:
//! *after* the second has written, and *between* its read and its write. Each seller sells one unit of four goods, two units
//! of each are there, and each good is written in another way ([`forms`]): claimed before it is read, in one transaction that begins with
//! the claim, compared at the write only, and without the token. The first two never lose an update; the third does at one of the moments.
//!
//! Exits with 1 if one of the first two forms loses an update, or one of the others does not.

mod forms;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use example_processes::{Child, redis_url};
use lock_core::LockManager;

use crate::forms::{FORMS, SCHEMA, Sale, open, stock};

const TTL: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, url, database] = &arguments[..]
        && flag == "--seller"
    {
        seller(url, Path::new(database)).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let url = redis_url().await?;
    let mut lost = [false; 4];
    for moment in [Moment::After, Moment::Between] {
        for (lost, now) in lost.iter_mut().zip(watch(&url, moment).await?) {
            *lost |= now;
        }
    }
    for (form, lost) in FORMS.iter().zip(lost) {
        println!("{form}: {}", if lost { "LOSES an update" } else { "loses nothing" });
    }
    Ok(if lost == [false, false, true, true] { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// When the first seller wakes up.
#[derive(Clone, Copy)]
enum Moment {
    /// After the second one has written.
    After,
    /// Between the read and the write of the second one.
    Between,
}

/// Sells one unit of each good, when the buyer has confirmed.
async fn seller(url: &str, database: &Path) -> Result<()> {
    let manager = LockManager::connect(url).await?;
    let mut shop = open(database)?;

    let lease = manager.lock("shop").ttl(TTL).await?;
    let sale = Sale::begin(&shop, lease.fencing_token())?;
    Child::tell_parent(&format!("read {}", lease.fencing_token()))?;
    Child::hear_parent().await?.context("the buyer went away")?;

    // `run` would drop this work by now. But between its last look at the lease and the write that the database sees,
    // there is always time for a process to stand still: this one has just woken up, and does not look.
    let sold = sale.end(&mut shop)?;
    // This process ends, and with it what releases a dropped guard. The seller that slept has nothing left to release.
    let _ = lease.release().await;
    let words: Vec<_> = sold.iter().map(|sold| if *sold { "sold" } else { "rejected" }).collect();
    Child::tell_parent(&format!("wrote {}", words.join(" ")))?;
    Ok(())
}

/// Stops the first seller, has it wake up at a moment of the second one's sale, and tells for each form whether an update was lost: more
/// units were sold than the stock has lost.
async fn watch(url: &str, moment: Moment) -> Result<[bool; 4]> {
    let folder = tempfile::tempdir()?;
    let database = folder.path().join("shop.db");
    let shop = open(&database)?;
    shop.execute_batch(SCHEMA)?;
    let database = database.to_str().context("the folder for temporary files has a strange name")?;

    let mut first = Child::start(["--seller", url, database])?;
    println!("the first seller has read the stock, token {}", first.expect("read").await?);
    first.pause()?;
    println!("it stands still; in {TTL:?} its lease is over");
    let mut second = Child::start(["--seller", url, database])?;
    println!("the second seller has read the stock, token {}", second.expect("read").await?);

    let mut sold = [0; 4];
    let order = match moment {
        Moment::After => [("second", &mut second), ("first", &mut first)],
        Moment::Between => [("first", &mut first), ("second", &mut second)],
    };
    for (name, seller) in order {
        seller.say("confirmed").await?;
        if name == "first" {
            seller.resume()?;
        }
        let wrote = seller.expect("wrote").await?;
        println!("the {name} seller writes: {wrote}");
        ensure!(wrote.split(' ').count() == sold.len(), "a seller said '{wrote}'");
        for (sold, word) in sold.iter_mut().zip(wrote.split(' ')) {
            *sold += i64::from(word == "sold");
        }
    }
    let mut lost = [false; 4];
    for (((good, form), sold), lost) in (0..).zip(FORMS).zip(sold).zip(&mut lost) {
        let left = stock(&shop, good)?;
        println!("  {form}: 2 in stock, {sold} sold, {left} left");
        *lost = sold != 2 - left;
    }
    println!();
    Ok(lost)
}
