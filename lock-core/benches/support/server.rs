//! A redis-server of the bench's own.

use std::{
    env::temp_dir,
    net::{Ipv4Addr, TcpListener},
    process::{Child, Command, Stdio, id},
    time::Duration,
};

use redis::{AsyncConnectionConfig, Client, aio::MultiplexedConnection};

use super::{clock, stats, task::in_a_task};

/// A server on a free port. It ends on drop, and also when this process dies in any other way.
pub(crate) struct Server {
    shell: Child,
    pub(crate) port: u16,
    pub(crate) url: String,
}

impl Server {
    /// Starts `redis-server`, or what `REDIS_SERVER` names, without persistence.
    pub(crate) async fn start() -> Self {
        for _ in 0..5 {
            let mut server = Self::launch();
            if server.is_up().await {
                return server;
            }
        }
        panic!("redis-server does not come up; install it, as in `apt-get install redis-server`");
    }

    fn launch() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let port = listener.and_then(|listener| listener.local_addr()).expect("a port is free").port();
        // The pipe to the shell closes when this process ends, however it ends.
        let shell = Command::new("sh")
            .args(["-c", r#""$@" </dev/null >/dev/null & read -r end; kill -9 $!"#, "sh"])
            .arg(std::env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into()))
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--dbfilename", &mark(port), "--dir"])
            .arg(temp_dir())
            .stdin(Stdio::piped())
            .spawn()
            .expect("a shell starts");
        Self { shell, port, url: format!("redis://127.0.0.1:{port}") }
    }

    /// Waits until it answers; false if the port is somebody else's by now.
    async fn is_up(&mut self) -> bool {
        for _ in 0..2_000 {
            if let Ok(mut connection) = self.try_connect(&AsyncConnectionConfig::new()).await {
                let name = redis::cmd("CONFIG").arg("GET").arg("dbfilename").query_async(&mut connection).await;
                return name.is_ok_and(|(_, name): (String, String)| name == mark(self.port));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        false
    }

    /// A connection of the `redis` crate as it is by default.
    pub(crate) async fn connect(&self) -> MultiplexedConnection {
        self.try_connect(&AsyncConnectionConfig::new()).await.expect("the server answers")
    }

    async fn try_connect(&self, config: &AsyncConnectionConfig) -> redis::RedisResult<MultiplexedConnection> {
        client(&self.url).get_multiplexed_async_connection_with_config(config).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// A client that speaks what the manager's own connection speaks.
pub(crate) fn client(url: &str) -> Client {
    Client::open(format!("{url}?protocol=resp3")).expect("a valid URL")
}

/// How often a command was called so far, in scripts and outside of them, and what that took together, in µs. For a
/// script that includes the commands that it calls.
pub(crate) async fn usage(connection: &mut MultiplexedConnection, command: &str) -> (u64, u64) {
    let info: String = redis::cmd("INFO").arg("commandstats").query_async(connection).await.expect("INFO");
    let line = info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
    let field = |name| line.and_then(|line| line.split(',').find_map(|field| field.strip_prefix(name)?.parse().ok()));
    (field("calls=").unwrap_or(0), field("usec=").unwrap_or(0))
}

/// The median round trip of a PING in µs, one after the other in a task for as long as told.
pub(crate) async fn ping_p50(connection: &MultiplexedConnection, lasts: Duration) -> f64 {
    let mut connection = connection.clone();
    in_a_task(async move {
        let end = clock::now() + u64::try_from(lasts.as_nanos()).expect("seconds");
        let mut times = Vec::new();
        while times.is_empty() || clock::now() < end {
            times.push(ping(&mut connection).await);
        }
        stats::quantile(&stats::histogram(times), 0.5)
    })
    .await
}

/// The time of one PING in ns; for callers that are in a task.
pub(crate) async fn ping(connection: &mut MultiplexedConnection) -> u64 {
    let start = clock::now();
    let _: String = redis::cmd("PING").query_async(connection).await.expect("PING");
    clock::now() - start
}

fn mark(port: u16) -> String {
    format!("bench-{}-{port}.rdb", id())
}
