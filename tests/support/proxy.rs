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
    open: Arc<AtomicUsize>,
    accepted: Arc<AtomicUsize>,
    lost: Arc<AtomicUsize>,
    listener: JoinHandle<()>,
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
        let open = Arc::new(AtomicUsize::new(0));
        let accepted = Arc::new(AtomicUsize::new(0));
        let lost = Arc::new(AtomicUsize::new(0));
        let accept = {
            let (open, accepted, lost) = (Arc::clone(&open), Arc::clone(&accepted), Arc::clone(&lost));
            let server = Arc::clone(&server);
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    accepted.fetch_add(1, Ordering::Relaxed);
                    let connection = Open::one_more(&open);
                    let server = server.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    let (orders, lost) = (receiver.clone(), Arc::clone(&lost));
                    tokio::spawn(async move {
                        let _ = serve(client, &server, orders, &lost).await;
                        drop(connection);
                    });
                }
            }
        };
        Self { address, server, orders, open, accepted, lost, listener: tokio::spawn(accept) }
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
        self.order(Mode::Delay { delay, jitter });
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
        self.end(End::Close);
    }

    /// Ends all open connections at once (RST), on both sides. New ones are as before.
    pub fn reset(&self) {
        self.end(End::Reset);
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// How many connections there have been.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// How many bytes have been [lost](Self::drop_requests), in either direction.
    pub fn lost(&self) -> usize {
        self.lost.load(Ordering::Relaxed)
    }

    fn order(&self, mode: Mode) {
        self.orders.send_modify(|orders| orders.mode = mode);
    }

    fn end(&self, end: End) {
        self.orders.send_modify(|orders| {
            orders.ends += 1;
            orders.end = end;
        });
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
    end: End,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Mode {
    #[default]
    Pass,
    Delay {
        delay: Duration,
        jitter: Duration,
    },
    Hole,
    DropRequests,
    DropReplies,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum End {
    #[default]
    Close,
    Reset,
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Requests,
    Replies,
}

/// Counts one connection as open until it is dropped.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn one_more(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn serve(
    mut client: TcpStream,
    server: &str,
    orders: watch::Receiver<Orders>,
    lost: &AtomicUsize,
) -> io::Result<()> {
    let before = orders.borrow().ends;
    let mut server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let end = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let requests = pump(from_client, to_server, Direction::Requests, orders.clone(), lost);
        let replies = pump(from_server, to_client, Direction::Replies, orders.clone(), lost);
        tokio::select! {
            biased;
            end = ended(orders, before) => end,
            // Each side may stop talking before the other; an error of one is the end of both.
            _ = async { tokio::try_join!(requests, replies) } => End::Close,
        }
    };
    if end == End::Reset {
        client.set_zero_linger()?;
        server.set_zero_linger()?;
    }
    Ok(())
}

/// Waits until the connections that began before `before + 1` are told to end, or the proxy is gone.
async fn ended(mut orders: watch::Receiver<Orders>, before: u64) -> End {
    match orders.wait_for(|orders| orders.ends != before).await {
        Ok(orders) => orders.end,
        Err(_) => End::Close,
    }
}

/// Carries one direction of one connection until its source ends.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    direction: Direction,
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
                let mut bytes = &buffer[..read?];
                open = !bytes.is_empty();
                match (mode, direction) {
                    (Mode::DropRequests, Direction::Requests) | (Mode::DropReplies, Direction::Replies) => {
                        lost.fetch_add(bytes.len(), Ordering::Relaxed);
                        bytes = &[];
                    }
                    _ => {}
                }
                if !bytes.is_empty() {
                    let last = under_way.back().map(|(due, _)| *due);
                    let due = Instant::now() + delay_in(mode, &mut dice);
                    under_way.push_back((last.map_or(due, |last| due.max(last)), bytes.to_vec()));
                }
            }
        }
    }
    to.shutdown().await
}

/// How much later than at once something is passed on.
fn delay_in(mode: Mode, dice: &mut Dice) -> Duration {
    match mode {
        Mode::Delay { delay, jitter } => delay + dice.between(Duration::ZERO, jitter),
        _ => Duration::ZERO,
    }
}
