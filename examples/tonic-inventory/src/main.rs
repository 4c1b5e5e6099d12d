//! A gRPC service and its clients in one program, with the layer on both sides.
//!
//! ```text
//! cargo run -p example-tonic-inventory
//! cargo run -p example-tonic-inventory -- redis://127.0.0.1:6379
//! ```
//!
//! **The server** (`service.rs`) has one layer around all methods, `Server::builder().layer(LockLayer::grpc(..))`: one
//! call per goods at a time. A layer sees the head of a call and not its message, so clients repeat the number of the
//! goods in the metadata, and a method makes sure that both name the same. It finds its
//! [`Lease`](lock_core::Lease) in the extensions of the request, claims the goods with its fencing token as it reads them, and writes only
//! if the claim still stands (`stock.rs`).
//!
//! **The clients** (`client.rs`) have a layer around their channel: one call per buyer at a time, wherever the buyer is
//! logged in, and a second one is not even sent. The two sides lock different keys. With the same one a client would
//! hold what its own call is waiting for at the server.
//!
//! | call | kind | lock |
//! | --- | --- | --- |
//! | `Sell` | unary | while it works; at the client, the buyer's for as long |
//! | `Restock` | client streaming | from before the first message until the last, for a minute at most |
//! | `Watch` | server streaming | none, as its layer says; `until_body_end` would hold one while it streams |
//!
//! The program holds a sale in which more is wanted than there is. Then it lets a lorry be unloaded slowly, and shows
//! what others are told meanwhile:
//!
//! | code | when | what a client should do |
//! | --- | --- | --- |
//! | ABORTED | the key is busy, at once or after a wait; nothing was done | tell its user, or try again after the time in the `RetryInfo` |
//! | DEADLINE_EXCEEDED | the client's `grpc-timeout` was over first; nothing was done | allow more time |
//! | INVALID_ARGUMENT | the call has no key | correct the call |
//! | UNAVAILABLE | the server ends; nothing was done | try again, at another server |
//!
//! At last it tells the server to end while a lorry is being unloaded: that call goes through, a call that waits for the same goods
//! fails at once, and nothing stays locked.
//!
//! Exits with 1 when something was sold twice, or a call got another answer than it should.

mod client;
mod service;
mod stock;

/// What `build.rs` made of `inventory.proto`.
#[allow(missing_docs, unreachable_pub, clippy::missing_errors_doc, reason = "generated")]
mod proto {
    tonic::include_proto!("inventory");
}

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lock_core::LockManager;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};
use tonic_types::StatusExt as _;

use self::client::{Client, about, bought_by, connect};
use self::proto::{Delivery, RestockReply, SellReply, SellRequest, WatchRequest};
use self::stock::Stock;

#[tokio::main]
async fn main() -> Result<()> {
    // In memory unless the argument names a server.
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://".into());
    // Two managers, as server and clients are programs of their own elsewhere; they share no key.
    let at_server = LockManager::connect(&url).await?;
    let at_clients = LockManager::connect(&url).await?;

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = format!("http://{}", listener.local_addr()?);
    println!("serving at {server}");
    let (stop, stopped) = oneshot::channel::<()>();
    let stock = Stock::new([(PENS, IN_STOCK), (INK, 0)]);
    let service = service::serve(listener, stock, at_server.clone(), async move {
        // Elsewhere: Ctrl-C or SIGTERM, which `asked_to_end` of `example-axum-handlers` waits for.
        let _ = stopped.await;
    });
    let service = tokio::spawn(service);

    sale(&server, &at_clients).await?;
    contention(&server, &at_clients).await?;
    end(&server, &at_server, &at_clients, stop).await?;

    service.await??;
    let held = at_server.shutdown(GRACE).await + at_clients.shutdown(GRACE).await;
    println!("ended, {held} leases were still held");
    ensure!(held == 0, "something was not given back");
    Ok(())
}

/// Lets several buyers want more pens than there are, each over a connection of its own.
async fn sale(server: &str, manager: &LockManager) -> Result<()> {
    let mut buyers = JoinSet::new();
    for buyer in 1..=BUYERS {
        let mut client = connect(server, manager).await?;
        buyers.spawn(async move {
            let mut answers = Vec::new();
            for _ in 0..WANTED_EACH {
                answers.push(buy(&mut client, buyer, PENS).await);
            }
            answers
        });
    }
    let (mut sold, mut refused) = (Vec::new(), 0);
    for answer in buyers.join_all().await.into_iter().flatten() {
        match answer {
            Ok(reply) => sold.push(reply),
            Err(status) if status.code() == Code::FailedPrecondition => refused += 1,
            Err(status) => return Err(status).context("a sale should come about, or be sold out"),
        }
    }
    println!("{BUYERS} buyers wanted {WANTED_EACH} pens each of {IN_STOCK}: {} sold, {refused} sold out", sold.len());

    // In the order in which they were sold: each left one less, under a fencing token greater than the one before.
    sold.sort_by_key(|reply| reply.fencing_token);
    let left: Vec<_> = sold.iter().map(|reply| reply.left).collect();
    ensure!(left.iter().copied().eq((0..IN_STOCK).rev()), "oversold: after each sale there were left {left:?}");
    ensure!(sold.is_sorted_by(|a, b| a.fencing_token < b.fencing_token), "two sales under one lease");
    if let [first, .., last] = &sold[..] {
        println!("fencing tokens from {} to {}, in the order of the sales", first.fencing_token, last.fencing_token);
    }
    Ok(())
}

/// Buys one, and comes again when the others were in the way for too long.
async fn buy(client: &mut Client, buyer: u64, goods: u64) -> Result<SellReply, Status> {
    let mut tries = 0;
    loop {
        tries += 1;
        match client.sell(bought_by(buyer, about(goods, SellRequest { goods, quantity: 1 }))).await {
            // A time to retry is there only if nothing was done, so this is safe for what must not be done twice, too.
            Err(status) if status.get_details_retry_info().is_some() && tries < 5 => {}
            answer => return answer.map(Response::into_inner),
        }
    }
}

/// Shows what others are told while a lorry with ink is being unloaded.
async fn contention(server: &str, manager: &LockManager) -> Result<()> {
    let client = connect(server, manager).await?;
    let lorry = Lorry::arrive(&client, INK).await?;
    println!("while a lorry with ink is being unloaded, a call that");

    let one_of = |goods| about(goods, SellRequest { goods, quantity: 1 });
    // The first window of buyer 7 waits for ink while the second one tries.
    let first_window = tokio::spawn(answer(client.clone(), "waits for the lock", bought_by(7, one_of(INK))));
    while !manager.is_locked("buyers:7").await? {
        sleep(Duration::from_millis(5)).await;
    }
    let second_window = bought_by(7, one_of(INK));
    let second_window = answer(client.clone(), "comes from the buyer's second window", second_window).await;
    let pens = answer(client.clone(), "wants pens", one_of(PENS)).await;
    let no_key = Request::new(SellRequest { goods: INK, quantity: 1 });
    let no_key = answer(client.clone(), "has no metadata", no_key).await;
    let wrong_key = about(PENS, SellRequest { goods: INK, quantity: 1 });
    let wrong_key = answer(client.clone(), "wants ink with the metadata of pens", wrong_key).await;
    let mut hurried = one_of(INK);
    hurried.set_timeout(Duration::from_secs(1));
    let hurried = answer(client.clone(), "waits, with a time-out of 1 s", hurried).await;
    let first_window = first_window.await?;

    let reply = lorry.leave().await?;
    println!("unloaded, {} ink left", reply.left);
    ensure!(reply.left == 2 * CRATE, "two crates of {CRATE} should be left of the ink");
    ensure!(first_window == Code::Aborted, "the first window should have waited in vain");
    ensure!(second_window == Code::Aborted, "the second window should have been refused at once");
    ensure!(pens == Code::FailedPrecondition, "the pens should be sold out, and not locked");
    ensure!(no_key == Code::InvalidArgument && wrong_key == Code::InvalidArgument, "a wrong key should be refused");
    // On a busy machine the client's own clock may be quicker than the server's answer; then tonic says so.
    ensure!([Code::DeadlineExceeded, Code::Cancelled].contains(&hurried), "the time-out should have ended the wait");
    Ok(())
}

/// Tells the server to end while a lorry with pens is being unloaded, somebody watches, and somebody waits for the pens.
async fn end(server: &str, at_server: &LockManager, at_clients: &LockManager, stop: oneshot::Sender<()>) -> Result<()> {
    let mut client = connect(server, at_clients).await?;
    let lorry = Lorry::arrive(&client, PENS).await?;
    let mut watching = client.watch(WatchRequest { goods: PENS }).await?.into_inner();
    let pens = about(PENS, SellRequest { goods: PENS, quantity: 1 });
    println!("when the server is told to end, a call that");
    let waiting = tokio::spawn(answer(client, "waits for the lock", pens));
    while at_server.inspect("goods:1").await?.waiters().is_empty() {
        sleep(Duration::from_millis(5)).await;
    }
    ensure!(stop.send(()).is_ok(), "the server has ended of itself");
    let waiting = waiting.await?;
    while watching.message().await?.is_some() {}
    println!("the server takes no more calls, and ends those that watch or wait");
    ensure!(waiting == Code::Unavailable, "a call that waits should fail when the server ends");
    let reply = lorry.leave().await?;
    println!("the lorry was unloaded to the end, {} pens left", reply.left);
    ensure!(reply.left == 2 * CRATE, "two crates of {CRATE} should be left of the pens");
    Ok(())
}

/// A call of `Restock` that is in flight.
#[derive(Debug)]
struct Lorry {
    goods: u64,
    crates: mpsc::Sender<Delivery>,
    unloading: JoinHandle<Result<RestockReply, Status>>,
}

impl Lorry {
    /// Unloads a first crate, and returns when it is in stock: then the goods are locked.
    async fn arrive(client: &Client, goods: u64) -> Result<Self> {
        let mut client = client.clone();
        let mut stock = client.watch(WatchRequest { goods }).await?.into_inner();
        let before = stock.message().await?;
        let (crates, stream) = mpsc::channel(1);
        let call = about(goods, ReceiverStream::new(stream));
        let unloading = tokio::spawn(async move { client.restock(call).await.map(Response::into_inner) });
        crates.send(Delivery { goods, quantity: CRATE }).await?;
        ensure!(stock.message().await? != before, "the first crate should be in stock");
        Ok(Self { goods, crates, unloading })
    }

    /// Unloads a second crate, and drives away.
    async fn leave(self) -> Result<RestockReply> {
        let Self { goods, crates, unloading } = self;
        crates.send(Delivery { goods, quantity: CRATE }).await?;
        drop(crates);
        Ok(unloading.await??)
    }
}

/// Makes a call, and shows what becomes of it.
async fn answer(mut client: Client, what: &str, call: Request<SellRequest>) -> Code {
    let begun = Instant::now();
    let status = client.sell(call).await.err().unwrap_or_else(|| Status::ok("sold"));
    let (code, seconds) = (status.code(), begun.elapsed().as_secs_f64());
    println!("  {what:<38} {:<18} after {seconds:.2} s: {}", format!("{code:?}"), status.message());
    code
}

/// Kinds of goods.
const PENS: u64 = 1;
const INK: u64 = 2;

const IN_STOCK: u32 = 20;
const BUYERS: u64 = 6;
const WANTED_EACH: usize = 5;
const CRATE: u32 = 10;

/// For how long leases may outlive the service.
const GRACE: Duration = Duration::from_secs(5);
