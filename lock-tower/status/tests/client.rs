//! A client that shows what comes over the wire, and what it talks to.

use std::net::SocketAddr;

use axum::Router;
use lock_core::{LockManager, backend::MemoryBackend};
use lock_status::Status;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{serve, soon};

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

pub(super) async fn get(address: SocketAddr, target: &str) -> Answer {
    send(address, "GET", target, &[]).await
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

/// Two managers of one store, as of two processes.
pub(super) async fn two() -> [LockManager; 2] {
    let store = MemoryBackend::new();
    let of = |name| LockManager::builder().backend(store.clone()).client_name(name).build().unwrap();
    let managers = [of("one"), of("<b>two</b>")];
    for manager in &managers {
        // Its task begins to listen.
        manager.is_locked("begin").await.unwrap();
        tokio::task::yield_now().await;
    }
    managers
}
