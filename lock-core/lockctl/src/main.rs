//! `lockctl`: runs a command under a lock, shows the holders and waiters of keys, releases keys by force, and checks servers.

mod args;
mod child;
mod describe;
mod doctor;
mod exit;
#[cfg(unix)]
mod group;
mod json;
mod list;
mod release;
mod run;
mod signals;
mod table;
mod terminal;
#[cfg(unix)]
mod watcher;
mod who;

use std::{
    io::{self, Write},
    process,
};

use clap::{CommandFactory, Parser};
use tokio::runtime::{Builder, Runtime};

use crate::{
    args::{Args, Command},
    exit::{Failure, OS_ERROR, USAGE, written},
};

fn main() {
    process::exit(code())
}

/// Does everything, and returns the exit code. A command's own may be larger than a byte, on Windows.
fn code() -> i32 {
    #[cfg(unix)]
    if let Some(kill_after) = watcher::asked_for() {
        return ended(runtime().and_then(|runtime| {
            // For its signals.
            let _entered = runtime.enter();
            watcher::watch(kill_after)
        }));
    }
    match Args::try_parse() {
        Ok(args) => ended(runtime().and_then(|runtime| runtime.block_on(perform(args)))),
        Err(error) => {
            // `--help` and `--version` are not mistakes. Where their text cannot be written, nobody reads it.
            let _ = error.print();
            if error.use_stderr() { USAGE } else { 0 }
        }
    }
}

/// One thread is enough: nothing here computes, and a lease is renewed while a command runs beside.
fn runtime() -> Result<Runtime, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::new(OS_ERROR, format!("could not start: {error}; check the limits of the system")))
}

/// Says why it failed, if it did, and returns the exit code.
fn ended(done: Result<i32, Failure>) -> i32 {
    done.unwrap_or_else(|failure| {
        failure.say();
        failure.code()
    })
}

/// Returns the exit code.
async fn perform(args: Args) -> Result<i32, Failure> {
    match args.command {
        Command::Run(run) => run::run(&args.server, run).await,
        Command::List(list) => list::list(&args.server, list).await,
        Command::Who(who) => who::who(&args.server, who).await,
        Command::Release(release) => release::release(&args.server, release).await,
        Command::Doctor(doctor) => doctor::doctor(&args.server, doctor).await,
        Command::Completions(completions) => {
            // The generator panics if its output fails, as into `head`.
            let mut script = Vec::new();
            clap_complete::generate(completions.shell, &mut Args::command(), "lockctl", &mut script);
            written(io::stdout().write_all(&script))?;
            Ok(0)
        }
    }
}
