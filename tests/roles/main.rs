//! The second process of these tests, in one of several roles: `lock-role ROLE ARGUMENTS…`.
//!
//! It answers in lines, and ends when its standard input does. See `role!` in `tests/support/process.rs`.

mod act;
mod churn;
mod contend;
mod count;
mod foreign;
mod hold;
mod keys;
mod nightly;
mod serve;

use std::{env, error::Error, io, process::ExitCode, time::Duration};

use lock_core::{BuildError, ErrorKind, LockManager, LockManagerBuilder};
use lock_tests::{Cluster, RedisServer, Sentinels};
use tokio::{runtime::Builder, sync::mpsc, task};

fn main() -> ExitCode {
    let mut builder = Builder::new_multi_thread();
    if env::args().nth(1).is_some_and(|role| UNFENCED.contains(&&*role)) {
        builder.worker_threads(1);
    }
    let runtime = builder.enable_all().build().expect("threads can be had");
    let code = runtime.block_on(play());
    // The thread that reads the input may do so for ever.
    runtime.shutdown_background();
    code
}

/// Roles whose work no fencing token guards. With several threads a waiter holds by the message of its grant, for a second until its first
/// renewal, and a process may stand still for longer. With one it confirms the grant, and has the whole ttl.
const UNFENCED: [&str; 2] = ["count", "serve"];

async fn play() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let played = match arguments[..] {
        ["echo"] => echo().await,
        ["server"] => server().await,
        ["topologies"] => topologies().await,
        ["hold", url, key, ttl_ms, wait_ms] => hold::hold(url, key, ttl_ms, wait_ms, false).await,
        ["hold", url, key, ttl_ms, wait_ms, "shared"] => hold::hold(url, key, ttl_ms, wait_ms, true).await,
        ["serve", url, address] => serve::serve(url, address).await,
        ["count", url, address, key, rounds] => count::count(url, address, key, rounds).await,
        ["keys", url] => keys::keys(url).await,
        ["nightly", url, records, at_least_ms] => nightly::nightly(url, records, at_least_ms).await,
        ["act", url, folder, name] => act::act(url, folder, name).await,
        ["contend", ref options @ ..] => contend::contend(options).await,
        ["foreign", ref options @ ..] => foreign::foreign(options).await,
        _ => Err(format!("no such role: {arguments:?}").into()),
    };
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lock-role {arguments:?}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Connects, in several attempts if one fails. On a busy machine a server may be silent for longer than the default limit of a request, which
/// is a second.
async fn connected(builder: LockManagerBuilder) -> Result<LockManager, BuildError> {
    let builder = builder.command_timeout(LIMIT);
    for _ in 1..ATTEMPTS {
        match builder.clone().connect().await {
            Err(error) if error.cause().is_some_and(|cause| cause.kind() == ErrorKind::Backend) => {}
            outcome => return outcome,
        }
    }
    builder.connect().await
}

const ATTEMPTS: usize = 10;
const LIMIT: Duration = Duration::from_secs(15);

/// Says every line once more.
async fn echo() -> Result<(), Box<dyn Error>> {
    let mut lines = input();
    while let Some(line) = lines.recv().await {
        println!("echo {line}");
    }
    Ok(())
}

/// Has a redis-server and says where: `server ADDRESS FOLDER`.
async fn server() -> Result<(), Box<dyn Error>> {
    let server = RedisServer::start().await;
    println!("server {} {}", server.address(), server.folder().display());
    let mut lines = input();
    while lines.recv().await.is_some() {}
    Ok(())
}

/// Has a redis-server, sentinels with their servers, and a cluster, and says where: `topologies URL URL URL`.
async fn topologies() -> Result<(), Box<dyn Error>> {
    let (server, sentinels, cluster) = (RedisServer::start().await, Sentinels::start().await, Cluster::start().await);
    println!("topologies {} {} {}", server.url(), sentinels.url(), cluster.url());
    let mut lines = input();
    while lines.recv().await.is_some() {}
    Ok(())
}

/// The lines of the standard input, without a thread of the runtime blocked by them.
fn input() -> mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    task::spawn_blocking(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}
