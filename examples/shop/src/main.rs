//! The shop: many buyers, four goods, 100 of each, and a stock that must not go below zero.
//!
//! ```text
//! cargo run -p example-shop
//! cargo run -p example-shop -- --redis redis://127.0.0.1:6379 --instances 4
//! cargo run -p example-shop -- --strategy none,lock-core --plot stock.svg
//! ```
//!
//! Buyers order several goods at once, and an order goes through whole or not at all. The first two at the
//! door both want (1, 99), (2, 20), (3, 30): the stock is enough for one. The service reads the stock, thinks for a
//! few milliseconds, and writes what is left, as services do. Several instances of it run at once, over one SQLite
//! database. Each strategy sells from a fresh stock; nothing about the race is simulated.
//!
//! * *sold*: units promised to buyers, in all accepted orders;
//! * *left*: units that the database shows at the end;
//! * *oversold*: units promised beyond the 100 of a good, added up over the goods;
//! * *wait*: what an order took on top of its sale (first look at the stock to the last write): waiting for the
//!   lock and giving it back, sales begun in vain, HTTP.
//!
//! Without arguments nothing else has to run: the locks are in memory, in a store that all instances of the
//! process share. With `--redis URL` every instance is a process of its own, and Redis is what they share.
//!
//! Where to read: the files in `strategies` are what an application would contain, `shop.rs` is the race that it has
//! to win.

mod args;
mod database;
mod instance;
mod order;
mod plot;
mod processes;
mod report;
mod sale;
mod shop;
mod strategies;
mod tally;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser as _;
use indicatif::{ProgressBar, ProgressStyle};
use lock_core::LockManager;
use tempfile::TempDir;

use crate::args::Args;
use crate::shop::Shop;
use crate::strategies::Strategy;
use crate::tally::Tally;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let ended = if args.instance { processes::serve().await.map(|()| true) } else { compare_until_ctrl_c(&args).await };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        // The reader of the output has seen enough, as in `… | head -1`.
        Err(error) if error.downcast_ref().map(io::Error::kind) == Some(io::ErrorKind::BrokenPipe) => ExitCode::SUCCESS,
        Err(error) => {
            anstream::eprintln!("{ERROR}error:{ERROR:#} {}", report::sentence(&error));
            ExitCode::from(2)
        }
    }
}

async fn compare_until_ctrl_c(args: &Args) -> Result<bool> {
    tokio::select! {
        sound = compare(args) => sound,
        _ = tokio::signal::ctrl_c() => bail!("interrupted"),
    }
}

/// Holds a sale by each strategy and reports; answers whether all kept what they promise.
async fn compare(args: &Args) -> Result<bool> {
    let plot = plot(args)?;
    if let Some(redis) = &args.redis {
        LockManager::connect(redis).await.context("cannot reach Redis")?;
    }
    let (database, _temporary) = database(args)?;
    let shop = Shop::open(&database, args.pause()).await?;

    let mut stdout = anstream::stdout();
    if !args.json {
        write!(stdout, "{}", report::heading(args))?;
        stdout.flush()?;
    }
    let mut tallies = Vec::new();
    for strategy in args.strategies() {
        let progress = progress(strategy, args);
        let tally = sale::hold(strategy, args, &database, &shop, || progress.inc(1)).await;
        progress.finish_and_clear();
        let tally = tally.with_context(|| format!("the sale by {} could not be held", strategy.name()))?;
        if args.json {
            writeln!(stdout, "{}", report::json(&tally)?)?;
        }
        tallies.push(tally);
    }

    if !args.json {
        write!(stdout, "{}", report::table(&tallies))?;
    }
    if let Some(plot) = plot {
        fs::write(&plot, plot::svg(&tallies))
            .with_context(|| format!("could not write the plot {}", plot.display()))?;
        if !args.json {
            writeln!(stdout, "picture   {}", from_here(&plot).display())?;
        }
    }
    Ok(!tallies.iter().any(Tally::is_broken))
}

/// The file of the picture, which can be written: that of the arguments, or else beside the program if there is a table.
fn plot(args: &Args) -> Result<Option<PathBuf>> {
    let open = |plot: &Path| fs::File::options().create(true).append(true).open(plot);
    if let Some(plot) = &args.plot {
        open(plot).with_context(|| format!("could not write the plot {}", plot.display()))?;
        return Ok(Some(plot.clone()));
    }
    let beside = std::env::current_exe().ok().map(|program| program.with_extension("svg"));
    Ok(beside.filter(|plot| !args.json && open(plot).is_ok()))
}

/// The path as somebody in the current folder would type it.
fn from_here(path: &Path) -> PathBuf {
    let here = std::env::current_dir().ok();
    here.and_then(|here| path.strip_prefix(here).ok()).unwrap_or(path).to_owned()
}

/// The file of the database; a temporary one is deleted with its folder when the second value is dropped.
fn database(args: &Args) -> Result<(PathBuf, Option<TempDir>)> {
    match &args.database {
        Some(database) => Ok((database.0.clone(), None)),
        None => {
            let folder = tempfile::Builder::new().prefix("shop-").tempdir();
            let folder = folder.context("cannot make a folder for the database")?;
            Ok((folder.path().join("shop.db"), Some(folder)))
        }
    }
}

/// A bar that counts the orders of one sale, on a terminal.
fn progress(strategy: Strategy, args: &Args) -> ProgressBar {
    let progress = ProgressBar::new(u64::from(args.buyers) * u64::from(args.rounds));
    if let Ok(style) = ProgressStyle::with_template("{prefix:12} {bar:40} {pos}/{len} orders, {elapsed}") {
        progress.set_style(style);
    }
    progress.set_prefix(strategy.name());
    progress.enable_steady_tick(Duration::from_millis(100));
    progress
}

const ERROR: anstyle::Style = anstyle::AnsiColor::Red.on_default().bold();
