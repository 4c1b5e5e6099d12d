//! Bringing up a redis-server: its command line, its folder, and the proof that it is ours that answers.

use std::{
    env,
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::Duration,
};

use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    left_out,
    ports::free_port,
    resp::{RawClient, Reply},
    server::RedisServer,
    signals::Reaper,
    slot,
};

/// What is special about a server.
#[derive(Clone, Debug, Default)]
pub struct ServerBuilder {
    pub(crate) options: Vec<(String, String)>,
    pub(crate) missing: Vec<String>,
    pub(crate) password: Option<String>,
    pub(crate) environment: Vec<(String, String)>,
    /// Whom the harness signs in as, with the password; the default user if `None`.
    pub(crate) user: Option<String>,
    /// The file of its own that the server reads, and that it may rewrite.
    pub(crate) file: Option<String>,
    /// Whether it is a sentinel, which has no data.
    pub(crate) sentinel: bool,
}

impl ServerBuilder {
    /// Sets one option as on the command line, `("--maxmemory", "3mb")`. A later one wins over an earlier.
    pub fn option(mut self, name: &str, value: &str) -> Self {
        self.options.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Lacks this command, as an older server would.
    pub fn without_command(mut self, name: &str) -> Self {
        self.missing.push(name.to_owned());
        self
    }

    /// Asks every client for this password.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Runs with this environment variable.
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Listens on a socket in the file system as well, see [`RedisServer::socket_url`].
    pub fn unix_socket(self) -> Self {
        self.option("--unixsocket", RedisServer::SOCKET)
    }

    /// Starts the server and returns when it answers.
    ///
    /// # Panics
    /// When redis-server is missing or doesn't come up within a minute.
    pub async fn start(self) -> RedisServer {
        for _ in 0..20 {
            if let Ok(server) = self.start_at(free_port()).await {
                return server;
            }
        }
        panic!("twenty ports in a row were taken before redis-server could have them");
    }

    /// Starts the server on this port and returns when it answers.
    pub(crate) async fn start_at(&self, port: u16) -> Result<RedisServer, PortTaken> {
        let folder = folder();
        let running = Some(self.launch(port, folder.path()).await?);
        Ok(RedisServer { setup: self.clone(), port, folder, running })
    }

    /// Starts a server in `folder` and returns when that very process answers on `port`.
    pub(crate) async fn launch(&self, port: u16, folder: &Path) -> Result<Running, PortTaken> {
        slot::take();
        let _ = fs::remove_file(folder.join(LOG)); // that of an earlier start
        let mut running = self.spawn(port, folder);
        let deadline = Instant::now() + UP_WITHIN;
        loop {
            let failure = match running.child.try_wait() {
                Ok(None) if Instant::now() < deadline => None,
                Ok(None) => Some(format!("doesn't answer within {UP_WITHIN:?}")),
                Ok(Some(status)) => Some(format!("ended with {status}")),
                Err(error) => Some(error.to_string()),
            };
            if let Some(failure) = failure {
                let log = fs::read_to_string(folder.join(LOG)).unwrap_or_default();
                if log.contains("Address already in use") {
                    return Err(PortTaken);
                }
                panic!("redis-server {failure}; its log:\n{log}");
            }
            let answer = timeout(Duration::from_secs(1), self.process_behind(port));
            match answer.await {
                Ok(Ok(Some(pid))) if pid == running.pid() => return Ok(running),
                Ok(Ok(Some(_))) => return Err(PortTaken),
                _ => sleep(Duration::from_millis(2)).await,
            }
        }
    }

    /// Opens a connection, signed in and named.
    pub(crate) async fn connect(&self, address: &str) -> io::Result<RawClient> {
        let mut client = RawClient::tcp(address).await?;
        match (&self.user, &self.password) {
            (Some(user), Some(password)) => _ = client.call(&["AUTH", user, password]).await?,
            (None, Some(password)) => _ = client.call(&["AUTH", password]).await?,
            (_, None) => {}
        }
        client.call(&["CLIENT", "SETNAME", RedisServer::OWN_NAME]).await?;
        Ok(client)
    }

    fn spawn(&self, port: u16, folder: &Path) -> Running {
        let mut command = Command::new(program());
        command.current_dir(folder);
        if let Some(text) = &self.file {
            let file = folder.join("redis.conf");
            // What the server has made of it stays.
            if !file.exists() {
                fs::write(&file, text).expect("a file can be made in our own folder");
            }
            command.arg(file);
        }
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
        if self.sentinel {
            command.arg("--sentinel");
        } else {
            self.keep_data_in_memory(&mut command);
        }
        for (name, value) in &self.options {
            command.args([name, value]);
        }
        for name in &self.missing {
            command.args(["--rename-command", name, ""]);
        }
        // A wrong option is complained about on the standard error, everything else on the standard output.
        let log = OpenOptions::new().create(true).append(true).open(folder.join(LOG));
        let log = log.expect("a file can be made in our own folder");
        let twin = log.try_clone().expect("a file can be opened twice");
        command.stdin(Stdio::null()).stdout(log).stderr(twin);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        match command.spawn() {
            Ok(child) => {
                crate::history::serves(child.id());
                Running { reaper: Some(Reaper::watch(child.id(), Some(folder))), child }
            }
            Err(error) => cannot_start(&error),
        }
    }

    /// The options of a server that has data.
    fn keep_data_in_memory(&self, command: &mut Command) {
        command.args(["--save", "", "--appendonly", "no"]).args(["--repl-diskless-sync-delay", "0"]);
        if server_version() >= 7 {
            command.args(["--enable-debug-command", "local"]);
        }
        if let Some(password) = &self.password {
            command.args(["--requirepass", password]);
        }
    }

    /// The number of the process that listens on `port`, once it serves; 0 for one that doesn't know our password.
    async fn process_behind(&self, port: u16) -> io::Result<Option<u32>> {
        let mut client = self.connect(&format!("127.0.0.1:{port}")).await?;
        let Some(info) = client.call(&["INFO", "server"]).await?.text() else {
            return Ok(Some(0));
        };
        let serves = client.call(&["PING"]).await? == Reply::Status("PONG".to_owned());
        let pid = info_field(&info, "process_id").and_then(|pid| pid.parse().ok());
        Ok(pid.filter(|_| serves))
    }
}

/// The port was free a moment ago and is not any more.
#[derive(Debug)]
pub(crate) struct PortTaken;

/// A server's process, killed on drop.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    reaper: Option<Reaper>,
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // First the reaper, which knows the process by a number that may be given to another one after `wait`.
        self.reaper = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder that is removed with all that is in it.
pub(crate) fn folder() -> TempDir {
    // Short, because the path of a socket may have about a hundred bytes.
    let short = Some(env::temp_dir()).filter(|path| path.as_os_str().len() < 60);
    let parent = short.unwrap_or_else(|| PathBuf::from("/tmp"));
    tempfile::Builder::new().prefix("lock-tests-").tempdir_in(parent).expect("a folder can be made")
}

/// One field in the answer to `INFO`.
pub(crate) fn info_field<'a>(info: &'a str, field: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
}

/// The first number of the version of the redis-server that the tests start, for what Redis 6 does otherwise. Redis 7 also began to ask
/// before it obeys `DEBUG`; earlier ones don't know the option and refuse to start with it.
pub fn server_version() -> u32 {
    static VERSION: OnceLock<u32> = OnceLock::new();
    *VERSION.get_or_init(|| match Command::new(program()).arg("--version").output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout)
            .split_once("v=")
            .and_then(|(_, version)| version.split_once('.')?.0.parse().ok())
            .unwrap_or(u32::MAX),
        Err(error) => cannot_start(&error),
    })
}

/// Whether a test of what Redis 7 began with can be made. Says that it is left out if not.
pub fn is_redis_7(what: &str) -> bool {
    let is_new = server_version() >= 7;
    if !is_new {
        left_out(what, "redis-server is older than 7", false);
    }
    is_new
}

/// Whether the redis-server that the tests start can speak TLS. Says that `what` is left out if not.
pub fn speaks_tls(what: &str) -> bool {
    static SPEAKS: OnceLock<bool> = OnceLock::new();
    let speaks = *SPEAKS.get_or_init(|| {
        // It refuses to start in any case: for lack of the certificate, or of TLS.
        let options =
            ["--port", "0", "--tls-port", "1", "--tls-cert-file", "/missing.pem", "--tls-key-file", "/missing.pem"];
        match Command::new(program()).args(options).output() {
            Ok(output) => String::from_utf8_lossy(&output.stdout).contains("Failed to configure TLS"),
            Err(error) => cannot_start(&error),
        }
    });
    if !speaks {
        left_out(what, "redis-server was built without TLS", env::var_os("REDIS_SERVER").is_none());
    }
    speaks
}

/// `REDIS_SERVER` where it is set, to try another version.
fn program() -> String {
    env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

fn cannot_start(error: &io::Error) -> ! {
    panic!(
        "can't start `{}`: {error}. These tests need a real Redis: run ./tests/run, which installs it, or install it \
         with `apt-get install redis-server`, `dnf install redis` or `brew install redis`",
        program()
    );
}

const LOG: &str = "redis.log";

/// How long a server may take to answer.
pub(crate) const UP_WITHIN: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn another_server_on_the_port_is_not_taken_for_ours() {
        let other = RedisServer::start().await;
        let launched = ServerBuilder::default().start_at(other.port()).await;
        assert!(matches!(launched, Err(PortTaken)));
    }

    #[tokio::test]
    async fn another_server_with_a_password_is_not_taken_for_ours() {
        let other = RedisServer::builder().password("secret").start().await;
        let launched = ServerBuilder::default().start_at(other.port()).await;
        assert!(matches!(launched, Err(PortTaken)));
    }
}
