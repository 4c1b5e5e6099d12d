//! The fault proxy in front of a server that says everything twice: what comes through, what doesn't, and how it ends.
#![expect(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::{
    io::ErrorKind,
    time::{Duration, Instant},
};

use lock_tests::{FaultProxy, SOON, eventually};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::timeout,
};

const A_WHILE: Duration = Duration::from_millis(100);

#[tokio::test]
async fn everything_passes_at_first() {
    let (_server, _proxy, mut client) = connected().await;
    assert_eq!(client.ask("hello").await, "hello");
    assert_eq!(client.ask("again").await, "again");
}

#[tokio::test]
async fn large_messages_arrive_whole() {
    let (_server, proxy, mut client) = connected().await;
    proxy.delay(Duration::from_millis(1), Duration::from_millis(1));
    let message = "0123456789".repeat(30_000);
    let (mut reader, mut writer) = client.stream.split();
    let mut answer = vec![0; message.len()];
    let (sent, received) =
        tokio::join!(writer.write_all(message.as_bytes()), timeout(SOON, reader.read_exact(&mut answer)));
    sent.unwrap();
    received.unwrap().unwrap();
    assert!(answer == message.as_bytes());
}

#[tokio::test]
async fn delay_counts_in_both_directions_and_not_per_message() {
    let (_server, proxy, mut client) = connected().await;
    let delay = Duration::from_secs(1);
    proxy.delay(delay, Duration::ZERO);
    let start = Instant::now();
    // One after the other, a hundred messages would take longer than the receiver waits at most, which is a minute.
    for _ in 0..100 {
        client.send("a").await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(client.receive(100).await, "a".repeat(100));
    assert!(start.elapsed() >= 2 * delay, "{:?}", start.elapsed());
}

#[tokio::test]
async fn hole_swallows_nothing_and_lets_go_of_it_later() {
    let (mut server, proxy, mut client) = connected().await;
    proxy.hole();
    client.send("kept").await;
    assert!(timeout(A_WHILE, server.heard.recv()).await.is_err());
    let mut newcomer = Client::connect(&proxy).await;
    newcomer.send("new").await;
    assert!(timeout(A_WHILE, newcomer.receive(3)).await.is_err());
    proxy.pass();
    assert_eq!(client.receive(4).await, "kept");
    assert_eq!(newcomer.receive(3).await, "new");
}

#[tokio::test]
async fn lost_reply_was_a_request_that_arrived() {
    let (mut server, proxy, mut client) = connected().await;
    proxy.drop_replies();
    client.send("done").await;
    assert_eq!(server.hear().await, "done");
    assert!(timeout(A_WHILE, client.receive(1)).await.is_err());
    proxy.pass();
    assert_eq!(client.ask("next").await, "next");
}

#[tokio::test]
async fn lost_request_never_arrives() {
    let (mut server, proxy, mut client) = connected().await;
    proxy.drop_requests();
    client.send("lost").await;
    assert!(timeout(A_WHILE, server.heard.recv()).await.is_err());
    proxy.pass();
    assert_eq!(client.ask("next").await, "next");
    assert_eq!(server.hear().await, "next");
}

#[tokio::test]
async fn cut_connection_ends_in_good_order_on_both_sides() {
    let (mut server, proxy, mut client) = connected().await;
    client.ask("hello").await;
    server.hear().await;
    proxy.cut();
    assert_eq!(client.rest().await.unwrap(), "");
    assert_eq!(server.hear().await, "end");
    eventually(SOON, "no connection is open", async || proxy.open() == 0).await;
    let mut next = Client::connect(&proxy).await;
    assert_eq!(next.ask("next").await, "next");
    assert_eq!((proxy.open(), proxy.accepted()), (1, 2));
}

#[tokio::test]
async fn reset_connection_is_an_error_on_both_sides() {
    let (mut server, proxy, mut client) = connected().await;
    client.ask("hello").await;
    server.hear().await;
    proxy.reset();
    let error = client.rest().await.unwrap_err();
    assert_eq!(error, ErrorKind::ConnectionReset);
    assert_eq!(server.hear().await, format!("{:?}", ErrorKind::ConnectionReset));
}

#[tokio::test]
async fn client_that_stops_talking_still_hears_the_answer() {
    let (_server, _proxy, mut client) = connected().await;
    client.send("last words").await;
    client.stream.shutdown().await.unwrap();
    assert_eq!(client.rest().await.unwrap(), "last words");
}

#[tokio::test]
async fn dropped_proxy_is_gone() {
    let (_server, proxy, mut client) = connected().await;
    client.ask("hello").await;
    let address = proxy.address();
    drop(proxy);
    assert_eq!(client.rest().await.unwrap(), "");
    eventually(SOON, "nobody listens", async || TcpStream::connect(&address).await.is_err()).await;
}

async fn connected() -> (EchoServer, FaultProxy, Client) {
    let server = EchoServer::start().await;
    let proxy = FaultProxy::start(server.address.clone()).await;
    let client = Client::connect(&proxy).await;
    (server, proxy, client)
}

struct Client {
    stream: TcpStream,
}

impl Client {
    async fn connect(proxy: &FaultProxy) -> Self {
        let stream = TcpStream::connect(proxy.address()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream }
    }

    async fn ask(&mut self, message: &str) -> String {
        self.send(message).await;
        self.receive(message.len()).await
    }

    async fn send(&mut self, message: &str) {
        self.stream.write_all(message.as_bytes()).await.unwrap();
    }

    async fn receive(&mut self, bytes: usize) -> String {
        let mut answer = vec![0; bytes];
        let read = timeout(SOON, self.stream.read_exact(&mut answer)).await;
        read.unwrap().unwrap();
        String::from_utf8(answer).unwrap()
    }

    /// What comes until the connection ends, or how it failed.
    async fn rest(&mut self) -> Result<String, ErrorKind> {
        let mut rest = String::new();
        match timeout(SOON, self.stream.read_to_string(&mut rest)).await.unwrap() {
            Ok(_) => Ok(rest),
            Err(error) => Err(error.kind()),
        }
    }
}

/// Sends back what it gets and tells the test: what it heard, "end" at the end of a connection, or the error.
struct EchoServer {
    address: String,
    heard: mpsc::UnboundedReceiver<String>,
}

impl EchoServer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (tell, heard) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(echo(stream, tell.clone()));
            }
        });
        Self { address, heard }
    }

    async fn hear(&mut self) -> String {
        timeout(SOON, self.heard.recv()).await.unwrap().unwrap()
    }
}

async fn echo(mut stream: TcpStream, tell: mpsc::UnboundedSender<String>) {
    let mut buffer = vec![0; 16 * 1024];
    let last = loop {
        match stream.read(&mut buffer).await {
            Ok(0) => break "end".to_owned(),
            Ok(read) => {
                let _ = tell.send(String::from_utf8_lossy(&buffer[..read]).into_owned());
                if stream.write_all(&buffer[..read]).await.is_err() {
                    break "nobody listens".to_owned();
                }
            }
            Err(error) => break format!("{:?}", error.kind()),
        }
    };
    let _ = tell.send(last);
}
