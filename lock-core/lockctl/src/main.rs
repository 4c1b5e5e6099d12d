//! `lockctl`: runs a command under a lock, shows the holders and waiters of keys, and releases keys by force.

mod args;
mod child;
mod describe;
mod exit;
#[cfg(unix)]
mod group;
mod json;
mod list;
mod release;
mod run;
mod signals;
mod table;
#[cfg(unix)]
mod watcher;
mod who;

use std::process;

use clap::Parser;
use tokio::runtime::Builder;

use crate::{
    args::{Args, Command},
    exit::{Failure, OS_ERROR, USAGE},
};

fn main() {
    process::exit(code())
}

/// Does everything, and returns the exit code. A command's own may be larger than a byte, on Windows.
fn code() -> i32 {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // `--help` and `--version` are not mistakes. Where their text cannot be written, nobody reads it.
            let _ = error.print();
            return if error.use_stderr() { USAGE } else { 0 };
        }
    };
    // One thread is enough: nothing here computes, and a lease is renewed while a command runs beside.
    let done = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(perform(args)),
        Err(error) => Err(Failure::new(OS_ERROR, format!("could not start: {error}; check the limits of the system"))),
    };
    match done {
        Ok(code) => code,
        Err(failure) => {
            failure.say();
            failure.code()
        }
    }
}

/// Returns the exit code.
async fn perform(args: Args) -> Result<i32, Failure> {
    match args.command {
        Command::Run(run) => run::run(&args.server, run).await,
        Command::List(list) => list::list(&args.server, list).await,
        Command::Who(who) => who::who(&args.server, who).await,
        Command::Release(release) => release::release(&args.server, release).await,
        #[cfg(unix)]
        Command::Watcher { kill_after } => watcher::watch(kill_after),
    }
}
