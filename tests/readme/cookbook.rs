//! Leader election in the cookbook: together, its blocks are the whole program except for the work itself.

use std::{fs, path::Path, process::Command};

use lock_tests::{LONG, RedisServer, eventually};
use rustix::process::{Pid, Signal};

use crate::{Reader, expect};

const COOKBOOK: &str = include_str!("../../docs/cookbook.md");

/// The imports that the page names, and the work, which is the reader's own.
const REST: &str = "
use std::{error::Error, time::Duration};

use lock_core::{ErrorKind, FencingToken, LockManager};
use tokio::{signal::unix::{SignalKind, signal}, sync::watch};

type Result<T = (), E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

async fn bill(term: FencingToken) -> Result {
    println!(\"term {term}\");
    Ok(())
}
";

#[tokio::test]
async fn a_leader_of_the_cookbook_leads_until_it_is_told_to_end_and_frees_the_key() {
    let reader = Reader::new("cookbook");
    let server = RedisServer::start().await;
    expect("cargo new leader", &reader.folder, &[]);
    let own = reader.folder.join("leader");
    fs::copy(reader.folder.join("lock-core/Cargo.lock"), own.join("Cargo.lock")).expect("it is there");
    expect("cargo add --path ../lock-core/lock-core", &own, &[]);
    expect("cargo add tokio --features macros,rt-multi-thread,signal,sync,time", &own, &[]);
    expect("cargo add tracing", &own, &[]);
    let (_, section) = COOKBOOK.split_once("\n## Leader election\n").expect("it is there");
    let (section, _) = section.split_once("\n## ").expect("another one follows");
    let blocks = section.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next());
    let program = blocks.fold(REST.to_owned(), |program, block| program + "\n" + block);
    assert_eq!(program.matches("async fn ").count(), 4, "bill, stand, lead and main");
    fs::write(own.join("src/main.rs"), program.replace("redis://127.0.0.1", &server.url()))
        .expect("the crate is there");
    expect("cargo build", &own, &[]);

    // The program itself, as cargo would pass no signal on.
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme/debug/leader");
    let mut leader = Command::new(program).spawn().expect("it was built");
    let leads = async || server.call(&["EXISTS", "leader:billing"]).await.integer() == Some(1);
    eventually(LONG, "it leads", leads).await;
    rustix::process::kill_process(Pid::from_child(&leader), Signal::TERM).expect("it runs");
    let ended = tokio::task::spawn_blocking(move || leader.wait()).await.expect("no panic").expect("it was started");
    assert!(ended.success(), "{ended}");
    assert!(!leads().await, "its last step frees the key");
}
