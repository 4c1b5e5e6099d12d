//! A client that shows what comes over the wire, and what it talks to.

use std::{
    net::SocketAddr,
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Duration,
};

use axum::Router;
use lock_core::{LeaseOptions, LockManager, backend::MemoryBackend};
use lock_status::Status;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
};

use crate::support::{PATIENCE, serve, soon};

/// An answer, as it came over the wire.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// Whether all processes have answered, as far as it says.
    fn is_whole(&self) -> bool {
        let Ok(json) = serde_json::from_str::<Value>(&self.body) else {
            let said = [" did not answer</b>; ", "<b>It is not known how many processes"];
            return !said.iter().any(|said| self.body.contains(said));
        };
        let list = |name: &str| json[name].as_array().cloned().unwrap_or_default();
        list("missed").is_empty()
            && list("keys").iter().all(|key| key["processes"]["asked"] == key["processes"]["answered"])
    }

    /// The `action` of the form that releases.
    pub(super) fn action(&self) -> String {
        let (_, rest) = self.body.split_once("method=post action=\"").unwrap();
        rest.split_once('"').unwrap().0.replace("&amp;", "&")
    }
}

/// Sends a request with these lines in its head, and reads to the end of the connection.
pub(super) async fn send(address: SocketAddr, method: &str, target: &str, lines: &[&str]) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    let head = format!(
        "{method} {target} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{lines}content-length: 0\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

/// Looks at a page, once.
pub(super) async fn look(address: SocketAddr, target: &str) -> Answer {
    send(address, "GET", target, &[]).await
}

/// Looks at a page until nobody is missing on it: a process has a quarter of a second for its answer, and a busy machine may not give it
/// that.
pub(super) async fn get(address: SocketAddr, target: &str) -> Answer {
    for _ in 0..PATIENCE {
        let answer = look(address, target).await;
        if answer.is_whole() {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("somebody is always missing at {target}");
}

/// Sends a form as a browser does from a page of the same origin.
pub(super) async fn post(address: SocketAddr, query: &str) -> Answer {
    send(address, "POST", &format!("/locks{query}"), &["sec-fetch-site: same-origin"]).await
}

pub(super) async fn mounted(status: Status) -> SocketAddr {
    serve(Router::new().nest_service("/locks", status)).await
}

pub(super) async fn releasing(manager: &LockManager) -> SocketAddr {
    mounted(Status::new(manager.clone()).allow_force_release()).await
}

/// A process that holds a key and answers, until it is stopped.
pub(super) struct Process {
    stop: Option<oneshot::Sender<()>>,
    /// Dropped when it is to end.
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Process {
    pub(super) async fn start(store: &MemoryBackend, name: &str, key: &str) -> Self {
        let manager = LockManager::builder().backend(store.clone()).client_name(name).build().unwrap();
        let (key, (stop, stopped), (end, ended)) = (key.to_owned(), oneshot::channel::<()>(), mpsc::channel());
        let (begun, begins) = oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let _guard = runtime.block_on(async {
                let guard = manager.lock(key).ttl(Duration::from_secs(600)).await.unwrap();
                // Its task begins to listen.
                tokio::task::yield_now().await;
                begun.send(()).unwrap();
                let _ = stopped.await;
                guard
            });
            // It listens still, and its runtime is driven no further.
            let _ = ended.recv();
            drop(_guard);
            runtime.block_on(manager.shutdown(Duration::ZERO));
        });
        soon(begins).await.unwrap();
        Self { stop: Some(stop), end: Some(end), thread: Some(thread) }
    }

    /// Has it answer no more.
    pub(super) fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Has it release its key and end.
    pub(super) fn end(mut self) {
        self.stop();
        drop(self.end.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Two managers of one store, as of two processes.
pub(super) async fn two() -> [LockManager; 2] {
    let store = MemoryBackend::new();
    let of = |name| {
        // A ttl that outlasts any pause of a busy machine.
        let options = LeaseOptions::new().ttl(Duration::from_secs(600));
        LockManager::builder().backend(store.clone()).client_name(name).defaults(options).build().unwrap()
    };
    let managers = [of("one"), of("<b>two</b>")];
    for manager in &managers {
        // Its task begins to listen.
        manager.is_locked("begin").await.unwrap();
        tokio::task::yield_now().await;
    }
    managers
}
