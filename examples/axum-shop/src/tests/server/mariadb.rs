//! MariaDB.

use std::env::join_paths;
use std::path::PathBuf;
use std::process::Command;

use super::{Create, Server, find, finish, guarded, path};

/// Starts a server.
pub(super) async fn start() -> Server {
    let folder = tempfile::tempdir().unwrap();
    let data = format!("--datadir={}", folder.path().join("data").display());
    // Else several at once take each other's temporary tables.
    let temporary = format!("--tmpdir={}", folder.path().display());
    let mut install = Command::new(program("mariadb-install-db"));
    install.args(["--no-defaults", "--auth-root-authentication-method=normal", &data, &temporary]);
    finish(install.env("PATH", join_paths(path()).unwrap()));

    let socket = folder.path().join("socket");
    let mut server = guarded(folder.path(), "KILL");
    server.arg(program("mariadbd")).args(["--no-defaults", "--user=root", &data, &temporary]);
    server.arg(format!("--socket={}", socket.display())).args(["--skip-networking", "--skip-log-bin"]);
    // Later versions refuse a write after an old read by themselves, if this is on.
    server.arg("--loose-innodb-snapshot-isolation=OFF");
    let url = |database| format!("mysql://root@localhost/{database}?socket={}", socket.display());
    Server::run(folder, server, url("shop"), Create { at: &url(""), statement: "CREATE DATABASE shop" }).await
}

fn program(name: &str) -> PathBuf {
    find(name, path()).unwrap_or_else(|| {
        panic!(
            "{name} is missing. These tests need MariaDB: run ./.ci/run, which installs it, or install it with \
             `apt-get install mariadb-server`, `dnf install mariadb-server` or `brew install mariadb`"
        )
    })
}
