//! A network that fails on command: a TCP proxy to put between a client and a server.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use crate::Dice;

/// Passes bytes between its clients and one server, or does not, as it was last told.
///
/// An order holds for the connections that are open and for those to come, until the next one. Dropping the proxy ends
/// them all.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    server: Arc<Mutex<String>>,
    orders: watch::Sender<Orders>,
    counts: Arc<Counts>,
    listener: JoinHandle<()>,
}

/// Connections that are open, and that there were; bytes that are lost.
#[derive(Debug, Default)]
struct Counts {
    open: AtomicUsize,
    accepted: AtomicUsize,
    lost: AtomicUsize,
}

impl FaultProxy {
    /// Listens on a free port of the loopback interface and passes everything on to `server`, a `host:port`.
    ///
    /// # Panics
    /// When there is no port to listen on.
    pub async fn start(server: impl Into<String>) -> Self {
        let server = Arc::new(Mutex::new(server.into()));
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("there is a free port");
        let address = listener.local_addr().expect("a listener has an address");
        let (orders, receiver) = watch::channel(Orders::default());
        let counts = Arc::<Counts>::default();
        let (to, all) = (Arc::clone(&server), Arc::clone(&counts));
        let listener = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                all.accepted.fetch_add(1, Ordering::Relaxed);
                all.open.fetch_add(1, Ordering::Relaxed);
                let server = to.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let (orders, counts) = (receiver.clone(), Arc::clone(&all));
                tokio::spawn(async move {
                    let _ = serve(client, &server, orders, &counts.lost).await;
                    counts.open.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        Self { address, server, orders, counts, listener }
    }

    /// `127.0.0.1:PORT`, where clients find the proxy; see `RedisServer::url_at`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Leads new connections to another server; those that are open stay with theirs, as behind a balancer of TCP
    /// connections after a switchover.
    pub fn lead_to(&self, server: impl Into<String>) {
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = server.into();
    }

    /// Passes everything at once. What a [`hole`](Self::hole) has kept back arrives now, as TCP would have it.
    pub fn pass(&self) {
        self.order(Mode::Pass);
    }

    /// Passes everything later, in both directions: by `delay` and up to `jitter` more. The order of bytes is kept.
    pub fn delay(&self, delay: Duration, jitter: Duration) {
        self.order(Mode::Delay(delay, jitter));
    }

    /// Passes nothing and closes nothing, like a cable that was pulled. New connections are accepted, and hear nothing.
    pub fn hole(&self) {
        self.order(Mode::Hole);
    }

    /// Loses what clients send from now on; the server never sees it.
    pub fn drop_requests(&self) {
        self.order(Mode::DropRequests);
    }

    /// Loses what the server answers from now on, though it has done what it was asked for.
    pub fn drop_replies(&self) {
        self.order(Mode::DropReplies);
    }

    /// Closes all open connections in good order (FIN), on both sides. New ones are as before.
    pub fn cut(&self) {
        self.end(false);
    }

    /// Ends all open connections at once (RST), on both sides. New ones are as before.
    pub fn reset(&self) {
        self.end(true);
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        self.counts.open.load(Ordering::Relaxed)
    }

    /// How many connections there have been.
    pub fn accepted(&self) -> usize {
        self.counts.accepted.load(Ordering::Relaxed)
    }

    /// How many bytes have been [lost](Self::drop_requests), in either direction.
    pub fn lost(&self) -> usize {
        self.counts.lost.load(Ordering::Relaxed)
    }

    fn order(&self, mode: Mode) {
        self.orders.send_modify(|orders| orders.mode = mode);
    }

    fn end(&self, is_reset: bool) {
        self.orders.send_modify(|orders| (orders.ends, orders.is_reset) = (orders.ends + 1, is_reset));
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.listener.abort(); // the connections end with the sender of the orders
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Orders {
    mode: Mode,
    /// How often all connections were told to end. Those that began with a lower number do.
    ends: u64,
    /// Whether they were not to do so in good order.
    is_reset: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Mode {
    #[default]
    Pass,
    Delay(Duration, Duration),
    Hole,
    DropRequests,
    DropReplies,
}

async fn serve(
    mut client: TcpStream,
    server: &str,
    mut orders: watch::Receiver<Orders>,
    lost: &AtomicUsize,
) -> io::Result<()> {
    let before = orders.borrow().ends;
    let mut server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let is_reset = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let requests = pump(from_client, to_server, Mode::DropRequests, orders.clone(), lost);
        let replies = pump(from_server, to_client, Mode::DropReplies, orders.clone(), lost);
        // Until all are told to end, or the proxy is gone.
        let ended = async { orders.wait_for(|orders| orders.ends != before).await.is_ok_and(|orders| orders.is_reset) };
        tokio::select! {
            biased;
            is_reset = ended => is_reset,
            // Each side may stop talking before the other; an error of one is the end of both.
            _ = async { tokio::try_join!(requests, replies) } => false,
        }
    };
    if is_reset {
        client.set_zero_linger()?;
        server.set_zero_linger()?;
    }
    Ok(())
}

/// Carries one direction of one connection until its source ends. What comes in the mode `losing` is lost.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    losing: Mode,
    mut orders: watch::Receiver<Orders>,
    lost: &AtomicUsize,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    let mut under_way: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut dice = Dice::seeded(0x5eed);
    let mut mode = orders.borrow_and_update().mode;
    let mut open = true;
    while open || !under_way.is_empty() {
        let due = under_way.front().map(|(due, _)| *due);
        let flows = mode != Mode::Hole;
        tokio::select! {
            biased;
            changed = orders.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                mode = orders.borrow_and_update().mode;
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if flows && due.is_some() => {
                let (_, bytes) = under_way.pop_front().unwrap_or_else(|| unreachable!("it was due"));
                to.write_all(&bytes).await?;
            }
            read = from.read(&mut buffer), if flows && open && under_way.len() < 1_024 => {
                let bytes = &buffer[..read?];
                open = !bytes.is_empty();
                if mode == losing {
                    lost.fetch_add(bytes.len(), Ordering::Relaxed);
                } else if open {
                    let mut due = Instant::now();
                    if let Mode::Delay(delay, jitter) = mode {
                        due += delay + dice.between(Duration::ZERO, jitter);
                    }
                    let last = under_way.back().map_or(due, |(last, _)| *last);
                    under_way.push_back((due.max(last), bytes.to_vec()));
                }
            }
        }
    }
    to.shutdown().await
}
