//! A MariaDB of the test's own.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use sqlx::any::install_default_drivers;
use sqlx::{AnyConnection, Connection as _};
use tempfile::TempDir;
use tokio::time::sleep;

/// A server on a free port, with an empty database `shop`; it is killed, and its folder removed, on drop.
#[derive(Debug)]
pub(crate) struct MariaDb {
    /// A shell that kills the server when its standard input ends, so also when the test process dies.
    shell: Child,
    port: u16,
    folder: TempDir,
}

impl MariaDb {
    /// Starts a server and returns when it answers.
    pub(crate) async fn start() -> Self {
        install_default_drivers();
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let mut install = Command::new("mariadb-install-db");
        let installed = install.args(["--no-defaults", "--auth-root-authentication-method=normal"]);
        let installed = installed.arg(format!("--datadir={}", data.display()));
        // Else several at once take each other's temporary tables.
        let installed = run(installed.arg(format!("--tmpdir={}", folder.path().display())));
        assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));

        // Taken and given back: the server says in its log should somebody else have it by then.
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let mut server = Self { shell: serve(folder.path(), port), port, folder };
        server.answer().await;
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("mysql://root@127.0.0.1:{}/shop", self.port)
    }

    async fn answer(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let root = format!("mysql://root@127.0.0.1:{}/", self.port);
            if let Ok(mut connection) = AnyConnection::connect(&root).await {
                sqlx::query("CREATE DATABASE shop").execute(&mut connection).await.unwrap();
                return;
            }
            let log = || fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            assert!(self.shell.try_wait().unwrap().is_none(), "mariadbd ended: {}", log());
            assert!(Instant::now() < deadline, "mariadbd does not answer: {}", log());
            sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

fn serve(folder: &Path, port: u16) -> Child {
    // What runs in the background has its standard input taken away, hence the third.
    let script = r#"exec 3<&0; log=$1; shift
        "$@" 3<&- </dev/null >"$log" 2>&1 & server=$!
        (read -r _ <&3; kill -KILL $server) & wait $server"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(folder.join("log")).args(["mariadbd", "--no-defaults", "--user=root"]);
    shell.arg(format!("--datadir={}", folder.join("data").display()));
    shell.arg(format!("--socket={}", folder.join("socket").display()));
    shell.arg(format!("--tmpdir={}", folder.display()));
    shell.arg(format!("--port={port}")).args(["--bind-address=127.0.0.1", "--skip-log-bin"]);
    // Later versions refuse a write after an old read by themselves, if this is on.
    shell.arg("--loose-innodb-snapshot-isolation=OFF");
    shell.env("PATH", path()).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn run(command: &mut Command) -> Output {
    command.env("PATH", path()).stdin(Stdio::null()).output().unwrap_or_else(|error| {
        panic!(
            "cannot run {command:?}: {error}. These tests need MariaDB: run ./tests/run, which installs it, or install \
             it with `apt-get install mariadb-server`, `dnf install mariadb-server` or `brew install mariadb`"
        )
    })
}

/// Where servers are found as well: not everybody has this folder in the path.
fn path() -> String {
    format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default())
}
