//! Counts the requests that clients send, by reading along.
//!
//! The server can't say it: what INFO counts includes the commands that scripts call. So in windows of their own the
//! players talk to it through this relay, which counts what goes up and changes nothing; where time is measured, they
//! don't.

use std::{
    io::{Read as _, Write as _},
    net::{self, Ipv4Addr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{TcpListener, TcpStream},
};

/// In front of a server on this machine, until the runtime ends.
pub(crate) struct Relay {
    pub(crate) url: String,
    requests: Arc<AtomicU64>,
}

impl Relay {
    pub(crate) async fn start(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let url = format!("redis://{}", listener.local_addr().expect("it is bound"));
        let requests = Arc::new(AtomicU64::new(0));
        tokio::spawn(serve(listener, port, Arc::clone(&requests)));
        Self { url, requests }
    }

    /// How many requests were sent so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }
}

async fn serve(listener: TcpListener, port: u16, requests: Arc<AtomicU64>) {
    while let Ok((client, _)) = listener.accept().await {
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.expect("the server answers");
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("it is open");
        }
        let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
            (client.into_split(), server.into_split());
        tokio::spawn(async move { copy(&mut from_server, &mut to_client).await });
        let requests = Arc::clone(&requests);
        tokio::spawn(async move {
            let (mut counter, mut buffer) = (Counter::default(), vec![0; 16_384]);
            while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
                requests.fetch_add(counter.count(&buffer[..length]), Relaxed);
                if to_server.write_all(&buffer[..length]).await.is_err() {
                    break;
                }
            }
        });
    }
}

/// The URL of a server on this machine that is so far away: half of the delay on the way there, and half on the way back. It has threads,
/// since tokio's timers count in milliseconds.
pub(crate) fn far_away(port: u16, round_trip: Duration) -> String {
    let listener = net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let url = format!("redis://{}", listener.local_addr().expect("it is bound"));
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // It has ended before the managers that reconnect to it.
            let Ok(server) = net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { continue };
            let streams = [&client, &server].map(|stream| {
                stream.set_nodelay(true).expect("it is open");
                stream.try_clone().expect("it is open")
            });
            let [from_client, from_server] = streams;
            later(from_client, server, round_trip / 2);
            later(from_server, client, round_trip / 2);
        }
    });
    url
}

/// Passes bytes on after a delay, however many are in flight.
fn later(mut from: net::TcpStream, mut to: net::TcpStream, delay: Duration) {
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let mut buffer = vec![0; 16_384];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let _ = sender.send((Instant::now() + delay, buffer[..length].to_vec()));
        }
    });
    thread::spawn(move || {
        for (at, bytes) in receiver {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        // One end that closes its connection closes that of the other.
        let _ = to.shutdown(net::Shutdown::Both);
    });
}

/// Finds where requests begin: `*2\r\n`, then for each argument `$3\r\n`, its bytes and `\r\n`.
#[derive(Default)]
struct Counter {
    /// The line so far, where one is being read.
    line: Vec<u8>,
    /// Bytes of an argument that are still to come.
    skip: usize,
}

impl Counter {
    /// How many requests begin in these bytes.
    fn count(&mut self, mut bytes: &[u8]) -> u64 {
        let mut requests = 0;
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let Some((&byte, rest)) = bytes.split_first() else { break };
            bytes = rest;
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            let text = std::str::from_utf8(&self.line).expect("a length");
            let length = text.trim_end()[1..].parse::<usize>().expect("a length");
            match self.line[0] {
                b'*' => requests += 1,
                b'$' => self.skip = length + 2,
                _ => panic!("no request begins with {text:?}"),
            }
            self.line.clear();
        }
        requests
    }
}
