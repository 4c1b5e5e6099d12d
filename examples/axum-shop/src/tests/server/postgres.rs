//! PostgreSQL.

use std::fs::read_dir;
use std::io::{Write as _, stderr};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use super::{Create, Server, find, finish, guarded, path};

/// Starts a server, unless there is none or nobody who may run it.
pub(super) async fn start() -> Option<Server> {
    let Some(initdb) = find("initdb", path().into_iter().chain(versions())) else {
        return skip("PostgreSQL is not installed (apt-get install postgresql)");
    };
    let folder = tempfile::tempdir().unwrap();
    let mut user = None;
    if folder.path().metadata().unwrap().uid() == 0 {
        // It does not run as root; the package makes a user for it.
        let (Some(uid), Some(gid)) = (id("-u"), id("-g")) else {
            return skip("PostgreSQL does not run as root, and there is no user `postgres`");
        };
        chown(folder.path(), Some(uid), Some(gid)).unwrap();
        user = Some((uid, gid));
    }
    let of_user = |mut command: Command| {
        if let Some((uid, gid)) = user {
            command.uid(uid).gid(gid);
        }
        command.current_dir(folder.path());
        command
    };

    let data = folder.path().join("data");
    let mut init = of_user(Command::new(&initdb));
    finish(init.args(["--auth=trust", "--username=shop", "--no-sync", "--pgdata"]).arg(&data));

    let mut server = of_user(guarded(folder.path(), "QUIT"));
    server.arg(initdb.with_file_name("postgres")).arg("-D").arg(&data).args(["-c", "listen_addresses=", "-k"]);
    server.arg(folder.path());
    let url = |database| format!("postgres://shop@localhost/{database}?host={}", folder.path().display());
    let (url, create) = (url("shop"), Create { at: &url("postgres"), statement: "CREATE DATABASE shop" });
    Some(Server::run(folder, server, url, create).await)
}

/// Where Debian puts what is not in the path; any version will do.
fn versions() -> impl Iterator<Item = PathBuf> {
    read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|version| version.path().join("bin"))
}

/// A number of the user `postgres`.
fn id(which: &str) -> Option<u32> {
    let output = Command::new("id").args([which, "postgres"]).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

fn skip(why: &str) -> Option<Server> {
    assert!(std::env::var_os("CI").is_none(), "a gate needs PostgreSQL: {why}");
    // Past the harness, which keeps what a test says to itself unless it fails.
    let _ = writeln!(stderr(), "left out: a test on PostgreSQL: {why}");
    None
}
