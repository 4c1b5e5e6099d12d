//! A redis-server of the bench's own.

use std::{
    env::temp_dir,
    net::{Ipv4Addr, TcpListener},
    process::{Child, Command, Stdio, id},
    time::Duration,
};

use futures_util::future::join_all;
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
        Self::start_with(&[]).await
    }

    /// The same with options of its own.
    pub(crate) async fn start_with(options: &[&str]) -> Self {
        for _ in 0..5 {
            let mut server = Self::launch(options);
            if server.is_up().await {
                return server;
            }
        }
        panic!("redis-server does not come up; install it, as in `apt-get install redis-server`");
    }

    fn launch(options: &[&str]) -> Self {
        let port = free_port();
        // The pipe to the shell closes when this process ends, however it ends.
        let shell = Command::new("sh")
            .args(["-c", r#""$@" </dev/null >/dev/null & read -r end; kill -9 $!"#, "sh"])
            .arg(std::env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into()))
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--dbfilename", &mark(port), "--dir"])
            .arg(temp_dir())
            .args(["--cluster-config-file", &format!("{}.conf", mark(port))])
            .args(options)
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

/// A port on which nothing listens. A node of a cluster listens at one that is 10,000 higher, too.
fn free_port() -> u16 {
    loop {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let port = listener.and_then(|listener| listener.local_addr()).expect("a port is free").port();
        if port < 50_000 {
            return port;
        }
    }
}

/// Makes a cluster of the nodes, each with as many slots.
pub(crate) async fn join_cluster(nodes: &[Server]) {
    let mut connections = join_all(nodes.iter().map(Server::connect)).await;
    let count = u32::try_from(nodes.len()).expect("a few");
    for (index, connection) in (0..).zip(&mut connections) {
        let slots: Vec<u32> = (index * 16_384 / count..(index + 1) * 16_384 / count).collect();
        let _: String = redis::cmd("CLUSTER").arg("ADDSLOTS").arg(slots).query_async(connection).await.expect("free");
        let mut meet = redis::cmd("CLUSTER");
        meet.arg("MEET").arg("127.0.0.1").arg(nodes[0].port);
        let _: String = meet.query_async(connection).await.expect("they can reach one another");
    }
    for connection in &mut connections {
        loop {
            let info: String = redis::cmd("CLUSTER").arg("INFO").query_async(connection).await.expect("INFO");
            if info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
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

/// The processor time that servers have spent so far, together, in seconds.
pub(crate) async fn processor<'a>(servers: impl IntoIterator<Item = &'a Server>) -> f64 {
    let mut seconds = 0.0;
    for server in servers {
        let info: String = redis::cmd("INFO").arg("cpu").query_async(&mut server.connect().await).await.expect("INFO");
        let fields = info.lines().filter_map(|line| line.split_once(':'));
        let used = fields.filter(|(name, _)| matches!(*name, "used_cpu_sys" | "used_cpu_user"));
        seconds += used.map(|(_, used)| used.trim().parse::<f64>().expect("seconds")).sum::<f64>();
    }
    seconds
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
