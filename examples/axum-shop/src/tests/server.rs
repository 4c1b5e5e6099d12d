//! Database servers of the tests' own.
//!
//! They listen on a socket in a folder of their own and on no port, so that nobody else can have taken it.

mod mariadb;
mod postgres;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sqlx::any::install_default_drivers;
use sqlx::{AnyConnection, Connection as _};
use tempfile::TempDir;
use tokio::time::sleep;

/// A server with an empty database; it is ended, and its folder removed, on drop.
#[derive(Debug)]
pub(crate) struct Server {
    /// A shell that ends the server when its standard input ends, so also when the test process dies.
    shell: Child,
    url: String,
    folder: TempDir,
}

impl Server {
    /// Starts MariaDB.
    pub(crate) async fn mariadb() -> Self {
        mariadb::start().await
    }

    /// Starts PostgreSQL; none, and a line on the terminal, where it is not installed.
    pub(crate) async fn postgres() -> Option<Self> {
        postgres::start().await
    }

    /// The URL of its database.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Starts what [`guarded`] was given, and returns when its database is made.
    async fn run(folder: TempDir, mut guarded: Command, url: String, create: Create<'_>) -> Self {
        install_default_drivers();
        let shell = guarded.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut server = Self { shell, url, folder };
        server.answer(create).await;
        server
    }

    async fn answer(&mut self, Create { at, statement }: Create<'_>) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Ok(mut connection) = AnyConnection::connect(at).await {
                sqlx::query(statement).execute(&mut connection).await.unwrap();
                return;
            }
            let log = || fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            assert!(self.shell.try_wait().unwrap().is_none(), "the database ended: {}", log());
            assert!(Instant::now() < deadline, "the database does not answer: {}", log());
            sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// How a database is made: by this statement, over a connection to this URL.
struct Create<'a> {
    at: &'a str,
    statement: &'static str,
}

/// A shell that runs the program whose name and arguments are to be added, with its log in `folder`, and sends it
/// `signal` when the test has ended.
fn guarded(folder: &Path, signal: &str) -> Command {
    // What runs in the background has its standard input taken away, hence the third.
    let script = r#"exec 3<&0; log=$1 signal=$2; shift 2
        "$@" 3<&- </dev/null >"$log" 2>&1 & server=$!
        (read -r _ <&3; kill -s "$signal" $server) & wait $server"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(folder.join("log")).arg(signal);
    shell
}

/// Runs a program to its end.
fn finish(command: &mut Command) {
    let output =
        command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Finds a program in one of these folders.
fn find(program: &str, folders: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    folders.into_iter().map(|folder| folder.join(program)).find(|program| program.is_file())
}

/// The folders of the path, and one where servers are found as well: not everybody has it in the path.
fn path() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]).collect()
}
