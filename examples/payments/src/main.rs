//! A hundred customers click twice on *Pay*, at two instances of a service, and one of the instances is killed in the middle of their
//! first clicks.
//!
//! ```text
//! cargo run -p example-payments                                    each is charged once
//! cargo run -p example-payments -- --without                       what happens without the layer
//! cargo run -p example-payments -- --transaction                   killed after the charge: the handler stores its answer with it
//! cargo run -p example-payments -- redis://127.0.0.1:6379          with the locks in Redis
//! ```
//!
//! Both clicks of a customer have one `Idempotency-Key`. An [`IdempotencyLayer`](lock_tower::idempotency::IdempotencyLayer) lets one
//! of them charge; the other waits, and is given the same receipt. Clients of the killed instance try the other one.
//!
//! An instance has a runtime, a port and a manager of its own, and is killed by the end of its runtime, which drops its
//! tasks where they are: while they wait for the bank, or with `--transaction` between the charge and the layer's own storing of
//! the answer. There only the answer that was stored with the charge keeps the second click from charging again.
//!
//! Exits with 1 if a customer was charged twice or not at all, or was given two different receipts. With `--without` it exits with 1 if
//! nobody was.

mod clicks;
mod instance;
mod ledger;

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use tokio::time::timeout;

use self::clicks::Clicks;
use self::instance::Instance;
use self::ledger::Ledger;

const CUSTOMERS: usize = 100;

/// How many charges the first instance completes.
const COMPLETED: usize = 20;

/// A hundred customers click twice on Pay, at two instances of a service, and one of the instances is killed.
#[derive(Clone, Debug, Parser)]
#[command(name = "payments")]
struct Args {
    /// Leaves the layer out
    #[arg(long)]
    without: bool,

    /// Stores each answer in the transaction of its charge
    #[arg(long, conflicts_with = "without")]
    transaction: bool,

    /// Where the locks are
    #[arg(default_value = "memory://payments", value_name = "URL")]
    locks: String,
}

/// How charges are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Nothing,
    /// The layer stores an answer after the handler has returned it.
    Layer,
    /// The handler stores its answer, in the transaction of its effect.
    Transaction,
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let form = match (args.without, args.transaction) {
        (true, _) => Form::Nothing,
        (_, true) => Form::Transaction,
        _ => Form::Layer,
    };
    println!("{}", run(form, &args.locks).await?);
    if form == Form::Layer {
        println!("killed before it charged: after that, only `--transaction` keeps the duplicate from a second charge");
    }
    Ok(())
}

/// Lets the customers click; returns what became of it.
async fn run(form: Form, locks: &str) -> Result<String> {
    let ledger = Ledger::open()?;
    let answers = lock_tower::idempotency::MemoryAnswers::new();
    // The first one stops answering after some charges, and is killed then.
    let doomed = Instance::start(form, locks, &ledger, &answers, COMPLETED)?;
    let other = Instance::start(form, locks, &ledger, &answers, usize::MAX >> 4)?;
    let first = Clicks::begin(form, [doomed.address(), other.address()]);
    // Between a charge and the storing of its answer, an instance may be killed only with `--transaction`.
    timeout(PATIENCE, first.until_answered(COMPLETED)).await?;
    let inside = timeout(PATIENCE, doomed.until_stuck()).await?;
    let second = Clicks::begin(form, [other.address(), doomed.address()]);
    drop(doomed);
    let (first, second) = (timeout(PATIENCE, first.receipts()).await??, timeout(PATIENCE, second.receipts()).await??);
    drop(other);

    let charges = ledger.charges()?;
    let receipts = || first.iter().chain(&second);
    let (answers, replayed) = (receipts().count(), receipts().filter(|receipt| receipt.is_replayed).count());
    let differ = first.iter().zip(&second).filter(|(first, second)| first.text != second.text).count();
    let twice = charges.values().filter(|count| **count > 1).count();
    let once = charges.values().filter(|count| **count == 1).count();
    let report = format!(
        "{CUSTOMERS} double clicks at two instances, one of which was killed with {inside} requests inside\n\
         charged once: {once}, charged twice or more: {twice}\n\
         answers: {answers}, of which replayed: {replayed}, customers with two different receipts: {differ}"
    );
    if form == Form::Nothing {
        ensure!(twice > 0, "nobody was charged twice, which is a miracle\n{report}");
    } else {
        ensure!((once, twice, differ) == (CUSTOMERS, 0, 0), "somebody was not charged once\n{report}");
    }
    Ok(report)
}

/// Far more than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_form_does_what_it_says() -> Result<()> {
        for form in [Form::Nothing, Form::Layer, Form::Transaction] {
            run(form, &format!("memory://test-of-{form:?}")).await?;
        }
        Ok(())
    }
}
