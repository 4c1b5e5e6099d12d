//! A redis-server of the bench's own, the raw commands that it is compared with, and the lines it prints.

use std::{
    net::{Ipv4Addr, TcpListener},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use redis::{Client, Script, aio::MultiplexedConnection};

/// A server on a free port, killed on drop.
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
}

impl Server {
    pub(crate) fn start() -> Self {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        let port = port.expect("a port is free").port();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server starts; install it, as in `apt-get install redis-server`");
        Self { child, url: format!("redis://127.0.0.1:{port}") }
    }

    /// A connection of the `redis` crate, as the manager's own.
    pub(crate) async fn connect(&self) -> MultiplexedConnection {
        let client = Client::open(format!("{}?protocol=resp3", self.url)).expect("a valid URL");
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match client.get_multiplexed_async_connection().await {
                Ok(connection) => return connection,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a lock without fencing, renewal and clean-up costs: SET NX PX, then compare-and-delete.
#[derive(Clone)]
pub(crate) struct Raw {
    connection: MultiplexedConnection,
    script: Script,
}

impl Raw {
    pub(crate) fn new(connection: MultiplexedConnection) -> Self {
        let source =
            "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
        Self { connection, script: Script::new(source) }
    }

    pub(crate) async fn pair(&mut self, key: &str) {
        let mut set = redis::cmd("SET");
        set.arg(key).arg("0123456789abcdef0123456789abcdef").arg("NX").arg("PX").arg(10_000);
        let set: Option<String> = set.query_async(&mut self.connection).await.expect("SET");
        assert!(set.is_some(), "the key is free");
        let mut release = self.script.prepare_invoke();
        release.key(key).arg("0123456789abcdef0123456789abcdef");
        let deleted: u32 = release.invoke_async(&mut self.connection).await.expect("EVALSHA");
        assert_eq!(deleted, 1);
    }
}

/// One measure, as a line of JSON or for the eye.
pub(crate) fn print(measure: &str, value: f64, unit: &str, ratio: f64) {
    if std::env::args().any(|argument| argument == "--json") {
        println!(r#"{{"measure":"{measure}","value":{value:.2},"unit":"{unit}","ratio":{ratio:.3}}}"#);
    } else {
        println!("{measure:28} {value:12.2} {unit:8} {ratio:6.3} x raw");
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
